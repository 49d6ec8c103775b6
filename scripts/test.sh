#!/usr/bin/env bash
# All tests. Packages that boot microVMs run one after the other, so that at
# most two machines boot at once; the others run side by side before them.
set -euo pipefail
cd "$(dirname "$0")/.."

vm_packages=$(go list ./internal/machine/... ./internal/guest/... ./internal/kernel/... ./internal/runner/... ./internal/shim/... ./test/... 2>/dev/null)
other_packages=$(go list ./... | grep -vxF "$vm_packages")

# The race detector needs cgo. It makes the embedded database many times slower,
# so that of the control plane it watches what goes on at once; what goes through
# all steps of all operations runs without.
control=./internal/control
export CGO_ENABLED=1
go test -race -timeout 15m $(grep -vF "${control#.}" <<<"$other_packages")
go test -timeout 15m $control
go test -race -short -timeout 15m -run 'Life|Operations|Races|Concurrent|Wait|Activity|Alarm|EventLog|Walk' $control
go test -race -timeout 40m -p 1 $vm_packages
