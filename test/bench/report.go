package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// row is one line of the table: a figure of each subject, and the budgets of
// the ratios.
type row struct {
	name           string
	unit           string
	figure         func(*sample) float64
	directBudget   string // direct against plain
	drainingBudget string // draining against direct
	againstPlain   bool   // the draining ratio is against plain, too
}

var rows = []row{
	{"download, one connection", "MB/s", func(s *sample) float64 { return s.Download / 1e6 }, "≥ 0.98", "≥ 0.95", false},
	{"upload, one connection", "MB/s", func(s *sample) float64 { return s.Upload / 1e6 }, "≥ 1.25", "≥ 0.90", false},
	{"small requests", "1/s", func(s *sample) float64 { return s.Requests.PerSecond }, "≥ 0.97", "", false},
	{"handshakes", "1/s", func(s *sample) float64 { return s.Handshakes }, "≥ 0.95", "", false},
	{"CPU per small request", "µs", func(s *sample) float64 { return s.RequestCPU }, "≤ 1.05", "≤ 1.25", true},
	{"CPU per GB down", "s", func(s *sample) float64 { return s.DownloadCPU }, "", "", false},
	{"CPU per GB up", "s", func(s *sample) float64 { return s.UploadCPU }, "", "", false},
	{"request latency p50", "ms", func(s *sample) float64 { return float64(s.Requests.P50) / float64(time.Millisecond) }, "", "", false},
	{"request latency p99", "ms", func(s *sample) float64 { return float64(s.Requests.P99) / float64(time.Millisecond) }, "", "", false},
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// column returns the figure of one subject over all rounds.
func (b *bench) column(subject int, figure func(*sample) float64) []float64 {
	var values []float64
	for _, round := range b.rounds {
		values = append(values, figure(&round[subject]))
	}
	return values
}

// ratio returns the median of the per-round ratios of two subjects.
func (b *bench) ratio(over, under int, figure func(*sample) float64) float64 {
	var ratios []float64
	for _, round := range b.rounds {
		ratios = append(ratios, figure(&round[over])/figure(&round[under]))
	}
	return median(ratios)
}

func report(b *bench, forwarded int64, page string) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s, %d CPUs (%s), Linux %s, %s. %d rounds, medians; ratios are medians of the ratios of each round.\n",
		time.Now().Format(time.DateOnly), runtime.NumCPU(), processor(), kernel(), runtime.Version(), len(b.rounds))
	fmt.Fprintf(&out, "%d packets passed a queue during the draining measurements.\n\n", forwarded)
	fmt.Fprintln(&out, "| | plain quic-go | direct | draining | direct / plain | budget | draining / direct | budget |")
	fmt.Fprintln(&out, "|---|---|---|---|---|---|---|---|")
	for _, r := range rows {
		last, note := b.ratio(2, 1, r.figure), ""
		if r.againstPlain {
			last, note = b.ratio(2, 0, r.figure), " (to plain)"
		}
		fmt.Fprintf(&out, "| %s, %s | %.1f | %.1f | %.1f | %.2f | %s | %.2f%s | %s |\n", r.name, r.unit,
			median(b.column(0, r.figure)), median(b.column(1, r.figure)), median(b.column(2, r.figure)),
			b.ratio(1, 0, r.figure), r.directBudget, last, note, r.drainingBudget)
	}
	os.Stdout.Write(out.Bytes())
	if page == "" {
		return nil
	}
	return insert(page, "macro", out.String())
}

// insert replaces what stands between the markers of the given name.
func insert(page, name, text string) error {
	raw, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
	head, rest, found := strings.Cut(string(raw), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has no markers %q", page, name)
	}
	return os.WriteFile(page, []byte(head+begin+text+end+tail), 0o644)
}

func processor() string {
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func kernel() string {
	out, err := exec.Command("uname", "-r").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
