package image

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"skerry.dev/skerry"
)

// Usage is what a store takes on disk, in bytes.
type Usage struct {
	Images  int   // registered images
	Layers  int64 // converted layers, each counted once
	Blobs   int64 // manifests, configurations and compressed layers
	Partial int64 // interrupted downloads
	Unused  int64 // of the above: what no image needs and Sweep will remove once it is old
}

// Usage measures the store.
func (s *Store) Usage() (Usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := s.liveLocked()
	u := Usage{Images: len(s.images)}
	for dir, sum := range map[string]*int64{"layers": &u.Layers, "blobs/sha256": &u.Blobs, "partial": &u.Partial} {
		err := s.eachFile(dir, func(name string, fi fs.FileInfo) error {
			*sum += fi.Size()
			if !live[liveName(name)] {
				u.Unused += fi.Size()
			}
			return nil
		})
		if err != nil {
			return Usage{}, fault(err, "measure image store")
		}
	}
	return u, nil
}

// Sweep removes blobs and layers that no image and no work in progress needs,
// and interrupted downloads, once they have been unused for Options.KeepUnused.
// It returns how many bytes that freed.
func (s *Store) Sweep() (freed int64, err error) {
	return s.sweep(max(s.opt.KeepUnused, 0))
}

func (s *Store) sweep(keep time.Duration) (freed int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := s.liveLocked()
	for _, dir := range []string{"layers", "blobs/sha256", "partial"} {
		err := s.eachFile(dir, func(name string, fi fs.FileInfo) error {
			if live[liveName(name)] || keep > 0 && time.Since(fi.ModTime()) < keep && !s.halfLayer(name) {
				return nil
			}
			freed += fi.Size()
			return removeIfThere(s.path(name))
		})
		if err != nil {
			return freed, fault(err, "sweep image store")
		}
	}
	return freed, nil
}

// halfLayer reports whether the file is of a converted layer that was never
// finished: it has no use at any age.
func (s *Store) halfLayer(name string) bool {
	if !strings.HasPrefix(name, "layers/") || strings.HasSuffix(name, ".json") {
		return false
	}
	_, err := os.Stat(s.path(liveName(name) + ".json"))
	return errors.Is(err, fs.ErrNotExist)
}

// liveName is the name under which a file is pinned or needed: the files of one
// layer go by its key.
func liveName(name string) string {
	if !strings.HasPrefix(name, "layers/") {
		return name
	}
	for _, ext := range []string{".img", ".json"} {
		if key, ok := strings.CutSuffix(name, ext); ok {
			return key
		}
	}
	return name
}

func (s *Store) liveLocked() map[string]bool {
	live := make(map[string]bool)
	for _, rec := range s.images {
		for _, f := range rec.files() {
			live[f] = true
		}
	}
	for f := range s.pins {
		live[f] = true
	}
	return live
}

// files are the names (see liveName) that an image needs.
func (r *record) files() []string {
	names := []string{blobName(r.Manifest.Digest), blobName(r.Config.Digest)}
	for _, l := range r.Layers {
		names = append(names, blobName(l.Blob.Digest), "layers/"+l.Key)
	}
	return names
}

// removeUnusedLocked removes those of the named files that nothing needs now.
func (s *Store) removeUnusedLocked(names []string) error {
	live := s.liveLocked()
	for _, name := range names {
		if live[name] {
			continue
		}
		paths := []string{s.path(name)}
		if strings.HasPrefix(name, "layers/") { // the record first: without it the rest is garbage
			paths = []string{s.path(name + ".json"), s.path(name + ".img")}
			delete(s.verified, s.path(name+".img"))
		}
		for _, p := range paths {
			if err := removeIfThere(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeUnused removes those of the named files that nothing needs now.
func (s *Store) removeUnused(names []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removeUnusedLocked(names)
}

// pin keeps files from being swept until unpin is called.
func (s *Store) pin(names ...string) (unpin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pinLocked(names)
}

// pinImage returns an image's record with its files pinned. CodeNotFound: there
// is none of this digest.
func (s *Store) pinImage(digest string) (rec *record, unpin func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec = s.images[digest]; rec == nil {
		return nil, nil, skerry.Errorf(skerry.CodeNotFound, "no image %s", digest)
	}
	return rec, s.pinLocked(rec.files()), nil
}

func (s *Store) pinLocked(names []string) (unpin func()) {
	for _, n := range names {
		s.pins[n]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range names {
			if s.pins[n]--; s.pins[n] == 0 {
				delete(s.pins, n)
			}
		}
	}
}

func (s *Store) eachFile(dir string, do func(name string, fi fs.FileInfo) error) error {
	entries, err := os.ReadDir(s.path(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := do(dir+"/"+e.Name(), fi); err != nil {
			return err
		}
	}
	return nil
}

func removeIfThere(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
