package shim

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"testing"

	"skerry.dev/skerry"
)

// TestErrorOverTheSocket: an error keeps its code, and that of a full disk has
// one even where nobody gave it one.
func TestErrorOverTheSocket(t *testing.T) {
	for _, c := range []struct {
		err  error
		want skerry.Code
	}{
		{&os.PathError{Op: "write", Path: "ram", Err: syscall.ENOSPC}, skerry.CodeExhausted},
		{skerry.Errorf(skerry.CodeTimeout, "too late"), skerry.CodeTimeout},
		{errNotReady(Status{Phase: PhaseReady}), skerry.CodeConflict},
		{syscall.EIO, skerry.CodeInternal},
	} {
		dir := deepDir(t)
		l, err := listen(dir, ControlSock)
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		handle(mux, "POST /save", false, func(context.Context, SaveRequest) (SaveReply, error) {
			return SaveReply{}, fmt.Errorf("save: %w", c.err)
		})
		srv := &http.Server{Handler: mux}
		t.Cleanup(func() { srv.Close() })
		go srv.Serve(l)
		client := NewClient(dir)
		t.Cleanup(client.Close)
		_, err = client.Save(t.Context(), SaveRequest{})
		if got := skerry.CodeOf(err); got != c.want || err.Error() != "save: "+c.err.Error() {
			t.Errorf("%v: got %v with code %q, want code %q", c.err, err, got, c.want)
		}
	}
}
