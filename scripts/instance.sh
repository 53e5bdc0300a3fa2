# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154 # variables of the scripts that read this
# instance.sh: what upgrade.sh and rollback.sh share. It is read by them and
# does nothing by itself.
#
# A change of the program on disk is a transaction, kept in files beside it
# (for a program /usr/bin/holdfast):
#
#   .holdfast.old      another name of the program that lay there, same inode
#   .holdfast.new      the copy that is to be renamed over it
#   .holdfast.upgrade  the journal: what served before. It is written before
#                      anything else is changed and removed when all is done, so
#                      a run that finds one undoes what that run had begun.
#
# The directory itself is locked (flock(2)) meanwhile; the kernel lets go of
# the lock when a run ends, however it ends.

me=${0##*/}

# A signal may be caught where standard error leads elsewhere for a moment.
exec 8>&2

# A terminal that is gone must not end a run that has something to put back.
say() { printf '%s: %s\n' "$me" "$*" 2>/dev/null >&8 || :; }

# die CODE REASON
die() {
	code=$1
	shift
	say "$*"
	exit "$code"
}

nap() { sleep "${1:-0.2}" 2>/dev/null || sleep 1; }

need() {
	for tool; do
		command -v "$tool" >/dev/null || die 1 "$tool is needed and not there"
	done
}

# find_runtime_dir NAME: sets runtime_dir as the commands of holdfast do.
find_runtime_dir() {
	if [ -n "$runtime_dir" ]; then
		:
	elif [ -n "${HOLDFAST_RUNTIME_DIR:-}" ]; then
		runtime_dir=$HOLDFAST_RUNTIME_DIR
	elif [ "$(id -u)" -eq 0 ]; then
		runtime_dir=/run/holdfast/$1
	elif [ -n "${XDG_RUNTIME_DIR:-}" ]; then
		runtime_dir=$XDG_RUNTIME_DIR/holdfast/$1
	else
		runtime_dir=${TMPDIR:-/tmp}/holdfast-$(id -u)/$1
	fi
	case $runtime_dir in
	/*) ;;
	*) runtime_dir=$(pwd)/$runtime_dir ;;
	esac
}

# supervisor_pid prints the process that the runtime directory names, if that
# has the lock there open. The number alone says nothing: it may be somebody
# else's by now.
supervisor_pid() {
	[ -r "$runtime_dir/holdfast.pid" ] || return 1
	read -r p <"$runtime_dir/holdfast.pid" || [ -n "$p" ] || return 1
	case $p in
	'' | *[!0-9]*) return 1 ;;
	esac
	tr '\0' '\n' <"/proc/$p/cmdline" 2>/dev/null | grep -qx run || return 1
	if [ -r "/proc/$p/fd" ] && [ -x "/proc/$p/fd" ]; then
		lock=$(stat -L -c %d:%i "$runtime_dir/lock") || return 1
		stat -L -c %d:%i "/proc/$p/fd"/* 2>/dev/null | grep -qx "$lock" || return 1
	fi
	echo "$p"
}

# client prints the program to talk to the supervisor with: the one that was
# there before rather than the new one, which may be a bad one.
client() {
	for c in "${old_program:-}" "/proc/${pid:-none}/exe" "${new_program:-}" "$(command -v holdfast)"; do
		if [ -n "$c" ] && [ -x "$c" ]; then
			printf '%s\n' "$c"
			return
		fi
	done
	die 1 "no holdfast program is there to talk to the supervisor with"
}

# control VERB ARGUMENTS: a command of holdfast for this instance.
control() {
	verb=$1
	shift
	by=$(client) || return
	"$by" "$verb" --runtime-dir "$runtime_dir" "$@"
}

# load_status reads what the supervisor says about itself.
load_status() {
	pid=$(supervisor_pid) || pid=
	status=$(control status --json --timeout 10s)
}

# top FIELD prints a field of the status.
top() { printf '%s\n' "$status" | sed -n "s/^  \"$1\": \"\\{0,1\\}\\([^\"]*[^\",]\\)\"\\{0,1\\},\\{0,1\\}\$/\\1/p"; }

# rows LIST FIELD...: a line for each item of a list in the status, with these
# fields, "-" for one that is missing.
rows() {
	printf '%s\n' "$status" | awk -v list="$1" -v fields="$2" '
		BEGIN { n = split(fields, name, " ") }
		$0 ~ "^  \"" list "\": \\[" { inside = 1; next }
		/^  []]/ { inside = 0 }
		!inside { next }
		/^    [{]/ { split("", value) }
		/^      "[a-z_]+": / {
			key = $1; gsub(/[":]/, "", key)
			sub(/^[^:]*: /, ""); gsub(/[",]/, "")
			value[key] = $0
		}
		/^    [}]/ {
			line = ""
			for (i = 1; i <= n; i++) line = line (i > 1 ? " " : "") (value[name[i]] == "" ? "-" : value[name[i]])
			print line
		}'
}

# look splits the status into variables.
look() {
	sup_build=$(top build_id)
	sup_version=$(top version)
	cur_id=0 cur_build='' cur_version='' before_id=0 before_build='' canary_id=0 canary_build=''
	generations=$(rows generations 'id state build_id version before')
	while read -r id state build version before; do
		case $state in
		current) cur_id=$id cur_build=$build cur_version=$version before_id=${before%-} ;;
		canary) canary_id=$id canary_build=$build ;;
		esac
	done <<-END
		$generations
	END
	while read -r id state build version before; do
		[ "$id" = "${before_id:-0}" ] && [ "$state" = draining ] && before_build=$build
	done <<-END
		$generations
	END
	busy_kind='' busy_stage='' last_op=0
	operations=$(rows operations 'id kind state stage')
	while read -r id kind state stage; do
		case $id in
		'' | *[!0-9]*) continue ;;
		esac
		[ "$id" -gt "$last_op" ] && last_op=$id
		case $state in
		running) busy_kind=$kind busy_stage=$stage ;;
		waiting) [ -n "$busy_kind" ] || busy_kind=$kind ;;
		esac
	done <<-END
		$operations
	END
	probation=$(printf '%s\n' "$status" | grep -c '^  "probation": {') || :
}

# running_config prints the configuration file that the running supervisor was
# started with, by its own arguments; nothing when it has none.
running_config() {
	file=$(tr '\0' '\n' <"/proc/$pid/cmdline" | {
		file=''
		while IFS= read -r arg; do
			case $arg in
			--config | -c) IFS= read -r file ;;
			--config=* | -c=*) file=${arg#*=} ;;
			--*) ;;
			-c*) file=${arg#-c} ;;
			esac
		done
		printf '%s\n' "$file"
	})
	case $file in
	'' | /*) ;;
	*) file=$(readlink "/proc/$pid/cwd")/$file ;;
	esac
	printf '%s\n' "$file"
}

# place PATH: names the files of a transaction on that program.
place() {
	program=$1
	directory=${program%/*}
	base=${program##*/}
	old=$directory/.$base.old
	staged=$directory/.$base.new
	journal=$directory/.$base.upgrade
}

