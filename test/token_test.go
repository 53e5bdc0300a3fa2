package test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
	"github.com/quic-go/quic-go"
)

// spoiler is a filter that damages the token of each Retry, so that the client
// answers with it, and holds the client's answer back until release is closed.
type spoiler struct {
	release chan struct{}
	held    chan struct{} // closed when the first answer waits

	mu       sync.Mutex
	odcid    []byte // of the client's first packet
	spoiled  bool
	err      error
	answers  int // of the client to the Retry
	refusals int // what the server said after it
	wait     sync.Once
}

func newSpoiler() *spoiler { return &spoiler{release: make(chan struct{}), held: make(chan struct{})} }

func (s *spoiler) filter(p kit.Packet) kit.Fate {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := kit.ParseDatagram(p.Data)
	switch {
	case p.Direction == kit.ToServer && s.spoiled:
		s.answers++
		s.wait.Do(func() { close(s.held) })
		return kit.Fate{Until: s.release}
	case p.Direction == kit.ToServer && s.odcid == nil:
		s.odcid = d.DCID
	case p.Direction == kit.ToClient && !s.spoiled && d.Type == kit.PacketRetry:
		s.spoiled = true
		s.err = kit.SpoilRetryToken(p.Data, s.odcid)
	case p.Direction == kit.ToClient && s.spoiled && d.Type == kit.PacketRetry:
		return kit.Fate{Drop: true} // of the second part of the same ClientHello
	case p.Direction == kit.ToClient:
		s.refusals++
	}
	return kit.Fate{}
}

// refusedAtOnce has a client answer a Retry with a damaged token, to whatever
// has happened meanwhile, and verifies that it learns at once what is wrong.
func refusedAtOnce(t *testing.T, in *kit.Instance, when string, meanwhile func()) {
	t.Helper()
	before := in.Status().Counter("packets_dropped", "invalid_token")
	s := newSpoiler()
	r := kit.StartRelay(t, in.Addr(), kit.RelayOptions{Filter: s.filter})
	failed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), kit.DialTimeout)
		defer cancel()
		c, err := kit.Dial(ctx, kit.ClientOptions{Server: r.Addr()})
		if err == nil {
			c.Close()
		}
		failed <- err
	}()
	select {
	case <-s.held:
	case err := <-failed:
		t.Fatalf("%s: no answer to the Retry: %v", when, err)
	}
	meanwhile()
	begin := time.Now()
	close(s.release)
	err := <-failed
	if took := time.Since(begin); took > time.Second {
		t.Errorf("%s: it took %v", when, took)
	}
	if e, ok := errors.AsType[*quic.TransportError](err); !ok || !e.Remote || e.ErrorCode != quic.InvalidToken {
		t.Errorf("%s: client sees %v (%s)", when, err, kit.Cause(err))
	}
	if err := kit.Poll(5*time.Second, func() error {
		refused := in.Status().Counter("packets_dropped", "invalid_token") - before
		return s.answeredOnce(int(refused))
	}); err != nil {
		t.Errorf("%s: each packet with the token is answered once: %v", when, err)
	}
}

// answeredOnce verifies that as many packets were refused as refusals came.
func (s *spoiler) answeredOnce(refused int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused == 0 || refused != s.refusals || refused > s.answers {
		return errors.Join(s.err, fmt.Errorf("%d packets to the server, %d refused, %d refusals", s.answers, refused, s.refusals))
	}
	return s.err
}

// C109: a client whose Retry token was damaged is told so at once with
// INVALID_TOKEN, by one worker, whoever sent the Retry and whether that still
// lives. Another Retry, which clients must ignore, would leave it to its
// time-out.
func TestADamagedRetryTokenIsRefusedAtOnce(t *testing.T) {
	in := startWith(t, retry(t))
	f := kit.StartFleet(t, kit.FleetOptions{Client: in.Client(), N: 10, Interval: 100 * time.Millisecond})
	refusedAtOnce(t, in, "same generation", func() {})
	refusedAtOnce(t, in, "after a reload", func() { reload(t, in) })
	f.Stop().MustBeClean(t)
	awaitOnlyCurrent(t, in, 10*time.Second)
	refusedAtOnce(t, in, "after a crash of the one that sent the Retry", func() {
		before, pids := in.Status().Counter("worker_crashes"), in.WorkerPIDs()
		for _, pid := range pids {
			kit.Signal(pid, syscall.SIGKILL)
		}
		in.AwaitStatus(10*time.Second, "workers replaced", func(s kit.Status) error {
			if n := s.Counter("worker_crashes") - before; n != uint64(len(pids)) {
				return fmt.Errorf("%d crashes of %d", n, len(pids))
			}
			return allServe(in, 2)
		})
	})
	dial(t, in.Client()) // a token that is whole does as ever
}
