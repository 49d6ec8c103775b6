package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

func TestPSSByKind(t *testing.T) {
	smaps := `7f0000000000-7f0010000000 rw-p 00000000 00:01 1025                       /memfd:ram (deleted)
Size:             262144 kB
Pss:                2048 kB
Pss_Dirty:          1024 kB
7f0010000000-7f0050000000 rwxp 00000000 00:00 0
Pss:                4096 kB
7f0050000000-7f0050100000 r-xp 00000000 fe:00 77                         /usr/bin/qemu-system-x86_64
Pss:                1024 kB
7f0050100000-7f0050200000 r--p 00000000 fe:00 78                         /lib/libc.so.6
Pss:                 512 kB
55d000000000-55d000100000 rw-p 00000000 00:00 0                          [heap]
Pss:                 256 kB
VmFlags: rd wr mr mw me ac
7fff00000000-7fff00100000 rw-p 00000000 00:00 0
Pss:                 256 kB
`
	got, err := pssByKind(smaps)
	want := map[string]float64{"guest RAM": 2, "translated code": 4, "program files": 1.5, "heap and stacks": .5}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	if got := total(got); got != 8 {
		t.Errorf("got %v MiB in all, want 8", got)
	}
	for _, bad := range []string{"", "7f00-7f01 rw-p 0 00:00 0\nPss: much kB\n"} {
		if got, err := pssByKind(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

func TestKiBField(t *testing.T) {
	const text = "MemTotal:       24683520 kB\nMemAvailable:   2048 kB\nHugePages_Total:       0\n"
	if got, err := kibField(text, "MemAvailable:"); err != nil || got != 2 {
		t.Errorf("got %v, %v, want 2", got, err)
	}
	for _, name := range []string{"MemFree:", "HugePages_Total:"} {
		if got, err := kibField(text, name); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
}

func TestParseTicks(t *testing.T) {
	got, err := parseTicks("cpu  100 1 50 800 20 2 3 24 99 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
	if want := (cpuTicks{total: 1000, idle: 820, steal: 24}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8 9 10", "cpu 1 2 3 4", "cpu 1 2 3 4 5 6 7 x 9 10"} {
		if got, err := parseTicks(bad); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, got)
		}
	}
}

func TestLogIsUnderstood(t *testing.T) {
	l, err := readLog(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	l.run(strings.NewReader(`{"msg":"listening","url":"http://127.0.0.1:1"}
not JSON
{"msg":"sandbox running","sandbox_id":"sbx_a","pool":true,"steps":{"agent":1500},"dur_ms":20}
{"msg":"template made","dur_ms":1234}
{"msg":"cut o`))
	if got := <-l.listening; got != "http://127.0.0.1:1" {
		t.Errorf("got the URL %q", got)
	}
	steps, pooled := l.of(skerry.SandboxID("sbx_a"))
	if diff := cmp.Diff(map[string]float64{"runner total": 20, "runner: agent": 1.5}, steps); diff != "" || !pooled {
		t.Errorf("from pool %v, -want +got:\n%s", pooled, diff)
	}
	if diff := cmp.Diff([]float64{1234}, l.templatesMade()); diff != "" {
		t.Errorf("templates, -want +got:\n%s", diff)
	}
}

func TestIdentities(t *testing.T) {
	ids := identities{}
	ids.add("boot_id=a\nmachine_id=x\ninit=/init --flag=1\n")
	ids.add("boot_id=b\nmachine_id=x\nnoise\n")
	got := []int{ids.distinct("boot_id"), ids.distinct("machine_id"), ids.distinct("hostname")}
	if diff := cmp.Diff([]int{2, 1, 0}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 1.234: "1.23", 9.994: "9.99", 12.34: "12.3", 123.4: "123", 12345.6: "12346", -12.34: "-12.3"} {
		if got := number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}

func TestTableSaysWhichPromisesAreKept(t *testing.T) {
	figure := func(name string, promise *Promise, samples ...float64) Figure {
		return (&series{name: name, unit: "ms", samples: samples, promise: promise}).figure()
	}
	r := Result{Figures: []Figure{
		figure("quick", atMost("p50", 100, "ms"), 99, 100, 500),
		figure("slow", atMost("p50", 100, "ms"), 99, 101, 102),
		figure("only reported", nil, 7),
	}}
	var out bytes.Buffer
	r.write(&out)
	for line, end := range map[string]string{"quick": "P50 <= 100 ms ok", "slow": "P50 <= 100 ms missed", "only reported": "-"} {
		found := false
		for l := range strings.Lines(out.String()) {
			if strings.HasPrefix(l, line) {
				found = strings.HasSuffix(strings.Join(strings.Fields(l), " "), end)
			}
		}
		if !found {
			t.Errorf("no line %q that ends with %q in:\n%s", line, end, &out)
		}
	}
}

func TestHelper(t *testing.T) {
	var out bytes.Buffer
	if err := runHelper([]string{"spawn", "/bin/true", "2"}, &out); err != nil || strings.Count(out.String(), ",") != 1 {
		t.Errorf("got %q, %v, want two numbers", &out, err)
	}
	for _, bad := range [][]string{nil, {"unknown"}, {"spawn"}, {"spawn", "/bin/true", "x"}, {"spawn", "/bin/false", "1"}, {"spawn", "/nowhere", "1"}} {
		if err := runHelper(bad, &out); err == nil {
			t.Errorf("%v: got no error", bad)
		}
	}
}
