#!/usr/bin/env bash
# The tour: what Skerry does, with the time each step took. Usage: demo.sh SKERRY
#
# It uses the user's own server, and starts one if none runs, so that afterwards
# everything is there to go on with. A second run reuses all of it. SERVER_FLAGS
# are passed to a server that is started: SERVER_FLAGS='--listen 127.0.0.1:4000'.
set -euo pipefail
bin=$(realpath "$1")
skerry() { "$bin" "$@"; }

bold() { if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n%s\n' "$*"; fi; }
fail() { # fail MESSAGE WHAT-TO-DO
	printf 'demo: %s\n      %s\n' "$1" "$2" >&2
	exit 1
}
now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); } # milliseconds
step() { # step TITLE CMD…: runs it, shows its time and its output, indented
	local title=$1 start out rc=0
	shift
	start=$(now)
	out=$("$@" 2>&1) || rc=$?
	printf '%-46s %6d ms\n' "$title" $(($(now) - start))
	[ -z "$out" ] || sed 's/^/    /' <<<"$out"
	return $rc
}

data=${XDG_DATA_HOME:-$HOME/.local/share}/skerry
log=${XDG_STATE_HOME:-$HOME/.local/state}/skerry/server.log
answers() { skerry runner list -o json >/dev/null 2>&1; }
ready() { skerry runner list -o json 2>/dev/null | grep -q '"accelerator": "[a-z]'; }

start_server() {
	local server
	mkdir -p "$(dirname "$log")"
	# A session of its own: it outlives make and the terminal.
	setsid nohup "$bin" server ${SERVER_FLAGS:-} </dev/null >>"$log" 2>&1 &
	server=$!
	until answers; do
		if ! kill -0 $server 2>/dev/null; then
			tail -3 "$log" >&2
			fail "the server ended; above is the end of $log" \
				"if its address is taken: SERVER_FLAGS='--listen 127.0.0.1:4000' make demo"
		fi
		sleep 0.1
	done
}

bold "The host"
skerry doctor -o table || fail "something is missing" "type what stands behind the arrows, then make demo again"

bold "The server"
if answers; then
	echo "runs already at $(skerry config get api_url)"
else
	step "start" start_server
	echo "runs at $(skerry config get api_url), process $(cat "$data/server.lock"), log $log"
fi
# The first start fetches the guest kernel.
if ! ready; then
	await_ready() { until ready; do answers || return 1; sleep 0.3; done; }
	step "fetch and unpack the guest kernel" await_ready || fail "the server ended" "look into $log"
fi

bold "The default image: Debian 12 with Python, Node.js, git, curl"
if skerry image get skerry/debian:12 -o json 2>/dev/null | grep -q '"status": "ready"'; then
	echo "is there already"
else
	echo "is built from Debian packages, once; this takes some minutes"
	build() { skerry image build-default -o json >/dev/null; }
	step "build" build || fail "the image was not built" "do what the line above says, or look into $log; then make demo again"
fi

bold "The tour"
name=demo-$$
trap 'skerry sandbox delete "$name" >/dev/null 2>&1 || true' EXIT
trap 'fail "this step went wrong" "look into $log, then make demo again"' ERR
inside() { skerry sandbox exec "$name" -- "$@"; }

step "create a sandbox (an image's first boots it)" skerry sandbox create --name "$name" -o table
step "create, run, delete in one go" skerry run -- echo "hello from a machine of my own"
step "the kernel outside" uname -sr
step "the kernel inside" inside uname -sr
step "a Python program" inside python3 -c 'import sys, os; print("Python", sys.version.split()[0], "on", os.cpu_count(), "CPU")'
step "one command writes a file" inside sh -c 'date > /root/when'
step "the next one reads it" inside cat /root/when
step "apt-get update: Debian's package index" inside apt-get update -qq -o Acquire::Languages=none
step "apt-get install: a real package" inside sh -c 'DEBIAN_FRONTEND=noninteractive apt-get install -y -qq jq >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; echo "{\"installed\": \"$(jq --version)\"}" | jq -c .'
exits() { local code=0; inside sh -c 'exit 42' || code=$?; echo "exit code $code"; [ $code -eq 42 ]; }
step "a program's exit code is skerry's" exits
step "delete" skerry sandbox delete "$name"
trap - EXIT ERR

cat <<EOF

Next:
    export PATH="$(dirname "$bin"):\$PATH"
    skerry run -t -- bash                  a shell in a machine that is gone afterwards
    skerry sandbox create --name mine      one that stays: skerry sandbox exec mine -- …
    skerry sandbox create --persistent --name box     one to stop, start, pause, resume, fork, capture
    skerry --help                          everything else; the API: $(skerry config get api_url)/docs/
The server goes on running. To stop it: kill \$(cat $data/server.lock)
EOF
