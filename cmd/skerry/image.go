package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

func imageCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Work with images"}
	cmd.AddCommand(imagePull(c), imageImport(c), imageBuildDefault(c), imageList(c), imageGet(c), imagePush(c), imageDelete(c))
	return cmd
}

func imagePull(c *cli) *cobra.Command {
	var req skerry.PullRequest
	var noWait bool
	cmd := &cobra.Command{
		Use:   "pull REFERENCE",
		Short: "Pull an image from a registry",
		Long:  "Pull an image from a registry and wait until sandboxes can start from it. A login that docker has stored for the registry is used.",
		Example: `  skerry image pull docker.io/library/python:3.13 --name python:3.13
  skerry image pull localhost:5000/app:dev --plain-http --default`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Reference = args[0]
			cl, err := c.client()
			if err != nil {
				return err
			}
			img, err := pull(cmd.Context(), cl, req)
			if err != nil {
				return err
			}
			return c.finishImage(cmd.Context(), cl, img, noWait)
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name to register it under; default the reference")
	f.BoolVar(&req.PlainHTTP, "plain-http", false, "the registry has no TLS")
	f.StringVar(&req.Platform, "platform", "", "like linux/arm64; default the runners'")
	f.BoolVar(&req.Default, "default", false, "make it the image of creates that name none")
	f.BoolVar(&req.Warm, "warm", false, "boot it once before it is ready, so that the first create need not")
	f.BoolVar(&noWait, "no-wait", false, "return at once")
	return cmd
}

// pull starts a pull with the login that docker's configuration has.
func pull(ctx context.Context, cl *client.Client, req skerry.PullRequest) (skerry.Image, error) {
	var err error
	if req.Auth, err = registryLogin(ctx, req.Reference); err != nil {
		return skerry.Image{}, err
	}
	return cl.PullImage(ctx, req)
}

// registryLogin returns the login that docker's configuration has for the
// registry of a reference, or nil.
func registryLogin(ctx context.Context, reference string) (*skerry.RegistryAuth, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, usageError{err}
	}
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, ref.Context())
	if err != nil {
		return nil, fmt.Errorf("find the login for %s: %w", ref.Context().RegistryStr(), err)
	}
	if auth == authn.Anonymous {
		return nil, nil
	}
	login, err := authn.Authorization(ctx, auth)
	if err != nil {
		return nil, fmt.Errorf("find the login for %s: %w", ref.Context().RegistryStr(), err)
	}
	return &skerry.RegistryAuth{Username: login.Username, Password: login.Password, IdentityToken: login.IdentityToken, RegistryToken: login.RegistryToken}, nil
}

func imagePush(c *cli) *cobra.Command {
	var req skerry.PushRequest
	var w waiting
	cmd := &cobra.Command{
		Use:     "push NAME REFERENCE",
		Short:   "Push an image to a registry",
		Long:    "Push an image to a registry and wait until it is there. A login that docker has stored for the registry is used.",
		Example: `  skerry image push my-env registry.example.org/team/my-env:1`,
		Args:    cobra.ExactArgs(2), ValidArgsFunction: c.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			req.Reference = args[1]
			var err error
			if req.Auth, err = registryLogin(ctx, req.Reference); err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			img, err := cl.PushImage(ctx, args[0], req)
			if err == nil && !w.no {
				bar := c.newBar("pushing "+img.Name, 0)
				img, err = cl.WaitPush(ctx, string(img.ID), w.limit(), bar.push)
				bar.close()
			}
			if err != nil {
				return err
			}
			return print(c, true, []skerry.Image{img}, pushHeader, pushRow)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&req.PlainHTTP, "plain-http", false, "the registry has no TLS")
	w.flags(f, 0)
	return cmd
}

