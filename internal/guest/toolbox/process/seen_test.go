package process

import (
	"testing"
	"testing/synctest"
	"time"

	"skerry.dev/skerry"
)

// TestUntilSeen: the output of a run is dropped a while after its end, unless its
// client lost the link.
func TestUntilSeen(t *testing.T) {
	for _, tt := range []struct {
		name       string
		keepBefore bool // the link is lost before the end
		keepAfter  bool // right after it
		want       int  // frames kept for good
	}{
		{"seen", false, false, 0},
		{"link lost while it ran", true, false, 1},
		{"link lost at its end", false, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &Process{log: newLog(&budget{}, true), untilSeen: true}
				p.info.KeepLogs = KeepNone
				p.log.Append(skerry.RunStdout, []byte("text"))
				if tt.keepBefore {
					p.Keep()
				}
				p.finish(time.Now(), skerry.ProcessResult{})
				p.dropLater()
				if tt.keepAfter {
					p.Keep()
				}
				time.Sleep(2 * seenTTL)
				page, _ := p.log.Read(0, 10)
				if got := len(page.Frames); got != tt.want {
					t.Errorf("%d frames are kept, want %d", got, tt.want)
				}
				if kept := p.Info().KeepLogs == KeepUntilCleanup; kept != (tt.want > 0) {
					t.Errorf("keepLogs says %q", p.Info().KeepLogs)
				}
			})
		})
	}
}
