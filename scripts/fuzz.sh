#!/bin/sh
# fuzz.sh [TIME]: runs every fuzz target of the module for TIME (default 20s),
# one after the other, and stops at the first that finds something.
set -eu
time=${1:-20s}
cd "$(dirname "$0")/.."
# shellcheck disable=SC2016 # $2 is for awk
targets=$(git ls-files '*_test.go' |
	xargs awk '/^func Fuzz/ { sub(/\(.*/, "", $2); print FILENAME ":" $2 }')
count=0
for entry in $targets; do
	package=./$(dirname "${entry%%:*}")
	target=${entry##*:}
	echo "fuzz $package $target for $time"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package"
	count=$((count + 1))
done
echo "$count fuzz targets, no finding"
