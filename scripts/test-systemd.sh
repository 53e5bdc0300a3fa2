#!/bin/sh
# test-systemd.sh [GO TEST ARGUMENTS]: the shipped units under real systemds, in
# Debian roots that are made once and kept, by default under ~/.cache/holdfast;
# HOLDFAST_SYSTEMD_ROOTS names another place. Where no systemd can be booted the
# tests skip, and say why.
set -eu
case ${1:-} in
-h | --help)
	sed -n '2,5s/^# //p' "$0"
	exit
	;;
esac
cd "$(dirname "$0")/.."
HOLDFAST_SYSTEMD_ROOTS=${HOLDFAST_SYSTEMD_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/holdfast}
export HOLDFAST_SYSTEMD_ROOTS
if [ "$(id -u)" -ne 0 ]; then
	echo "test-systemd.sh: skipped: booting a systemd needs root rights" >&2
	exit 0
fi
for suite in trixie bookworm; do
	scripts/systemd-root.sh "$HOLDFAST_SYSTEMD_ROOTS/systemd-$suite" "$suite"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
HOLDFAST_SYSTEMD_BINARY=$work/holdfast
HOLDFAST_SYSTEMD_NEXT=$work/holdfast.next
export HOLDFAST_SYSTEMD_BINARY HOLDFAST_SYSTEMD_NEXT
CGO_ENABLED=0 go build -trimpath -o "$HOLDFAST_SYSTEMD_BINARY" ./cmd/holdfast
CGO_ENABLED=0 go build -trimpath -o "$HOLDFAST_SYSTEMD_NEXT" \
	-ldflags '-X github.com/holdfast-quic/holdfast/internal/build.version=0.0.0-next' ./cmd/holdfast
go test -count 1 -v -timeout 30m "$@" ./test/systemd
