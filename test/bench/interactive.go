package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// probe reports what tells one machine from another, and fails with status 3 if
// an earlier probe has left its marker: then the machine is no new one.
const probe = `set -eu
for d in /tmp /var/tmp; do
	if [ -e "$d/skerry-bench-marker" ]; then echo "marker in $d: $(cat "$d/skerry-bench-marker")"; exit 3; fi
done
echo "boot_id=$(cat /proc/sys/kernel/random/boot_id)"
echo "machine_id=$(cat /etc/machine-id)"
echo "hostname=$(cat /proc/sys/kernel/hostname)"
echo "uptime=$(cat /proc/uptime)"
echo "init=$(tr '\0' ' ' </proc/1/cmdline)"
echo "cgroup=$(tr '\n' ' ' </proc/self/cgroup)"
for n in mnt net pid uts; do echo "ns_$n=$(readlink /proc/self/ns/$n)"; done
echo "digest=$(echo "$1" | sha256sum)"
for d in /tmp /var/tmp; do echo "$1" >"$d/skerry-bench-marker"; done
`

// identities counts the different values of each line of the probes.
type identities map[string]map[string]bool

func (ids identities) add(output string) {
	for line := range strings.Lines(output) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		if ids[key] == nil {
			ids[key] = map[string]bool{}
		}
		ids[key][value] = true
	}
}

// distinct says how many values of a line there were.
func (ids identities) distinct(key string) int { return len(ids[key]) }

// measureInteractive measures time to interactive: one clock around a create, a
// probe of the machine's identity and `node -v`. The delete is not timed.
// Percentiles are of what is left when 5 % are dropped at either end.
func (b *bench) measureInteractive(ctx context.Context, s *server, name string) error {
	times := b.newSeries("tti", "time to interactive%s: create, probe, node -v", name)
	times.trim = trimShare
	ids := identities{}
	ok := 0
	for range b.opt.n {
		id, took, err := b.interactive(ctx, s, ids)
		if err != nil {
			times.fail(err)
		} else {
			times.add(took)
			ok++
		}
		if err := s.alive(ctx); err != nil {
			return err
		}
		if _, err := b.remove(ctx, s, id); err != nil {
			return err
		}
	}
	times.score = true
	times.note = fmt.Sprintf("of %d different: boot_id %d, machine-id %d, hostname %d", ok,
		ids.distinct("boot_id"), ids.distinct("machine_id"), ids.distinct("hostname"))
	b.finish(times)
	return nil
}

func (b *bench) interactive(ctx context.Context, s *server, ids identities) (skerry.SandboxID, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	token := skerry.RandomToken(16)
	start := time.Now()
	sb, err := s.create(ctx, client.CreateSandbox{Image: b.image.Name})
	if err != nil {
		return sb.ID, 0, fmt.Errorf("create: %w", err)
	}
	box := s.Toolbox(sb.ID)
	identity, err := execute(ctx, box, "sh", "-c", probe, "probe", token)
	if err != nil {
		return sb.ID, 0, fmt.Errorf("probe: %w", err)
	}
	version, err := execute(ctx, box, "node", "-v")
	took := time.Since(start)
	if err == nil && !strings.HasPrefix(version, "v") {
		err = fmt.Errorf("node -v says %q", version)
	}
	ids.add(identity)
	return sb.ID, took, err
}

// execute runs a program and returns its output. Any end but exit status 0 is
// an error.
func execute(ctx context.Context, box *client.Toolbox, argv ...string) (string, error) {
	res, err := box.Execute(ctx, skerry.ExecuteRequest{Argv: argv})
	if err != nil {
		return "", err
	}
	if res.ExitCode != 0 || res.Reason != skerry.ReasonExited {
		return res.Stdout, errors.New(strings.TrimSpace(fmt.Sprintf("%s ended with %d (%s): %s%s", argv[0], res.ExitCode, res.Reason, res.Stdout, res.Stderr)))
	}
	return res.Stdout, nil
}
