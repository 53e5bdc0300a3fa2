#!/bin/sh
# uninstall.sh: removes what install.sh has installed; see --help.
set -u
me=${0##*/}
here=$(cd "$(dirname "$0")" && pwd) || exit 1

usage() {
	cat <<-'END'
		uninstall.sh [OPTIONS]: remove what install.sh has installed.

		It removes the files that install.sh wrote down in PREFIX/lib/holdfast/manifest, and the
		programs that upgrades have kept; nothing else. Configuration, keys, logs and the user
		stay, so that a later installation goes on as before. It does not stop anything: while an
		instance runs the installed program it refuses.

		  --prefix DIR        as for install.sh (default: that of this script when it is installed,
		                      else /usr/local)
		  --sysconfdir DIR    as for install.sh (default: /etc)
		  --destdir DIR       as for install.sh
		  --purge             remove SYSCONFDIR/holdfast, /var/lib/holdfast, /var/log/holdfast and
		                      the user as well: clients then meet a server that has other keys
		  --dry-run           print what would be removed
		  --help

		Exit codes: 0 done, or nothing is installed; 1 failed; 2 wrong usage.

		Example:
		  systemctl disable --now holdfast && /usr/local/lib/holdfast/uninstall.sh
	END
}

say() { printf '%s: %s\n' "$me" "$*" >&2 || :; }
die() {
	code=$1
	shift
	say "$*"
	exit "$code"
}

prefix=${PREFIX:-} sysconfdir=${SYSCONFDIR:-/etc} destdir=${DESTDIR:-} purge='' dry=''
# value FLAG COUNT: the flag has a value after it.
value() { [ "$2" -ge 2 ] || die 2 "$1 needs a value; see --help"; }
while [ $# -gt 0 ]; do
	case $1 in
	--*=*)
		flag=${1%%=*} rest=${1#*=}
		shift
		set -- "$flag" "$rest" "$@"
		continue
		;;
	--prefix) value "$1" $# && prefix=$2 && shift ;;
	--sysconfdir) value "$1" $# && sysconfdir=$2 && shift ;;
	--destdir) value "$1" $# && destdir=$2 && shift ;;
	--purge) purge=1 ;;
	--dry-run) dry=1 ;;
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "found $1, which is no option; see --help" ;;
	esac
	shift
done
case $destdir in
'' | /*) ;;
*) destdir=$(pwd)/$destdir ;;
esac
if [ -z "$prefix" ]; then
	prefix=/usr/local
	if [ -e "$here/manifest" ]; then
		prefix=${here%/lib/holdfast}
		prefix=${prefix#"$destdir"}
	fi
fi
manifest=$destdir$prefix/lib/holdfast/manifest
program=$destdir$prefix/bin/holdfast

# users prints the processes that run the installed program, workers included.
users() {
	for exe in /proc/[0-9]*/exe; do
		# A file that was renamed or replaced meanwhile has another name there.
		case $(readlink "$exe" 2>/dev/null) in
		"$program" | "$program "* | "$program".* | "${program%/*}"/.holdfast.*)
			pid=${exe#/proc/}
			printf '%s ' "${pid%/exe}"
			;;
		esac
	done
}

if [ -e "$program" ]; then
	pids=$(users)
	[ -z "$pids" ] || die 1 "$program is running (process ${pids% }): stop it first, as in: systemctl disable --now holdfast"
fi

# remove PATH, a file, or one of our own directories
remove() {
	if [ -n "$dry" ]; then
		if [ -e "$1" ] || [ -L "$1" ]; then printf '%s\n' "$1"; fi
	else
		rm -rf "$1" || failed=1
	fi
}

failed=''
if [ -e "$manifest" ]; then
	paths=$(cat "$manifest")
	while IFS= read -r path; do
		case $path in
		"$prefix"/lib/holdfast/manifest) ;; # last, so that a second run finds it
		/*) remove "$destdir$path" ;;
		esac
	done <<-END
		$paths
	END
	for kept in "$program.previous" "$program.previous".[0-9]* "$program.undone" "$program.new"; do
		remove "$kept"
	done
	[ -n "$failed" ] || remove "$manifest"
else
	say "nothing is installed below $destdir$prefix: there is no $manifest"
fi
if [ -n "$purge" ]; then
	for dir in "$sysconfdir/holdfast" /var/lib/holdfast /var/log/holdfast; do
		remove "$destdir$dir"
	done
	if [ -z "$destdir" ] && [ -z "$dry" ] && [ "$(id -u)" -eq 0 ] && id holdfast >/dev/null 2>&1; then
		userdel holdfast 2>/dev/null || deluser holdfast || failed=1
	fi
fi
if [ -z "$dry" ]; then
	# Directories of our own, while nobody else has put anything there.
	rmdir "$destdir$prefix/lib/holdfast" "$destdir$prefix/share/holdfast/drop-ins" "$destdir$prefix/share/holdfast" \
		"$destdir$sysconfdir/systemd/system/holdfast.service.d" 2>/dev/null
	if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
		systemctl daemon-reload || say "systemctl daemon-reload failed"
	fi
fi
[ -z "$failed" ] || die 1 "not all of it could be removed"
[ -n "$dry" ] || [ -n "$purge" ] || say "removed; $sysconfdir/holdfast and the state directories stay (--purge removes them)"
