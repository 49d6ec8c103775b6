package control

import (
	"context"
	"fmt"

	"skerry.dev/skerry/internal/store"
)

// LastEventID returns the id of the newest event, 0 while there is none: where a
// reader starts who wants only what is to come.
func (c *Control) LastEventID(ctx context.Context) (id int64, err error) {
	err = c.store.View(ctx, func(r store.Reader) (err error) {
		id, err = r.LastEventID(ctx)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find the newest event: %w", err)
	}
	return id, nil
}
