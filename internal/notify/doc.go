// Package notify tells a service manager what its service is doing, by the
// protocol of systemd's sd_notify(3): datagrams of NAME=VALUE lines to the Unix
// socket that NOTIFY_SOCKET names. Every manager that speaks it is served,
// also those that are not systemd.
//
// Nobody waits for the manager: what is said is queued and sent in order by a
// goroutine. A manager that does not read costs memory up to a limit, and
// then what was said last is lost.
package notify
