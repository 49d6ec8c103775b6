package main

import (
	"fmt"
	"maps"
	"time"
)

// series collects the samples of one figure.
type series struct {
	set, name string
	unit      string // "ms" unless told otherwise
	samples   []float64
	failed    int
	promise   *Promise
	note      string
	trim      float64 // share dropped at either end before percentiles are taken
	score     bool
	steps     []map[string]float64 // ms by step, of each sample

	report func(err error)
}

func (b *bench) newSeries(set, format string, args ...any) *series {
	s := &series{set: set, name: fmt.Sprintf(format, args...), unit: "ms"}
	s.report = func(err error) { b.progress("%s: %v", s.name, err) }
	return s
}

func (s *series) add(d time.Duration) { s.addValue(ms(d)) }

func (s *series) addValue(v float64) { s.samples = append(s.samples, v) }

// fail counts an attempt that gave no sample, and says so.
func (s *series) fail(err error) {
	s.failed++
	s.report(err)
}

func (s *series) addSteps(of ...map[string]float64) {
	all := map[string]float64{}
	for _, m := range of {
		maps.Copy(all, m)
	}
	s.steps = append(s.steps, all)
}

func (s *series) summary() Summary { return summarize(trim(s.samples, s.trim), s.failed) }

// Figure is one line of the result.
type Figure struct {
	Set     string             `json:"set"`
	Name    string             `json:"name"`
	Unit    string             `json:"unit"`
	Summary                    // after trimming
	Trim    float64            `json:"trimmed_each_end,omitempty"`
	Score   *float64           `json:"score,omitempty"`
	Promise *Promise           `json:"promise,omitempty"`
	Kept    *bool              `json:"kept,omitempty"`
	Note    string             `json:"note,omitempty"`
	Steps   map[string]float64 `json:"steps_p50_ms,omitempty"`
	LoadAvg float64            `json:"loadavg"` // 1 minute, at the end of it, our own work included
	Samples []float64          `json:"samples"`
}

func (s *series) figure() Figure {
	f := Figure{Set: s.set, Name: s.name, Unit: s.unit, Summary: s.summary(), Trim: s.trim,
		Promise: s.promise, Note: s.note, Samples: s.samples, Steps: medians(s.steps)}
	if s.score {
		v := score(f.Summary)
		f.Score = &v
	}
	if s.promise != nil {
		kept := s.promise.kept(f.Summary)
		f.Kept = &kept
	}
	return f
}

// finish takes series into the result.
func (b *bench) finish(all ...*series) {
	for _, s := range all {
		f := s.figure()
		f.LoadAvg, _ = loadAverage() // was readable at the start
		b.result.Figures = append(b.result.Figures, f)
		b.countFailures(s)
		b.progress("%s: P50 %s %s, n %d, failed %d", f.Name, number(f.P50), f.Unit, f.N, f.Failed)
	}
}

// countFailures makes the run one that failed if something did.
func (b *bench) countFailures(s *series) { b.failures += s.failed }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
