package account

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Do calls fn with the user's rights to files, on a thread of its own: the file
// system identity of setfsuid(2), setfsgid(2) and the supplementary groups, and
// so without the capabilities that let root pass permission checks. The kernel
// then judges each step of each path as it would for the user's own program, so
// no link, however and whenever planted, gets fn anywhere the user could not go
// himself.
//
// fn must open files itself and may hand them out, but must start no process
// and no goroutine that touches files. An agent that is not root acts as
// itself and refuses any other user.
func (u User) Do(fn func() error) error {
	if euid := os.Geteuid(); euid != 0 {
		if uint32(euid) != u.UID {
			return fmt.Errorf("act as user %s: %w", u.Name, unix.EPERM)
		}
		return fn()
	}
	if u.UID == 0 {
		return fn() // all rights anyway
	}
	result := make(chan error, 1)
	go func() {
		// If the rights cannot be given back the goroutine ends locked, and the
		// thread with it.
		runtime.LockOSThread()
		if err := u.doLocked(result, fn); err == nil {
			runtime.UnlockOSThread()
		}
	}()
	return <-result
}

// doLocked runs fn and reports on result; it returns an error if the thread's
// rights are not root's again.
func (u User) doLocked(result chan<- error, fn func() error) (err error) {
	own, err := unix.Getgroups()
	if err != nil {
		result <- fmt.Errorf("act as user %s: getgroups: %w", u.Name, err)
		return nil
	}
	answer := fmt.Errorf("act as user %s: interrupted", u.Name)
	defer func() {
		err = setRights(0, 0, own)
		result <- answer
	}()
	if err := setRights(u.UID, u.GID, u.groupList()); err != nil {
		answer = fmt.Errorf("act as user %s: %w", u.Name, err)
		return nil
	}
	answer = fn()
	return nil
}

func (u User) groupList() []int {
	list := make([]int, len(u.Groups))
	for i, g := range u.Groups {
		list[i] = int(g)
	}
	return list
}

// setRights sets the calling thread's identity towards file systems. The calls
// of package unix act on one thread, unlike those of package syscall.
func setRights(uid, gid uint32, groups []int) error {
	// Becoming root comes first, leaving it last: setgroups needs CAP_SETGID,
	// which setfsuid leaves alone, so the order is for clarity only.
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := setID(unix.SetfsgidRetGid, int(gid)); err != nil {
		return fmt.Errorf("setfsgid: %w", err)
	}
	if err := setID(unix.SetfsuidRetUid, int(uid)); err != nil {
		return fmt.Errorf("setfsuid: %w", err)
	}
	return nil
}

// setID calls setfsuid or setfsgid and checks it: they return the previous
// value whether they worked or not (setfsuid(2), BUGS).
func setID(set func(int) (int, error), id int) error {
	if _, err := set(id); err != nil {
		return err
	}
	now, err := set(-1) // changes nothing
	if err != nil {
		return err
	}
	if now != id {
		return unix.EPERM
	}
	return nil
}

// In reports whether the user is in a group.
func (u User) In(gid uint32) bool {
	return u.GID == gid || slices.Contains(u.Groups, gid)
}
