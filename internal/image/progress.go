package image

import (
	"sync"
	"time"

	"skerry.dev/skerry"
)

// Phases of progress reports, in their order.
const (
	phaseResolving   = "resolving"
	phaseBuilding    = "building"
	phaseDownloading = "downloading"
	phaseConverting  = "converting"
	phaseUploading   = "uploading"
)

// reportEvery bounds how often a progress function is called within a phase.
const reportEvery = 100 * time.Millisecond

// tracker counts progress and reports it: each change of phase, and bytes not
// too often. The progress function is never called by two goroutines at once.
type tracker struct {
	report func(skerry.PullProgress) // or nil

	mu        sync.Mutex
	now       skerry.PullProgress // guarded by mu
	converted int64               // bytes of layers converted so far; guarded by mu
	last      time.Time           // guarded by mu
}

func newTracker(report func(skerry.PullProgress)) *tracker { return &tracker{report: report} }

// enter begins a phase. Conversion begins with what was converted while other
// layers were still on their way.
func (t *tracker) enter(phase string, total int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = skerry.PullProgress{Phase: phase, TotalBytes: total}
	if phase == phaseConverting {
		t.now.DoneBytes = t.converted
	}
	t.sendLocked()
}

// transferred adds n bytes, or takes them back if they have to come again.
func (t *tracker) transferred(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now.DoneBytes += n
	if time.Since(t.last) >= reportEvery || t.now.DoneBytes == t.now.TotalBytes {
		t.sendLocked()
	}
}

// layerConverted counts a layer of n compressed bytes as converted.
func (t *tracker) layerConverted(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.converted += n
	if t.now.Phase == phaseConverting {
		t.now.DoneBytes = t.converted
		t.sendLocked()
	}
}

func (t *tracker) sendLocked() {
	t.last = time.Now()
	if t.report != nil {
		t.report(t.now)
	}
}
