package kit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// FleetOptions say what many clients do.
type FleetOptions struct {
	Client    ClientOptions
	N         int           // connections
	Interval  time.Duration // between the requests of one connection; default 500 ms
	Path      string        // default WhoamiPath, whose answers prove the owner
	Timeout   time.Duration // of one request; default 10 s
	Rebind    time.Duration // each client changes its port this often; 0: never
	Migrate   time.Duration // each client migrates on purpose this often; 0: never
	Reconnect bool          // replace lost connections (they count as lost all the same)
	Rest      time.Duration // before a replacement: up to this long, at random
	TCP       string        // "h2" or "http/1.1": TCP connections instead of QUIC
}

// session is one connection of a fleet.
type session interface {
	get(ctx context.Context, path string) (Response, error)
	lost() <-chan struct{}
	cause() error
	close()
}

// Fleet is many clients at work.
type Fleet struct {
	options  FleetOptions
	record   *recorder
	sessions []session
	stop     context.CancelFunc
	wg       sync.WaitGroup
	once     sync.Once
}

// dialers bounds the handshakes in flight while a fleet starts, so that a
// small machine is not asked for a thousand at once.
const dialers = 16

// StartFleet connects all clients, fails the test when one cannot, and sets
// them to work until Stop or the end of the test.
func StartFleet(t testing.TB, o FleetOptions) *Fleet {
	t.Helper()
	if o.Interval == 0 {
		o.Interval = 500 * time.Millisecond
	}
	if o.Path == "" {
		o.Path = WhoamiPath
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Migrate > 0 {
		SkipMigrationUnderRace(t)
	}
	if o.Rebind > 0 || o.Migrate > 0 {
		o.Client.Rebindable = true
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &Fleet{options: o, record: newRecorder(o.N), sessions: make([]session, o.N), stop: cancel}
	t.Cleanup(func() { f.Stop() })

	var dialing sync.WaitGroup
	errs := make(chan error, o.N)
	turns := make(chan struct{}, dialers)
	for i := range o.N {
		dialing.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			s, err := f.dial(ctx)
			if err != nil {
				errs <- err
				return
			}
			f.sessions[i] = s
		})
	}
	dialing.Wait()
	if len(errs) > 0 {
		failed := len(errs)
		for _, s := range f.sessions {
			if s != nil {
				s.close()
			}
		}
		f.sessions = nil
		t.Fatalf("%d of %d clients could not connect; first: %v", failed, o.N, <-errs)
	}
	for i := range o.N {
		f.wg.Go(func() { f.run(ctx, i) })
	}
	return f
}

// SkipMigrationUnderRace skips a test that migrates clients on purpose when the
// race detector is on: quic-go v0.65 itself reads a client's path
// (Conn.ConnectionState, for each HTTP/3 response) while it switches paths.
func SkipMigrationUnderRace(t testing.TB) {
	t.Helper()
	if RaceDetector {
		t.Skip("quic-go's client has a data race of its own when it migrates")
	}
}

func (f *Fleet) dial(ctx context.Context) (session, error) {
	if f.options.TCP != "" {
		return dialTCP(ctx, f.options.Client, f.options.TCP)
	}
	c, err := Dial(ctx, f.options.Client)
	if err != nil {
		return nil, err
	}
	return quicSession{c}, nil
}

// quicSession makes a Client a session.
type quicSession struct{ c *Client }

func (s quicSession) get(ctx context.Context, path string) (Response, error) {
	return s.c.Get(ctx, path)
}
func (s quicSession) lost() <-chan struct{} { return s.c.Lost() }
func (s quicSession) cause() error          { return s.c.Err() }
func (s quicSession) close()                { s.c.Close() }

// Stop ends the clients in order and returns what they saw.
func (f *Fleet) Stop() Report {
	f.once.Do(func() {
		f.stop()
		f.wg.Wait()
		var closing sync.WaitGroup
		for _, s := range f.sessions {
			if s != nil {
				closing.Go(s.close)
			}
		}
		closing.Wait()
	})
	return f.record.report()
}

// Report returns what the clients have seen so far.
func (f *Fleet) Report() Report { return f.record.report() }

// Client returns the i-th client of a QUIC fleet. With Reconnect it may be
// replaced at any time.
func (f *Fleet) Client(i int) *Client { return f.sessions[i].(quicSession).c }

