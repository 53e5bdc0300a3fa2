package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// progressWidth is how much of a terminal's line the progress uses.
const progressWidth = 120

// Periods of the progress: written over, and as lines of a log.
const (
	overwritePeriod = 250 * time.Millisecond
	linePeriod      = 2 * time.Second
)

// show reports progress until ctx ends and closes the channel then.
func (d *demo) show(ctx context.Context) <-chan struct{} {
	over := make(chan struct{})
	if d.opt.Progress == nil {
		close(over)
		return over
	}
	period := linePeriod
	if d.opt.Overwrite {
		period = overwritePeriod
	}
	go func() {
		defer close(over)
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				d.say("%s", d.line(ctx))
			case <-ctx.Done():
				if d.opt.Overwrite {
					_, _ = io.WriteString(d.opt.Progress, "\r"+strings.Repeat(" ", progressWidth)+"\r")
				}
				return
			}
		}
	}()
	return over
}

// line is the demonstration at this moment.
func (d *demo) line(ctx context.Context) string {
	alive := 0
	for _, c := range d.clients {
		if c.lost() == nil {
			alive++
		}
	}
	generations, forwarded := "", uint64(0)
	if s, err := d.server.admin.Status(ctx); err == nil {
		forwarded = s.Counters.PacketsForwarded
		if g := s.Current(); g != nil {
			generations = fmt.Sprintf("%d (%d alive)", g.ID, len(s.Generations))
		}
	}
	t := d.tally
	line := fmt.Sprintf("%4.1f s  generation %s | connections %d/%d | requests %d | new %d | moved %d | failed %d | forwarded %d",
		time.Since(d.start).Seconds(), generations, alive, len(d.clients), t.requests.Load(), t.handshakes.Load(),
		t.portsSwapped.Load()+t.pathsSwitched.Load(),
		t.requestsFailed.Load()+t.handshakesFailed.Load()+t.movesFailed.Load(), forwarded)
	return line[:min(len(line), progressWidth)]
}
