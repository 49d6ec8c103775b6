// Package skerry is the vocabulary of Skerry: the types, states, identifiers,
// rules and error codes that every other package shares.
//
// It imports the standard library only and does no I/O. A sandbox is a small
// Linux machine of its own (a microVM); an image is the file system it starts
// with; a machine is one life of one hypervisor process of a sandbox; a runner
// is a host that has machines; a template is the captured, already booted state
// of an image from which machines are restored.
//
// Names on the wire follow Daytona's "Linux Sandboxes" and "Sandboxes" pages;
// processes and files follow the public Daytona toolbox API.
package skerry
