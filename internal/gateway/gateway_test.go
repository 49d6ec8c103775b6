package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/gateway"
	"skerry.dev/skerry/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dialer leads every sandbox to one address, or fails.
type dialer struct {
	addr  string
	err   error
	dials atomic.Int64
	ready atomic.Pointer[skerry.Error] // why the sandbox answers nothing, or nil
}

func (d *dialer) Ready(skerry.SandboxID) error {
	if err := d.ready.Load(); err != nil {
		return err
	}
	return nil
}

func (d *dialer) DialToolbox(ctx context.Context, _ skerry.SandboxID) (net.Conn, error) {
	d.dials.Add(1)
	if d.err != nil {
		return nil, d.err
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", d.addr)
}

const sandbox = skerry.SandboxID("sbx_aaaaaaaaaaaaaaaaaaaa")

// serve starts a gateway and returns the base URL of the sandbox behind it.
func serve(t *testing.T, d *dialer, activity func(skerry.SandboxID)) string {
	t.Helper()
	g := gateway.New(gateway.Config{Dialer: d, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Activity: activity})
	srv := httptest.NewServer(g)
	t.Cleanup(func() { srv.Close(); g.Close(); http.DefaultClient.CloseIdleConnections() })
	return srv.URL + gateway.Prefix + string(sandbox)
}

func toHandler(t *testing.T, h http.HandlerFunc) *dialer {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &dialer{addr: srv.Listener.Addr().String()}
}

// toRaw answers each connection with a function on its bytes.
func toRaw(t *testing.T, handle func(n int, conn net.Conn, r *bufio.Reader)) *dialer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				handle(n, conn, bufio.NewReader(conn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	return &dialer{addr: l.Addr().String()}
}

func get(t *testing.T, url string) (*http.Response, string, error) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func TestRequestReachesTheGuestUnchanged(t *testing.T) {
	var got *http.Request
	var body string
	base := serve(t, toHandler(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		b, _ := io.ReadAll(r.Body)
		body = string(b)
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "answer")
	}), nil)
	req, err := http.NewRequest("POST", base+"/a%2Fb//../c?path=%2Ftmp%2F..&x=1", strings.NewReader("payload"))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer secret", "Cookie": "a=b", "Origin": "http://evil", "X-Custom": "kept"} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusCreated || string(answer) != "answer" {
		t.Errorf("got %d %q", resp.StatusCode, answer)
	}
	if got.RequestURI != "/a%2Fb//../c?path=%2Ftmp%2F..&x=1" || body != "payload" || got.Header.Get("X-Custom") != "kept" {
		t.Errorf("guest got %s with %q and %v", got.RequestURI, body, got.Header)
	}
	for _, name := range []string{"Authorization", "Cookie", "Origin", "X-Forwarded-For"} {
		if v := got.Header.Get(name); v != "" {
			t.Errorf("guest got %s: %s", name, v)
		}
	}
}

func TestGuestHeadersArePicked(t *testing.T) {
	base := serve(t, toHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Set-Cookie", "session=stolen")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Content-Security-Policy", "default-src *")
		h.Set("Service-Worker-Allowed", "/")
		h.Set("Clear-Site-Data", `"*"`)
		h.Set("Content-Type", "text/html")
		h.Set("Content-Disposition", "attachment")
		io.WriteString(w, "<script>evil()</script>")
	}), nil)
	resp, _, err := get(t, base+"/x")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Set-Cookie", "Access-Control-Allow-Origin", "Service-Worker-Allowed", "Clear-Site-Data"} {
		if v := resp.Header.Get(name); v != "" {
			t.Errorf("%s: %s passed", name, v)
		}
	}
	if csp := resp.Header.Values("Content-Security-Policy"); len(csp) != 1 || !strings.HasPrefix(csp[0], "sandbox;") {
		t.Errorf("content security policy = %q", csp)
	}
	if resp.Header.Get("Content-Disposition") != "attachment" || resp.Header.Get("Content-Type") != "text/html" {
		t.Errorf("headers = %v", resp.Header)
	}
}

