// Package process runs the processes of a sandbox: it starts them as the
// sandbox's user, feeds their standard input, keeps a bounded part of their
// output, and knows for certain how each of them ended.
package process
