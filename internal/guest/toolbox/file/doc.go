// Package file works on the files of a sandbox with the rights of one of its
// users (see account.User.Do): it lists, reads, replaces, moves and removes
// them, and packs and unpacks trees.
package file
