#!/bin/sh
# interop-root.sh DIR: makes a Debian 13 root in DIR that holds HTTP/3 clients
# of other makers: curl (OpenSSL), gtlsclient (ngtcp2 with GnuTLS), aioquic, and
# h2load, which Debian builds without HTTP/3 and which is therefore compiled
# here. Made once and kept; needs root rights and a Debian mirror.
set -eu
case ${1:-} in
'' | -h | --help)
	sed -n '2,5s/^# //p' "$0"
	[ -n "${1:-}" ]
	exit
	;;
esac
dir=$1
log=$dir.log
[ -e "$dir/.complete" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
	echo "interop-root.sh: making a Debian root needs root rights" >&2
	exit 1
fi

# step WHAT COMMAND...: runs a command with its output in the log, and shows
# the end of that when it fails.
step() {
	echo "$1"
	shift
	if ! "$@" >>"$log" 2>&1; then
		tail -n 5 "$log" >&2
		echo "interop-root.sh: failed; all of it is in $log" >&2
		exit 1
	fi
}

install() {
	DEBIAN_FRONTEND=noninteractive chroot "$dir" apt-get install -y -qq --no-install-recommends "$@"
}

mkdir -p "$(dirname "$dir")"
rm -rf "$dir"
: >"$log"
if ! command -v debootstrap >/dev/null; then
	step "package lists" apt-get update -qq
	step "debootstrap" apt-get install -y -qq debootstrap
fi
step "a Debian 13 root in $dir (two minutes)" debootstrap --variant=minbase trixie "$dir"
cp -r /etc/apt/apt.conf.d/. "$dir/etc/apt/apt.conf.d/"
cp /etc/resolv.conf "$dir/etc/resolv.conf"
# Only what h2load is compiled with comes from unstable.
mirror=$(awk '$1 == "deb" { print $2; exit }' "$dir/etc/apt/sources.list")
printf 'deb %s sid main\ndeb-src %s sid main\n' "$mirror" "$mirror" >"$dir/etc/apt/sources.list.d/sid.list"
printf 'Package: *\nPin: release a=unstable\nPin-Priority: 50\n' >"$dir/etc/apt/preferences.d/sid"
step "package lists of the root" chroot "$dir" apt-get update -qq
step "curl, gtlsclient, aioquic" install curl ngtcp2-client python3-aioquic
step "libraries for h2load" install -t unstable libngtcp2-dev libngtcp2-crypto-ossl-dev libnghttp3-dev \
	libssl-dev libev-dev libc-ares-dev zlib1g-dev g++ make pkg-config dpkg-dev
step "source of h2load" chroot "$dir" sh -c 'cd /root && apt-get source -qq --download-only --tar-only -t unstable nghttp2'
step "h2load (some minutes)" chroot "$dir" sh -euc '
	cd /root
	tar xzf nghttp2_*.orig.tar.gz
	cd nghttp2-*/
	./configure -q --enable-app --enable-http3 --disable-shared --without-libxml2 --without-jansson
	make -s -C lib
	make -s -C third-party
	make -s -C src h2load
	cp src/h2load /usr/local/bin/'
touch "$dir/.complete"
