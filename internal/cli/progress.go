package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

// progressPeriod is how often a waiting command looks at the supervisor.
const progressPeriod = 250 * time.Millisecond

// progress shows on a terminal what a command waits for, until the returned
// function is called. describe makes a line of the status.
func (a *app) progress(ctx context.Context, c *admin.Client, describe func(*admin.Status) string) (end func()) {
	if !isTerminal(a.err) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		start, width := time.Now(), 0
		tick := time.NewTicker(progressPeriod)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				fmt.Fprintf(a.err, "\r%s\r", strings.Repeat(" ", width))
				return
			case <-tick.C:
			}
			s, err := c.Status(ctx)
			if err != nil {
				continue // the command itself says what that means
			}
			line := fmt.Sprintf("%.1f s  %s", time.Since(start).Seconds(), describe(s))
			fmt.Fprintf(a.err, "\r%s%s", line, strings.Repeat(" ", max(0, width-len(line))))
			width = len(line)
		}
	}()
	return func() {
		cancel()
		<-over
	}
}

// starting describes a reload.
func starting(s *admin.Status) string {
	for i := len(s.Generations) - 1; i >= 0; i-- {
		g := &s.Generations[i]
		switch g.State {
		case "starting", "ready", "probed":
			return fmt.Sprintf("generation %d is %s", g.ID, g.State)
		}
	}
	return "waiting for a new generation"
}

// leaving describes what is still open.
func leaving(s *admin.Status) string {
	var quic, tcp uint64
	for i := range s.Generations {
		q, t := s.Generations[i].Connections()
		quic, tcp = quic+q, tcp+t
	}
	return fmt.Sprintf("open connections: %d of QUIC and %d of TCP, in %s", quic, tcp, count(len(s.Generations), "generation"))
}
