package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

func sandboxCopy(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "cp SRC DST",
		Short: "Copy files and directories into or out of a sandbox",
		Long: `Copy a file or a directory. One of SRC and DST is NAME:PATH. A copy into an
existing directory keeps the last part of SRC's name. With - a file is copied
from standard input or to standard output.

What a sandbox sends is not trusted: nothing outside DST is written. Links that
lead out of the directory, devices and pipes are not copied and make the exit
code 1.`,
		Example: `  skerry sandbox cp ./src work:/root/src
  skerry sandbox cp work:/var/log/app.log .
  skerry sandbox cp work:/etc/os-release -`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			if (from.sandbox == "") == (to.sandbox == "") {
				return usageError{errors.New("one of SRC and DST must be NAME:PATH")}
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			id, err := sandboxID(cmd.Context(), cl, from.sandbox+to.sandbox)
			if err != nil {
				return err
			}
			cp := copier{cli: c, toolbox: cl.Toolbox(id)}
			if from.sandbox != "" {
				return cp.download(cmd.Context(), from.path, to.path)
			}
			return cp.upload(cmd.Context(), from.path, to.path)
		},
	}
}

// place is one side of a copy.
type place struct{ sandbox, path string }

// parsePlace splits NAME:PATH. What begins like a path, or has no colon, is a
// path of ours.
func parsePlace(s string) place {
	name, rest, ok := strings.Cut(s, ":")
	isDrive := runtime.GOOS == "windows" && len(name) == 1
	if !ok || name == "" || isDrive || strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
		return place{path: s}
	}
	if rest == "" {
		rest = "."
	}
	return place{sandbox: name, path: rest}
}

type copier struct {
	cli     *cli
	toolbox *client.Toolbox
}

// download copies from the sandbox. Only the caller's own words name what is
// written here: the base name comes from the path that was typed.
func (cp *copier) download(ctx context.Context, from, to string) error {
	if to == "-" {
		_, err := cp.toolbox.Download(ctx, from, cp.cli.stdout)
		return err
	}
	info, err := cp.toolbox.Stat(ctx, from)
	if err != nil {
		return err
	}
	if dst, err := os.Stat(to); err == nil && dst.IsDir() {
		if base := path.Base(path.Clean(from)); base != "." && base != "/" && base != ".." {
			to = filepath.Join(to, base)
		}
	} else if strings.HasSuffix(to, "/") && !info.IsDir {
		return fmt.Errorf("%s is not a directory", to)
	}
	if info.IsDir {
		return cp.downloadDir(ctx, from, to)
	}
	return cp.downloadFile(ctx, from, to, info)
}

func (cp *copier) downloadDir(ctx context.Context, from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	tar, err := cp.toolbox.Archive(ctx, from)
	if err != nil {
		return err
	}
	defer tar.Close()
	if err := client.Extract(to, tar); err != nil {
		return err
	}
	if n := tar.Skipped(); n > 0 {
		return skippedError(n)
	}
	return nil
}

// downloadFile writes to a file of its own and moves it into place, so that a
// part never looks like the whole, and a link at the place is not followed.
func (cp *copier) downloadFile(ctx context.Context, from, to string, info skerry.FileInfo) error {
	tmp, err := os.CreateTemp(filepath.Dir(to), ".skerry-*")
	if err != nil {
		return err
	}
	_, err = cp.toolbox.Download(ctx, from, tmp)
	if mode, parseErr := strconv.ParseUint(info.Permissions, 8, 32); err == nil && parseErr == nil && runtime.GOOS != "windows" {
		err = tmp.Chmod(fs.FileMode(mode) & 0o777)
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), to)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

// upload copies to the sandbox.
func (cp *copier) upload(ctx context.Context, from, to string) error {
	if from == "-" {
		return cp.toolbox.Upload(ctx, to, 0o644, cp.cli.stdin)
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	dst, err := cp.toolbox.Stat(ctx, to)
	switch {
	case err == nil && dst.IsDir:
		abs, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		to = path.Join(to, filepath.Base(abs))
	case err != nil && skerry.CodeOf(err) != skerry.CodeNotFound:
		return err
	}
	if info.IsDir() {
		return cp.uploadDir(ctx, from, to)
	}
	return cp.uploadFile(ctx, from, to, info)
}

func (cp *copier) uploadFile(ctx context.Context, from, to string, info fs.FileInfo) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return cp.toolbox.Upload(ctx, to, uint32(info.Mode().Perm()), f)
}

func skippedError(n int) error {
	return fmt.Errorf("%d sockets, devices or pipes were not copied", n)
}

// errUploadEnded stops the packing when the server wants no more.
var errUploadEnded = errors.New("the upload ended")

func (cp *copier) uploadDir(ctx context.Context, from, to string) error {
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	skipped := 0
	go func() {
		err := client.Pack(from, pw, func(string) { skipped++ })
		pw.CloseWithError(err)
		packed <- err
	}()
	err := cp.toolbox.Unarchive(ctx, to, pr)
	pr.CloseWithError(errUploadEnded)
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, errUploadEnded) {
		return packErr
	}
	if err == nil && skipped > 0 {
		return skippedError(skipped)
	}
	return err
}
