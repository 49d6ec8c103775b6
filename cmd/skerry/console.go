package main

import (
	"io"

	"github.com/spf13/cobra"
)

func sandboxConsole(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "console NAME", Short: "Show what the kernel of a sandbox wrote", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			log, err := cl.Console(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer log.Close()
			_, err = io.Copy(c.stdout, log)
			return err
		},
	}
}
