package supervisor

import (
	"fmt"
	"slices"
)

// workerState is how far the supervisor is with a worker process. How far the
// process itself is (its phase) it writes into the segment.
type workerState uint8

// The states of a worker process:
//
//	spawned ─► welcomed ─► ready ─► serving ◄─► draining ─► stopping ─► killed ─► gone
//
// Every state leads to gone by the process's end.
const (
	workerSpawned  workerState = iota // has not said hello
	workerWelcomed                    // has a slot; not ready
	workerReady                       // ready, being probed
	workerServing                     // proven: may read and be admitted to
	workerDraining                    // serves what it has
	workerStopping                    // told to end within a grace
	workerKilled                      // SIGKILL was sent
	workerGone                        // reaped
	numWorkerStates
)

var workerStateNames = [numWorkerStates]string{"spawned", "welcomed", "ready", "serving", "draining", "stopping", "killed", "gone"}

func (s workerState) String() string { return workerStateNames[s] }

// MarshalText implements encoding.TextMarshaler.
func (s workerState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *workerState) UnmarshalText(text []byte) error {
	i := slices.Index(workerStateNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is no state of a worker", text)
	}
	*s = workerState(i)
	return nil
}

// workerEvent is what can happen to a worker process.
type workerEvent uint8

const (
	wkHello     workerEvent = iota // a hello that can be accepted
	wkBadHello                     // a hello of another protocol or ABI
	wkReady                        // it says ready
	wkProbed                       // the probe went well, or there is none
	wkProbeBad                     // the probe failed
	wkFailed                       // it says that it can't serve
	wkDrained                      // it says that nothing is left
	wkLate                         // not ready in time
	wkDrain                        // its generation drains
	wkUndrain                      // its generation is current again
	wkStop                         // its generation is to end
	wkGraceOver                    // the grace of a stop has passed
	wkSilent                       // it closed its lifeline, broke the protocol or does not read
	wkExitClean                    // ended with status 0
	wkExitBad                      // ended otherwise
	numWorkerEvents
)

var workerEventNames = [numWorkerEvents]string{
	"hello", "bad hello", "ready", "probed", "probe failed", "failed", "drained", "late",
	"drain", "undrain", "stop", "grace over", "silent", "clean exit", "bad exit",
}

func (e workerEvent) String() string { return workerEventNames[e] }

// workerAction is a set of what the loop does after a transition.
type workerAction uint16

const (
	toWelcome workerAction = 1 << iota // assign a slot, send the welcome
	toRefuse                           // send the refusal
	toProbe                            // start the probe if the generation wants it now
	toServe                            // part of the readers from now on
	toDrain                            // send the drain order
	toUndrain                          // send the order to serve as before
	toStop                             // send the stop order, start the grace
	toKill                             // send SIGKILL
	toReclaim                          // free what it held
	toLose                             // tell the generation that it lost a worker
	toCrash                            // count a crash
)

type workerCell struct {
	next workerState
	do   workerAction
}

const (
	// A process that is not to live on and holds no connection needs no grace.
	endNow   = toKill | toLose
	goneLost = toReclaim | toLose
)

