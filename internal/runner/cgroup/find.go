package cgroup

import (
	"path/filepath"
	"slices"
	"strings"
)

// mount is a mounted hierarchy of control groups.
type mount struct {
	point string // where it is mounted
	root  string // the group that is mounted there
	v2    bool
	// controllers of a version 1 hierarchy; those of version 2 are in a file
	// of each group.
	controllers []string
}

// parseMounts finds the hierarchies in the text of /proc/self/mountinfo
// (proc_pid_mountinfo(5)).
func parseMounts(mountinfo string) []mount {
	var out []mount
	for line := range strings.Lines(mountinfo) {
		head, tail, ok := strings.Cut(line, " - ")
		fields, fs := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 5 || len(fs) < 3 {
			continue
		}
		m := mount{root: unescape(fields[3]), point: unescape(fields[4])}
		switch fs[0] {
		case "cgroup2":
			m.v2 = true
		case "cgroup":
			m.controllers = strings.Split(fs[2], ",")
		default:
			continue
		}
		out = append(out, m)
	}
	return out
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// own is the directory of the group that this process is in, by the text of
// /proc/self/cgroup (cgroups(7)); "" if it is not below the mount.
func (m mount) own(self string) string {
	for line := range strings.Lines(self) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if m.v2 && parts[0] != "0" || !m.v2 && !shareOne(strings.Split(parts[1], ","), m.controllers) {
			continue
		}
		rel, err := filepath.Rel(m.root, parts[2])
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			return ""
		}
		return filepath.Join(m.point, rel)
	}
	return ""
}

// shareOne is for controllers: the list of a mount has options besides.
func shareOne(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return s != "" && slices.Contains(b, s) })
}
