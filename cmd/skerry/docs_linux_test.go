package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	v2 "skerry.dev/skerry/internal/api/v2"
)

var generateDir = flag.String("generate", "", "directory to write the generated documents to, instead of comparing them")

// TestGeneratedDocs keeps docs/cli.md and docs/openapi.json equal to what the
// commands and the API's types say. scripts/generate.sh writes them.
func TestGeneratedDocs(t *testing.T) {
	// Defaults in the help text depend on these.
	t.Setenv("HOME", "/home/you")
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	for name, content := range map[string][]byte{"cli.md": cliReference(newCLI()), "openapi.json": openAPI(t)} {
		if *generateDir != "" {
			if err := os.WriteFile(filepath.Join(*generateDir, name), content, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(content), string(have)); diff != "" {
			t.Errorf("docs/%s is stale, run scripts/generate.sh (-want +have):\n%s", name, diff)
		}
	}
}

// cliReference is the help of all commands as one page.
func cliReference(c *cli) []byte {
	root := newRoot(c)
	root.InitDefaultCompletionCmd()
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Command line\n\nGenerated from the commands' own help by scripts/generate.sh.\n\n%s\n", helpText(root))
	fmt.Fprintf(&b, "\nOptions of all commands:\n\n```\n%s```\n", root.PersistentFlags().FlagUsages())
	writeCommands(&b, root)
	return b.Bytes()
}

func writeCommands(b *bytes.Buffer, parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		if cmd.Hidden || cmd.Name() == "help" {
			continue
		}
		cmd.InitDefaultHelpFlag()
		title := cmd.CommandPath()
		if cmd.IsAdditionalHelpTopicCommand() {
			title = parent.CommandPath() + " help " + cmd.Name()
		}
		fmt.Fprintf(b, "\n## %s\n\n%s\n", title, helpText(cmd))
		if cmd.Runnable() {
			fmt.Fprintf(b, "\n```\n%s\n", cmd.UseLine())
			if flags := cmd.NonInheritedFlags().FlagUsages(); flags != "" {
				fmt.Fprintf(b, "\n%s", flags)
			}
			fmt.Fprintf(b, "```\n")
		}
		if cmd.HasExample() {
			fmt.Fprintf(b, "\nExamples:\n\n```\n%s\n```\n", strings.TrimRight(cmd.Example, "\n"))
		}
		if cmd.Name() != "completion" { // its children differ in the shell only
			writeCommands(b, cmd)
		}
	}
}

// helpText is the long description, indented tables kept as they are.
func helpText(cmd *cobra.Command) string {
	if cmd.Long == "" {
		return cmd.Short + "."
	}
	if strings.Contains(cmd.Long, "\n  ") {
		return "```\n" + strings.TrimSpace(cmd.Long) + "\n```"
	}
	return strings.TrimSpace(cmd.Long)
}

// openAPI is the document that a server serves at /v2/openapi.json.
func openAPI(t *testing.T) []byte {
	t.Helper()
	h := v2.New(v2.Config{Region: "earth", Logger: slog.New(slog.DiscardHandler)})
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v2/openapi.json", nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("GET /v2/openapi.json: status %d", rec.Code)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, rec.Body.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}
	b.WriteByte('\n')
	return b.Bytes()
}
