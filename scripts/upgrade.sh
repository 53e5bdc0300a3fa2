#!/bin/sh
# upgrade.sh: replaces the program of a running Holdfast instance; see --help.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
# shellcheck source=scripts/instance.sh
. "$here/instance.sh"

usage() {
	cat <<-'END'
		upgrade.sh NEW_BINARY [OPTIONS]: upgrade a running Holdfast instance to another program.

		All or nothing: when it ends with 0, NEW_BINARY serves and lies where the old program
		lay, which is kept beside it as PROGRAM.previous. When it ends otherwise, or is
		interrupted (INT, TERM, HUP, a lost terminal), the old program lies there again and
		serves, and the reason is on standard error. No connection is lost either way. After a
		kill -9 or a crash of the host the next run of this script or of rollback.sh puts
		everything back before it does its own work. Several runs at once wait for each other.

		  1. It looks at NEW_BINARY: an executable for this machine, that says its version.
		  2. NEW_BINARY checks the configuration that the running supervisor was started with,
		     whichever that is: it is taken from the arguments of its process.
		  3. The new program is copied beside the old one and renamed over it.
		  4. "holdfast upgrade" does the rest: the new program verifies what it takes over, its
		     workers are proven and take over, the supervisor becomes the new program.
		  5. It waits for the end of the probation (upgrade.probation): a worker of the new
		     program that crashes until then takes everything back.

		Where the instance was started by a symbolic link, the link is turned to NEW_BINARY and
		nothing is copied. When NEW_BINARY is the very file that the instance was started from
		(a package manager has put it there already), the file is left alone.

		  --name NAME         the instance (default: default)
		  --runtime-dir DIR   or its runtime directory (default: HOLDFAST_RUNTIME_DIR, or by the name)
		  --canary PCT        give it this percentage of the new connections first; it is promoted
		                      after the soak, or rolled back when it does worse
		  --soak DUR          how long that takes, as in 10m (default: 1m)
		  --manual            leave the canary for you to promote ("holdfast promote") or to end
		                      (rollback.sh)
		  --keep N            how many old programs to keep (default: 1), as .previous, .previous.2, ...
		  --timeout DUR       longest time for step 4, as in 10m (default: 5m and the soak)
		  --no-watch          leave step 5 out
		  --dry-run           do steps 1 and 2, say what would be done, and change nothing
		  --help

		Exit codes: 0 done; 1 failed, everything is as before; 2 wrong usage; 3 the new program
		refuses the configuration; 4 no supervisor is running; 5 timed out.

		Examples:
		  upgrade.sh ./holdfast-0.3
		  upgrade.sh ./holdfast-0.3 --name edge --canary 5% --soak 10m
		  upgrade.sh ./holdfast-0.3 --dry-run
		  upgrade.sh /usr/bin/holdfast.previous       # back again, by the same way
	END
}

name=default runtime_dir='' canary='' soak='' manual='' keep=1 timeout='' watch=1 dry='' new=''
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
	--name) value "$1" $# && name=$2 && shift ;;
	--runtime-dir) value "$1" $# && runtime_dir=$2 && shift ;;
	--canary) value "$1" $# && canary=$2 && shift ;;
	--soak) value "$1" $# && soak=$2 && shift ;;
	--keep) value "$1" $# && keep=$2 && shift ;;
	--timeout) value "$1" $# && timeout=$2 && shift ;;
	--manual) manual=1 ;;
	--auto) manual='' ;;
	--no-watch) watch='' ;;
	--dry-run) dry=1 ;;
	-h | --help)
		usage
		exit 0
		;;
	-*) die 2 "unknown option $1; see --help" ;;
	*)
		[ -z "$new" ] || die 2 "found a second program, $1; see --help"
		new=$1
		;;
	esac
	shift
