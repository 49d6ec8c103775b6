package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	subjectClaim = "control.claim"
	// claimTimeout is when an unanswered question is asked again.
	claimTimeout = 5 * time.Second
	// claimRetry is the pause when no control plane is there.
	claimRetry = 50 * time.Millisecond

	subjectHeartbeats = "heartbeats."
	// buffered is how many messages of core NATS wait for a handler.
	buffered = 4096
)

// ServeClaims answers the claims of runners, one at a time. After an error the
// runner asks again.
func (b *Bus) ServeClaims(ctx context.Context, handler func(context.Context, ClaimRequest) (ClaimReply, error)) error {
	return b.subscribe(ctx, subjectClaim, "control", func(ctx context.Context, msg *nats.Msg) error {
		var request ClaimRequest
		if err := json.Unmarshal(msg.Data, &request); err != nil {
			return err
		}
		reply, err := handler(ctx, request)
		if err != nil {
			return errors.Join(err, msg.Respond(nil)) // which asks to ask again
		}
		data, err := json.Marshal(reply)
		if err != nil {
			return err
		}
		return msg.Respond(data)
	})
}

// Claim asks whether a sandbox is this runner's to make. It asks until there is
// an answer or ctx ends.
func (b *Bus) Claim(ctx context.Context, request ClaimRequest) (ClaimReply, error) {
	data, err := json.Marshal(request)
	if err != nil {
		return ClaimReply{}, fmt.Errorf("claim sandbox: %w", err)
	}
	for {
		reply, err := b.ask(ctx, data)
		if err == nil {
			return reply, nil
		}
		if ctx.Err() != nil || b.conn.IsClosed() {
			return ClaimReply{}, fmt.Errorf("claim sandbox %s: %w", request.SandboxID, closed(err))
		}
		b.logger.Debug("claim not answered, asking again", "sandbox_id", request.SandboxID, "err", err)
		if !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
			pause(ctx, claimRetry)
		}
	}
}

func (b *Bus) ask(ctx context.Context, data []byte) (ClaimReply, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	msg, err := b.conn.RequestWithContext(ctx, subjectClaim, data)
	if err != nil {
		return ClaimReply{}, err
	}
	var reply ClaimReply
	return reply, json.Unmarshal(msg.Data, &reply)
}

// PublishHeartbeat tells the control planes that a runner lives. Nothing is
// kept: one that nobody hears is replaced by the next.
func (b *Bus) PublishHeartbeat(h Heartbeat) error {
	data, err := json.Marshal(h)
	if err == nil {
		err = b.conn.Publish(subjectHeartbeats+string(h.Runner.ID), data)
	}
	if err != nil {
		return fmt.Errorf("publish heartbeat: %w", closed(err))
	}
	return nil
}

// ConsumeHeartbeats handles the heartbeats of all runners, one at a time. An
// error is logged; the next heartbeat makes up for it.
func (b *Bus) ConsumeHeartbeats(ctx context.Context, handler func(context.Context, Heartbeat) error) error {
	return b.subscribe(ctx, subjectHeartbeats+"*", "", func(ctx context.Context, msg *nats.Msg) error {
		var h Heartbeat
		if err := json.Unmarshal(msg.Data, &h); err != nil {
			return err
		}
		return handler(ctx, h)
	})
}

// subscribe handles messages of core NATS until ctx ends.
func (b *Bus) subscribe(ctx context.Context, subject, queue string, handler func(context.Context, *nats.Msg) error) error {
	messages := make(chan *nats.Msg, buffered)
	sub, err := b.conn.ChanQueueSubscribe(subject, queue, messages)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, closed(err))
	}
	defer sub.Unsubscribe()
	status := b.conn.StatusChanged(nats.CLOSED)
	defer b.conn.RemoveStatusListener(status)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-status:
			return ErrClosed
		case msg := <-messages:
			if err := handler(ctx, msg); err != nil && ctx.Err() == nil {
				b.logger.Warn("message not handled", "subject", msg.Subject, "err", err)
			}
		}
	}
}
