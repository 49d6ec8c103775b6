// Probe is the program that tests run inside sandboxes, and on the host to
// compare. It is static, so that it is also an image without a shell.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// commands are the probes by name; each gets the remaining arguments.
var commands = map[string]func(args []string) error{
	"tree":     tree,
	"argv":     func(args []string) error { return printJSON(args) },
	"environ":  environ,
	"identity": identity,
	"pause":    pause,
	"eat":      eat,
	"fill":     fill,
	"past-end": pastEnd,
	"dial":     dial,
	"resolve":  resolve,
	"ping":     ping,
	"datagram": datagram,
	"zombies":  zombies,
	"pattern":  pattern,
	"count":    count,
	"counted":  counted,
	"xattr":    setXattr,
}

func main() {
	if len(os.Args) < 2 {
		fmt.Println("hello from", os.Args[0])
		return
	}
	run, ok := commands[os.Args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "probe: no command %q\n", os.Args[1])
		os.Exit(2)
	}
	if err := run(slices.Clone(os.Args[2:])); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func printJSON(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }
