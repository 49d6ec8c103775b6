package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

// Converter turns one layer into the file that machines read.
type Converter interface {
	// Format names what ConvertLayer writes. Layers of another format are
	// converted anew.
	Format() string
	// ConvertLayer writes l.Dst. It reports dependsOnLower if it looked for
	// anything in the layers below, found or not, or would have if there were
	// any: the result is then used only above the same layers.
	ConvertLayer(ctx context.Context, l Conversion) (dependsOnLower bool, err error)
}

// Conversion is one layer to convert.
type Conversion struct {
	Tar   io.ReaderAt // uncompressed, checked against the diffID
	Size  int64       // bytes of Tar
	Lower []string    // files of the layers below, the lowest first
	Dst   string      // does not exist yet
}

// LayerFile is a converted layer.
type LayerFile struct {
	DiffID string // "sha256:…"
	Path   string
	Bytes  int64 // size of the file at Path
}

// Limits bound what an image may cost. Zero fields have the default.
type Limits struct {
	ManifestBytes int64 // a manifest or index; default 4 MiB (OCI distribution specification)
	ConfigBytes   int64 // an image configuration; default 8 MiB
	Layers        int   // default 127, as Docker
	BlobBytes     int64 // one layer as stored; default 64 GiB
	LayerBytes    int64 // one layer uncompressed; default 128 GiB
	ImageBytes    int64 // all layers of an image, as stored or uncompressed; default 256 GiB
}

func (l Limits) withDefaults() Limits {
	set := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	set(&l.ManifestBytes, 4<<20)
	set(&l.ConfigBytes, 8<<20)
	set(&l.BlobBytes, 64<<30)
	set(&l.LayerBytes, 128<<30)
	set(&l.ImageBytes, 256<<30)
	if l.Layers == 0 {
		l.Layers = 127
	}
	return l
}

// Options configure a store.
type Options struct {
	Dir       string // made if it does not exist
	Converter Converter
	Log       *slog.Logger // default: nothing is logged
	Limits    Limits
	// Keychain finds the login of pulls that bring none; default the docker
	// config and its credential helpers.
	Keychain authn.Keychain
	// Transport reaches registries; default http.DefaultTransport's settings.
	Transport http.RoundTripper
	// Downloads and Conversions bound how many layers are worked on at once, of
	// all pulls together; default 4 and 2.
	Downloads, Conversions int
	// KeepUnused is how long blobs that no image needs are kept, so that an
	// interrupted pull can go on; default 24 hours, negative not at all.
	KeepUnused time.Duration
	// RetryDelay is the pause before the first retry of a download; each
	// further one doubles it. Default 500 ms.
	RetryDelay time.Duration
}

// Store is a store of images. Its methods may be called by many goroutines.
type Store struct {
	opt       Options
	lockFile  *os.File
	busy      keylock // "blob:…", "layer:…"
	downloads chan struct{}
	converts  chan struct{}

	mu       sync.Mutex
	images   map[string]*record   // by manifest digest; guarded by mu
	opened   map[string]int       // open Images by manifest digest; guarded by mu
	pins     map[string]int       // files (relative paths) that work in progress needs; guarded by mu
	verified map[string]fileStamp // layer files whose checksum was right, by path; guarded by mu
}

// record is images/<hex>.json. Fields are only added.
type record struct {
	Manifest  v1.Descriptor      `json:"manifest"`
	Config    v1.Descriptor      `json:"config"`
	Platform  string             `json:"platform"`
	Source    string             `json:"source"`
	Image     skerry.ImageConfig `json:"image"`
	Warnings  []string           `json:"warnings,omitempty"`
	Layers    []layerRecord      `json:"layers"`
	CreatedAt time.Time          `json:"created_at"`
}

type layerRecord struct {
	Blob   v1.Descriptor `json:"blob"`
	DiffID v1.Hash       `json:"diff_id"`
	Key    string        `json:"key"`
	Bytes  int64         `json:"bytes"` // of the converted file
}

