// Package account knows the users of a sandbox's image: it reads passwd(5) and
// group(5) without libc, and lets the agent act on files with a user's rights.
package account

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrUnknown is returned for a user or group that the image does not have.
var ErrUnknown = errors.New("no such user or group in the image")

// maxDatabase bounds what is read of passwd and group, which the sandbox can
// replace by anything.
const maxDatabase = 4 << 20

// maxGroups is the kernel's bound of supplementary groups, NGROUPS_MAX.
const maxGroups = 65536

// User is a user of the image.
type User struct {
	Name   string // the number in decimal if the image has no name for it
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string   // absolute; "/" if the image names none
	Shell  string   // "" if the image names none
}

// Database is the user database of the file system below Root ("" is "/").
type Database struct {
	Root string
}

// Lookup finds a user by an image's USER form: name or number, optionally with
// ":" and a group's name or number. As in Docker, a number that passwd(5) does
// not know is fine (group 0, home "/"), and naming a group drops the
// supplementary ones. A name that is missing gives ErrUnknown.
func (d Database) Lookup(spec string) (User, error) {
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" {
		return User{}, fmt.Errorf("user %q: name is empty", spec)
	}
	user, err := d.findUser(name)
	if err != nil {
		return User{}, fmt.Errorf("user %q: %w", spec, err)
	}
	if hasGroup {
		user.GID, err = d.findGroup(group)
		if err != nil {
			return User{}, fmt.Errorf("user %q: group: %w", spec, err)
		}
		return user, nil
	}
	user.Groups, err = d.groupsOf(user)
	if err != nil {
		return User{}, fmt.Errorf("user %q: groups: %w", spec, err)
	}
	return user, nil
}

// Names returns the names of all users and groups by number.
func (d Database) Names() (users, groups map[uint32]string, err error) {
	users, groups = map[uint32]string{}, map[uint32]string{}
	err = d.scan("passwd", func(f []string) bool {
		if u, ok := parseUser(f); ok {
			if _, ok := users[u.UID]; !ok {
				users[u.UID] = u.Name
			}
		}
		return true
	})
	if err != nil {
		return nil, nil, err
	}
	err = d.scan("group", func(f []string) bool {
		if gid, ok := parseGroup(f); ok {
			if _, ok := groups[gid]; !ok {
				groups[gid] = f[0]
			}
		}
		return true
	})
	return users, groups, err
}

// GroupID finds a group by name or number.
func (d Database) GroupID(name string) (uint32, error) {
	gid, err := d.findGroup(name)
	if err != nil {
		return 0, fmt.Errorf("group %q: %w", name, err)
	}
	return gid, nil
}

func (d Database) findUser(name string) (User, error) {
	number, isNumber := parseID(name)
	var byName, byNumber *User
	err := d.scan("passwd", func(f []string) bool {
		u, ok := parseUser(f)
		if !ok {
			return true
		}
		if u.Name == name {
			byName = &u
		} else if isNumber && u.UID == number && byNumber == nil {
			byNumber = &u
		}
		return byName == nil
	})
	switch {
	case err != nil:
		return User{}, err
	case byName != nil:
		return *byName, nil
	case byNumber != nil:
		return *byNumber, nil
	case isNumber:
		return User{Name: name, UID: number, Home: "/"}, nil
	case name == "root": // an image need not have an etc/passwd
		return User{Name: name, Home: "/root"}, nil
	}
	return User{}, ErrUnknown
}

func (d Database) findGroup(name string) (uint32, error) {
	found, ok := uint32(0), false
	err := d.scan("group", func(f []string) bool {
		if gid, valid := parseGroup(f); valid && f[0] == name {
			found, ok = gid, true
		}
		return !ok
	})
	if err != nil || ok {
		return found, err
	}
	if gid, isNumber := parseID(name); isNumber {
		return gid, nil
	}
	return 0, ErrUnknown
}

func (d Database) groupsOf(user User) ([]uint32, error) {
	var groups []uint32
	err := d.scan("group", func(f []string) bool {
		gid, ok := parseGroup(f)
		if !ok || len(f) < 4 {
			return true
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if member == user.Name {
				groups = append(groups, gid)
				break
			}
		}
		return len(groups) < maxGroups
	})
	return groups, err
}

// scan calls line with the fields of each line of a database file until it
// returns false. A file that is not there has no lines.
func (d Database) scan(name string, line func(fields []string) bool) error {
	root := d.Root
	if root == "" {
		root = "/"
	}
	// O_NONBLOCK: the sandbox may have put a FIFO there.
	f, err := os.OpenFile(filepath.Join(root, "etc", name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", f.Name())
	}
	return scanLines(io.LimitReader(f, maxDatabase), line)
}

func scanLines(r io.Reader, line func(fields []string) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxDatabase+1)
	for lines.Scan() {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		if !line(strings.Split(string(text), ":")) {
			return nil
		}
	}
	return lines.Err()
}

// parseUser reads name:password:uid:gid:gecos:home:shell.
func parseUser(f []string) (User, bool) {
	if len(f) < 4 || f[0] == "" {
		return User{}, false
	}
	uid, ok1 := parseID(f[2])
	gid, ok2 := parseID(f[3])
	if !ok1 || !ok2 {
		return User{}, false
	}
	u := User{Name: f[0], UID: uid, GID: gid, Home: "/"}
	if len(f) > 5 && filepath.IsAbs(f[5]) {
		u.Home = filepath.Clean(f[5])
	}
	if len(f) > 6 {
		u.Shell = f[6]
	}
	return u, true
}

// parseGroup reads name:password:gid:members.
func parseGroup(f []string) (uint32, bool) {
	if len(f) < 3 || f[0] == "" {
		return 0, false
	}
	return parseID(f[2])
}

// parseID reads a user or group number. The largest one means "no change" to
// the kernel and is refused.
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 || s[0] == '+' {
		return 0, false
	}
	return uint32(n), true
}