done
[ -n "$new" ] || die 2 "which program? upgrade.sh NEW_BINARY; see --help"
[ -n "$canary" ] || [ -z "$soak$manual" ] || die 2 "--soak and --manual are about a canary: add --canary PCT"
case $keep in
'' | *[!0-9]*) die 2 "--keep: found $keep, expected a number" ;;
esac
need flock timeout od awk stat
find_runtime_dir "$name"
lock_wait=600

case $new in
/*) ;;
*) new=$(pwd)/$new ;;
esac

# header PROGRAM prints class, byte order, ABI and machine of an ELF file.
header() {
	[ "$(od -An -tx1 -N 4 "$1" 2>/dev/null | tr -d ' \n')" = 7f454c46 ] || return 1
	od -An -tx1 -j 4 -N 2 "$1"
	od -An -tx1 -j 18 -N 2 "$1"
}

# 1. The new program, by itself.
[ -e "$new" ] || die 1 "there is no $new"
[ -f "$new" ] || die 1 "$new is no file"
[ -r "$new" ] || die 1 "$new can't be read"
[ -x "$new" ] || die 1 "$new is not executable"
theirs=$(header "$new") || die 1 "$new is no program of its own (no ELF header)"
pid=$(supervisor_pid) || pid=self
[ -r "/proc/$pid/exe" ] || pid=self
[ "$theirs" = "$(header "/proc/$pid/exe")" ] || die 1 "$new is built for another machine"
about=$(timeout 10 "$new" version --json </dev/null 2>/dev/null) || die 1 "$new does not say its version: it can't be run, or is another program"
new_version=$(printf '%s\n' "$about" | sed -n 's/^ *"version": *"\([^"]*\)".*/\1/p')
new_build=$(printf '%s\n' "$about" | sed -n 's/^ *"build_id": *"\([^"]*\)".*/\1/p')
case $new_version/$new_build in
/* | */) die 1 "$new is no holdfast: its version --json tells neither version nor build" ;;
esac
new_program=$new

