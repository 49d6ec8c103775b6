//go:build !linux

package main

import "github.com/spf13/cobra"

// serverCommands are the commands that only a Linux host has.
func serverCommands(*cli) []*cobra.Command { return nil }
