package runner

import (
	"context"
	"sync"
	"time"

	"skerry.dev/skerry/internal/machine"
)

// loadedMemories is how many templates and snapshots stay in memory. Each holds
// the touched pages of a guest, about 100 MiB.
const loadedMemories = 8

// memories keeps the memory that machines are restored from, loaded by the
// directory it is in. All machines of one share its pages.
type memories struct {
	mu    sync.Mutex
	byDir map[string]*memory // guarded by mu
}

// memory is one entry; its own lock is held while it is made or loaded, so that
// creates of one image wait for each other and others do not.
type memory struct {
	mu     sync.Mutex
	loaded *machine.Template // guarded by mu; nil when not in memory
	used   time.Time         // guarded by memories.mu
	users  int               // guarded by memories.mu
}

func newMemories() *memories { return &memories{byDir: map[string]*memory{}} }

// get returns what is loaded of dir, or loads it. done must be called when its
// descriptors have been handed on.
func (m *memories) get(ctx context.Context, dir string, load func(context.Context) (*machine.Template, error)) (tpl *machine.Template, done func(), err error) {
	e := m.hold(dir)
	done = func() { m.release(e) }
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loaded == nil {
		if e.loaded, err = load(ctx); err != nil {
			done()
			return nil, nil, err
		}
	}
	return e.loaded, done, nil
}

func (m *memories) hold(dir string) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.byDir[dir]
	if e == nil {
		e = &memory{}
		m.byDir[dir] = e
	}
	e.users++
	e.used = time.Now()
	m.evictLocked()
	return e
}

func (m *memories) release(e *memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.users--
}

// evictLocked drops the longest unused ones. Machines that run keep the pages
// they share.
func (m *memories) evictLocked() {
	for len(m.byDir) > loadedMemories {
		var oldest *memory
		var oldestDir string
		for dir, e := range m.byDir {
			if e.users == 0 && (oldest == nil || e.used.Before(oldest.used)) {
				oldest, oldestDir = e, dir
			}
		}
		if oldest == nil {
			return
		}
		delete(m.byDir, oldestDir)
		closeMemory(oldest.loaded)
	}
}

// drop forgets what is loaded of dir, unless it is being handed on right now.
func (m *memories) drop(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.byDir[dir]; e != nil && e.users == 0 {
		closeMemory(e.loaded)
		delete(m.byDir, dir)
	}
}

func (m *memories) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.byDir {
		closeMemory(e.loaded)
	}
	clear(m.byDir)
}

func closeMemory(tpl *machine.Template) {
	if tpl != nil {
		tpl.RAM.Close()
		tpl.State.Close()
	}
}
