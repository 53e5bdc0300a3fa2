#!/bin/sh
# rollback.sh: takes an upgrade back, on disk and in what serves; see --help.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
# shellcheck source=scripts/instance.sh
. "$here/instance.sh"

usage() {
	cat <<-'END'
		rollback.sh [OPTIONS]: go back to the program that a Holdfast instance ran before.

		Two things are put back, in this order, so that no restart in between brings the newer
		program again:

		  1. The program on disk: PROGRAM.previous, which upgrade.sh has kept, is renamed over
		     PROGRAM. The newer one is kept as PROGRAM.undone; "upgrade.sh PROGRAM.undone" tries
		     it once more.
		  2. What serves: a canary ends; otherwise the generation before accepts again, if it
		     lives and is of that program ("holdfast rollback"); otherwise a new generation of
		     that program takes over ("holdfast upgrade"). The supervisor becomes it too.

		What is so already is left alone: after an automatic rollback only the disk is put right,
		after a rollback by hand as well, and a second run changes nothing. No connection is
		lost. An upgrade that was interrupted is put back first, which is all there is to do
		then. Without a PROGRAM.previous the program of the generation before is taken, while
		that lives.

		It never goes back further than one upgrade. For older programs that were kept:
		upgrade.sh PROGRAM.previous.2

		  --name NAME         the instance (default: default)
		  --runtime-dir DIR   or its runtime directory (default: HOLDFAST_RUNTIME_DIR, or by the name)
		  --dry-run           say what would be done, and change nothing
		  --help

		Exit codes: 0 done, or so already; 1 failed; 2 wrong usage; 4 no supervisor is running;
		5 timed out. It may be run again whatever came of it.
	END
}

name=default runtime_dir='' dry=''
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
	--dry-run) dry=1 ;;
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "found $1, which is no option; see --help" ;;
	esac
	shift
done
need flock timeout awk stat
find_runtime_dir "$name"
lock_wait=600 keep=1

load_status || exit
place "$(top program)"
[ -d "$directory" ] || die 1 "the instance was started from $program, and there is no such directory"
[ -w "$directory" ] || [ -n "$dry" ] || die 1 "$directory can't be written to: another user?"
trap '' PIPE
if [ -z "$dry" ]; then
	take_lock
	if recover; then
		exit 0
	fi
	load_status || exit
fi
look
[ "$cur_id" -ne 0 ] || die 1 "no generation serves yet"

# What to go back to: the program that was kept, or the one on disk if that is
# not what serves, or the one that the generation before runs.
disk=$(build_of "$program")
newest=$sup_build
if [ "$canary_id" -ne 0 ]; then
	newest=$canary_build
fi
kept_program=''
target=''
if [ -e "$program.previous" ]; then
	kept_program=$program.previous
	target=$(build_of "$kept_program")
	# After an automatic rollback that is what serves already.
	[ "$target" != "$newest" ] || target=$sup_build
elif [ "$canary_id" -ne 0 ]; then
	target=$cur_build
elif [ "$disk" != "$sup_build" ] && [ -n "$disk" ]; then
	target=$disk
elif [ ! -e "$program.undone" ] && [ -n "$before_build" ] && [ "$before_build" != "$cur_build" ]; then
	target=$before_build
fi
[ -n "$target" ] || {
	say "version $sup_version serves and lies on disk, and nothing before it is kept: nothing to do"
	exit 0
}

if [ -n "$dry" ]; then
	[ "$disk" = "$target" ] || say "${kept_program:-the program of build $target} would be put to $program"
	if [ "$canary_id" -ne 0 ]; then
		say "the canary, generation $canary_id, would end"
	elif [ "$cur_build" = "$target" ] && [ "$sup_build" = "$target" ]; then
		say "version $cur_version serves already"
	elif [ "$before_build" = "$target" ]; then
		say "generation $before_id would accept new connections again"
	else
		say "a new generation of build $target would take over"
	fi
	exit 0
fi

# 1. The disk. A run that ends in between is followed by one that finds the
# program on disk to be another than what serves.
if [ -n "$kept_program" ]; then
	if [ "$disk" != "$target" ]; then
		rm -f "$staged.back"
		if exists "$program"; then
			if [ -L "$program" ]; then
				cp -P "$program" "$staged.back"
			else
				ln "$program" "$staged.back" 2>/dev/null || cp -p "$program" "$staged.back"
			fi || die 1 "$program can't be kept as $program.undone"
			mv -f "$staged.back" "$program.undone" || exit 1
		fi
		mv -f "$kept_program" "$program" || exit 1
		flush "$directory"
		say "$program is the program of before again; the other one is $program.undone"
	else
		rm -f "$kept_program"
	fi
fi

# 2. What serves.
old_program=$program
[ "$(build_of "$program")" = "$target" ] || old_program=''
j_generation=0 j_build=$target j_supervisor=$target j_version='' j_started=$(top started) swap='file'
[ -n "$old_program" ] || swap='none'
# Workers that have a program of their own (worker.command) keep that.
[ "$cur_build" = "$sup_build" ] || j_build=$cur_build
turn_back || exit 1

# Nothing was kept: the program that serves again is taken from its process.
if [ "$(build_of "$program")" != "$target" ]; then
	load_status && look || exit 1
	stage "/proc/$pid/exe"
	rm -f "$program.undone"
	ln "$program" "$program.undone" 2>/dev/null || cp -p "$program" "$program.undone" || :
	mv -f "$staged" "$program" || exit 1
	say "$program is the program of version $sup_version again; the other one is $program.undone"
fi
