package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// demo is one running demonstration.
type demo struct {
	opt    Options
	server *server
	tally  *tally
	start  time.Time

	clients []*client
	stop    chan struct{} // ends the clients' work in order
	work    sync.WaitGroup
}

// Run does the demonstration. The error says why it could not be done; what
// was lost in it is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	d := &demo{opt: o.withDefaults(), tally: newTally(), stop: make(chan struct{}), start: time.Now()}
	if err := checkDescriptors(d.opt); err != nil {
		return nil, err
	}
	d.say("starting a supervisor with its workers")
	var err error
	if d.server, err = startServer(ctx, d.opt.Command); err != nil {
		return nil, err
	}
	r, err := d.run(ctx)
	return r, errors.Join(err, d.server.stop())
}

func (d *demo) run(ctx context.Context) (*Report, error) {
	d.say("opening %d connections", d.opt.Connections)
	if err := d.connect(ctx); err != nil {
		d.closeClients()
		return nil, fmt.Errorf("open connections: %w", err)
	}
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	d.launch(work)
	r := &Report{Connections: len(d.clients), Reloads: d.opt.Reloads}
	show := d.show(work)
	err := d.reload(work, r)
	close(d.stop)
	if err != nil {
		cancel()
	}
	d.work.Wait()
	cancel()
	<-show
	d.verdict(ctx, r)
	d.closeClients()
	return r, err
}

// connect opens the connections, several at once.
func (d *demo) connect(ctx context.Context) error {
	d.clients = make([]*client, d.opt.Connections)
	errs := make([]error, d.opt.Connections)
	var wg sync.WaitGroup
	turns := make(chan int)
	for range connectAtOnce {
		wg.Go(func() {
			for i := range turns {
				d.clients[i], errs[i] = d.dial(ctx, kindOf(i))
			}
		})
	}
	for i := range d.clients {
		turns <- i
	}
	close(turns)
	wg.Wait()
	return errors.Join(errs...)
}

func (d *demo) dial(ctx context.Context, kind Kind) (*client, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return dial(ctx, d.server.addr, d.tally, kind)
}

// kindOf is what the client with that number does.
func kindOf(i int) Kind {
	if i%2 == 0 {
		return KindSteady
	}
	return KindTransfer
}

// launch sets all clients to work.
func (d *demo) launch(ctx context.Context) {
	size := int64(d.duration().Seconds() * transferRate)
	for _, c := range d.clients {
		d.work.Go(func() {
			if c.kind == KindSteady {
				c.requestSteadily(ctx, d.stop)
				return
			}
			c.transfer(ctx, size, d.stop)
		})
	}
	d.work.Go(func() { d.openNewOnes(ctx) })
}

// duration is about how long the reloads take with the pauses around them.
func (d *demo) duration() time.Duration {
	return time.Duration(d.opt.Reloads+1) * (reloadPause + 500*time.Millisecond)
}

// openNewOnes opens connections beside those that are held, uses each once,
// and closes it.
func (d *demo) openNewOnes(ctx context.Context) {
	tick := time.NewTicker(newConnPeriod)
	defer tick.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		d.tally.handshakes.Add(1)
		d.work.Go(func() { d.openOne(ctx) })
	}
}

func (d *demo) openOne(ctx context.Context) {
	start := time.Now()
	c, err := d.dial(ctx, KindNew)
	if err != nil {
		d.tally.handshakesFailed.Add(1)
		d.tally.gap(time.Since(start))
		d.tally.blame("handshake", err)
		return
	}
	defer c.close()
	start = time.Now()
	if err := c.whoami(ctx); err != nil {
		d.tally.handshakesFailed.Add(1)
		d.tally.blameClient(c, "first request", start, err)
	}
}

// reload reloads as often as asked for; after each reload the clients move.
func (d *demo) reload(ctx context.Context, r *Report) error {
	if err := pause(ctx, reloadPause); err != nil {
		return err
	}
	for n := range d.opt.Reloads {
		start := time.Now()
		if _, err := d.server.admin.Post(ctx, "/v1/reload", nil); err != nil {
			r.ReloadsFailed++
			d.tally.blame(fmt.Sprintf("reload %d", n+1), err)
		}
		r.ReloadSlowest = max(r.ReloadSlowest, time.Since(start).Seconds())
		d.move(ctx)
		if err := pause(ctx, reloadPause); err != nil {
			return err
		}
	}
	return nil
}

// move gives every third client another address, half of them without their
// knowledge.
func (d *demo) move(ctx context.Context) {
	var wg sync.WaitGroup
	for i := 0; i < len(d.clients); i += 3 {
		c := d.clients[i]
		wg.Go(func() {
			start, move := time.Now(), c.switchPath
			if i/6%2 == 0 { // of both kinds of work
				move = c.swapPort
			}
			if err := move(ctx); err != nil {
				d.tally.movesFailed.Add(1)
				d.tally.blameClient(c, "change of address", start, err)
			}
		})
	}
	wg.Wait()
}

// verdict fills in what is known at the end.
func (d *demo) verdict(ctx context.Context, r *Report) {
	for _, c := range d.clients {
		if err := c.lost(); err != nil {
			r.ConnectionsLost++
			d.tally.blameClient(c, "connection", time.Now(), err)
		}
	}
	if s, err := d.server.admin.Status(ctx); err != nil {
		d.tally.blame("status", err)
	} else {
		r.PacketsReceived, r.PacketsForwarded = s.Counters.PacketsReceived, s.Counters.PacketsForwarded
		r.PacketsDropped = s.Counters.PacketsDropped
	}
	faults, err := d.server.admin.CheckSegment(ctx)
	if err != nil {
		d.tally.blame("check of the segment", err)
	}
	r.CheckFaults = len(faults)
	for _, f := range faults {
		d.tally.blame("segment", errors.New(f))
	}
	r.Seconds = time.Since(d.start).Seconds()
	d.tally.fill(r)
	r.judge()
}

func (d *demo) closeClients() {
	var wg sync.WaitGroup
	for _, c := range d.clients {
		if c != nil {
			wg.Go(c.close)
		}
	}
	wg.Wait()
}

// pause waits, or returns why it must not.
func pause(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// say shows a step.
func (d *demo) say(format string, args ...any) {
	if d.opt.Progress == nil {
		return
	}
	line := fmt.Sprintf(format, args...)
	if d.opt.Overwrite {
		fmt.Fprintf(d.opt.Progress, "\r%s\r%s", strings.Repeat(" ", progressWidth), line)
		return
	}
	fmt.Fprintln(d.opt.Progress, line)
}
