package store

import (
	"strconv"
	"strings"

	"skerry.dev/skerry"
)

// A cursor is "c" and the row number of the last sandbox of the page before,
// in base 36. Rows are numbered in the order of insertion, so a cursor holds
// although sandboxes come and go and clocks are set.

// FormatCursor returns the cursor of the page that follows row seq.
func FormatCursor(seq int64) string { return "c" + strconv.FormatInt(seq, 36) }

// ParseCursor returns the row number of a cursor. The error is CodeInvalid.
func ParseCursor(cursor string) (int64, error) {
	digits, ok := strings.CutPrefix(cursor, "c")
	seq, err := strconv.ParseInt(digits, 36, 64)
	if !ok || err != nil || seq < 1 || FormatCursor(seq) != cursor {
		return 0, skerry.Invalid("cursor", "format", "a next_cursor of this list", "is not one this server gave out")
	}
	return seq, nil
}

// PageLimit resolves the limit of a list. The error is CodeInvalid.
func PageLimit(limit int) (int, error) {
	if limit == 0 {
		return skerry.DefaultPageSize, nil
	}
	if limit < 1 || limit > skerry.MaxPageSize {
		return 0, skerry.Invalid("limit", "range", "1 to "+strconv.Itoa(skerry.MaxPageSize), "must be 1 to %d, is %d", skerry.MaxPageSize, limit)
	}
	return limit, nil
}
