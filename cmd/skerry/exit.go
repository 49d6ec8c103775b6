package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// The exit codes, as "skerry help exit-codes" explains them.
const (
	exitOK           = 0
	exitError1       = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitConflict     = 4
	exitUnauthorized = 5
	exitUnavailable  = 6
	exitTimeout      = 7
	exitExhausted    = 8
	exitInterrupted  = 130 // 128 + SIGINT

	// Of run and exec, which pass on the program's own code.
	exitProgramTimeout = 124 // as timeout(1)
	exitOurFault       = 125
	exitCannotExecute  = 126
)

const exitCodesHelp = `skerry run and skerry sandbox exec exit with the code of the program, and

  124  the program ran into --timeout
  125  Skerry itself failed: no server, no such image, a broken connection, wrong usage
  126  the program cannot be executed
  127  there is no such program
  128+n  signal n ended the program (137: KILL, also for want of memory)

All other commands exit with (of several errors, the first counts)

    0  done
    1  an error that none of the following fits
    2  wrong usage, or a request that breaks a rule
    3  no such object, or it is deleted
    4  it clashes with the present state; a wait: the sandbox is deleted, failed or lost,
       or cannot reach the state any more
    5  no valid API key, or not permitted
    6  the server cannot be reached or cannot do it now: try again
    7  a deadline passed; a wait: the time is over
    8  no capacity, disk or quota left
  130  interrupted`

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "The exit codes of skerry", Long: exitCodesHelp}
}

var codeExits = map[skerry.Code]int{
	skerry.CodeInvalid: exitUsage, skerry.CodeUnsupported: exitUsage, skerry.CodeTooLarge: exitUsage,
	skerry.CodeNotFound: exitNotFound, skerry.CodeGone: exitNotFound,
	skerry.CodeConflict: exitConflict, skerry.CodeUnauthorized: exitUnauthorized, skerry.CodeForbidden: exitUnauthorized,
	skerry.CodeUnavailable: exitUnavailable, skerry.CodeTimeout: exitTimeout, skerry.CodeExhausted: exitExhausted,
}

// annotationProgram marks commands that pass on a program's exit code.
const annotationProgram = "program"

// exitCode prints an error and returns the code that stands for it.
func (c *cli) exitCode(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	if code, ok := isExit(err); ok {
		return code
	}
	line := errorLine(err)
	var usage usageError
	// cobra has no types for these two.
	isUsage := errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") || strings.HasPrefix(err.Error(), "required flag(s)")
	if isUsage && cmd != nil {
		line += fmt.Sprintf("; see %s --help", cmd.CommandPath())
	}
	fmt.Fprintln(c.stderr, line)
	switch code, ok := codeExits[skerry.CodeOf(err)]; {
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case cmd != nil && cmd.Annotations[annotationProgram] != "":
		return exitOurFault
	case isUsage:
		return exitUsage
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	case ok:
		return code
	}
	return exitError1
}

// errorLine is the line that tells of an error.
func errorLine(err error) string {
	line := "skerry: " + oneLine(err.Error())
	if id := client.RequestIDOf(err); id != "" {
		line += " (request " + id + ")"
	}
	return line
}

// printError tells of an error that is not the last word.
func (c *cli) printError(err error) { fmt.Fprintln(c.stderr, errorLine(err)) }

// oneLine keeps an error on one line, and a terminal safe from what a server or
// a sandbox put into it.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, strings.TrimSpace(s))
}
