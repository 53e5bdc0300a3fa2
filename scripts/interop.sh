#!/bin/sh
# interop.sh: HTTP/3 clients of other makers through at least three reloads.
# The clients come from a Debian 13 root, by default under ~/.cache/holdfast;
# HOLDFAST_INTEROP_ROOT names another place.
set -eu
cd "$(dirname "$0")/.."
HOLDFAST_INTEROP_ROOT=${HOLDFAST_INTEROP_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/trixie}
export HOLDFAST_INTEROP_ROOT
scripts/interop-root.sh "$HOLDFAST_INTEROP_ROOT"
exec go test -count 1 -v -run '^TestInterop' ./test
