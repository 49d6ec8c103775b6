package app

import (
	"context"
	"errors"
	"fmt"

	"skerry.dev/skerry/client"
)

// writeClientConfig makes the first API key of this server and writes it, with
// the server's address, to client.json in the data directory and to the command
// line's configuration. A configuration of another server is left alone.
func (s *Server) writeClientConfig(ctx context.Context) error {
	path := s.path("client.json")
	own, err := client.ReadFile(path)
	if err != nil {
		return err
	}
	if own.APIKey == "" {
		if own.APIKey, err = s.firstKey(ctx); err != nil {
			return err
		}
	}
	own.APIURL = s.URL()
	if err := client.WriteFile(path, own); err != nil {
		return err
	}
	if s.cfg.ClientConfig == "" {
		return nil
	}
	users, err := client.ReadFile(s.cfg.ClientConfig)
	if err != nil {
		return err
	}
	if users.APIKey != "" && users.APIKey != own.APIKey {
		s.log.Warn("the command line is set up for another server and left so", "config", s.cfg.ClientConfig,
			"for_this_server", path)
		return nil
	}
	return client.WriteFile(s.cfg.ClientConfig, own)
}

// firstKey makes a key. A crash between its making and client.json leaves a key
// that nobody knows; another one is made then.
func (s *Server) firstKey(ctx context.Context) (string, error) {
	token, err := s.control.FirstAPIKey(ctx)
	if err == nil && token == "" {
		token, err = s.control.CreateAPIKey(ctx, "first")
	}
	if err == nil && token == "" {
		err = errors.New("the control plane made no key")
	}
	if err != nil {
		return "", fmt.Errorf("first API key: %w", err)
	}
	return token, nil
}
