#!/usr/bin/env bash
# Writes what is generated from the code: docs/cli.md from the commands' help and
# docs/openapi.json from the API's types. With --check it writes nothing, prints
# what differs and exits with 1 if something does.
set -euo pipefail
cd "$(dirname "$0")/.."

out=docs
if [ "${1:-}" = --check ]; then
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
fi
log=$(go test -count=1 -run '^TestGeneratedDocs$' ./cmd/skerry -generate "$(realpath "$out")" 2>&1) || { printf '%s\n' "$log" >&2; exit 1; }
[ "$out" = docs ] && exit 0

stale=0
for f in cli.md openapi.json; do
	diff -u --label "docs/$f" --label "docs/$f as generated" "docs/$f" "$out/$f" || stale=1
done
exit $stale