func TestFailures(t *testing.T) {
	reply := func(text string) *dialer {
		return toRaw(t, func(_ int, conn net.Conn, r *bufio.Reader) {
			if _, err := http.ReadRequest(r); err == nil {
				io.WriteString(conn, text)
			}
		})
	}
	tests := []struct {
		name   string
		dialer *dialer
		status int
		code   skerry.Code
	}{
		{"unknown", &dialer{err: skerry.Errorf(skerry.CodeNotFound, "no sandbox")}, 404, skerry.CodeNotFound},
		{"deleted", &dialer{err: skerry.Errorf(skerry.CodeGone, "deleted")}, 410, skerry.CodeGone},
		{"not running", &dialer{err: fmt.Errorf("route: %w", skerry.Errorf(skerry.CodeConflict, "is stopped"))}, 409, skerry.CodeConflict},
		{"no connection", &dialer{err: errors.New("connection refused by /secret/path")}, 503, skerry.CodeUnavailable},
		{"closed at once", toRaw(t, func(int, net.Conn, *bufio.Reader) {}), 502, skerry.CodeUnavailable},
		{"garbage", reply("\x00\x01 not HTTP\r\n\r\n"), 502, skerry.CodeUnavailable},
		{"endless header", reply("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"), 502, skerry.CodeUnavailable},
		{"redirect", reply("HTTP/1.1 307 Temporary Redirect\r\nLocation: /v2/images/pull\r\nContent-Length: 0\r\n\r\n"), 502, skerry.CodeUnavailable},
		{"upgrade nobody asked for", reply("HTTP/1.1 101 Switching Protocols\r\nUpgrade: evil\r\nConnection: Upgrade\r\n\r\n"), 502, skerry.CodeUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := http.Get(serve(t, tt.dialer, nil) + "/files")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			p := problem.Read(resp)
			if resp.StatusCode != tt.status || p.Code != tt.code || strings.Contains(p.Detail, "secret") {
				t.Errorf("got %d %q %q, want %d %q", resp.StatusCode, p.Code, p.Detail, tt.status, tt.code)
			}
		})
	}
}

func TestBadPaths(t *testing.T) {
	base := strings.TrimSuffix(serve(t, &dialer{}, nil), "/"+string(sandbox))
	for _, path := range []string{"", "/", "/" + string(sandbox), "/nope/files", "/sbx_short/files", "/..%2f..%2fetc/files"} {
		resp, _, err := get(t, base+path)
		if err != nil || resp.StatusCode != http.StatusNotFound {
			t.Errorf("%q: %v, %v, want 404", path, resp, err)
		}
	}
}

func TestBrokenResponseNeverLooksWhole(t *testing.T) {
	for name, text := range map[string]string{
		"chunked":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"content length": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			d := toRaw(t, func(_ int, conn net.Conn, r *bufio.Reader) {
				if _, err := http.ReadRequest(r); err == nil {
					io.WriteString(conn, text)
				}
			})
			if _, body, err := get(t, serve(t, d, nil)+"/x"); err == nil {
				t.Errorf("a part, %q, was taken for the whole", body)
			}
		})
	}
}

// TestStreamIsNotBuffered reads each event before the guest sends the next.
func TestStreamIsNotBuffered(t *testing.T) {
	next := make(chan struct{})
	base := serve(t, toHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			http.NewResponseController(w).Flush()
			<-next
		}
	}), nil)
	resp, err := http.Get(base + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for i := range 3 {
		line, err := r.ReadString('\n')
		if want := fmt.Sprintf("data: %d\n", i); err != nil || line != want {
			t.Fatalf("got %q, %v, want %q", line, err, want)
		}
		r.ReadString('\n')
		next <- struct{}{}
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("end = %v", err)
	}
}

