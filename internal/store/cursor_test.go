package store_test

import (
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

func FuzzCursor(f *testing.F) {
	for _, seed := range []string{"", "c1", "czz", "c-1", "c0", "c+5", "C1", "c1y2p0ij32e8e7", "c1y2p0ij32e8e8", "1", "c01", "cZ"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		seq, err := store.ParseCursor(cursor)
		if err != nil {
			if got := skerry.CodeOf(err); got != skerry.CodeInvalid {
				t.Errorf("code of ParseCursor(%q) = %s", cursor, got)
			}
			return
		}
		if seq < 1 || store.FormatCursor(seq) != cursor {
			t.Errorf("ParseCursor(%q) = %d, which is written %q", cursor, seq, store.FormatCursor(seq))
		}
	})
}

func TestPageLimit(t *testing.T) {
	for _, test := range []struct {
		in, want int
		ok       bool
	}{
		{0, skerry.DefaultPageSize, true},
		{1, 1, true},
		{skerry.MaxPageSize, skerry.MaxPageSize, true},
		{skerry.MaxPageSize + 1, 0, false},
		{-1, 0, false},
	} {
		got, err := store.PageLimit(test.in)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("PageLimit(%d) = %d, %v", test.in, got, err)
		}
	}
}