# take_lock waits for its turn on the directory of the program.
take_lock() {
	exec 9<"$directory" || die 1 "$directory can't be opened"
	flock -n 9 && return
	say "another run is at work in $directory: waiting for it"
	end=$(($(date +%s) + lock_wait))
	until flock -n 9; do
		[ "$(date +%s)" -lt "$end" ] || die 5 "the other run in $directory has not ended within $lock_wait s"
		nap
	done
}

# same A B: the two paths lead to one file.
same() { [ "$(stat -L -c %d:%i "$1" 2>/dev/null)" = "$(stat -L -c %d:%i "$2" 2>/dev/null)" ]; }

# stage FILE: a copy of FILE beside the program that is ready to be renamed
# over it, with owner, mode and capabilities of what lies there.
stage() {
	rm -f "$staged"
	if ! cp "$1" "$staged" || ! cmp -s "$1" "$staged"; then
		die 1 "$1 can't be copied to $directory"
	fi
	if [ -e "$program" ]; then
		chmod "$(stat -L -c %a "$program")" "$staged"
		[ "$(id -u)" -ne 0 ] || chown "$(stat -L -c %u:%g "$program")" "$staged"
		if command -v getcap >/dev/null && caps=$(getcap "$program" 2>/dev/null) && [ -n "$caps" ]; then
			setcap "${caps##* }" "$staged" || die 1 "$staged can't be given the capabilities ${caps##* } that $program has"
		fi
	else
		chmod 755 "$staged"
	fi
	[ -x "$staged" ] || chmod 755 "$staged"
	flush "$staged"
}

