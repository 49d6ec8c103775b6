package guestapi

import (
	"bytes"
	"net"
	"testing"
	"time"
)

// FuzzScanner: however a stream is cut, a handshake in it is found, and found
// at the same place.
func FuzzScanner(f *testing.F) {
	f.Add([]byte("garbage"), 3)
	f.Add(bytes.Repeat(magic[:], 5), 1)
	f.Add(handshake(kindHost, nonce{1})[:20], 7)
	f.Fuzz(func(t *testing.T, before []byte, cut int) {
		want := nonce{0xff, 'S', 'B', 'X', 'H'}
		stream := append(bytes.Clone(before), 0) // ends any half handshake's magic
		stream = append(stream, bytes.Repeat([]byte{0}, handshakeLen)...)
		stream = append(stream, handshake(kindHost, want)...)
		if cut < 1 {
			cut = 1
		}
		s := scanner{kind: kindHost}
		for p := stream; len(p) > 0; {
			piece := p[:min(cut, len(p))]
			n, got, found := s.feed(piece)
			if n < 1 || n > len(piece) || len(s.have) >= handshakeLen {
				t.Fatalf("consumed %d of %d, keeps %d", n, len(piece), len(s.have))
			}
			p = p[n:]
			if found && got == want && len(p) == 0 {
				return
			}
		}
		t.Fatal("handshake not found")
	})
}

// FuzzPortConn: what follows the handshake and its repeats is delivered whole.
func FuzzPortConn(f *testing.F) {
	f.Add([]byte{0, 1, 2}, 2, 5)
	f.Add([]byte{0, 0xff, 0xff}, 0, 300)
	f.Fuzz(func(t *testing.T, frames []byte, repeats, flush int) {
		if len(frames) == 0 || frames[0] == magic[0] {
			return // no frame begins so
		}
		done := handshake(kindHost, nonce{7})
		stream := bytes.Repeat(done, repeats&7)
		stream = append(stream, bytes.Repeat(magic[:1], flush&0xfff)...)
		if flush&0xfff > 0 {
			stream = append(stream, done...) // the host repeats after it flushed
		}
		stream = append(stream, frames...)
		c := &portConn{port: &bytesPort{*bytes.NewReader(stream)}, done: done}
		var got bytes.Buffer
		_, _ = got.ReadFrom(c)
		if !bytes.Equal(got.Bytes(), frames) {
			t.Fatalf("got %x, want %x", got.Bytes(), frames)
		}
	})
}

type bytesPort struct{ bytes.Reader }

func (p *bytesPort) Write(b []byte) (int, error)      { return len(b), nil }
func (p *bytesPort) SetDeadline(time.Time) error      { return nil }
func (p *bytesPort) SetReadDeadline(time.Time) error  { return nil }
func (p *bytesPort) SetWriteDeadline(time.Time) error { return nil }

// FuzzGuard: the verdict on a guest's bytes does not depend on how they are cut.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 'h', 'i', 0, 2, 0, 1}, 3)
	f.Fuzz(func(t *testing.T, sent []byte, cut int) {
		cut = max(cut&0xff, 1)
		var whole, pieces guard
		want := whole.check(sent)
		var got error
		for p := sent; len(p) > 0 && got == nil; {
			n := min(cut, len(p))
			got = pieces.check(p[:n])
			p = p[n:]
		}
		if (want == nil) != (got == nil) {
			t.Fatalf("whole: %v, in pieces: %v", want, got)
		}
	})
}

// FuzzFrame: no frame makes the host read or keep more than it is.
func FuzzFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, sent []byte) {
		r := bytes.NewReader(append(sent, "tail"...))
		var rep reply
		if err := readFrame(r, &rep); err == nil && r.Len() < 4 && len(sent) >= 6 && int(sent[3])+4 <= len(sent) && sent[0]|sent[1]|sent[2] == 0 {
			t.Fatalf("read past the frame: %d left", r.Len())
		}
	})
}

// FuzzParseBoot: a command line never panics the agent before it has a console.
func FuzzParseBoot(f *testing.F) {
	line, err := Boot{Layers: []int{2, 3}, Platform: 1}.CommandLine()
	if err != nil {
		f.Fatal(err)
	}
	f.Add("quiet " + line)
	f.Fuzz(func(t *testing.T, line string) {
		b, err := ParseBoot(line)
		if err != nil || len(b.Layers) > MaxBootLayers {
			return
		}
		if _, err := b.CommandLine(); err != nil {
			t.Fatal(err)
		}
	})
}

var _ net.Conn = (*portConn)(nil)
