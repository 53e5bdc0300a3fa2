package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// micro is one benchmark of the standard format over several repetitions.
type micro struct {
	name    string
	nanos   []float64
	allocs  []float64
	metrics map[string][]float64 // further metrics by unit
}

// reportMicro writes the medians of a `go test -bench` output into the page.
func reportMicro(file, page string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var (
		out   bytes.Buffer
		found []*micro
	)
	scanner := bufio.NewScanner(bytes.NewReader(raw))
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmark")
		if cut := strings.LastIndexByte(name, '-'); cut > 0 {
			name = name[:cut] // the number of processors
		}
		at := slices.IndexFunc(found, func(m *micro) bool { return m.name == name })
		if at < 0 {
			at = len(found)
			found = append(found, &micro{name: name, metrics: map[string][]float64{}})
		}
		found[at].add(fields[2:])
	}
	fmt.Fprintln(&out, "| benchmark | ns | allocations | further |")
	fmt.Fprintln(&out, "|---|---|---|---|")
	for _, m := range found {
		var further []string
		for unit, values := range m.metrics {
			further = append(further, fmt.Sprintf("%.1f %s", median(values), unit))
		}
		slices.Sort(further)
		fmt.Fprintf(&out, "| %s | %.1f | %.0f | %s |\n", m.name, median(m.nanos), median(m.allocs), strings.Join(further, ", "))
	}
	return insert(page, "micro", out.String())
}

// add takes the value and unit pairs of one line.
func (m *micro) add(pairs []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		value, err := strconv.ParseFloat(pairs[i], 64)
		if err != nil {
			continue
		}
		switch pairs[i+1] {
		case "ns/op":
			m.nanos = append(m.nanos, value)
		case "allocs/op":
			m.allocs = append(m.allocs, value)
		case "B/op":
		default:
			m.metrics[pairs[i+1]] = append(m.metrics[pairs[i+1]], value)
		}
	}
}
