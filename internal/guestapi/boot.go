package guestapi

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

const bootParam = "skerry.boot="

// MaxBootLayers is bounded by the kernel command line, 2048 bytes on x86.
const MaxBootLayers = 255

var errNoBoot = errors.New("kernel command line has no " + bootParam)

// CommandLine returns b as a kernel parameter. The kernel hands parameters
// with a dot to no program, so it does not show in the environment of PID 1.
func (b Boot) CommandLine() (string, error) {
	if len(b.Layers) > MaxBootLayers {
		return "", fmt.Errorf("%d layers, at most %d", len(b.Layers), MaxBootLayers)
	}
	body, err := json.Marshal(b)
	if err != nil {
		return "", err
	}
	return bootParam + base64.RawURLEncoding.EncodeToString(body), nil
}

// ParseBoot finds and decodes Boot in a kernel command line.
func ParseBoot(cmdline string) (Boot, error) {
	var b Boot
	for field := range strings.FieldsSeq(cmdline) {
		text, ok := strings.CutPrefix(field, bootParam)
		if !ok {
			continue
		}
		body, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			return Boot{}, fmt.Errorf("decode %s: %w", bootParam, err)
		}
		if err := json.Unmarshal(body, &b); err != nil {
			return Boot{}, fmt.Errorf("decode %s: %w", bootParam, err)
		}
		return b, nil
	}
	return Boot{}, errNoBoot
}
