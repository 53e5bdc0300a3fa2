#!/bin/sh
# bench.sh [ROUNDS]: measures everything in one run and writes the results into
# docs/performance.md: the table and queue micro-benchmarks, then Holdfast
# against plain quic-go. Takes about five minutes on two cores.
set -eu
rounds=${1:-7}
cd "$(dirname "$0")/.."
page=docs/performance.md
make -s build

micro=$(mktemp)
trap 'rm -f "$micro"' EXIT
echo "micro-benchmarks: go test -run ^\$ -bench . -count 3 ./shm ./packetqueue ./connid ./worker"
go test -run '^$' -bench . -benchmem -benchtime 200ms -count 3 ./shm ./packetqueue ./connid ./worker | tee "$micro"
go run ./test/bench -micro "$micro" -page "$page"
go run ./test/bench -rounds "$rounds" -page "$page"
echo "written to $page"
