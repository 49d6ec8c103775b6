package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/image"
	"skerry.dev/skerry/internal/kernel"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/usernet"
)

// imageDisk is the read-only disk of an image: its layers and the platform.
type imageDisk struct {
	digest   string // of the image
	extents  []machine.Extent
	layers   []int
	platform int
}

// imageDisks composes image disks and keeps the images open: an image in use
// cannot be deleted.
type imageDisks struct {
	dir    string
	images *image.Store

	mu    sync.Mutex
	disks map[string]*openDisk // by image digest and guest key; guarded by mu
}

type openDisk struct {
	imageDisk
	image *image.Image
}

func newImageDisks(dir string, images *image.Store) *imageDisks {
	return &imageDisks{dir: dir, images: images, disks: map[string]*openDisk{}}
}

// get returns the disk of an image. A damaged image is repaired once.
func (d *imageDisks) get(ctx context.Context, digest string, g Guest) (imageDisk, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := diskKey(digest, g)
	if o := d.disks[key]; o != nil {
		return o.imageDisk, nil
	}
	img, err := d.images.Open(ctx, digest)
	if errors.Is(err, image.ErrDamaged) {
		if _, err = d.images.Repair(ctx, digest, nil); err == nil {
			img, err = d.images.Open(ctx, digest)
		}
	}
	if err != nil {
		return imageDisk{}, fmt.Errorf("image: %w", err)
	}
	o, err := d.compose(img, key, g)
	if err != nil {
		img.Close()
		return imageDisk{}, err
	}
	d.disks[key] = o
	return o.imageDisk, nil
}

func (d *imageDisks) compose(img *image.Image, key string, g Guest) (*openDisk, error) {
	dir := filepath.Join(d.dir, key)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var layers []string
	for _, l := range img.Layers {
		layers = append(layers, l.Path)
	}
	platform := filepath.Join(dir, platformFile)
	if err := keepLink(g.PlatformPath, platform); err != nil {
		return nil, err
	}
	c, err := disk.ComposeImage(dir, layers, platform)
	if err != nil {
		return nil, fmt.Errorf("image disk: %w", err)
	}
	o := &openDisk{image: img, imageDisk: imageDisk{digest: img.Digest, layers: c.Layers, platform: c.Platform}}
	for _, e := range c.Extents {
		o.extents = append(o.extents, machine.Extent(e))
	}
	return o, nil
}

// platformFile is a hard link to the platform's file in the directory of an
// image's disk: machines that run, and those that are saved, outlive an upgrade
// of the guest's software, which takes the file itself away.
const platformFile = "platform.erofs"

func keepLink(from, to string) error {
	if err := os.Link(from, to); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("keep platform: %w", err)
	}
	return nil
}

// sweep removes the disks that neither this guest's software nor a machine uses:
// what earlier versions of the software have left.
func (d *imageDisks) sweep(g Guest, used map[string]bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	current := map[string]bool{}
	for _, info := range d.images.List() {
		current[diskKey(info.Digest, g)] = true
	}
	for _, e := range entries {
		if dir := filepath.Join(d.dir, e.Name()); !current[e.Name()] && !used[dir] && d.disks[e.Name()] == nil {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// drop closes an image so that it can be deleted. Machines that run keep its
// files.
func (d *imageDisks) drop(digest string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for key, o := range d.disks {
		if o.digest == digest {
			o.image.Close()
			delete(d.disks, key)
			errs = append(errs, os.RemoveAll(filepath.Join(d.dir, key)))
		}
	}
	return errors.Join(errs...)
}

func (d *imageDisks) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.disks {
		o.image.Close()
	}
	clear(d.disks)
}

func diskKey(digest string, g Guest) string {
	sum := sha256.Sum256([]byte(digest + " " + g.Key))
	return hex.EncodeToString(sum[:12])
}

// boot is the cold boot of an image.
func (i imageDisk) boot(p Prepared) (*machine.Boot, error) {
	args, err := guestapi.Boot{Layers: i.layers, Platform: i.platform,
		Address: netip.PrefixFrom(usernet.GuestAddr, usernet.Subnet.Bits()).String(), Gateway: usernet.GatewayAddr.String(),
		DNS: usernet.DNSAddr.String(), MTU: usernet.DefaultMTU}.CommandLine()
	if err != nil {
		return nil, err
	}
	return &machine.Boot{KernelPath: p.Guest.KernelPath, InitrdPath: p.Guest.InitrdPath,
		Args: kernel.CommandLine(p.Driver.Accel) + " " + args}, nil
}
