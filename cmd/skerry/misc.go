package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func runnerCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "runner", Short: "Look at the hosts"}
	cmd.AddCommand(&cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the hosts and what they can do", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			runners, err := cl.Runners(cmd.Context())
			if err != nil {
				return err
			}
			return print(c, false, runners, runnerHeader, runnerRow)
		},
	})
	return cmd
}

func configCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at the configuration"}
	cmd.AddCommand(&cobra.Command{
		Use:       "get api_url|api_key",
		Short:     "Print a value as the commands use it",
		Example:   `  export SKERRY_API_KEY=$(skerry config get api_key)`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"api_url", "api_key"},
		RunE: func(_ *cobra.Command, args []string) error {
			conf, err := c.config()
			if err != nil {
				return err
			}
			value := conf.APIURL
			if args[0] == "api_key" {
				value = conf.APIKey
			}
			_, err = fmt.Fprintln(c.stdout, value)
			return err
		},
	})
	return cmd
}

func versionCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the versions of this program and of the server", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Client string `json:"client"`
				Server string `json:"server,omitempty"`
			}{Client: version}
			if cl, err := c.client(); err == nil {
				ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
				defer cancel()
				v.Server, _ = cl.ServerVersion(ctx) // there may be none
			}
			if !c.tables() {
				return c.printJSON(v)
			}
			if v.Server == "" {
				v.Server = "not reached"
			}
			return c.printTable("CLIENT\tSERVER", [][]string{{v.Client, v.Server}})
		},
	}
}
