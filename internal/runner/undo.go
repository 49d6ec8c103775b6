package runner

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// undoTimeout bounds the whole of an undo; it runs even if the work that
// failed was cancelled.
const undoTimeout = 30 * time.Second

// undo is a stack of the reverses of steps already taken.
type undo struct {
	steps []undoStep
}

type undoStep struct {
	name string
	f    func(context.Context) error
}

// add registers the reverse of a step. Call it at once after the step.
func (u *undo) add(name string, f func(context.Context) error) {
	u.steps = append(u.steps, undoStep{name, f})
}

// release forgets all steps: what was done stays.
func (u *undo) release() { u.steps = nil }

// run takes all steps back, the last first, and joins what goes wrong.
func (u *undo) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i].f(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", u.steps[i].name, err))
		}
	}
	u.steps = nil
	return errors.Join(errs...)
}
