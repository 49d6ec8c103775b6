package main

import "github.com/spf13/cobra"

const environmentHelp = `The command line reads

  SKERRY_API_URL   URL of the server, before the configuration file's
  SKERRY_API_KEY   API key, before the configuration file's
  XDG_CONFIG_HOME  directory of skerry/config.json; default ~/.config, on macOS
                   ~/Library/Application Support, on Windows %AppData%

skerry/config.json is {"api_url": "…", "api_key": "…"}, mode 0600. A server writes
it at its first start, unless it is there for another server. Its key is sent to
its own api_url only.

The server reads

  XDG_DATA_HOME    directory of its data directory skerry; default ~/.local/share
  DOCKER_CONFIG    directory of the config.json with logins for registries;
                   default ~/.docker
  HTTP_PROXY, HTTPS_PROXY, NO_PROXY   proxy for pulls

Everything else is a flag. Sandboxes see nothing of these.`

func environmentTopic() *cobra.Command {
	return &cobra.Command{Use: "environment", Short: "Environment variables and the configuration file", Long: environmentHelp}
}
