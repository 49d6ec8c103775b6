package control

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

// tokenPrefix lets people and scanners tell what a token belongs to.
const tokenPrefix = "skerry_"

// FirstAPIKey makes an API key if there is none yet and returns its token,
// which is not kept and cannot be shown again; otherwise it returns "".
func (c *Control) FirstAPIKey(ctx context.Context) (token string, err error) {
	err = c.update(ctx, func(t *txn) error {
		n, err := t.CountAPIKeys(ctx)
		if err != nil || n > 0 {
			token = ""
			return err
		}
		token, err = newAPIKey(ctx, t, "first")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("make first API key: %w", err)
	}
	return token, nil
}

// CreateAPIKey makes another API key and returns its token, as FirstAPIKey.
func (c *Control) CreateAPIKey(ctx context.Context, name string) (token string, err error) {
	err = c.update(ctx, func(t *txn) error {
		token, err = newAPIKey(ctx, t, name)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("make API key: %w", err)
	}
	return token, nil
}

func newAPIKey(ctx context.Context, t *txn, name string) (token string, err error) {
	token = tokenPrefix + skerry.RandomToken(40) // 200 bits, so a plain hash is enough
	return token, t.InsertAPIKey(ctx, store.APIKey{ID: skerry.NewKeyID(), Name: name, Hash: tokenHash(token), CreatedAt: t.now})
}

func tokenHash(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// Authenticate returns the API key of a token. Errors: CodeUnauthorized.
func (c *Control) Authenticate(ctx context.Context, token string) (skerry.KeyID, error) {
	var key store.APIKey
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		key, err = r.APIKeyByHash(ctx, tokenHash(token))
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return "", skerry.Errorf(skerry.CodeUnauthorized, "the API key is not valid")
	}
	if err != nil {
		return "", fmt.Errorf("check API key: %w", err)
	}
	return key.ID, nil
}
