package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

// configuration of the demonstration; the port is filled in.
const configuration = `listeners:
  - name: public
    address: "127.0.0.1:%d"
    tls: {self_signed: true}
    quic: {max_incoming_streams: 100}
access_log: {path: off}
routes:
  - path: /whoami
    whoami: {}
  - path: /speedtest
    speedtest: {max_bytes: 1GiB}
`

// server is a supervisor process in a directory of its own.
type server struct {
	dir   string
	addr  *net.UDPAddr
	admin *admin.Client
	pid   int
	ended chan struct{} // closed when the process has ended
	err   error         // how, afterwards
}

// startServer returns once the first generation serves. The caller calls stop.
func startServer(ctx context.Context, command []string) (*server, error) {
	dir, err := os.MkdirTemp("", "holdfast-demo-")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, ended: make(chan struct{})}
	s.admin = admin.New(filepath.Join(dir, "run", "admin.sock"))
	if err := s.launch(command); err != nil {
		close(s.ended)
		return nil, errors.Join(err, s.stop())
	}
	if err := s.awaitCurrent(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *server) launch(command []string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	s.addr = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	config := filepath.Join(s.dir, "demo.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, port), 0o600); err != nil {
		return err
	}
	log, err := os.Create(s.logPath())
	if err != nil {
		return err
	}
	defer log.Close()
	args := append(command[1:len(command):len(command)], "run", "--config", config, "--name", "demo",
		"--runtime-dir", filepath.Join(s.dir, "run"), "--state-dir", filepath.Join(s.dir, "state"))
	cmd := exec.Command(command[0], args...)
	cmd.Stdout, cmd.Stderr = log, log
	// Whatever becomes of this process, the supervisor ends with it. The
	// signal comes when the thread ends that started the child, so that
	// thread has to wait for it. A group of its own keeps Ctrl-C for us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			s.err = cmd.Wait()
			close(s.ended)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.pid = cmd.Process.Pid
	return nil
}

func (s *server) logPath() string { return filepath.Join(s.dir, "log") }

// awaitCurrent returns when a generation accepts connections.
func (s *server) awaitCurrent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := s.admin.Status(ctx)
		if err == nil && status.Current() != nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return fmt.Errorf("the supervisor ended at its start: %s", s.lastLog())
		case <-ctx.Done():
			return fmt.Errorf("the supervisor did not serve in time: %w: %s", ctx.Err(), s.lastLog())
		}
	}
}

// lastLog is the last line that the supervisor or a worker logged.
func (s *server) lastLog() string {
	data, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	data = bytes.TrimSpace(data)
	return string(data[bytes.LastIndexByte(data, '\n')+1:])
}

// stop ends the supervisor with its workers and removes the directory.
func (s *server) stop() error {
	var err error
	select {
	case <-s.ended:
	default:
		if err = syscall.Kill(s.pid, syscall.SIGTERM); err == nil {
			err = s.awaitEnd()
		}
	}
	s.admin.Close()
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *server) awaitEnd() error {
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-s.ended:
		return nil
	case <-timer.C:
		err := syscall.Kill(s.pid, syscall.SIGKILL)
		<-s.ended
		return errors.Join(errors.New("the supervisor did not stop in time"), err)
	}
}

// freePort finds a port that is free for UDP and TCP on the loopback address.
func freePort() (int, error) {
	var err error
	for range 32 {
		var udp *net.UDPConn
		if udp, err = listenLoopback(); err != nil {
			return 0, err
		}
		port := udp.LocalAddr().(*net.UDPAddr).Port
		var tcp net.Listener
		tcp, err = net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		udp.Close()
		if err == nil {
			tcp.Close()
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}