func TestUploadIsNotBuffered(t *testing.T) {
	got := make(chan string)
	base := serve(t, toHandler(t, func(_ http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 5)
		for {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				return
			}
			got <- string(buf)
		}
	}), nil)
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		resp, err := http.Post(base+"/files", "application/octet-stream", pr)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	for _, piece := range []string{"first", "again"} {
		io.WriteString(pw, piece)
		if s := <-got; s != piece {
			t.Fatalf("guest got %q", s)
		}
	}
	pw.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWebSocket(t *testing.T) {
	var active atomic.Int64
	base := serve(t, toHandler(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(8 << 20)
		for {
			kind, data, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			if conn.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	}), func(id skerry.SandboxID) {
		if id == sandbox {
			active.Add(1)
		}
	})
	conn, _, err := websocket.Dial(t.Context(), base+"/processes/run", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(8 << 20)
	for _, message := range [][]byte{[]byte("hi"), {}, bytes.Repeat([]byte{0, 1, 255}, 1<<20)} {
		if err := conn.Write(t.Context(), websocket.MessageBinary, message); err != nil {
			t.Fatal(err)
		}
		if _, data, err := conn.Read(t.Context()); err != nil || !bytes.Equal(data, message) {
			t.Fatalf("got %d bytes, %v, want %d", len(data), err, len(message))
		}
	}
	if active.Load() != 1 {
		t.Errorf("activity = %d while the connection is open", active.Load())
	}
	conn.Close(websocket.StatusNormalClosure, "")
}

// pipes dials a guest that takes its time for an answer.
type pipes struct{ delay time.Duration }

func (pipes) Ready(skerry.SandboxID) error { return nil }

func (p pipes) DialToolbox(context.Context, skerry.SandboxID) (net.Conn, error) {
	ours, guests := net.Pipe()
	go func() {
		defer guests.Close()
		if _, err := http.ReadRequest(bufio.NewReader(guests)); err == nil {
			time.Sleep(p.delay)
			io.WriteString(guests, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		}
	}()
	return ours, nil
}

// TestActivity: a request counts when it begins, while it lasts and when it ends.
func TestActivity(t *testing.T) {
	for delay, want := range map[time.Duration][]time.Duration{
		time.Millisecond: {0, time.Millisecond},
		50 * time.Second: {0, 20 * time.Second, 40 * time.Second, 50 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var got []time.Duration
			g := gateway.New(gateway.Config{Dialer: pipes{delay}, Logger: slog.New(slog.DiscardHandler), Activity: func(id skerry.SandboxID) {
				if id != sandbox {
					t.Errorf("activity of %s", id)
				}
				got = append(got, time.Since(start))
			}})
			defer g.Close()
			w := httptest.NewRecorder()
			g.ServeHTTP(w, httptest.NewRequest("GET", gateway.Prefix+string(sandbox)+"/files", nil))
			time.Sleep(time.Minute) // nothing comes after the end
			if w.Code != http.StatusOK || !slices.Equal(got, want) {
				t.Errorf("after %s: %d, activity at %v, want %v", delay, w.Code, got, want)
			}
		})
	}
}

func TestConnectionsAreReusedAndReplaced(t *testing.T) {
	// The first connection answers once and is then closed by the guest
	// without a word, as a restarted agent does.
	d := toRaw(t, func(n int, conn net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d", n)
			if n == 0 && req.URL.Path == "/last" {
				return
			}
		}
	})
	base := serve(t, d, nil)
	for i, want := range []string{"0", "0", "0"} {
		path := "/x"
		if i == 2 {
			path = "/last"
		}
		if _, body, err := get(t, base+path); err != nil || body != want {
			t.Fatalf("request %d: %q, %v", i, body, err)
		}
	}
	if _, body, err := get(t, base+"/x"); err != nil || body != "1" {
		t.Errorf("after the connection died: %q, %v", body, err)
	}
	if n := d.dials.Load(); n != 2 {
		t.Errorf("%d connections for 4 requests, want 2", n)
	}
}

func TestEarlyHintsAreKeptBack(t *testing.T) {
	base := serve(t, toHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</evil.js>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
	}), nil)
	conn, err := net.Dial("tcp", strings.Split(strings.TrimPrefix(base, "http://"), "/")[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s%s/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", gateway.Prefix, sandbox)
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") || strings.Contains(string(answer), "evil") {
		t.Errorf("got %q, %v", answer, err)
	}
}

// TestSandboxStandsStill: a request to a sandbox that answers nothing is refused,
// with the reason, before it reaches a connection; one that was broken off for
// that gets the same answer.
func TestSandboxStandsStill(t *testing.T) {
	full := skerry.Errorf(skerry.CodeExhausted, "the host's disk is full")
	var d *dialer
	d = toRaw(t, func(_ int, _ net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			d.ready.Store(full) // and the connection is closed
		}
	})
	url := serve(t, d, nil)
	for _, when := range []string{"under way", "new"} {
		resp, err := http.Post(url+"/process/execute", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		got := problem.Read(resp)
		if got.Code != skerry.CodeExhausted || !strings.Contains(got.Error(), "disk is full") {
			t.Errorf("a request that is %s: got %v, want code %s", when, got, skerry.CodeExhausted)
		}
	}
	if n := d.dials.Load(); n != 1 {
		t.Errorf("dialled %d times, want once", n)
	}
}