// Info describes a registered image.
type Info struct {
	Digest     string // of the manifest for its platform, "sha256:…"
	Platform   string // "linux/amd64"
	Source     string // reference it was pulled as, or kind of archive
	Config     skerry.ImageConfig
	Warnings   []string // what of its configuration is ignored, and why
	LayerCount int
	Bytes      int64 // of the converted layers, shared ones included
	BlobBytes  int64 // of manifest, configuration and compressed layers
	CreatedAt  time.Time
}

// Open opens the store in opt.Dir and removes what an earlier process left
// unfinished there. CodeConflict: another process has it open.
func Open(opt Options) (*Store, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Keychain == nil {
		opt.Keychain = authn.DefaultKeychain
	}
	if opt.Transport == nil {
		opt.Transport = newTransport()
	}
	opt.Limits = opt.Limits.withDefaults()
	opt.Downloads = defaultInt(opt.Downloads, 4)
	opt.Conversions = defaultInt(opt.Conversions, 2)
	if opt.KeepUnused == 0 {
		opt.KeepUnused = 24 * time.Hour
	}
	if opt.RetryDelay == 0 {
		opt.RetryDelay = 500 * time.Millisecond
	}
	s := &Store{
		opt:       opt,
		downloads: make(chan struct{}, opt.Downloads),
		converts:  make(chan struct{}, opt.Conversions),
		images:    make(map[string]*record),
		opened:    make(map[string]int),
		pins:      make(map[string]int),
		verified:  make(map[string]fileStamp),
	}
	if err := s.start(); err != nil {
		return nil, fault(err, "open image store %s", opt.Dir)
	}
	return s, nil
}

func defaultInt(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

func (s *Store) start() (err error) {
	for _, d := range []string{"", "blobs/sha256", "partial", "layers", "images"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return err
		}
	}
	s.lockFile, err = os.OpenFile(s.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.lockFile.Close()
		}
	}()
	if err := syscall.Flock(int(s.lockFile.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return skerry.Errorf(skerry.CodeConflict, "another process has it open: %w", err)
	}
	if err := os.RemoveAll(s.path("tmp")); err != nil {
		return err
	}
	if err := os.Mkdir(s.path("tmp"), 0o755); err != nil {
		return err
	}
	if err := s.loadRecords(); err != nil {
		return err
	}
	_, err = s.Sweep()
	return err
}

// loadRecords reads all images. A record that cannot be read is set aside, not
// deleted, so that one bad file does not take the others with it.
func (s *Store) loadRecords() error {
	entries, err := os.ReadDir(s.path("images"))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		path := s.path("images", e.Name())
		rec := new(record)
		err := readJSON(path, rec)
		if err == nil && (rec.Manifest.Digest.Hex != hex || len(rec.Layers) == 0) {
			err = errors.New("content does not belong to its name")
		}
		if err != nil {
			s.opt.Log.Error("image record unreadable, set aside", "path", path+".bad", "err", err)
			if err := os.Rename(path, path+".bad"); err != nil {
				return err
			}
			continue
		}
		s.images[rec.Manifest.Digest.String()] = rec
	}
	return nil
}

// Close gives the directory free. Work in progress must have ended.
func (s *Store) Close() error { return s.lockFile.Close() }

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.opt.Dir}, elem...)...)
}

func blobName(d v1.Hash) string    { return "blobs/sha256/" + d.Hex }
func partialName(d v1.Hash) string { return "partial/" + d.Hex }

// List returns all images, the oldest first.
func (s *Store) List() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Info, 0, len(s.images))
	for _, rec := range s.images {
		list = append(list, rec.info())
	}
	slices.SortFunc(list, func(a, b Info) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.Digest, b.Digest)
	})
	return list
}

// Get returns one image. CodeNotFound: there is none of this digest.
func (s *Store) Get(digest string) (Info, error) {
	rec, err := s.record(digest)
	if err != nil {
		return Info{}, err
	}
	return rec.info(), nil
}

func (s *Store) record(digest string) (*record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.images[digest]
	if rec == nil {
		return nil, skerry.Errorf(skerry.CodeNotFound, "no image %s", digest)
	}
	return rec, nil
}