// run is the life of one client. It owns f.sessions[i] until it returns.
func (f *Fleet) run(ctx context.Context, i int) {
	var movers sync.WaitGroup
	defer movers.Wait()
	for {
		s, m := f.sessions[i], new(mobility)
		life, end := context.WithCancel(ctx)
		if q, ok := s.(quicSession); ok && (f.options.Rebind > 0 || f.options.Migrate > 0) {
			movers.Go(func() { f.move(life, q.c, m) })
		}
		loss := f.serve(life, i, s, m)
		end()
		if loss == nil {
			return
		}
		f.record.update(func(r *Report) { r.Lost = append(r.Lost, *loss) })
		s.close()
		if !f.options.Reconnect || !f.reconnect(ctx, i) {
			return
		}
	}
}

// reconnect replaces a lost connection; false means that the fleet ends.
func (f *Fleet) reconnect(ctx context.Context, i int) bool {
	if f.options.Rest > 0 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(rand.N(f.options.Rest)):
		}
	}
	for ctx.Err() == nil {
		s, err := f.dial(ctx)
		if err == nil {
			f.sessions[i] = s
			f.record.update(func(r *Report) { r.Reconnects++ })
			return true
		}
		if ctx.Err() == nil {
			f.record.update(func(r *Report) { r.Failed++; r.Failures["reconnect: "+Cause(err)]++ })
		}
	}
	return false
}

// serve makes requests on one connection until it is lost (then it says how)
// or the fleet ends (then it returns nil).
func (f *Fleet) serve(ctx context.Context, i int, s session, m *mobility) *Loss {
	var owner Whoami
	// Requests of different clients fall at different times.
	due := time.Now().Add(rand.N(f.options.Interval))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.lost():
			if ctx.Err() != nil {
				return nil
			}
			return &Loss{Client: i, Cause: Cause(s.cause()), Owner: owner, At: time.Now()}
		case <-timer.C:
		}
		moves := m.moves.Load()
		if f.request(ctx, s, due, &owner) {
			m.followed.Store(moves)
		}
		due = due.Add(f.options.Interval)
		timer.Reset(time.Until(due))
	}
}

// request makes one request, records it and says whether it was answered. What
// the end of the fleet cuts off is not counted.
func (f *Fleet) request(ctx context.Context, s session, due time.Time, owner *Whoami) bool {
	rctx, cancel := context.WithTimeout(ctx, f.options.Timeout)
	resp, err := s.get(rctx, f.options.Path)
	cancel()
	if ctx.Err() != nil || errors.Is(err, errClosedByServer) {
		return false // in the second case nothing was sent, and the session is lost
	}
	gap := time.Since(due)
	if err == nil && resp.Status != http.StatusOK {
		err = fmt.Errorf("status %d", resp.Status)
	}
	var who Whoami
	if err == nil && f.options.Path == WhoamiPath {
		who, err = parseWhoami(resp)
	}
	f.record.update(func(r *Report) {
		r.Requests++
		if err != nil {
			r.Failed++
			r.Failures[Cause(err)]++
			return
		}
		r.gaps = append(r.gaps, gap)
		if f.options.Path != WhoamiPath {
			r.Bodies[string(resp.Body)]++
			return
		}
		r.Answers[who.Generation]++
		if owner.Incarnation != 0 && owner.Incarnation != who.Incarnation {
			r.Strangers++
		}
	})
	if who.Incarnation != 0 {
		*owner = who
	}
	return err == nil
}

// mobility counts how often a client gave its server the slip. A request that
// began after a change of port and was answered proves that the server has
// followed.
//
// No port changes before: quic-go v0.65 proves each new address of a client
// with another of the client's connection IDs, has two to spare, and hears of
// the next one only at an address that it follows. A client that changes its
// port twice in the middle of that is lost to it for good. So a machine that
// is slower than the changes of port would fail a test of something else.
type mobility struct {
	moves    atomic.Uint64
	followed atomic.Uint64 // the moves up to this one
}

// move changes the client's address until the connection's life ends.
func (f *Fleet) move(ctx context.Context, c *Client, m *mobility) {
	interval := f.options.Rebind
	if interval == 0 {
		interval = f.options.Migrate
	}
	timer := time.NewTimer(rand.N(interval))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Lost():
			return
		case <-timer.C:
		}
		var err error
		if f.options.Migrate > 0 {
			mctx, cancel := context.WithTimeout(ctx, f.options.Timeout)
			err = c.Migrate(mctx)
			cancel()
		} else {
			if m.followed.Load() < m.moves.Load() {
				timer.Reset(interval)
				continue
			}
			err = c.Rebind()
			m.moves.Add(1) // afterwards: a request that has seen it goes out from the new port
		}
		if ctx.Err() != nil || c.Err() != nil {
			return
		}
		f.record.update(func(r *Report) {
			if err != nil {
				r.MoveErrors[Cause(err)]++
				return
			}
			r.Moves++
		})
		timer.Reset(interval)
	}
}
