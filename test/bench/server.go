package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// server is one running server under test, with everything it started.
type server struct {
	name    string
	address string
	cmd     *exec.Cmd
	output  bytes.Buffer
	binary  string // holdfast, or empty for plain quic-go
	runtime string
}

func freeAddress() (string, error) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return "", err
	}
	defer socket.Close()
	return socket.LocalAddr().String(), nil
}

func startPlain(dir, cert, key string) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &server{name: "plain quic-go", address: address}
	s.cmd = exec.Command(os.Args[0], "-plain", address, "-cert", cert, "-key", key)
	return s, s.start(dir)
}

func startHoldfast(name, binary, dir, cert, key string, workers int) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &server{name: name, address: address, binary: binary, runtime: filepath.Join(dir, name, "run")}
	config := fmt.Sprintf(`listeners:
  - name: public
    address: %q
    protocols: [h3]
    tls: {certificates: [{cert: %q, key: %q}]}
workers: %d
access_log: {path: "off"}
routes:
  - path: /
    respond: {status: 200, body: "hello\n"}
  - path: /speedtest
    speedtest: {max_bytes: 64GiB}
`, address, cert, key, workers)
	file := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s.cmd = exec.Command(binary, "run", "--config", file, "--name", name,
		"--runtime-dir", s.runtime, "--state-dir", filepath.Join(dir, name, "state"))
	return s, s.start(dir)
}

// start starts the process and waits until it answers.
func (s *server) start(dir string) error {
	s.cmd.Dir = dir
	s.cmd.Stderr = &s.output
	if err := s.cmd.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		c, err := dial(ctx, s.address)
		cancel()
		if err == nil {
			c.close()
			return nil
		}
		if time.Now().After(deadline) {
			s.stop()
			return fmt.Errorf("%s does not answer: %w\n%s", s.name, err, s.output.String())
		}
	}
}

func (s *server) stop() {
	s.cmd.Process.Signal(os.Interrupt)
	s.cmd.Wait()
}

func (s *server) run(args ...string) ([]byte, error) {
	cmd := exec.Command(s.binary, append(args, "--runtime-dir", s.runtime)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return out, nil
}

// forwarded returns how many packets went through a queue so far.
func (s *server) forwarded() (int64, error) {
	out, err := s.run("status", "--json")
	if err != nil {
		return 0, err
	}
	var status struct {
		Counters struct {
			Forwarded int64 `json:"packets_forwarded"`
		} `json:"counters"`
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return 0, err
	}
	return status.Counters.Forwarded, nil
}

// cpu returns the CPU time that the server's processes have used, in seconds.
func (s *server) cpu() float64 {
	total := 0.0
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // it ended meanwhile
		}
		// The command name is in parentheses and may hold anything.
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(fields[1])
		if pid != s.cmd.Process.Pid && parent != s.cmd.Process.Pid {
			continue
		}
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		total += (user + system) / 100 // USER_HZ
	}
	return total
}
