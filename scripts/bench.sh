#!/usr/bin/env bash
# Measures. Usage: bench.sh SKERRY [FLAG…]; `make bench` passes the flags in
# $BENCH_FLAGS, for example BENCH_FLAGS='--n 3 --only create,pool'. All that the
# run needs and leaves is below .cache: the guest kernel, the images (for the
# next run), logs, and bench/result.json.
set -euo pipefail
skerry=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
kernel=$PWD/.cache/kernel
[ -d "$kernel/lib/modules" ] || "$skerry" kernel fetch --dir "$kernel" >/dev/null
# Static, since it also measures from within sandboxes.
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o .cache/bench/bench ./test/bench
# shellcheck disable=SC2086 # flags are words
exec .cache/bench/bench --skerry "$skerry" --kernel "$kernel" ${BENCH_FLAGS:-} "$@"