# flush FILE...: onto the disk, before what follows is begun.
flush() { sync "$@" 2>/dev/null || sync; }

# write_journal PHASE
write_journal() {
	{
		printf '%s\n' "phase $1" "swap $swap" "generation $j_generation" "build $j_build" "supervisor $j_supervisor" \
			"version $j_version" "started $j_started" "keep $keep" "runtime $runtime_dir" "end"
	} >"$journal.tmp" || die 1 "$journal can't be written"
	flush "$journal.tmp"
	mv -f "$journal.tmp" "$journal" || die 1 "$journal can't be written"
	flush "$directory"
}

# read_journal reports whether there is one.
read_journal() {
	[ -e "$journal" ] || return 1
	phase='' swap='' j_generation=0 j_build='' j_supervisor='' j_version='' j_started='' j_runtime=''
	while IFS= read -r line; do
		value=${line#* }
		case $line in
		phase\ *) phase=$value ;;
		swap\ *) swap=$value ;;
		generation\ *) j_generation=$value ;;
		build\ *) j_build=$value ;;
		supervisor\ *) j_supervisor=$value ;;
		version\ *) j_version=$value ;;
		started\ *) j_started=$value ;;
		keep\ *) j_keep=$value ;;
		runtime\ *) j_runtime=$value ;;
		esac
	done <"$journal"
}

# put_back makes the program on disk the one that lay there.
put_back() {
	case $swap in
	file | link)
		if [ -e "$old" ] && ! same "$old" "$program"; then
			# By another name of it, which the rename takes: this one is still
			# needed, to talk to the supervisor with.
			rm -f "$staged.back"
			if [ "$swap" = link ]; then
				cp -P "$old" "$staged.back" || return 1
			else
				ln "$old" "$staged.back" 2>/dev/null || cp -p "$old" "$staged.back" || return 1
			fi
			mv -f "$staged.back" "$program" || return 1
			say "$program is the program of before again"
		fi
		;;
	esac
	rm -f "$staged"
}

