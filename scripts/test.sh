#!/usr/bin/env bash
# All tests. Of the packages that boot microVMs two run at a time, the longest
# first; the others run side by side before them.
set -euo pipefail
cd "$(dirname "$0")/.."

vm_packages=$(go list ./test/scenario ./test/crash ./internal/machine/... ./internal/guest/... ./internal/kernel/... ./internal/runner/... ./internal/shim/... ./test/... 2>/dev/null)
other_packages=$(go list ./... | grep -vxF "$vm_packages")

# The race detector needs cgo. It watches everything but the embedded database's
# engine, which is C made into Go: that would take four times as long, and what it
# shares between goroutines it guards by locks that are watched.
export CGO_ENABLED=1
race=(-race '-gcflags=modernc.org/sqlite/lib=-race=false')
go test "${race[@]}" -timeout 15m $other_packages
go test "${race[@]}" -timeout 40m -p 2 $vm_packages
