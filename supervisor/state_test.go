package supervisor

import (
	"fmt"
	"strings"
	"testing"
)

// The tables once more, by hand, as one line per cell that does something:
// what is not here must keep the state and do nothing.
const generationCells = `
starting   all ready     ready     probe
starting   worker lost   failed    abandon
starting   step failed   failed    abandon
starting   stop ordered  failed    abandon
starting   fast stop     failed    abandon
starting   empty         failed    abandon retire
ready      all probed    probed    handover
ready      worker lost   failed    abandon
ready      step failed   failed    abandon
ready      stop ordered  failed    abandon
ready      fast stop     failed    abandon
ready      empty         failed    abandon retire
probed     handed over   current   admit
probed     shares        canary    share
probed     worker lost   failed    abandon
probed     step failed   failed    abandon
probed     stop ordered  failed    abandon
probed     fast stop     failed    abandon
probed     empty         failed    abandon retire
canary     promoted      canary    handover
canary     handed over   current   admit
canary     rolled back   draining  drain
canary     worker lost   canary    judge replace
canary     step failed   canary    keep
canary     stop ordered  draining  drain-stop
canary     fast stop     draining  stop-fast
current    worker lost   current   replace
current    superseded    draining  drain
current    stop ordered  draining  drain-stop
current    fast stop     draining  stop-fast
draining   restored      current   restore
draining   deadline      draining  stop-old
draining   evicted       draining  stop-old
draining   stop ordered  draining  drain-stop
draining   fast stop     draining  stop-fast
draining   empty         retired   retire
failed     fast stop     failed    stop-fast
failed     empty         failed    retire
`

const workerCells = `
spawned   hello         welcomed  welcome
spawned   bad hello     stopping  refuse lose
spawned   ready         killed    kill lose
spawned   failed        killed    kill lose
spawned   drained       killed    kill lose
spawned   late          killed    kill lose
spawned   drain         killed    kill
spawned   stop          killed    kill
spawned   silent        killed    kill lose
spawned   clean exit    gone      reclaim lose crash
spawned   bad exit      gone      reclaim lose crash
welcomed  hello         killed    kill lose
welcomed  bad hello     killed    kill lose
welcomed  ready         ready     probe
welcomed  failed        killed    kill lose
welcomed  drained       killed    kill lose
welcomed  late          killed    kill lose
welcomed  drain         killed    kill
welcomed  stop          killed    kill
welcomed  silent        killed    kill lose
welcomed  clean exit    gone      reclaim lose crash
welcomed  bad exit      gone      reclaim lose crash
ready     hello         killed    kill lose
ready     bad hello     killed    kill lose
ready     probed        serving   serve
ready     probe failed  killed    kill lose
ready     failed        killed    kill lose
ready     drained       killed    kill lose
ready     drain         stopping  stop
ready     stop          stopping  stop
ready     silent        killed    kill lose
ready     clean exit    gone      reclaim lose crash
ready     bad exit      gone      reclaim lose crash
serving   hello         killed    kill lose
serving   bad hello     killed    kill lose
serving   drain         draining  drain
serving   stop          stopping  stop
serving   silent        killed    kill lose
serving   clean exit    gone      reclaim lose crash
serving   bad exit      gone      reclaim lose crash
draining  hello         killed    kill
draining  bad hello     killed    kill
draining  drain         draining  drain
draining  undrain       serving   undrain
draining  stop          stopping  stop
draining  silent        killed    kill
draining  clean exit    gone      reclaim
draining  bad exit      gone      reclaim crash
stopping  stop          stopping  stop
stopping  grace over    killed    kill
stopping  clean exit    gone      reclaim
stopping  bad exit      gone      reclaim crash
killed    clean exit    gone      reclaim
killed    bad exit      gone      reclaim
`

// cells parses a table into "state/event" -> "next/actions".
func cells(t *testing.T, text string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		var columns []string
		for column := range strings.SplitSeq(strings.TrimSpace(line), "  ") {
			if column = strings.TrimSpace(column); column != "" {
				columns = append(columns, column)
			}
		}
		if len(columns) != 4 {
			t.Fatalf("line %q has %d columns", line, len(columns))
		}
		out[columns[0]+"/"+columns[1]] = columns[2] + "/" + columns[3]
	}
	return out
}

func actions[T ~uint16](do T, names []string) string {
	var out []string
	for i, name := range names {
		if do&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

func TestGenerationTable(t *testing.T) {
	names := []string{"probe", "handover", "share", "admit", "restore", "keep", "judge", "replace", "abandon", "drain", "drain-stop", "stop-old", "stop-fast", "retire"}
	want := cells(t, generationCells)
	for s := range numGenerationStates {
		for e := range numGenerationEvents {
			cell := generationTable[s][e]
			got := fmt.Sprintf("%s/%s", cell.next, actions(cell.do, names))
			key := fmt.Sprintf("%s/%s", s, e)
			expected, ok := want[key]
			if !ok {
				expected = s.String() + "/"
			}
			if got != expected {
				t.Errorf("%s: %s, want %s", key, got, expected)
			}
		}
	}
}

func TestWorkerTable(t *testing.T) {
	names := []string{"welcome", "refuse", "probe", "serve", "drain", "undrain", "stop", "kill", "reclaim", "lose", "crash"}
	want := cells(t, workerCells)
	for s := range numWorkerStates {
		for e := range numWorkerEvents {
			cell := workerNext(s, e)
			got := fmt.Sprintf("%s/%s", cell.next, actions(cell.do, names))
			key := fmt.Sprintf("%s/%s", s, e)
			expected, ok := want[key]
			if !ok {
				expected = s.String() + "/"
			}
			if got != expected {
				t.Errorf("%s: %s, want %s", key, got, expected)
			}
		}
	}
}

// What must hold whatever the cells say.
func TestTableInvariants(t *testing.T) {
	for s := range workerGone {
		for _, e := range []workerEvent{wkExitClean, wkExitBad} {
			cell := workerNext(s, e)
			if cell.next != workerGone || cell.do&toReclaim == 0 {
				t.Errorf("%s, %s: a dead process must be reclaimed", s, e)
			}
		}
		for e := range numWorkerEvents {
			if next := workerNext(s, e).next; next < s && e != wkUndrain {
				t.Errorf("%s, %s: goes back to %s", s, e, next)
			}
		}
	}
	for s := range numGenerationStates {
		for e := range numGenerationEvents {
			cell := generationTable[s][e]
			if s >= GenerationCanary && cell.next == GenerationFailed && s != GenerationFailed {
				t.Errorf("%s, %s: a generation that had connections can't fail any more", s, e)
			}
			if cell.next == GenerationCurrent && s != GenerationCurrent && cell.do&(doAdmit|doRestore) == 0 {
				t.Errorf("%s, %s: current without the admission store", s, e)
			}
		}
	}
}
