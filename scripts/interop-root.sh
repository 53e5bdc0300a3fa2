#!/bin/sh
# interop-root.sh DIR: makes a Debian 13 root in DIR that holds HTTP/3 clients
# of other makers: curl (OpenSSL), h2load and gtlsclient (ngtcp2), aioquic.
# Made once and kept; needs root rights and a Debian mirror.
set -eu
case ${1:-} in
'' | -h | --help)
	sed -n '2,4s/^# //p' "$0"
	[ -n "${1:-}" ]
	exit
	;;
esac
dir=$1
[ -e "$dir/.complete" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
	echo "interop-root.sh: making a Debian root needs root rights" >&2
	exit 1
fi
if ! command -v debootstrap >/dev/null; then
	echo "installing debootstrap"
	apt-get update -qq
	apt-get install -y -qq debootstrap >/dev/null
fi
rm -rf "$dir"
mkdir -p "$(dirname "$dir")"
echo "making a Debian 13 root in $dir (about two minutes, once)"
if ! debootstrap --variant=minbase trixie "$dir" >"$dir.log" 2>&1; then
	tail -n 3 "$dir.log" >&2
	exit 1
fi
cp -r /etc/apt/apt.conf.d/. "$dir/etc/apt/apt.conf.d/"
cp /etc/resolv.conf "$dir/etc/resolv.conf"
chroot "$dir" apt-get update -qq
if ! DEBIAN_FRONTEND=noninteractive chroot "$dir" apt-get install -y -qq --no-install-recommends \
	curl nghttp2-client ngtcp2-client python3-aioquic >>"$dir.log" 2>&1; then
	tail -n 3 "$dir.log" >&2
	exit 1
fi
touch "$dir/.complete"
