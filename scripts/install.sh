#!/bin/sh
# install.sh: installs Holdfast on this machine or into a tree; see --help.
set -u
me=${0##*/}
top=$(cd "$(dirname "$0")/.." && pwd) || exit 1

usage() {
	cat <<-'END'
		install.sh [OPTIONS]: install Holdfast, or a newer one over it.

		Done any number of times it comes to the same. A configuration is never overwritten. A
		service that runs the installed program is upgraded by upgrade.sh, all or nothing and
		without the end of a connection; it is never restarted. Should that fail, nothing else
		is installed either.

		  PREFIX/bin/holdfast                      the program; "make build" makes it
		  PREFIX/lib/holdfast/                     upgrade.sh, rollback.sh, uninstall.sh
		  PREFIX/lib/systemd/system/               holdfast.service, holdfast@.service, holdfast.socket
		  PREFIX/lib/sysusers.d/holdfast.conf      the user of the service, which is made too
		  PREFIX/share/holdfast/drop-ins/          drop-ins of the service, see --drop-in
		  PREFIX/share/holdfast/holdfast.yaml      an example of a configuration
		  PREFIX/share/man/man8/, and completions for bash, zsh and fish
		  SYSCONFDIR/holdfast/holdfast.yaml        that example, when there is none yet

		  --prefix DIR        PREFIX (default: /usr/local). Units of another prefix than /usr and
		                      /usr/local go to SYSCONFDIR/systemd/system
		  --sysconfdir DIR    SYSCONFDIR (default: /etc)
		  --destdir DIR       put before all of it, for packages; nothing of this machine changes
		                      then: no user, no word to systemd
		  --binary FILE       the program (default: bin/holdfast of this tree)
		  --drop-in NAME      use a drop-in: ebpf, fdstore or old-systemd; may be given again.
		                      Where systemd is older than 253, old-systemd is used anyway
		  --runtime-dir DIR   an instance to look at, besides those in /run/holdfast and
		                      XDG_RUNTIME_DIR; may be given again
		  --canary PCT, --soak DUR   for upgrade.sh, if a service runs
		  --help

		PREFIX, SYSCONFDIR and DESTDIR may be in the environment too. Exit codes are those of
		upgrade.sh.

		Examples:
		  make build && sudo scripts/install.sh && sudo systemctl enable --now holdfast
		  scripts/install.sh --prefix /usr --destdir "$PWD/package"
	END
}

say() { printf '%s: %s\n' "$me" "$*" >&2 || :; }
die() {
	code=$1
	shift
	say "$*"
	exit "$code"
}

prefix=${PREFIX:-/usr/local} sysconfdir=${SYSCONFDIR:-/etc} destdir=${DESTDIR:-} binary=$top/bin/holdfast
drop_ins='' runtime_dirs='' canary='' soak=''
newline='
'
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
	--binary) value "$1" $# && binary=$2 && shift ;;
	--canary) value "$1" $# && canary=$2 && shift ;;
	--soak) value "$1" $# && soak=$2 && shift ;;
	--drop-in) value "$1" $# && drop_ins="$drop_ins ${2%.conf}" && shift ;;
	--runtime-dir) value "$1" $# && runtime_dirs=$runtime_dirs$2$newline && shift ;;
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "found $1, which is no option; see --help" ;;
	esac
	shift
