package config

import "time"

const (
	sec    = int64(time.Second)
	hour   = int64(time.Hour)
	day    = 24 * hour
	kib    = int64(KiB)
	mib    = int64(MiB)
	gib    = int64(GiB)
	noFile = 1 << 24
)

// keys describes every key, in the order of the reference. A test holds it
// against the types: each field has a row and each row a field.
var keys = []key{
	{path: "listeners", required: true, expected: "a list of listeners", doc: "Addresses that clients connect to, at most 64. A listener keeps its sockets over every reload for as long as its name and port stay the same."},
	{path: "listeners[].name", required: true, expected: "a name of letters, digits, '.', '_' and '-', at most 64 characters", example: "public", doc: "Name of the listener in logs, status and metrics. Unique."},
	{path: "listeners[].address", required: true, expected: `HOST:PORT with an IP address or nothing as the host and a port from 1 to 65535, such as "127.0.0.1:8443" or "[::]:8443"`, example: "127.0.0.1:8443", doc: "Address and port to listen on: UDP for h3, TCP for h2 and http/1.1. `:8443` and `[::]:8443` listen on all addresses, IPv6 and IPv4. Needs quotes when it starts with `[`."},
	{path: "listeners[].protocols", def: "[h3, h2, http/1.1]", enum: []string{ProtocolHTTP3, ProtocolHTTP2, ProtocolHTTP1, ProtocolQUIC, ProtocolTCP}, later: []later{{"stream", "h3, h2 or http/1.1"}}, doc: "Protocols that the listener speaks: any of `h3`, `h2` and `http/1.1`. With `worker.command` also `quic` and `tcp`, alone or together: the sockets for whatever that program speaks; a start or reload then proves that it answers a QUIC handshake, not that it serves requests."},
	{path: "listeners[].tls", required: true, expected: "self_signed: true or a list of certificates", doc: "Certificates of the listener: either `self_signed` or `certificates`."},
	{path: "listeners[].tls.self_signed", def: "false", doc: "Use a certificate that is made at start and that no client trusts. For trying out and for tests."},
	{path: "listeners[].tls.certificates", doc: "Certificates with their keys. Clients get the first one that is valid for the name they ask for (SNI), else the first one."},
	{path: "listeners[].tls.certificates[].cert", required: true, special: isPath, expected: "the name of a PEM file with a certificate chain", example: "site.pem", doc: "PEM file with the certificate and its chain, the certificate first."},
	{path: "listeners[].tls.certificates[].key", required: true, special: isPath, expected: "the name of a PEM file with a private key", example: "site.key", doc: "PEM file with the private key of the certificate."},
	{path: "listeners[].quic", doc: "Transport settings of h3 on this listener."},
	{path: "listeners[].quic.idle_timeout", def: "30s", min: sec, max: hour, doc: "A connection without traffic for this long ends. The client may ask for less."},
	{path: "listeners[].quic.keep_alive", def: "0s", zero: true, min: sec, max: hour, doc: "Send a packet after this long without traffic, so that the connection does not end and NAT devices keep its path. At most half of `idle_timeout` takes effect. 0 sends none."},
	{path: "listeners[].quic.max_incoming_streams", def: "100", min: 1, max: 65536, doc: "How many requests a client may have open at once on one connection."},
	{path: "listeners[].quic.retry", def: RetryOff, enum: []string{RetryOff, RetryAlways}, doc: "Have clients prove their address before a handshake begins (Retry, RFC 9000 section 8.1.2): `off`, or `always`, which costs each new client a round trip."},
	{path: "listeners[].quic.allow_0rtt", def: "true", doc: "Accept requests that a returning client sends before the handshake is complete (0-RTT). Such requests can be replayed."},
	{path: "listeners[].advertise_port", defNote: "port of `address`", min: 1, max: 65535, doc: "Port that clients of h2 and http/1.1 are told to use for h3 (Alt-Svc). Set it when a balancer or port mapping shows another port to the outside."},
	{path: "listeners[].drain_timeout", defNote: "`drain.timeout`", min: sec, max: 30 * day, doc: "Limit for this listener's connections in a draining generation, in place of `drain.timeout`."},

	{path: "workers", def: "auto", special: isCountAuto, min: 1, max: MaxWorkers, doc: "Processes per generation. `auto` starts one per CPU."},
	{path: "worker", doc: "The program that the workers run. Not set, it is the built-in gateway."},
	{path: "worker.command", expected: "a program built on package worker and its arguments, such as [/usr/local/bin/my-worker]", doc: "A program of your own, built on package `worker`, and its arguments: a path, or a name that is found in `PATH`. It gets this configuration (`config.FromPayload`). Another program takes effect at the next reload; the same one with new content at the next `holdfast upgrade`."},

	{path: "user", special: isAccount, defNote: "the supervisor's own", expected: "the name or the number of a user", example: "holdfast", doc: "The user that the workers run as, by name or number, when the supervisor runs as root. Its further groups are kept. Looked up when the configuration is read. Workers have no capabilities, whoever they run as."},
	{path: "group", special: isAccount, defNote: "primary group of `user`", expected: "the name or the number of a group", example: "holdfast", doc: "The primary group of the workers, by name or number."},

	{path: "steering", def: SteeringAuto, enum: []string{SteeringAuto, SteeringQueue}, later: []later{{"kernel", "auto or queue"}}, doc: "How a packet gets to the process that has its connection: `queue` hands it over in shared memory; `auto` takes the best way that this host has."},

	{path: "routes", expected: "a list of routes", doc: "What answers which requests. Required, unless there is a `worker.command`, to which they are nothing but a part of its configuration. Each route has a `path` and exactly one of `respond`, `files`, `proxy`, `whoami` and `speedtest`."},
	{path: "routes[].path", required: true, expected: `a path that starts with "/"`, example: "/api/", doc: "The route answers requests for this path and, when it ends with `/`, for everything below it. The longest match wins. Unique. `/.holdfast/` is reserved."},
	{path: "routes[].respond", doc: "Answer with fixed content."},
	{path: "routes[].respond.status", def: "200", min: 200, max: 599, doc: "Status code."},
	{path: "routes[].respond.body", def: `""`, doc: "Body of the answer."},
	{path: "routes[].respond.headers", doc: "Header fields of the answer, as a mapping from name to value."},
	{path: "routes[].files", doc: "Serve files."},
	{path: "routes[].files.root", required: true, special: isPath, expected: "the name of a directory", example: "./site", doc: "Directory that holds the files. The path of the route is taken off the request's path first."},
	{path: "routes[].proxy", doc: "Pass requests on to other servers."},
	{path: "routes[].proxy.upstreams", required: true, expected: `an http or https URL such as "http://127.0.0.1:9000"`, doc: "URLs of the servers, `http` or `https`, at least one. They take turns."},
	{path: "routes[].whoami", doc: "Answer with JSON that names the process: generation, slot, incarnation, pid, config_hash, version, protocol."},
	{path: "routes[].speedtest", doc: "`GET ?bytes=N` sends N bytes, `POST` counts the bytes of the body."},
	{path: "routes[].speedtest.max_bytes", def: "1GiB", min: 1, max: 1024 * gib, doc: "The most bytes that one request may ask for or send."},

	{path: "drain", doc: "How a generation ends that is no longer current."},
	{path: "drain.mode", def: DrainHold, enum: []string{DrainHold, DrainGoAway}, doc: "`hold`: connections live on until their clients end them or the deadline comes. `goaway`: clients are asked to leave (HTTP/3 and HTTP/2 GOAWAY, HTTP/1.1 `Connection: close`)."},
	{path: "drain.timeout", def: "1h", min: sec, max: 30 * day, doc: "Deadline of a draining generation, by which its last connection has ended."},
	{path: "drain.stop_timeout", def: "30s", min: sec, max: hour, doc: "Deadline at a graceful stop of the whole instance, in place of `drain.timeout`."},
	{path: "drain.grace", def: "5s", zero: true, min: int64(100 * time.Millisecond), max: hour, doc: "Last part of a drain, before each of the deadlines above: connections that are left are told goodbye, finish the requests that they are at and end; what is left at the deadline is closed in order. At most half of the limit."},
	{path: "drain.goaway_window", def: "10s", zero: true, min: int64(time.Millisecond), max: day, doc: "In the mode `goaway` the goodbyes are spread over this long, so that clients do not all come back at once."},
	{path: "drain.max_generations", def: "16", min: 1, max: 64, doc: "How many generations may drain at once."},
	{path: "drain.overflow", def: OverflowWait, enum: []string{OverflowWait, OverflowEvict}, later: []later{{"apply", "wait or evict"}}, doc: "What a reload does when `drain.max_generations` are draining already: `wait` until one of them ends, or `evict`, which ends the oldest one early."},
	{path: "drain.follow", def: "false", later: []later{{"true", "false"}}, doc: "Whether draining workers take a new configuration in place. This version takes `false` only: they keep the configuration that they were started with."},

	{path: "reload", doc: "How a changed configuration takes effect."},
	{path: "reload.mode", def: ReloadGeneration, enum: []string{ReloadGeneration}, later: []later{{"auto", "generation"}}, doc: "`generation`: each reload starts a new generation."},
	{path: "reload.min_interval", def: "0s", zero: true, min: int64(time.Millisecond), max: hour, doc: "Reloads start at least this long after one another; those that come sooner are merged into one. 0 does not wait."},

	{path: "upgrade", doc: "How a new program takes the place of the one that runs."},
	{path: "upgrade.probation", def: "30s", zero: true, min: sec, max: hour, doc: "When a worker of the new program crashes within this time after the handover, the program before serves again: the upgrade is rolled back. 0 never does."},

	{path: "start", doc: "What a new generation must show before it becomes current."},
	{path: "start.ready_timeout", def: "30s", min: int64(100 * time.Millisecond), max: hour, doc: "All workers of a generation must be ready after this long, else the generation has failed."},
	{path: "start.probe", def: "true", doc: "Make a QUIC handshake and a request through every new worker before its generation becomes current."},
	{path: "start.probe_timeout", def: "10s", min: int64(100 * time.Millisecond), max: hour, doc: "The probe must be answered after this long."},
	{path: "start.tries", def: "5", min: 1, max: 1000, doc: "How often a worker may fail to start, with growing pauses, before its generation has failed."},

	{path: "liveness", doc: "Workers that hang although their process is there."},
	{path: "liveness.timeout", def: "30s", zero: true, min: 5 * sec, max: hour, doc: "A worker of the current generation without a sign of life for this long is killed and replaced. Its sockets are read by another worker after 3 seconds already, and given back when it comes to life again. 0 never kills it."},

	{path: "table", doc: "The table of connection IDs, shared by all workers."},
	{path: "table.entries", def: "1Mi", special: isCount, min: 4096, max: 64 << 20, power2: true, effect: byRestart, doc: "Connection IDs that the table can hold, a power of two. An entry is 32 bytes; a connection uses several. Memory is used as entries are."},

	{path: "queue", doc: "The packet queue that each worker has for packets of its connections that other workers received."},
	{path: "queue.lanes", def: "32", min: 2, max: 256, effect: byRestart, doc: "Lanes per queue, at least: how many other workers can hand packets to one worker at the same time. A start makes more if its workers and listeners may need them."},
	{path: "queue.lane_size", def: "1MiB", min: 128 * kib, max: 16 * mib, power2: true, effect: byRestart, doc: "Size of a lane, a power of two; all lanes of a queue together at most 256MiB. Memory is used only once packets are handed over."},

	{path: "sockets", doc: "Options of the UDP sockets."},
	{path: "sockets.receive_buffer", def: "7MiB", min: 64 * kib, max: gib, effect: byRestart, doc: "Receive buffer that is asked for. The kernel may allow less (`net.core.rmem_max`)."},
	{path: "sockets.send_buffer", def: "7MiB", min: 64 * kib, max: gib, effect: byRestart, doc: "Send buffer that is asked for. The kernel may allow less (`net.core.wmem_max`)."},

	{path: "cid", doc: "The host's part of the connection IDs (QUIC-LB)."},
	{path: "cid.server_id", defNote: "made once, kept in the state directory", expected: `1 to 3 bytes in hexadecimal, such as "0a1b"`, example: "0a1b", effect: byRestart, doc: "Number of this host in hexadecimal, 1 to 3 bytes, for balancers that speak QUIC-LB. Different on each host of a fleet."},

	{path: "limits", doc: "Resource limits of the worker processes."},
	{path: "limits.nofile", defNote: "as inherited", min: 256, max: noFile, doc: "Open files that a worker may have (RLIMIT_NOFILE)."},

	{path: "access_log", doc: "The log of requests."},
	{path: "access_log.path", def: LogStderr, special: isPath, words: []string{LogStderr, LogOff}, expected: "stderr, off or a file name", example: "access.log", doc: "Where it goes: `stderr`, `off` or a file. USR1 opens the file again."},
	{path: "access_log.format", def: "json", enum: []string{"json", "console"}, doc: "`json`: one object per line. `console`: for people."},

	{path: "log", doc: "The log of the supervisor and the workers."},
	{path: "log.level", def: "info", enum: []string{"debug", "info", "warn", "error"}, doc: "The least important messages that are written: `debug`, `info`, `warn` or `error`."},
	{path: "log.path", def: LogStderr, special: isPath, words: []string{LogStderr}, expected: "stderr or a file name", example: "holdfast.log", effect: byRestart, doc: "Where it goes: `stderr` or a file. USR1 opens the file again."},
	{path: "log.format", def: "json", enum: []string{"json", "console"}, effect: byRestart, doc: "`json`: one object per line. `console`: for people."},

	{path: "pid_file", special: isPath, defNote: "none", expected: "a file name", example: "/run/holdfast.pid", doc: "File that holds the supervisor's pid, besides `holdfast.pid` in the runtime directory. Written by rename; the pid never changes, not even over an upgrade."},
	{path: "strict", def: "false", doc: "Refuse what is otherwise only warned about, such as an IPv6 address on a host without IPv6."},
}
