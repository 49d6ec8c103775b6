package image

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestCheckSubIDs(t *testing.T) {
	const good = "me:100000:65536\n"
	for name, tt := range map[string]struct {
		subuid, subgid string
		lack, fresh    string // "" if nothing lacks
	}{
		"both":           {good, good, "", ""},
		"among others":   {"# x\nyou:1:2\n" + good, good, "", ""},
		"nobody":         {"", "", "has 0 subordinate ids in subuid", "100000-165535"},
		"one file only":  {good, "", "has 0 subordinate ids in subgid", "165536-231071"},
		"others' ranges": {"you:100000:65536\nthey:300000:65536\n", good, "has 0 subordinate ids in subuid", "365536-431071"},
		"short":          {"me:100000:1000\n" + good, good, "has 1000 subordinate ids in subuid", "165536-231071"},
		"by number":      {"1000:100000:65536\n", good, "has 0 subordinate ids in subuid", "165536-231071"}, // mmdebstrap does not look for it
		"damaged":        {"me:x:65536\nme\n::\n", good, "has 0 subordinate ids in subuid", "165536-231071"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			for file, content := range map[string]string{"subuid": tt.subuid, "subgid": tt.subgid} {
				if content == "" {
					continue // no file
				}
				if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err := checkSubIDs("me", "subuid", "subgid")
			if tt.lack == "" {
				if err != nil {
					t.Errorf("got %v, want nil", err)
				}
				return
			}
			lack, ok := errors.AsType[*BuildLack](err)
			if ok && strings.Contains(lack.Fix, "sed") != strings.Contains(tt.subuid+tt.subgid, "me:100000") {
				t.Errorf("fix %q", lack.Fix)
			}
			if !ok || !strings.Contains(lack.What, tt.lack) || !strings.Contains(lack.Fix, "--add-subgids "+tt.fresh+" me") {
				t.Errorf("got %v, want %q and range %s", err, tt.lack, tt.fresh)
			}
		})
	}
}
