package image_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

// crashEnv makes the test binary a program that pulls an image into a store and
// dies within a conversion: "directory reference number-of-the-conversion".
const crashEnv = "SKERRY_IMAGE_TEST_CRASH"

func crashChild() {
	args := strings.Fields(os.Getenv(crashEnv))
	dir, ref, left := args[0], args[1], args[2]
	conv := &copyConverter{}
	conv.before = func(l image.Conversion) error {
		if strconv.FormatInt(conv.calls.Load(), 10) != left {
			return nil
		}
		if err := os.WriteFile(l.Dst, []byte("half a file"), 0o644); err != nil {
			return err
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	s, err := image.Open(storeOptions(dir, func(o *image.Options) { o.Converter = conv }))
	if base, ok := strings.CutPrefix(ref, "append:"); err == nil && ok {
		_, err = s.Append(context.Background(), base, tarOf("new", randomText(200_000)), appendOptions, nil)
	} else if err == nil {
		_, err = s.Pull(context.Background(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
	}
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestCrash kills a pull with SIGKILL at the n-th system call of some thread that
// gives a file its name or makes it durable, and at some that open and write. After each the store must open,
// hold no image or the whole one, and complete the pull.
func TestCrash(t *testing.T) {
	strace := needTool(t, "strace")
	reg := startRegistry(t, false)
	layout := makeLayout(t, 300_000)
	ref := reg.push(t, layout+":app", "app:1")
	want, _ := layoutManifest(t, layout, "app")
	for _, c := range []struct {
		calls string
		step  int // every how many of the calls
	}{
		{"renameat,rename,renameat2", 1},
		{"fsync", 2},
		{"openat", 15},
		{"write", 8},
	} {
		t.Run(c.calls, func(t *testing.T) {
			for n := 1; ; n += c.step {
				dir := t.TempDir()
				cmd := exec.Command(strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace="+c.calls,
					"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", c.calls, n), os.Args[0])
				cmd.Env = append(os.Environ(), crashEnv+"="+dir+" "+ref+" never")
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != -1) {
					t.Fatalf("call %d: %v\n%s", n, err, out)
				}
				checkAfterCrash(t, dir, ref, want)
				if err == nil { // it made fewer calls than n
					if n == 1 {
						t.Fatal("nothing was killed")
					}
					t.Logf("killed at %d places", (n-1)/c.step)
					return
				}
			}
		})
	}
}

func TestCrashWithinConversion(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 1000)
	ref := reg.push(t, layout+":app", "app:1")
	want, _ := layoutManifest(t, layout, "app")
	for n := 1; n <= 4; n++ {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", crashEnv, dir, ref, n))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("conversion %d: %v, want killed\n%s", n, err, out)
		}
		checkAfterCrash(t, dir, ref, want)
	}
}

func checkAfterCrash(t *testing.T, dir, ref, want string) {
	t.Helper()
	s, err := image.Open(storeOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, info := range s.List() {
		checkImage(t, s, info.Digest, 4)
	}
	if _, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil); err != nil {
		t.Fatal(err)
	}
	checkImage(t, s, want, 4)
	if err := s.Delete(want); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Fatalf("left over: %q", left)
	}
}