done
for dir in "$prefix" "$sysconfdir"; do
	case $dir in
	/*) ;;
	*) die 2 "found directory $dir, expected an absolute path" ;;
	esac
done
case $destdir in
'' | /*) ;;
*) destdir=$(pwd)/$destdir ;;
esac
[ -f "$binary" ] || die 1 "there is no $binary; \"make build\" makes it, --binary names another"
for name in $drop_ins; do
	[ -f "$top/systemd/holdfast.service.d/$name.conf" ] || die 2 "there is no drop-in $name; see --help"
done
case $prefix in
/usr | /usr/local) units=$prefix/lib/systemd/system ;;
*) units=$sysconfdir/systemd/system ;;
esac
program=$prefix/bin/holdfast
libdir=$prefix/lib/holdfast
manifest=$destdir$libdir/manifest

# live says whether this machine, rather than a tree for a package, is meant.
live() { [ -z "$destdir" ]; }

# 1. The program, first, since it is what may be refused.

# instances prints the runtime directories of supervisors that run the
# installed program.
instances() {
	{
		printf '%s' "$runtime_dirs"
		for dir in /run/holdfast/*/ "${XDG_RUNTIME_DIR:-/nonexistent}"/holdfast/*/; do
			printf '%s\n' "${dir%/}"
		done
	} | while IFS= read -r dir; do
		[ -S "$dir/admin.sock" ] || continue
		at=$("$binary" status --json --runtime-dir "$dir" --timeout 10s 2>/dev/null | sed -n 's/^  "program": "\(.*\)",\{0,1\}$/\1/p')
		[ "$at" != "$destdir$program" ] || printf '%s\n' "$dir"
	done | sort -u
}

mkdir -p "$destdir$prefix/bin" || exit 1
running=$(instances)
set --
[ -z "$canary" ] || set -- "$@" --canary "$canary"
[ -z "$soak" ] || set -- "$@" --soak "$soak"
if [ -n "$running" ]; then
	# Read from a here-document: a pipe would put the loop and its exit into a
	# process of their own.
	while IFS= read -r dir; do
		say "upgrading the instance of $dir"
		"$top/scripts/upgrade.sh" "$binary" --runtime-dir "$dir" "$@" </dev/null ||
			die $? "the instance of $dir was not upgraded, and nothing else was installed"
	done <<-END
		$running
	END
elif ! cmp -s "$binary" "$destdir$program"; then
	if [ -e "$destdir$program" ]; then
		ln -f "$destdir$program" "$destdir$program.previous" 2>/dev/null || cp -p "$destdir$program" "$destdir$program.previous" || exit 1
	fi
	cp "$binary" "$destdir$program.new" && chmod 755 "$destdir$program.new" && mv -f "$destdir$program.new" "$destdir$program" || exit 1
fi

# 2. The rest.
list=$(mktemp) || exit 1
trap 'rm -f "$list"' EXIT
trap 'exit 1' INT TERM HUP

# note PATH: it belongs to the installation.
note() { printf '%s\n' "$1" >>"$list"; }

# put MODE FILE PATH: installs a file, by rename.
put() {
	mkdir -p "$destdir${3%/*}" || exit 1
	if ! cmp -s "$2" "$destdir$3"; then
		cp "$2" "$destdir$3.new" && mv -f "$destdir$3.new" "$destdir$3" || exit 1
	fi
	chmod "$1" "$destdir$3" || exit 1
	note "$3"
}

# put_paths FILE PATH: installs a unit with the paths of this installation.
put_paths() {
	sed -e "s|/usr/bin/holdfast|$program|g" -e "s|/etc/holdfast|$sysconfdir/holdfast|g" "$1" >"$list.unit" || exit 1
	put 644 "$list.unit" "$2"
	rm -f "$list.unit"
}

note "$program"
for script in upgrade.sh rollback.sh uninstall.sh; do
	put 755 "$top/scripts/$script" "$libdir/$script"
done
put 644 "$top/scripts/instance.sh" "$libdir/instance.sh"
for unit in holdfast.service holdfast@.service holdfast.socket; do
	put_paths "$top/systemd/$unit" "$units/$unit"
done
for file in "$top"/systemd/holdfast.service.d/*.conf; do
	put_paths "$file" "$prefix/share/holdfast/drop-ins/${file##*/}"
done
if live && version=$(systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p') && [ -n "$version" ] && [ "$version" -lt 253 ]; then
	drop_ins="$drop_ins old-systemd"
fi
for name in $drop_ins; do
	put_paths "$top/systemd/holdfast.service.d/$name.conf" "$sysconfdir/systemd/system/holdfast.service.d/$name.conf"
done
put 644 "$top/systemd/holdfast.sysusers.conf" "$prefix/lib/sysusers.d/holdfast.conf"
put 644 "$top/systemd/holdfast.yaml" "$prefix/share/holdfast/holdfast.yaml"
for page in "$top"/docs/man/*.8; do
	put 644 "$page" "$prefix/share/man/man8/${page##*/}"
done
for pair in bash:bash-completion/completions/holdfast zsh:zsh/site-functions/_holdfast fish:fish/vendor_completions.d/holdfast.fish; do
	if "$binary" completion "${pair%%:*}" >"$list.completion" 2>/dev/null; then
		put 644 "$list.completion" "$prefix/share/${pair#*:}"
	else
		say "no completions for ${pair%%:*}: $binary can't be run here"
	fi
	rm -f "$list.completion"
done

# The user first: the configuration is its to read.
if live && [ "$(id -u)" -eq 0 ] && ! id holdfast >/dev/null 2>&1; then
	if command -v systemd-sysusers >/dev/null; then
		systemd-sysusers "$prefix/lib/sysusers.d/holdfast.conf"
	elif command -v useradd >/dev/null; then
		useradd --system --user-group --home-dir /var/lib/holdfast --no-create-home --shell /usr/sbin/nologin holdfast
	elif command -v adduser >/dev/null; then
		adduser -S -D -H -h /var/lib/holdfast -s /sbin/nologin holdfast
	fi || say "the user holdfast could not be made: the service needs it"
fi
config=$sysconfdir/holdfast/holdfast.yaml
mkdir -p "$destdir$sysconfdir/holdfast" || exit 1
if [ -e "$destdir$config" ] || [ -L "$destdir$config" ]; then
	say "$config is left as it is; an example is $prefix/share/holdfast/holdfast.yaml"
else
	cp "$top/systemd/holdfast.yaml" "$destdir$config.new" && chmod 640 "$destdir$config.new" || exit 1
	if live && [ "$(id -u)" -eq 0 ] && id holdfast >/dev/null 2>&1; then
		chgrp holdfast "$destdir$config.new"
	fi
	mv "$destdir$config.new" "$destdir$config" || exit 1
fi

# What an older installation had and this one has not goes, drop-ins excepted:
# those were asked for.
if [ -e "$manifest" ]; then
	while IFS= read -r path; do
		grep -qxF -e "$path" "$list" && continue
		case $path in
		"$sysconfdir"/systemd/system/holdfast.service.d/*) note "$path" ;;
		*) rm -f "$destdir$path" ;;
		esac
	done <"$manifest"
fi
note "$libdir/manifest"
cp "$list" "$manifest.new" && chmod 644 "$manifest.new" && mv -f "$manifest.new" "$manifest" || exit 1
if live && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || say "systemctl daemon-reload failed"
fi
say "installed: $("$binary" version 2>/dev/null || echo "$program")"
