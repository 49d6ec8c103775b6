package skerry_test

import (
	"bytes"
	"io"
	"testing"

	"skerry.dev/skerry"
)

func FuzzReadRunFrame(f *testing.F) {
	f.Add(skerry.AppendRunFrame(skerry.AppendRunFrame(nil, skerry.RunStdout, []byte("x")), skerry.RunEvents, nil))
	f.Add([]byte{0, 0, 0, 0, 1})
	f.Add([]byte{255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, again := bytes.NewReader(data), []byte(nil)
		var buf []byte
		for {
			channel, payload, grown, err := skerry.ReadRunFrame(r, buf)
			if err != nil {
				if err == io.EOF && len(again) != len(data) {
					t.Errorf("end after %d of %d bytes", len(again), len(data))
				}
				break
			}
			buf, again = grown, skerry.AppendRunFrame(again, channel, payload)
		}
		if !bytes.HasPrefix(data, again) {
			t.Errorf("%x became %x", data, again)
		}
	})
}
