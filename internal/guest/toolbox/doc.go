// Package toolbox is the HTTP API that runs inside a sandbox: processes, files
// and facts about the machine. Paths and bodies are those of the public Daytona
// toolbox API and its process protocol, plus a few of our own.
//
// It is served by the guest agent, but depends on nothing of it: with the Host
// spawner it runs as an ordinary process.
package toolbox