# The instance. A run before this one may have left the program on disk of an
# instance that is down now.
load_status || {
	code=$?
	for candidate in "$here/../bin/holdfast" "$here/../../bin/holdfast" "$(command -v holdfast)"; do
		if [ -n "$candidate" ] && [ -e "${candidate%/*}/.holdfast.upgrade" ]; then
			place "$(cd "${candidate%/*}" && pwd)/holdfast"
			take_lock
			recover
			break
		fi
	done
	exit "$code"
}
[ "$(top pid)" = "$pid" ] || die 1 "the supervisor of $runtime_dir is process $(top pid), which can't be looked at from here"
place "$(top program)"
[ -d "$directory" ] || die 1 "the instance was started from $program, and there is no such directory"
[ -w "$directory" ] || [ -n "$dry" ] || same "$new" "$program" || die 1 "$directory can't be written to: another user?"

# Nothing of this script may be half done from here on.
trap '' PIPE
child='' begun='' locked=''
ended() {
	code=$?
	trap '' INT TERM HUP
	trap - EXIT
	[ -z "$child" ] || kill -TERM "$child" 2>/dev/null
	if [ -n "$begun" ]; then
		say "putting everything back"
		read_journal
		undo || code=1
		[ "$code" -ne 0 ] || code=1
	elif [ -n "$locked" ] && [ ! -e "$journal" ]; then
		forget # what was staged
	fi
	exit "$code"
}
trap ended EXIT
for signal in INT TERM HUP; do
	# shellcheck disable=SC2064 # the name of the signal, now
	trap "say 'interrupted by $signal'; exit 1" "$signal"
done
[ -n "$dry" ] || {
	take_lock
	locked=1
	recover || :
	load_status || exit
}
look
[ "$cur_id" -ne 0 ] || die 1 "no generation serves yet"
[ "$canary_id" -eq 0 ] || die 1 "generation $canary_id is a canary: promote it or roll it back first"
if [ "$sup_build" = "$new_build" ] && cmp -s "$new" "$program"; then
	say "version $new_version (build $new_build) serves already"
	exit 0
fi

# 2. The configuration of the running instance, by the new program.
config=$(running_config)
if [ -n "$config" ]; then
	timeout 60 "$new" check --config "$config" >/dev/null </dev/null || {
		code=$?
		[ "$code" -eq 3 ] || code=1
		die "$code" "version $new_version refuses $config; nothing was changed"
	}
fi

# How the program on disk becomes the new one.
if cmp -s "$new" "$program"; then
	how='none'
elif [ -L "$program" ]; then
	how='link'
else
	how='file'
fi
if [ -n "$dry" ]; then
	say "version $sup_version (build $sup_build) would become $new_version (build $new_build)"
	say "configuration ${config:-(the built-in example)}: valid for it"
	case $how in
	file) say "$new would be renamed over $program, which is kept as $program.previous" ;;
	link) say "$program would be turned from $(readlink "$program") to $new" ;;
	none) say "$program is that program already" ;;
	esac
	exit 0
fi

# 3. The program on disk.
swap=$how keep_asked=$keep
j_generation=$cur_id j_build=$cur_build j_supervisor=$sup_build j_version=$sup_version j_started=$(top started)
case $how in
file)
	stage "$new"
	if [ -e "$program" ]; then
		ln "$program" "$old" 2>/dev/null || cp -p "$program" "$old" || die 1 "$program can't be kept as $old"
	else
		cp "/proc/$pid/exe" "$old" || die 1 "nothing lies at $program, and the running program can't be kept as $old"
	fi
	;;
link)
	cp -P "$program" "$old" || die 1 "$program can't be kept as $old"
	rm -f "$staged"
	ln -s "$new" "$staged" || die 1 "$staged can't be made"
	;;
none)
	# What ran until now is nowhere else any more.
	[ "$sup_build" = "$new_build" ] || cp "/proc/$pid/exe" "$old" || die 1 "the running program can't be kept as $old"
	;;
esac
begun=1
write_journal begun
[ "$how" = none ] || mv -f "$staged" "$program" || exit 1

# 4. The instance. The old program asks: a new one may be a bad one.
old_program=$old
set --
[ -z "$timeout" ] || set -- "$@" --timeout "$timeout"
[ -z "$canary" ] || set -- "$@" --canary "$canary"
[ -z "$soak" ] || set -- "$@" --soak "$soak"
[ -z "$canary" ] || [ -n "$manual" ] || set -- "$@" --auto
say "upgrading from version $sup_version to $new_version"
by=$(client) || exit
"$by" upgrade --runtime-dir "$runtime_dir" "$@" >/dev/null </dev/null 9<&- &
child=$!
wait "$child"
code=$?
child=''
[ "$code" -eq 0 ] || exit "$code"

# 5. Until the probation is over.
gone=0
while :; do
	if load_status 2>/dev/null; then
		gone=0
		look
		if [ -n "$manual" ]; then
			[ "$canary_id" -ne 0 ] || die 1 "the canary has ended"
			break
		fi
		if [ "$sup_build" != "$new_build" ] && [ -z "$busy_kind" ]; then
			die 1 "version $new_version was taken back: $(reason)"
		fi
		[ "$sup_build" = "$new_build" ] && { [ "$probation" -eq 0 ] || [ -z "$watch" ]; } && break
	else
		gone=$((gone + 1))
		[ "$gone" -lt 40 ] || die 4 "the supervisor is gone"
	fi
	nap 0.4
done

trap '' INT TERM HUP
keep=$keep_asked
write_journal commit
begun=''
keep_old
if [ -n "$manual" ]; then
	say "version $new_version is a canary with $canary of new connections, generation $canary_id: end it with \"holdfast promote\" or rollback.sh"
else
	say "version $new_version (build $new_build) serves, generation $cur_id$([ "$keep" -eq 0 ] || echo "; version $j_version is kept as $program.previous")"
fi
