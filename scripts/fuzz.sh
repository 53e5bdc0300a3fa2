#!/bin/sh
# fuzz.sh [TIME]: runs every fuzz target of the module for TIME (default 20s),
# one after the other, and stops at the first that finds something.
set -eu
time=${1:-20s}
cd "$(dirname "$0")/.."
count=0
for file in $(git ls-files '*_test.go'); do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		package=./$(dirname "$file")
		echo "fuzz $package $target for $time"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package"
		count=$((count + 1))
	done
done
echo "$count fuzz targets, no finding"
