package main

import (
	"cmp"
	"math"
	"slices"
)

// Summary describes samples. Percentiles are nearest rank: each is a value that
// was measured, none is interpolated.
type Summary struct {
	N       int     `json:"n"`      // samples
	Failed  int     `json:"failed"` // attempts that gave no sample
	Success float64 `json:"success"`
	Min     float64 `json:"min"`
	P50     float64 `json:"p50"`
	P95     float64 `json:"p95"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

// summarize returns the summary of samples in any order, with the number of
// attempts that failed. Without samples all but the counts is 0.
func summarize(samples []float64, failed int) Summary {
	s := Summary{N: len(samples), Failed: failed}
	if s.N+failed > 0 {
		s.Success = float64(s.N) / float64(s.N+failed)
	}
	if s.N == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(samples))
	s.Min, s.Max = sorted[0], sorted[s.N-1]
	s.P50, s.P95, s.P99 = percentile(sorted, 50), percentile(sorted, 95), percentile(sorted, 99)
	return s
}

// percentile returns the nearest-rank percentile p, 0 < p <= 100, of sorted
// samples: the least of them that at least p percent do not exceed. Of none it
// is 0.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	// A hair less than the exact rank, which floating point may overshoot.
	rank := int(math.Ceil(p/100*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// trim drops share of the samples at either end, rounded down, in sorted order:
// with 0.05, five of a hundred below and five above.
func trim(samples []float64, share float64) []float64 {
	sorted := slices.Sorted(slices.Values(samples))
	drop := int(share*float64(len(sorted)) + 1e-9)
	return sorted[drop : len(sorted)-drop]
}

// Weights and scale of the score of time to interactive.
const (
	scoreScaleMs                    = 10_000
	weightP50, weightP95, weightP99 = .60, .25, .15
	trimShare                       = 0.05
)

// score is 100 for an answer in no time and 0 for one of 10 s or more, the
// percentiles weighted, times the share of attempts that succeeded.
func score(s Summary) float64 {
	value := func(ms float64) float64 { return 100 * max(0, 1-ms/scoreScaleMs) }
	return s.Success * (weightP50*value(s.P50) + weightP95*value(s.P95) + weightP99*value(s.P99))
}

// Promise is what docs/SPECIFICATION.md says of a figure.
type Promise struct {
	Text    string  `json:"text"`
	Of      string  `json:"of"` // p50 or max
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least,omitempty"` // else at most
}

// kept reports whether a summary keeps the promise. One attempt that failed
// breaks it, and so does having measured nothing.
func (p Promise) kept(s Summary) bool {
	if s.N == 0 || s.Failed > 0 {
		return false
	}
	got := s.P50
	if p.Of == "max" {
		got = s.Max
	}
	if p.AtLeast {
		return cmp.Compare(got, p.Limit) >= 0
	}
	return cmp.Compare(got, p.Limit) <= 0
}

// medians returns the median of each key over maps that need not all have it.
func medians(all []map[string]float64) map[string]float64 {
	values := map[string][]float64{}
	for _, m := range all {
		for k, v := range m {
			values[k] = append(values[k], v)
		}
	}
	out := make(map[string]float64, len(values))
	for k, v := range values {
		slices.Sort(v)
		out[k] = percentile(v, 50)
	}
	return out
}
