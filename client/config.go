package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"skerry.dev/skerry"
)

// File is the configuration file of the command line, which a server writes at
// its first start.
type File struct {
	APIURL string `json:"api_url,omitempty"`
	APIKey string `json:"api_key,omitempty"`
}

// FilePath returns where the configuration file is: skerry/config.json below
// $XDG_CONFIG_HOME, or the system's place for such files.
func FilePath() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		var err error
		if dir, err = os.UserConfigDir(); err != nil {
			return "", fmt.Errorf("find the configuration directory: %w", err)
		}
	}
	return filepath.Join(dir, "skerry", "config.json"), nil
}

// ReadFile reads a configuration file. One that does not exist is empty;
// unknown fields are refused.
func ReadFile(name string) (File, error) {
	var f File
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read the configuration: %w", err)
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return f, skerry.Errorf(skerry.CodeInvalid, "read the configuration %s: %w", name, err)
	}
	return f, nil
}

// WriteFile writes a configuration file that only its owner can read, whole or
// not at all.
func WriteFile(name string, f File) error {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".config-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	_, err = tmp.Write(append(data, '\n'))
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}