# turn_back makes the instance run what it ran before, by the journal: a canary
# is rolled back, what is under way ends and is then rolled back. It gives up
# after a while and reports so.
turn_back() {
	end=$(($(date +%s) + ${patience:-180}))
	gone=$(($(date +%s) + 15))
	rolled=0 upgraded=0
	while [ "$(date +%s)" -lt "$end" ]; do
		if ! load_status 2>/dev/null; then
			# Between its end and its next start, or for good.
			if [ "$(date +%s)" -ge "$gone" ]; then
				say "no supervisor is running in $runtime_dir: nothing to roll back there"
				return 0
			fi
			nap
			continue
		fi
		gone=$(($(date +%s) + 15))
		look
		[ "$(top started)" = "$j_started" ] || j_generation=0 # numbers of another life
		if [ "$canary_id" -ne 0 ]; then
			say "rolling back the canary, generation $canary_id"
			control rollback >/dev/null 2>&1 || nap
		elif [ -n "$busy_kind" ]; then
			if [ "$busy_kind $busy_stage" = 'upgrade settling' ]; then
				control rollback >/dev/null 2>&1 || :
			fi
			nap
		elif [ "$cur_build" = "$j_build" ] && [ "$sup_build" = "$j_supervisor" ]; then
			say "version $cur_version serves, as before (generation $cur_id)"
			return 0
		elif [ "$before_build" = "$j_build" ] && [ "$rolled" -lt 2 ]; then
			rolled=$((rolled + 1))
			say "rolling back from generation $cur_id (version $cur_version) to $before_id"
			control rollback >/dev/null || nap 1
		elif [ "$upgraded" -lt 2 ] && [ "$(build_of "$program")" = "$j_supervisor" ]; then
			upgraded=$((upgraded + 1))
			say "upgrading back from version $cur_version to ${j_version:-build $j_supervisor}"
			control upgrade >/dev/null || nap 1
		elif [ "$upgraded" -lt 2 ] && [ -e "$old" ]; then
			upgraded=$((upgraded + 1))
			say "upgrading back from version $cur_version to ${j_version:-build $j_supervisor}"
			control upgrade --binary "$old" >/dev/null || nap 1
		else
			break
		fi
	done
	say "the instance does not run ${j_version:-build $j_supervisor} again; holdfast status tells more"
	return 1
}

# undo takes back all that the journal tells of.
undo() {
	trap '' INT TERM HUP
	back=0
	old_program=$old
	put_back || {
		say "$program can't be put back; the program of before is $old"
		back=1
	}
	here=$runtime_dir
	runtime_dir=${j_runtime:-$runtime_dir}
	turn_back || back=1
	runtime_dir=$here
	old_program=
	if [ "$back" -eq 0 ]; then
		forget
	else
		say "another run goes on with putting things back"
	fi
	return "$back"
}

# forget ends a transaction whose program lies where it belongs.
forget() { rm -f "$journal" "$old" "$staged" "$staged.back" "$journal.tmp"; }

# keep_old ends a transaction that has come to its end: the program of before
# becomes PROGRAM.previous, the one before that PROGRAM.previous.2, and so on.
# Done once more after an interruption it goes on where that one stopped: it
# moves names up to the first that is free.
keep_old() {
	if [ -e "$old" ] || [ -L "$old" ]; then
		if [ "$keep" -eq 0 ]; then
			rm -f "$old"
		else
			n=1
			while [ "$n" -lt "$keep" ] && exists "$(kept "$n")"; do n=$((n + 1)); done
			while [ "$n" -gt 1 ]; do
				mv -f "$(kept $((n - 1)))" "$(kept "$n")"
				n=$((n - 1))
			done
			mv -f "$old" "$program.previous"
		fi
	fi
	rm -f "$program.undone"
	forget
}

exists() { [ -e "$1" ] || [ -L "$1" ]; }

kept() { if [ "$1" -eq 1 ]; then echo "$program.previous"; else echo "$program.previous.$1"; fi; }

# recover undoes or ends what a run before this one has left. It reports
# whether it has undone anything.
recover() {
	if ! read_journal; then
		rm -f "$staged" "$staged.back" "$old" "$journal.tmp" # staged, and nothing else done
		return 1
	fi
	if [ "$phase" = commit ]; then
		mine=$keep
		keep=${j_keep:-1}
		keep_old
		keep=$mine
		return 1
	fi
	say "an upgrade of $program was interrupted: putting everything back first"
	(undo) || exit 1
}

# reason prints why the last operation that failed did.
reason() { printf '%s\n' "$status" | sed -n '/^  "last_failure": {/,/^  }/s/^    "reason": "\(.*\)"$/\1/p'; }

# build_of PROGRAM prints its build ID.
build_of() { timeout 10 "$1" version --json 2>/dev/null </dev/null | sed -n 's/^ *"build_id": *"\([^"]*\)".*/\1/p'; }