// info is a copy: records are shared and never change.
func (r *record) info() Info {
	in := Info{
		Digest:     r.Manifest.Digest.String(),
		Platform:   r.Platform,
		Source:     r.Source,
		Config:     cloneConfig(r.Image),
		Warnings:   slices.Clone(r.Warnings),
		LayerCount: len(r.Layers),
		BlobBytes:  r.Manifest.Size + r.Config.Size,
		CreatedAt:  r.CreatedAt,
	}
	for _, l := range r.Layers {
		in.Bytes += l.Bytes
		in.BlobBytes += l.Blob.Size
	}
	return in
}

func cloneConfig(c skerry.ImageConfig) skerry.ImageConfig {
	c.Env, c.Entrypoint, c.Cmd = slices.Clone(c.Env), slices.Clone(c.Entrypoint), slices.Clone(c.Cmd)
	return c
}

// put registers an image whose files are all in place.
func (s *Store) put(rec *record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst := s.path("images", rec.Manifest.Digest.Hex+".json")
	if err := writeJSON(s.path("tmp"), dst, rec); err != nil {
		return err
	}
	s.images[rec.Manifest.Digest.String()] = rec
	return nil
}

// Image is a registered image in use: it cannot be deleted until it is closed.
type Image struct {
	Info
	Layers []LayerFile // the lowest first

	release func()
}

// Close ends the use. It may be called more than once.
func (i *Image) Close() { i.release() }

// Open returns an image to start machines from. It checks that every layer file
// is there and as it was written: the first time in a process by its checksum,
// later by size, times and inode. ErrDamaged with CodeUnavailable: it is not;
// Repair, or a new pull or import, makes it whole. CodeNotFound: no such image.
func (s *Store) Open(ctx context.Context, digest string) (*Image, error) {
	s.mu.Lock()
	rec := s.images[digest]
	if rec == nil {
		s.mu.Unlock()
		return nil, skerry.Errorf(skerry.CodeNotFound, "no image %s", digest)
	}
	s.opened[digest]++
	s.mu.Unlock()

	img := &Image{Info: rec.info(), release: sync.OnceFunc(func() { s.closed(digest) })}
	for i, l := range rec.Layers {
		file, err := s.checkLayer(ctx, l)
		if err != nil {
			img.Close()
			return nil, fault(err, "open image %s: layer %d of %d", digest, i+1, len(rec.Layers))
		}
		img.Layers = append(img.Layers, file)
	}
	return img, nil
}

func (s *Store) closed(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened[digest]--; s.opened[digest] == 0 {
		delete(s.opened, digest)
	}
}

// Delete removes an image and every file that no other image needs.
// CodeConflict: it is in use. CodeNotFound: there is none of this digest.
func (s *Store) Delete(digest string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.images[digest]
	if rec == nil {
		return skerry.Errorf(skerry.CodeNotFound, "no image %s", digest)
	}
	if n := s.opened[digest]; n > 0 {
		return skerry.Errorf(skerry.CodeConflict, "image %s is in use (%d times)", digest, n)
	}
	err := os.Remove(s.path("images", rec.Manifest.Digest.Hex+".json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault(err, "delete image %s", digest)
	}
	if err := syncDir(s.path("images")); err != nil {
		return fault(err, "delete image %s", digest)
	}
	delete(s.images, digest)
	if err := s.removeUnusedLocked(rec.files()); err != nil {
		return fault(err, "delete image %s", digest)
	}
	return nil
}

// manifestBytes reads an image's manifest and checks it.
func (s *Store) manifestBytes(rec *record) ([]byte, error) {
	raw, err := os.ReadFile(s.path(blobName(rec.Manifest.Digest)))
	if err == nil && digestOf(raw) != rec.Manifest.Digest {
		err = fmt.Errorf("manifest %s was changed on disk", rec.Manifest.Digest)
	}
	return raw, err
}

func (r *record) parse(raw []byte) (*v1.Manifest, types.MediaType, error) {
	doc, err := parseDocument(raw, r.Manifest.MediaType)
	if err != nil {
		return nil, "", err
	}
	if doc.manifest == nil {
		return nil, "", invalidImage("manifest %s is an index", r.Manifest.Digest)
	}
	return doc.manifest, doc.mediaType, nil
}

var _ json.Marshaler = v1.Hash{} // records hold digests as "sha256:…"
