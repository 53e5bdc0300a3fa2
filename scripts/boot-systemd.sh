#!/bin/sh
# boot-systemd.sh ROOT PIDFILE: boots the systemd of a Debian root as PID 1 of
# its own namespaces, and writes the outer pid of that PID 1 to PIDFILE. The
# network is the host's, so loopback is shared. ROOT itself stays as it is: what
# is written goes to memory. Run things in it with `nsenter -t PID -a`; end it
# with `nsenter -t PID -a systemctl poweroff --force --force`. Needs root.
# Exit code 77: this host can't do that.
set -eu
case ${1:-} in
'' | -h | --help)
	sed -n '2,7s/^# //p' "$0"
	[ -n "${1:-}" ]
	exit
	;;
esac
root=$1
pidfile=${2:?usage: boot-systemd.sh ROOT PIDFILE}
cannot() {
	echo "boot-systemd.sh: no systemd can be booted here: $1" >&2
	exit 77
}
[ "$(id -u)" -eq 0 ] || cannot "that needs root rights"
unshare --mount --pid --fork --cgroup --ipc --uts true 2>/dev/null || cannot "no namespaces"
cg=
for c in /sys/fs/cgroup/unified /sys/fs/cgroup; do
	if [ -e "$c/cgroup.procs" ] && [ -e "$c/cgroup.controllers" ] && mkdir "$c/holdfast-$$" 2>/dev/null; then
		cg=$c/holdfast-$$
		break
	fi
done
[ -n "$cg" ] || cannot "no cgroup-v2 tree that can be written to"
export root
# shellcheck disable=SC2016
inner='
	set -e
	mount -t tmpfs tmpfs /mnt
	mkdir /mnt/upper /mnt/work /mnt/root
	mount -t overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
	cd /mnt/root
	mount -t proc proc proc
	mount -t sysfs sysfs sys
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mount -t tmpfs tmpfs run
	mount -t tmpfs tmpfs tmp
	mount --rbind /dev dev
	mkdir .old
	pivot_root . .old
	umount -l /.old
	exec env -i PATH=/usr/sbin:/usr/bin container=other /lib/systemd/systemd --system --unit=multi-user.target
'
{
	# shellcheck disable=SC2016
	sh -c 'echo $$ >"$1/cgroup.procs"; exec unshare --mount --pid --fork --cgroup --ipc --uts --propagation private sh -c "$2"' \
		boot "$cg" "$inner" || :
	# It has ended, and all that it started with it.
	find "$cg" -depth -type d -exec rmdir {} \;
} >"$pidfile.log" 2>&1 &
outer=$!
children() {
	[ -z "$1" ] || ps -o pid= --ppid "$1" | tr -d ' '
}
for _ in $(seq 150); do
	p=$(children "$(children "$outer")")
	case $([ -n "$p" ] && nsenter -t "$p" -a systemctl is-system-running 2>/dev/null) in
	running | degraded)
		echo "$p" >"$pidfile"
		exit 0
		;;
	esac
	kill -0 "$outer" 2>/dev/null || break
	sleep 0.2
done
tail -n 5 "$pidfile.log" >&2
[ -z "$p" ] || kill -9 "$p" 2>/dev/null || : # and with its PID 1 all of it
cannot "it did not come up; see $pidfile.log"