// workerTable says what each event means in each state. A cell that keeps the
// state and does nothing is an event that came too late to matter.
var workerTable = [workerGone][numWorkerEvents]workerCell{
	workerSpawned: {
		wkHello:     {workerWelcomed, toWelcome},
		wkBadHello:  {workerStopping, toRefuse | toLose},
		wkReady:     {workerKilled, endNow},
		wkProbed:    {workerSpawned, 0},
		wkProbeBad:  {workerSpawned, 0},
		wkFailed:    {workerKilled, endNow},
		wkDrained:   {workerKilled, endNow},
		wkLate:      {workerKilled, endNow},
		wkDrain:     {workerKilled, toKill}, // has nothing to drain
		wkUndrain:   {workerSpawned, 0},
		wkStop:      {workerKilled, toKill},
		wkGraceOver: {workerSpawned, 0},
		wkSilent:    {workerKilled, endNow},
		wkExitClean: {workerGone, goneLost | toCrash},
		wkExitBad:   {workerGone, goneLost | toCrash},
	},
	workerWelcomed: {
		wkHello:     {workerKilled, endNow}, // says hello twice
		wkBadHello:  {workerKilled, endNow},
		wkReady:     {workerReady, toProbe},
		wkProbed:    {workerWelcomed, 0},
		wkProbeBad:  {workerWelcomed, 0},
		wkFailed:    {workerKilled, endNow},
		wkDrained:   {workerKilled, endNow},
		wkLate:      {workerKilled, endNow},
		wkDrain:     {workerKilled, toKill},
		wkUndrain:   {workerWelcomed, 0},
		wkStop:      {workerKilled, toKill},
		wkGraceOver: {workerWelcomed, 0},
		wkSilent:    {workerKilled, endNow},
		wkExitClean: {workerGone, goneLost | toCrash},
		wkExitBad:   {workerGone, goneLost | toCrash},
	},
	workerReady: {
		wkHello:     {workerKilled, endNow},
		wkBadHello:  {workerKilled, endNow},
		wkReady:     {workerReady, 0},
		wkProbed:    {workerServing, toServe},
		wkProbeBad:  {workerKilled, endNow},
		wkFailed:    {workerKilled, endNow},
		wkDrained:   {workerKilled, endNow},
		wkLate:      {workerReady, 0},
		wkDrain:     {workerStopping, toStop}, // may hold the probe's connection, no more
		wkUndrain:   {workerReady, 0},
		wkStop:      {workerStopping, toStop},
		wkGraceOver: {workerReady, 0},
		wkSilent:    {workerKilled, endNow},
		wkExitClean: {workerGone, goneLost | toCrash},
		wkExitBad:   {workerGone, goneLost | toCrash},
	},
	workerServing: {
		wkHello:     {workerKilled, endNow},
		wkBadHello:  {workerKilled, endNow},
		wkReady:     {workerServing, 0},
		wkProbed:    {workerServing, 0},
		wkProbeBad:  {workerServing, 0},
		wkFailed:    {workerServing, 0}, // it exits next; the exit decides
		wkDrained:   {workerServing, 0},
		wkLate:      {workerServing, 0},
		wkDrain:     {workerDraining, toDrain},
		wkUndrain:   {workerServing, 0},
		wkStop:      {workerStopping, toStop},
		wkGraceOver: {workerServing, 0},
		wkSilent:    {workerKilled, endNow},
		wkExitClean: {workerGone, goneLost | toCrash},
		wkExitBad:   {workerGone, goneLost | toCrash},
	},
	workerDraining: {
		wkHello:     {workerKilled, toKill},
		wkBadHello:  {workerKilled, toKill},
		wkReady:     {workerDraining, 0},
		wkProbed:    {workerDraining, 0},
		wkProbeBad:  {workerDraining, 0},
		wkFailed:    {workerDraining, 0},
		wkDrained:   {workerDraining, 0}, // the exit follows
		wkLate:      {workerDraining, 0},
		wkDrain:     {workerDraining, toDrain}, // another mode or deadline
		wkUndrain:   {workerServing, toUndrain},
		wkStop:      {workerStopping, toStop},
		wkGraceOver: {workerDraining, 0},
		wkSilent:    {workerKilled, toKill},
		wkExitClean: {workerGone, toReclaim},
		wkExitBad:   {workerGone, toReclaim | toCrash},
	},
	workerStopping: {
		wkHello:     {workerStopping, 0},
		wkBadHello:  {workerStopping, 0},
		wkReady:     {workerStopping, 0},
		wkProbed:    {workerStopping, 0},
		wkProbeBad:  {workerStopping, 0},
		wkFailed:    {workerStopping, 0},
		wkDrained:   {workerStopping, 0},
		wkLate:      {workerStopping, 0},
		wkDrain:     {workerStopping, 0},
		wkUndrain:   {workerStopping, 0},
		wkStop:      {workerStopping, toStop}, // a shorter grace
		wkGraceOver: {workerKilled, toKill},
		wkSilent:    {workerStopping, 0}, // the grace ends it
		wkExitClean: {workerGone, toReclaim},
		wkExitBad:   {workerGone, toReclaim | toCrash},
	},
	workerKilled: {
		wkHello:     {workerKilled, 0},
		wkBadHello:  {workerKilled, 0},
		wkReady:     {workerKilled, 0},
		wkProbed:    {workerKilled, 0},
		wkProbeBad:  {workerKilled, 0},
		wkFailed:    {workerKilled, 0},
		wkDrained:   {workerKilled, 0},
		wkLate:      {workerKilled, 0},
		wkDrain:     {workerKilled, 0},
		wkUndrain:   {workerKilled, 0},
		wkStop:      {workerKilled, 0},
		wkGraceOver: {workerKilled, 0},
		wkSilent:    {workerKilled, 0},
		wkExitClean: {workerGone, toReclaim},
		wkExitBad:   {workerGone, toReclaim},
	},
}

// workerNext returns the cell of the table. Nothing happens to a worker that
// is gone, whatever still arrives in its name.
func workerNext(s workerState, e workerEvent) workerCell {
	if s == workerGone {
		return workerCell{next: workerGone}
	}
	return workerTable[s][e]
}
