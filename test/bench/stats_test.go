package main

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// upTo returns 1 to n, the largest first.
func upTo(n int) []float64 {
	var out []float64
	for i := n; i > 0; i-- {
		out = append(out, float64(i))
	}
	return out
}

func TestSummarize(t *testing.T) {
	tests := map[string]struct {
		samples []float64
		failed  int
		want    Summary
	}{
		"nothing":         {nil, 0, Summary{}},
		"all failed":      {nil, 3, Summary{Failed: 3}},
		"one":             {[]float64{7}, 0, Summary{N: 1, Success: 1, Min: 7, P50: 7, P95: 7, P99: 7, Max: 7}},
		"an even number":  {upTo(4), 0, Summary{N: 4, Success: 1, Min: 1, P50: 2, P95: 4, P99: 4, Max: 4}},
		"twenty":          {upTo(20), 0, Summary{N: 20, Success: 1, Min: 1, P50: 10, P95: 19, P99: 20, Max: 20}},
		"a hundred":       {upTo(100), 0, Summary{N: 100, Success: 1, Min: 1, P50: 50, P95: 95, P99: 99, Max: 100}},
		"a thousand":      {upTo(1000), 0, Summary{N: 1000, Success: 1, Min: 1, P50: 500, P95: 950, P99: 990, Max: 1000}},
		"a quarter fails": {upTo(3), 1, Summary{N: 3, Failed: 1, Success: .75, Min: 1, P50: 2, P95: 3, P99: 3, Max: 3}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, summarize(tt.samples, tt.failed)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestSummarizeKeepsTheOrderOfSamples(t *testing.T) {
	samples := []float64{3, 1, 2}
	summarize(samples, 0)
	trim(samples, .4)
	if want := []float64{3, 1, 2}; !slices.Equal(samples, want) {
		t.Errorf("got %v, want %v", samples, want)
	}
}

func TestTrim(t *testing.T) {
	tests := []struct {
		n         int
		low, high float64
		left      int
	}{
		{1, 1, 1, 1}, {10, 1, 10, 10}, {19, 1, 19, 19}, {20, 2, 19, 18}, {40, 3, 38, 36}, {100, 6, 95, 90},
	}
	for _, tt := range tests {
		got := trim(upTo(tt.n), trimShare)
		if len(got) != tt.left || got[0] != tt.low || got[len(got)-1] != tt.high {
			t.Errorf("of %d: got %d from %v to %v, want %d from %v to %v", tt.n, len(got), got[0], got[len(got)-1], tt.left, tt.low, tt.high)
		}
	}
	if got := trim(nil, trimShare); len(got) != 0 {
		t.Errorf("of none: got %v", got)
	}
}

func TestScore(t *testing.T) {
	tests := map[string]struct {
		s    Summary
		want float64
	}{
		"no time":          {Summary{Success: 1}, 100},
		"a second each":    {Summary{Success: 1, P50: 1000, P95: 1000, P99: 1000}, 90},
		"weights":          {Summary{Success: 1, P50: 1000, P95: 2000, P99: 4000}, 100 - 6 - 5 - 6},
		"too slow":         {Summary{Success: 1, P50: 20_000, P95: 20_000, P99: 20_000}, 0},
		"a slow tail only": {Summary{Success: 1, P50: 0, P95: 0, P99: 90_000}, 85},
		"half fails":       {Summary{Success: .5, P50: 1000, P95: 1000, P99: 1000}, 45},
		"all fails":        {Summary{}, 0},
	}
	for name, tt := range tests {
		if got := score(tt.s); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

func TestPromiseKept(t *testing.T) {
	at := func(p50, max float64, failed int) Summary { return Summary{N: 10, Failed: failed, P50: p50, Max: max} }
	p50, worst, ratio := Promise{Of: "p50", Limit: 180}, Promise{Of: "max", Limit: 4000}, Promise{Of: "p50", Limit: 15, AtLeast: true}
	tests := map[string]struct {
		p    Promise
		s    Summary
		want bool
	}{
		"below":              {p50, at(179, 900, 0), true},
		"exactly":            {p50, at(180, 900, 0), true},
		"above":              {p50, at(180.1, 181, 0), false},
		"one failed":         {p50, at(1, 1, 1), false},
		"nothing measured":   {p50, Summary{}, false},
		"the worst counts":   {worst, at(100, 4001, 0), false},
		"the worst is right": {worst, at(100, 4000, 0), true},
		"ratio reached":      {ratio, at(15, 15, 0), true},
		"ratio not reached":  {ratio, at(14.9, 30, 0), false},
	}
	for name, tt := range tests {
		if got := tt.p.kept(tt.s); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

func TestMedians(t *testing.T) {
	got := medians([]map[string]float64{{"a": 1, "b": 10}, {"a": 3}, {"a": 2, "b": 20}})
	if diff := cmp.Diff(map[string]float64{"a": 2, "b": 10}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
