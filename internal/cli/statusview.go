package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

// printStatus writes the status for people.
func printStatus(w io.Writer, s *admin.Status, now time.Time) {
	path := s.Config.Path
	if path == "" {
		path = "-" // of a program that has its configuration inside
	}
	fmt.Fprintf(w, "%s  holdfast %s  pid %d  up %s  config %s %s\n", s.Name, s.Version, s.PID,
		age(now.Sub(s.Started)), path, shortHash(s.Config.Hash))
	for i := range s.Listeners {
		l := &s.Listeners[i]
		fmt.Fprintf(w, "listener %s ", l.Name)
		if len(l.UDP) > 0 {
			fmt.Fprintf(w, " udp %s", strings.Join(l.UDP, " "))
		}
		if len(l.TCP) > 0 {
			fmt.Fprintf(w, " tcp %s", strings.Join(l.TCP, " "))
		}
		fmt.Fprintln(w)
		for j := range l.Sockets {
			if k := &l.Sockets[j]; k.KernelDrops > 0 {
				fmt.Fprintf(w, "  socket %d on %s has lost %d packets: its buffer of %d KiB was full\n",
					k.Index, k.Address, k.KernelDrops, k.ReceiveBuffer>>10)
			}
		}
	}
	if s.Steering.Tier != "" {
		fmt.Fprintf(w, "steering %s", s.Steering.Tier)
		if s.Steering.Reason != "" {
			fmt.Fprintf(w, " (%s)", s.Steering.Reason)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	printGenerations(w, s, now)
	printCounters(w, s)
	if f := s.LastFailure; f != nil {
		fmt.Fprintf(w, "\nlast failure: %s, %s ago: %s\n", f.What, age(now.Sub(f.When)), shorten(f.Reason))
	}
}

func printGenerations(w io.Writer, s *admin.Status, now time.Time) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "GENERATION\tSTATE\tAGE\tENDS IN\tCONFIG\tSLOT\tINCARNATION\tPID\tPHASE\tRESTARTS\tQUIC\tTCP")
	for i := range s.Generations {
		g := &s.Generations[i]
		left := "-"
		if g.Deadline != nil {
			left = age(g.Deadline.Sub(now))
		}
		state := g.State
		if g.Weight > 0 && g.Weight < 100 {
			state = fmt.Sprintf("%s %v%%", state, g.Weight)
		}
		lead := fmt.Sprintf("%d\t%s\t%s\t%s\t%s", g.ID, state, age(now.Sub(g.Since)), left, shortHash(g.ConfigHash))
		if len(g.Workers) == 0 {
			fmt.Fprintf(t, "%s\t-\t-\t-\t-\t-\t-\t-\n", lead)
		}
		for j := range g.Workers {
			k := &g.Workers[j]
			phase := k.Phase
			if k.Hung {
				phase = "hung"
			}
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%d\t%d\t%d\n", lead, k.Slot, k.Incarnation, k.PID, phase, k.Restarts,
				k.Connections.QUIC, k.Connections.TCP)
			lead = "\t\t\t\t"
		}
	}
	_ = t.Flush() // of a buffer or a terminal
	for i := range s.Generations {
		g := &s.Generations[i]
		if c := g.Canary; c != nil {
			printCanary(w, g.ID, c, now)
		}
		for _, name := range slices.Sorted(maps.Keys(g.Limits)) {
			fmt.Fprintf(w, "generation %d: listener %s ends in %s\n", g.ID, name, age(g.Limits[name].Sub(now)))
		}
	}
}

// printCanary tells how a canary does.
func printCanary(w io.Writer, id uint32, c *admin.Canary, now time.Time) {
	fmt.Fprintf(w, "generation %d is a canary: %s; current: %s", id, health(c.Canary), health(c.Current))
	if c.Decides != nil && c.Decides.After(now) {
		fmt.Fprintf(w, "; decides in %s", age(c.Decides.Sub(now)))
	}
	if c.Fault != "" {
		fmt.Fprintf(w, "; %s", c.Fault)
	}
	fmt.Fprintln(w)
}

func health(h admin.Health) string {
	text := fmt.Sprintf("%d connections, %d handshakes failed, %d of %d requests failed",
		h.Connections, h.HandshakesFailed, h.RequestErrors, h.Requests)
	if h.Crashes > 0 {
		text += fmt.Sprintf(", %d crashed", h.Crashes)
	}
	return text
}

func printCounters(w io.Writer, s *admin.Status) {
	c := &s.Counters
	fmt.Fprintf(w, "\npackets  received %d  delivered %d  accepted %d  forwarded %d\n",
		c.PacketsReceived, c.PacketsDelivered, c.PacketsAccepted, c.PacketsForwarded)
	var drops []string
	for _, reason := range slices.Sorted(maps.Keys(c.PacketsDropped)) {
		if n := c.PacketsDropped[reason]; n > 0 {
			drops = append(drops, fmt.Sprintf("%s %d", reason, n))
		}
	}
	if len(drops) > 0 {
		fmt.Fprintf(w, "dropped  %s\n", strings.Join(drops, "  "))
	}
	if c.SendErrors > 0 {
		fmt.Fprintf(w, "unsent   %d\n", c.SendErrors)
	}
	fmt.Fprintf(w, "table    %d of %d entries used, %d by handshakes\n", s.Table.Used, s.Table.Capacity, s.Table.Handshaking)
	fmt.Fprintf(w, "reloads  %d done  %d failed  %d merged    worker crashes  %d\n",
		c.ReloadsOK, c.ReloadsFailed, c.ReloadsMerged, c.WorkerCrashes)
	if c.UpgradesOK+c.UpgradesFailed+c.Rollbacks > 0 {
		fmt.Fprintf(w, "upgrades %d done  %d failed  %d rolled back\n", c.UpgradesOK, c.UpgradesFailed, c.Rollbacks)
	}
}

// longestReason is how many characters of a reason the overview has room for.
const longestReason = 300

// shorten cuts a reason, such as the faults of a whole file.
func shorten(reason string) string {
	r := []rune(reason)
	if len(r) <= longestReason {
		return reason
	}
	return string(r[:longestReason]) + " … (all of it: status --json)"
}

// age prints a duration as people say it.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// shortHash is enough of a hash to tell two configurations apart.
func shortHash(h string) string {
	if h == "" {
		return "-"
	}
	h = strings.TrimPrefix(h, "sha256:")
	return h[:min(len(h), 10)]
}
