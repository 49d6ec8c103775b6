package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
	"skerry.dev/skerry/test/testserver"
)

// TestForks is cases 32 and 33: copies have the source's memory and disk, and
// nothing in common with it or each other after that.
func TestForks(t *testing.T) {
	source := keep(t, client.CreateSandbox{Env: map[string]string{"TOKEN": "of the source"}, Labels: map[string]string{"team": "sea"}})
	c := source.startCounter(t, "50ms")
	source.shell(t, "echo common >/root/common")
	children := source.fork(t, skerry.ForkRequest{Names: []string{"twig-a", "twig-b", "twig-c"}, Labels: map[string]string{"kind": "twig"}})
	all := append([]sandbox{source}, children...)

	var ids []identity
	for _, s := range all { // the first that happens in a copy
		asked := time.Now()
		id := decode[identity](t, s.mustRoot(t, "probe", "identity"))
		wantTime(t, id, asked, time.Now())
		ids = append(ids, id)
	}
	wantDistinct(t, ids)
	eventually(t, 30*time.Second, func() string {
		var addresses []string
		for _, s := range all {
			addresses = append(addresses, s.mac(t))
		}
		slices.Sort(addresses)
		if n := len(slices.Compact(addresses)); n != len(all) {
			return fmt.Sprintf("the %d sandboxes have %d MAC addresses", len(all), n)
		}
		return ""
	})
	for i, s := range children {
		if s.Name != fmt.Sprintf("twig-%c", 'a'+i) || s.ForkedFrom != source.ID || s.Resources != source.Resources || !s.Persistent {
			t.Errorf("copy %+v of %+v", s.Sandbox, source.Sandbox)
		}
		if len(s.Env) != 0 || s.Labels["team"] != "" || s.Labels["kind"] != "twig" {
			t.Errorf("copy has env %v and labels %v", s.Env, s.Labels)
		}
		if got := s.shell(t, `echo "$TOKEN"; hostname`); got != "\n"+s.Name+"\n" {
			t.Errorf("a new process of the copy has %q", got)
		}
	}
	for i, s := range all {
		copied := *c
		copied.check(t, s)
		s.shell(t, fmt.Sprintf("echo %d >/root/own; echo %d >>/root/common", i, i))
	}
	intact := func(i int, s sandbox) {
		t.Helper()
		if got := s.shell(t, "cat /root/own /root/common"); got != fmt.Sprintf("%[1]d\ncommon\n%[1]d\n", i) {
			t.Errorf("files of sandbox %d: %q", i, got)
		}
		copied := *c
		copied.check(t, s)
	}
	for i, s := range all {
		intact(i, s)
	}
	remove(t, source.ID)
	remove(t, children[0].ID)
	for i, s := range children[1:] {
		intact(i+2, s)
	}
	// A copy is as good as its source: it can be stopped, and copied.
	children[1].operate(t, skerry.Stop)
	grandchild := children[1].fork(t, skerry.ForkRequest{})[0]
	if got := grandchild.shell(t, "cat /root/own; ls /dev/shm"); got != "2\n" {
		t.Errorf("the copy of a stopped copy has %q", got)
	}
	wantEmptyDir(t, server, "forks")
}

// TestForkWithEnvironment asks for the source's environment, of a paused source,
// by the command line.
func TestForkWithEnvironment(t *testing.T) {
	source := keep(t, client.CreateSandbox{Name: "branch", Env: map[string]string{"TOKEN": "of the source"}})
	c := source.startCounter(t, "50ms")
	source.operate(t, skerry.Pause)
	if r := cli(t, "sandbox", "fork", "branch", "--name", "leaf", "--name", "branch"); r.code != 4 || !strings.Contains(r.stderr, `"branch"`) {
		t.Errorf("a name that is in use: %+v", r)
	}
	if r := cli(t, "sandbox", "get", "leaf"); r.code != 3 {
		t.Errorf("a refused fork has made a copy: %+v", r)
	}
	for _, args := range [][]string{{"--count", "2", "--name", "one"}, {"--count", "65"}, {"--count", "0"}, {"--name", "a", "--name", "a"}, {"--name", "-"}} {
		if r := cli(t, append([]string{"sandbox", "fork", "branch"}, args...)...); r.code != 2 || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("fork %q: %+v", args, r)
		}
	}
	leaf := existing(t, decode[skerry.Sandbox](t, mustCLI(t, "sandbox", "fork", "branch", "--name", "leaf", "--inherit-env")))
	if got := leaf.shell(t, `echo "$TOKEN"`); got != "of the source\n" {
		t.Errorf("TOKEN is %q", got)
	}
	copied := *c
	copied.check(t, leaf)
	if sb, err := server.Client.Sandbox(t.Context(), "branch"); err != nil || sb.Status != skerry.StatusPaused {
		t.Errorf("the source is %s, %v", sb.Status, err)
	}
	source.operate(t, skerry.Resume)
	c.check(t, source)
}

// TestForkWithoutRoom is the failure of case 33: the copy that does not fit fails
// with the reason, the others and the source run, and nothing is left.
func TestForkWithoutRoom(t *testing.T) {
	t.Parallel()
	// Room for three of half a GiB.
	other := startOther(t, testserver.Options{Args: []string{"--pool", "0", "--zygotes", "0", "--memory-mib", "1600"}})
	source, err := other.Client.CreateSandbox(t.Context(), client.CreateSandbox{Image: testimage.Shell, Resources: small(), Persistent: true})
	if err != nil {
		t.Fatal(err)
	}
	runningToolbox(t, other, source.ID)
	children, err := other.Client.ForkSandbox(t.Context(), string(source.ID), skerry.ForkRequest{Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, child := range children {
		sb, err := other.Client.WaitSandbox(t.Context(), string(child.ID), patience, skerry.StatusRunning, skerry.StatusFailed)
		switch {
		case err != nil:
			t.Errorf("%v (%s)", err, sb.Reason)
		case sb.Status == skerry.StatusFailed:
			failed++
			if !strings.Contains(sb.Reason, "room") && !strings.Contains(sb.Reason, "memory") {
				t.Errorf("the reason is %q", sb.Reason)
			}
		default:
			execute(t, other.Client.Toolbox(sb.ID), "true")
		}
	}
	if failed != 1 {
		t.Errorf("%d of %d copies failed, want 1", failed, len(children))
	}
	execute(t, runningToolbox(t, other, source.ID), "true")
	wantEmptyDir(t, other, "forks")
	machines, err := filepath.Glob(filepath.Join(other.Data(), "machines", "*"))
	if err != nil || len(machines) != 3 {
		t.Errorf("machines %q, %v; want 3", machines, err)
	}
}

// wantEmptyDir fails unless a part of a server's data comes to be empty.
func wantEmptyDir(t *testing.T, s *testserver.Server, part string) {
	t.Helper()
	eventually(t, 20*time.Second, func() string {
		entries, err := os.ReadDir(filepath.Join(s.Data(), part))
		if err != nil || len(entries) > 0 {
			return fmt.Sprintf("%s holds %v, %v", part, entries, err)
		}
		return ""
	})
}