func sandboxCapture(c *cli) *cobra.Command {
	var req skerry.CaptureRequest
	var idle int
	var w waiting
	cmd := &cobra.Command{
		Use:   "capture NAME",
		Short: "Make an image of the files of a sandbox",
		Long: `Make an image of the files of a sandbox, which runs on, and wait until new sandboxes
can start from it. An image with a name stays until it is deleted; one without is
deleted when no sandbox has been created from it for --idle-expiry-seconds.`,
		Example: `  skerry sandbox capture work --name my-env
  skerry sandbox create --image my-env`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("idle-expiry-seconds") {
				req.IdleExpirySeconds = &idle
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			img, err := cl.CaptureImage(cmd.Context(), args[0], req)
			if err == nil && !w.no {
				clear := c.say("capturing " + args[0])
				img, err = cl.WaitImage(cmd.Context(), string(img.ID), w.limit(), nil)
				clear()
			}
			if err != nil {
				return err
			}
			return print(c, true, []skerry.Image{img}, imageHeader, imageRow)
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name of the image; default none")
	f.IntVar(&idle, "idle-expiry-seconds", -1, "for an image without a name: 1 to 604800 (7 days), or -1 for the maximum")
	w.flags(f, operationTimeout)
	return cmd
}

// ensureImage pulls an image unless it is registered.
func ensureImage(ctx context.Context, c *cli, cl *client.Client, reference string) error {
	if reference == "" {
		return usageError{fmt.Errorf("--pull needs --image")}
	}
	img, err := cl.Image(ctx, reference)
	if skerry.CodeOf(err) == skerry.CodeNotFound || (err == nil && img.Status == skerry.ImageFailed) {
		img, err = pull(ctx, cl, skerry.PullRequest{Reference: reference, Name: reference})
	}
	if err != nil {
		return err
	}
	_, err = c.waitImage(ctx, cl, img)
	return err
}

func imageImport(c *cli) *cobra.Command {
	var req skerry.ImportRequest
	var noWait bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import an image from an archive; - is standard input",
		Example: `  docker save app:dev | skerry image import - --name app:dev
  skerry image import app.tar --name app --kind oci-layout`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			in, size := io.Reader(c.stdin), int64(0)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				if info, err := f.Stat(); err == nil {
					size = info.Size()
				}
				in = f
			}
			bar := c.newBar("uploading", size)
			img, err := cl.ImportImage(cmd.Context(), req, bar.reader(in))
			bar.close()
			if err != nil {
				return err
			}
			return c.finishImage(cmd.Context(), cl, img, noWait)
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name to register it under (required)")
	f.StringVar(&req.Kind, "kind", "", "oci-layout or docker-save; default told by its content")
	f.StringVar(&req.Tag, "tag", "", "which image, when the archive holds several")
	f.BoolVar(&req.Default, "default", false, "make it the image of creates that name none")
	f.BoolVar(&req.Warm, "warm", false, "boot it once before it is ready, so that the first create need not")
	f.BoolVar(&noWait, "no-wait", false, "return when it is uploaded")
	cmd.MarkFlagRequired("name")
	return cmd
}

func imageBuildDefault(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "build-default", Short: "Build the default image from Debian packages", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			img, err := cl.BuildDefaultImage(cmd.Context())
			if err != nil {
				return err
			}
			return c.finishImage(cmd.Context(), cl, img, false)
		},
	}
}

// finishImage waits, if asked for, and prints the image.
func (c *cli) finishImage(ctx context.Context, cl *client.Client, img skerry.Image, noWait bool) error {
	if !noWait {
		var err error
		if img, err = c.waitImage(ctx, cl, img); err != nil {
			return err
		}
	}
	return print(c, true, []skerry.Image{img}, imageHeader, imageRow)
}

// waitImage waits until an image is ready and shows how far it has come.
func (c *cli) waitImage(ctx context.Context, cl *client.Client, img skerry.Image) (skerry.Image, error) {
	if img.Status == skerry.ImageReady {
		return img, nil
	}
	bar := c.newBar(img.Name, 0)
	defer bar.close()
	return cl.WaitImage(ctx, string(img.ID), 0, bar.image)
}

func imageList(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List images", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			images, err := cl.Images(cmd.Context())
			if err != nil {
				return err
			}
			return print(c, false, images, imageHeader, imageRow)
		},
	}
}

func imageGet(c *cli) *cobra.Command {
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show an image, by name or id", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			img, err := cl.Image(cmd.Context(), args[0])
			if err == nil && wait {
				img, err = cl.WaitImage(cmd.Context(), string(img.ID), timeout, nil)
			}
			if err != nil {
				return err
			}
			return print(c, true, []skerry.Image{img}, imageHeader, imageRow)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is ready")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0 is without limit")
	return cmd
}

func imageDelete(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME…", Aliases: []string{"rm"}, Short: "Delete images", Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := cl.DeleteImage(cmd.Context(), name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
