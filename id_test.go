package skerry_test

import (
	"strings"
	"testing"

	"skerry.dev/skerry"
)

func TestIDs(t *testing.T) {
	ids := map[string]string{
		"sbx_": string(skerry.NewSandboxID()), "img_": string(skerry.NewImageID()), "mch_": string(skerry.NewMachineID()),
		"run_": string(skerry.NewRunnerID()), "prc_": string(skerry.NewProcessID()), "key_": string(skerry.NewKeyID()),
	}
	for prefix, id := range ids {
		if !strings.HasPrefix(id, prefix) || len(id) != len(prefix)+20 {
			t.Errorf("id %q, want %s and 20 characters", id, prefix)
		}
	}
	if first, second := skerry.NewSandboxID(), skerry.NewSandboxID(); first == second {
		t.Error("two ids are equal")
	}
	if !skerry.SandboxID(ids["sbx_"]).Valid() || !skerry.ImageID(ids["img_"]).Valid() || !skerry.MachineID(ids["mch_"]).Valid() {
		t.Error("a fresh id is not valid")
	}
	for _, id := range []string{"", "sbx_", "sbx_short", ids["img_"], "sbx_" + strings.Repeat("A", 20), "sbx_" + strings.Repeat("a", 21), "sbx_../../etc/passwdaaa", "sbx_" + strings.Repeat("1", 20)} {
		if skerry.SandboxID(id).Valid() {
			t.Errorf("%q counts as a sandbox id", id)
		}
	}
}
