#!/bin/sh
# systemd-root.sh DIR [SUITE]: makes a Debian root in DIR that has nothing but
# systemd: 257 in trixie (the default), 252 in bookworm. Made once and kept;
# needs root rights and a Debian mirror.
set -eu
case ${1:-} in
'' | -h | --help)
	sed -n '2,4s/^# //p' "$0"
	[ -n "${1:-}" ]
	exit
	;;
esac
dir=$1
suite=${2:-trixie}
log=$dir.log
[ -e "$dir/.complete" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
	echo "systemd-root.sh: making a Debian root needs root rights" >&2
	exit 1
fi

# step WHAT COMMAND...: runs a command with its output in the log, and shows
# the end of that when it fails.
step() {
	echo "$1"
	shift
	if ! "$@" >>"$log" 2>&1; then
		tail -n 5 "$log" >&2
		echo "systemd-root.sh: failed; all of it is in $log" >&2
		exit 1
	fi
}

mkdir -p "$(dirname "$dir")"
rm -rf "$dir"
: >"$log"
if ! command -v debootstrap >/dev/null; then
	step "package lists" apt-get update -qq
	step "debootstrap" apt-get install -y -qq debootstrap
fi
step "a Debian root ($suite) in $dir" debootstrap --variant=minbase \
	--include=systemd,systemd-sysv,dbus,procps "$suite" "$dir"
# What a root for tests has no use for, and what would wait for hardware.
chroot "$dir" systemctl mask -q systemd-udevd.service systemd-udev-trigger.service systemd-networkd.service \
	systemd-resolved.service systemd-timesyncd.service systemd-logind.service getty.target apt-daily.timer \
	apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
touch "$dir/.complete"
