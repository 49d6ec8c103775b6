//go:build !linux

package main

import "github.com/spf13/cobra"

// serverCommands are the commands that only a Linux host has.
func serverCommands(*cli) []*cobra.Command { return nil }

// runHidden would run the shim of a sandbox.
func runHidden([]string) (code int, ok bool) { return 0, false }
