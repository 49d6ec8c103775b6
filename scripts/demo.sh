#!/usr/bin/env bash
# The tour: what Skerry does, with the time each step took. Usage: demo.sh SKERRY
#
# It uses (and starts, if none runs) the user's own server, so that afterwards
# everything is there to go on with. A second run reuses all of it.
set -euo pipefail
skerry=$1
export PATH="$(dirname "$skerry"):$PATH"

bold() { if [ -t 1 ]; then printf '\033[1m%s\033[0m\n' "$*"; else printf '%s\n' "$*"; fi; }
now() { date +%s%3N; }
step() { # step TITLE CMD…: runs it, shows its output indented and its time
	local title=$1 start out rc=0
	shift
	start=$(now)
	out=$("$@" 2>&1) || rc=$?
	printf '%-52s %6d ms\n' "$title" $(($(now) - start))
	[ -z "$out" ] || sed 's/^/    /' <<<"$out"
	return $rc
}

bold "The host"
skerry doctor || { echo "something is missing; see above" >&2; exit 1; }

echo
bold "The server"
log=${XDG_STATE_HOME:-$HOME/.local/state}/skerry/server.log
mkdir -p "$(dirname "$log")"
if skerry runner list -o json >/dev/null 2>&1; then
	echo "a server runs already"
else
	skerry server >>"$log" 2>&1 &
	server=$!
	for _ in $(seq 600); do
		skerry runner list -o json >/dev/null 2>&1 && break
		kill -0 $server 2>/dev/null || { tail -5 "$log" >&2; exit 1; }
		sleep 0.1
	done
	echo "started, process $server, log $log"
fi

echo
bold "The default image (Debian 12 with Python, Node.js, git, curl)"
if skerry image get debian-12 -o json >/dev/null 2>&1; then
	echo "is there already"
else
	echo "is built from Debian packages; this takes a minute or two, once"
	skerry image build-default
fi

echo
bold "The tour"
step "first run: boots once and keeps a template" skerry run -- true
id=$(skerry sandbox create -o json | sed -n 's/^ *"id": "\(sbx_[a-z2-7]*\)",*$/\1/p' | head -1)
trap 'skerry sandbox delete "$id" >/dev/null 2>&1 || true' EXIT
step "create and run in one go" skerry run -- echo "hello from a machine of my own"
printf '%-52s %s\n' "kernel outside" "$(uname -sr)"
step "kernel inside" skerry sandbox exec "$id" -- uname -sr
step "a Python program" skerry sandbox exec "$id" -- python3 -c 'import sys, os; print("Python", sys.version.split()[0], "on", os.cpu_count(), "CPU, pid", os.getpid())'
step "one command writes a file" skerry sandbox exec "$id" -- sh -c 'date > /root/when'
step "the next one reads it" skerry sandbox exec "$id" -- cat /root/when
step "apt-get install of a real package" skerry sandbox exec "$id" -- sh -c 'apt-get update -qq && apt-get install -y -qq jq >/dev/null 2>&1; echo "{\"installed\": \"$(jq --version)\"}" | jq -c .'
code=0
step "an exit code is 42" skerry sandbox exec "$id" -- sh -c 'exit 42' || code=$?
[ "$code" -eq 42 ] || { echo "the exit code was $code" >&2; exit 1; }
step "delete" skerry sandbox delete "$id"
trap - EXIT

cat <<EOF

Next:
    export PATH="$(dirname "$skerry"):\$PATH"
    skerry run -it -- bash                 a shell in a machine that is gone afterwards
    skerry sandbox create --name mine      one that stays: skerry sandbox exec mine -- …
    skerry --help                          everything else
    $(skerry config get api_url 2>/dev/null || echo http://127.0.0.1:3986)/docs           the API
The server goes on running; stop it with: kill \$(cat ${XDG_DATA_HOME:-$HOME/.local/share}/skerry/server.lock)
EOF
