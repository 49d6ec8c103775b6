package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
)

// printArgs prints its arguments as JSON: the program "args" of scripts.
func printArgs() {
	json.NewEncoder(os.Stdout).Encode(os.Args[1:])
}

// holdStdin runs a command whose standard input is a pipe that stays open, as
// that of a job in a CI system: the program "hold" of scripts.
func holdStdin() {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	defer w.Close()
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, os.Stdout, os.Stderr
	err = cmd.Run()
	io.WriteString(w, "too late")
	if err != nil {
		os.Exit(cmd.ProcessState.ExitCode())
	}
}
