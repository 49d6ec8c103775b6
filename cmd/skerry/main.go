// Command skerry is Skerry: the command line, a client of local and remote
// servers, and on Linux also the server.
package main

import (
	"context"
	"os"
)

// version is set by the linker.
var version = "devel"

func main() {
	os.Exit(execute(context.Background(), newCLI(), os.Args[1:]))
}
