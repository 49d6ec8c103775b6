#!/usr/bin/env bash
# Static checks. Linters are pinned in tools/go.mod and chosen by name.
set -euo pipefail
cd "$(dirname "$0")/.."

fail=0
step() {
	local name=$1
	shift
	if ! out=$("$@" 2>&1) || [ -n "$out" ]; then
		printf '%s:\n%s\n' "$name" "$out"
		fail=1
	fi
}
tool() { go tool -modfile=tools/go.mod "$@"; }

step gofmt gofmt -l $(git ls-files '*.go')
step vet go vet ./...
step staticcheck tool staticcheck ./...
step ineffassign tool ineffassign ./...
step errorlint tool go-errorlint -comparison=false -asserts=false ./...
step 'go.mod is tidy' go mod tidy -diff
step 'generated files' scripts/generate.sh --check
[ $fail -eq 0 ] && echo "static checks passed"
exit $fail
