package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"skerry.dev/skerry"
)

// BuildLack is why BuildDefault cannot work on this host, and what to type.
type BuildLack struct{ What, Fix string }

func (l *BuildLack) Error() string { return l.What + ": type: " + l.Fix }

func missing(what, fix string) error {
	return skerry.Errorf(skerry.CodeUnavailable, "%w", &BuildLack{what, fix})
}

// CheckBuild finds out whether BuildDefault can work on this host. The error is
// a *BuildLack where there is something to type.
func CheckBuild(ctx context.Context) error {
	_, err := buildMode(ctx)
	return err
}

// The modes of mmdebstrap(1).
const (
	modeRoot    = "root"
	modeUnshare = "unshare" // an ordinary user's, in a user namespace
)

// buildMode finds out how mmdebstrap can work here.
func buildMode(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return "", missing("mmdebstrap is not installed", "sudo apt-get install mmdebstrap")
	}
	if _, err := os.Stat(debianKeyring); err != nil {
		return "", missing("Debian's archive keys are not installed", "sudo apt-get install debian-archive-keyring")
	}
	if os.Geteuid() == 0 {
		return modeRoot, nil
	}
	return modeUnshare, checkUnshare(ctx)
}

// namespaceSwitches are the settings of kernels that can forbid ordinary users
// to make user namespaces.
var namespaceSwitches = []struct{ file, off, fix string }{
	{"/proc/sys/user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=10000"},
	{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"},
	{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
}

// checkUnshare finds out whether this user can have a user namespace with all
// users and groups of a Debian system in it: first what is known to lack often,
// then by making one.
func checkUnshare(ctx context.Context) error {
	if _, err := exec.LookPath("newuidmap"); err != nil {
		return missing("newuidmap is not installed", "sudo apt-get install uidmap")
	}
	u, err := user.Current()
	if err != nil {
		return err
	}
	if err := checkSubIDs(u.Username, "/etc/subuid", "/etc/subgid"); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--unshare-helper", "true")
	cmd.Dir, cmd.Env = "/", buildEnv(os.Environ(), os.TempDir())
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	for _, s := range namespaceSwitches {
		if value, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(value)) == s.off {
			return missing("user "+u.Username+" cannot make a user namespace", s.fix)
		}
	}
	cause, _, _ := strings.Cut(string(out), "\n") // what follows is mmdebstrap's chain of callers
	return skerry.Errorf(skerry.CodeUnavailable, "user %s cannot make a user namespace: %s", u.Username, cause)
}

// neededIDs is how many subordinate users and groups a Debian system needs:
// "nobody" is 65534.
const neededIDs = 65536

// subIDs is a line of subuid(5) or subgid(5).
type subIDs struct {
	user         string
	start, count int64
}

// readSubIDs reads the file; none is an empty one.
func readSubIDs(file string) ([]subIDs, error) {
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ranges []subIDs
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 {
			continue
		}
		start, errStart := strconv.ParseInt(f[1], 10, 64)
		count, errCount := strconv.ParseInt(f[2], 10, 64)
		if errStart == nil && errCount == nil {
			ranges = append(ranges, subIDs{f[0], start, count})
		}
	}
	return ranges, nil
}

// checkSubIDs checks that each file has a range for the user that is large
// enough. As mmdebstrap does, it takes the first line with the user's name.
func checkSubIDs(name string, files ...string) error {
	lack, listed, free := "", false, int64(100_000) // SUB_UID_MIN of login.defs(5)
	for _, file := range files {
		ranges, err := readSubIDs(file)
		if err != nil {
			return err
		}
		have := int64(0)
		for _, r := range ranges {
			if r.user == name && have == 0 {
				have = r.count
			}
			listed = listed || r.user == name
			free = max(free, r.start+r.count)
		}
		if have < neededIDs && lack == "" {
			lack = fmt.Sprintf("user %s has %d subordinate ids in %s and needs %d", name, have, file, neededIDs)
		}
	}
	if lack == "" {
		return nil
	}
	fresh := fmt.Sprintf("%d-%d", free, free+neededIDs-1)
	fix := fmt.Sprintf("sudo usermod --add-subuids %s --add-subgids %s %s", fresh, fresh, name)
	if listed { // the lines there are would stay the first
		fix = fmt.Sprintf("sudo sed -i '/^%s:/d' %s && %s", name, strings.Join(files, " "), fix)
	}
	return missing(lack, fix)
}
