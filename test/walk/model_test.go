package walk

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"skerry.dev/skerry"
)

// model is what a sandbox must be: its status and every file that was written
// to it.
type model struct {
	id         skerry.SandboxID
	name       string
	persistent bool
	status     skerry.Status     // running, stopped or paused
	disk       map[string]string // files below diskDir, flushed
	memory     map[string]string // files below memoryDir, which a machine's end takes with it
}

// Where files are written. The second is a file system in memory, so that its
// files tell whether memory was kept.
const (
	diskDir   = "/var/walk"
	memoryDir = "/dev/shm/walk"
)

// copyOf is a sandbox made of m, without its memory if that was not copied.
func (m *model) copyOf(id skerry.SandboxID, name string, persistent, memory bool) *model {
	c := &model{id: id, name: name, persistent: persistent, status: skerry.StatusRunning, disk: maps.Clone(m.disk), memory: map[string]string{}}
	if memory {
		c.memory = maps.Clone(m.memory)
	}
	return c
}

// lostMachine is what is left when the machine ended by itself.
func (m *model) lostMachine() {
	m.status = skerry.StatusStopped
	clear(m.memory)
}

// listing is what listScript prints in a sandbox with these files.
func (m *model) listing() string {
	var b strings.Builder
	for _, part := range []struct {
		dir   string
		files map[string]string
	}{{diskDir, m.disk}, {memoryDir, m.memory}} {
		for _, name := range slices.Sorted(maps.Keys(part.files)) {
			fmt.Fprintf(&b, "%s/%s=%s\n", part.dir, name, part.files[name])
		}
	}
	return b.String()
}

const listScript = `for d in ` + diskDir + ` ` + memoryDir + `; do
	[ -d "$d" ] || continue
	for f in "$d"/*; do [ -f "$f" ] && echo "$f=$(cat "$f")"; done
done; true`

// writeScript writes one file to both places; the one on the disk is flushed, so
// that not even the end of the machine takes it away.
func writeScript(name, content string) string {
	return fmt.Sprintf("mkdir -p %[1]s %[2]s && echo %[4]s > %[1]s/%[3]s && echo %[4]s > %[2]s/%[3]s && sync", diskDir, memoryDir, name, content)
}
