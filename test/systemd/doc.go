// Package systemd drives the shipped unit files under real systemds: each test
// boots one, by scripts/boot-systemd.sh, as PID 1 of namespaces of its own, and
// puts it through what happens to a service, while clients are at work. It is
// run by `make test-systemd`; elsewhere it skips.
package systemd
