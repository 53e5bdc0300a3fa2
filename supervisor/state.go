package supervisor

import (
	"fmt"
	"slices"
)

// GenerationState is how far a generation is.
type GenerationState uint8

// The states of a generation:
//
//	                           ┌─► canary ─┐─────┐
//	starting ─► ready ─► probed ─┴─► current ◄─► draining ─► retired
//	    └─────────┴────────┴────► failed
//
// A draining generation becomes current again when the one after it is rolled
// back.
const (
	GenerationStarting GenerationState = iota // processes run, not all are ready
	GenerationReady                           // all are ready, not all are proven
	GenerationProbed                          // all are proven; the handover is under way
	GenerationCanary                          // accepts a share of the new connections
	GenerationCurrent                         // accepts new connections, or what a canary does not
	GenerationDraining                        // serves what it has
	GenerationRetired                         // no process left
	GenerationFailed                          // was never current
	numGenerationStates
)

var generationNames = [numGenerationStates]string{"starting", "ready", "probed", "canary", "current", "draining", "retired", "failed"}

func (s GenerationState) String() string { return generationNames[s] }

// MarshalText implements encoding.TextMarshaler.
func (s GenerationState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *GenerationState) UnmarshalText(text []byte) error {
	i := slices.Index(generationNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is no state of a generation", text)
	}
	*s = GenerationState(i)
	return nil
}

// generationEvent is what can happen to a generation.
type generationEvent uint8

const (
	genAllReady    generationEvent = iota // every worker has said ready
	genAllProbed                          // every worker has been probed
	genShares                             // everything is set for a share of the new connections
	genPromoted                           // is to be current
	genHandedOver                         // every worker reads its sockets
	genRolledBack                         // is not to become current
	genRestored                           // the one after it is rolled back
	genWorkerLost                         // a worker ended or hung before it should
	genStepFailed                         // a step of the handover can't be done
	genSuperseded                         // the next generation has become current
	genDeadline                           // the drain has lasted long enough
	genEvicted                            // room is needed for the next generation
	genStopOrdered                        // graceful stop of the service
	genFastStop                           // fast stop of the service
	genEmpty                              // the last process is gone
	numGenerationEvents
)

var generationEventNames = [numGenerationEvents]string{
	"all ready", "all probed", "shares", "promoted", "handed over", "rolled back", "restored", "worker lost", "step failed", "superseded",
	"deadline", "evicted", "stop ordered", "fast stop", "empty",
}

func (e generationEvent) String() string { return generationEventNames[e] }

// generationAction is a set of what the loop does after a transition.
type generationAction uint16

const (
	doProbe     generationAction = 1 << iota // start the probes
	doHandover                               // bind what is missing, set the readers
	doShare                                  // store the admission word with a share
	doAdmit                                  // store the admission word, supersede the old one
	doRestore                                // the same for one that drains, and end its drain
	doKeep                                   // a promotion can't be done: all stays as it is
	doJudge                                  // roll back if it is to be done without being told
	doReplace                                // start another process for the lost one
	doAbandon                                // tell the reload, end the processes
	doDrain                                  // send the drain order of the reload
	doDrainStop                              // send the drain order of the graceful stop
	doStopOld                                // stop with the grace of a deadline
	doStopFast                               // stop with the grace of a fast stop
	doRetire                                 // forget the generation
)

type generationCell struct {
	next GenerationState
	do   generationAction
}

// generationTable says what each event means in each state. A cell that keeps
// the state and does nothing is an event that comes too late to matter: a
// probe that ends after its generation failed, say.
var generationTable = [numGenerationStates][numGenerationEvents]generationCell{
	GenerationStarting: {
		genAllReady:    {GenerationReady, doProbe},
		genAllProbed:   {GenerationStarting, 0},
		genShares:      {GenerationStarting, 0},
		genPromoted:    {GenerationStarting, 0},
		genHandedOver:  {GenerationStarting, 0},
		genRolledBack:  {GenerationStarting, 0},
		genRestored:    {GenerationStarting, 0},
		genWorkerLost:  {GenerationFailed, doAbandon},
		genStepFailed:  {GenerationFailed, doAbandon},
		genSuperseded:  {GenerationStarting, 0},
		genDeadline:    {GenerationStarting, 0},
		genEvicted:     {GenerationStarting, 0},
		genStopOrdered: {GenerationFailed, doAbandon},
		genFastStop:    {GenerationFailed, doAbandon},
		genEmpty:       {GenerationFailed, doAbandon | doRetire},
	},
	GenerationReady: {
		genAllReady:    {GenerationReady, 0},
		genAllProbed:   {GenerationProbed, doHandover},
		genShares:      {GenerationReady, 0},
		genPromoted:    {GenerationReady, 0},
		genHandedOver:  {GenerationReady, 0},
		genRolledBack:  {GenerationReady, 0},
		genRestored:    {GenerationReady, 0},
		genWorkerLost:  {GenerationFailed, doAbandon},
		genStepFailed:  {GenerationFailed, doAbandon},
		genSuperseded:  {GenerationReady, 0},
		genDeadline:    {GenerationReady, 0},
		genEvicted:     {GenerationReady, 0},
		genStopOrdered: {GenerationFailed, doAbandon},
		genFastStop:    {GenerationFailed, doAbandon},
		genEmpty:       {GenerationFailed, doAbandon | doRetire},
	},
	GenerationProbed: {
		genAllReady:    {GenerationProbed, 0},
		genAllProbed:   {GenerationProbed, 0},
		genShares:      {GenerationCanary, doShare},
		genPromoted:    {GenerationProbed, 0},
		genHandedOver:  {GenerationCurrent, doAdmit},
		genRolledBack:  {GenerationProbed, 0},
		genRestored:    {GenerationProbed, 0},
		genWorkerLost:  {GenerationFailed, doAbandon},
		genStepFailed:  {GenerationFailed, doAbandon},
		genSuperseded:  {GenerationProbed, 0},
		genDeadline:    {GenerationProbed, 0},
		genEvicted:     {GenerationProbed, 0},
		genStopOrdered: {GenerationFailed, doAbandon},
		genFastStop:    {GenerationFailed, doAbandon},
		genEmpty:       {GenerationFailed, doAbandon | doRetire},
	},
	GenerationCanary: {
		genAllReady:    {GenerationCanary, 0},
		genAllProbed:   {GenerationCanary, 0},
		genShares:      {GenerationCanary, 0},
		genPromoted:    {GenerationCanary, doHandover},
		genHandedOver:  {GenerationCurrent, doAdmit},
		genRolledBack:  {GenerationDraining, doDrain}, // new connections have been turned back before
		genRestored:    {GenerationCanary, 0},
		genWorkerLost:  {GenerationCanary, doReplace | doJudge},
		genStepFailed:  {GenerationCanary, doKeep},
		genSuperseded:  {GenerationCanary, 0},
		genDeadline:    {GenerationCanary, 0},
		genEvicted:     {GenerationCanary, 0},
		genStopOrdered: {GenerationDraining, doDrainStop},
		genFastStop:    {GenerationDraining, doStopFast},
		genEmpty:       {GenerationCanary, 0}, // replacements are on their way
	},
	GenerationCurrent: {
		genAllReady:    {GenerationCurrent, 0}, // a replacement is ready
		genAllProbed:   {GenerationCurrent, 0},
		genShares:      {GenerationCurrent, 0},
		genPromoted:    {GenerationCurrent, 0},
		genHandedOver:  {GenerationCurrent, 0},
		genRolledBack:  {GenerationCurrent, 0},
		genRestored:    {GenerationCurrent, 0},
		genWorkerLost:  {GenerationCurrent, doReplace},
		genStepFailed:  {GenerationCurrent, 0},
		genSuperseded:  {GenerationDraining, doDrain},
		genDeadline:    {GenerationCurrent, 0},
		genEvicted:     {GenerationCurrent, 0},
		genStopOrdered: {GenerationDraining, doDrainStop},
		genFastStop:    {GenerationDraining, doStopFast},
		genEmpty:       {GenerationCurrent, 0}, // replacements are on their way
	},
	GenerationDraining: {
		genAllReady:    {GenerationDraining, 0},
		genAllProbed:   {GenerationDraining, 0},
		genShares:      {GenerationDraining, 0},
		genPromoted:    {GenerationDraining, 0},
		genHandedOver:  {GenerationDraining, 0},
		genRolledBack:  {GenerationDraining, 0},
		genRestored:    {GenerationCurrent, doRestore},
		genWorkerLost:  {GenerationDraining, 0}, // its connections are gone; nobody needs another
		genStepFailed:  {GenerationDraining, 0},
		genSuperseded:  {GenerationDraining, 0},
		genDeadline:    {GenerationDraining, doStopOld},
		genEvicted:     {GenerationDraining, doStopOld},
		genStopOrdered: {GenerationDraining, doDrainStop},
		genFastStop:    {GenerationDraining, doStopFast},
		genEmpty:       {GenerationRetired, doRetire},
	},
	GenerationRetired: {
		genAllReady:    {GenerationRetired, 0},
		genAllProbed:   {GenerationRetired, 0},
		genShares:      {GenerationRetired, 0},
		genPromoted:    {GenerationRetired, 0},
		genHandedOver:  {GenerationRetired, 0},
		genRolledBack:  {GenerationRetired, 0},
		genRestored:    {GenerationRetired, 0},
		genWorkerLost:  {GenerationRetired, 0},
		genStepFailed:  {GenerationRetired, 0},
		genSuperseded:  {GenerationRetired, 0},
		genDeadline:    {GenerationRetired, 0},
		genEvicted:     {GenerationRetired, 0},
		genStopOrdered: {GenerationRetired, 0},
		genFastStop:    {GenerationRetired, 0},
		genEmpty:       {GenerationRetired, 0},
	},
	GenerationFailed: {
		genAllReady:    {GenerationFailed, 0},
		genAllProbed:   {GenerationFailed, 0},
		genShares:      {GenerationFailed, 0},
		genPromoted:    {GenerationFailed, 0},
		genHandedOver:  {GenerationFailed, 0},
		genRolledBack:  {GenerationFailed, 0},
		genRestored:    {GenerationFailed, 0},
		genWorkerLost:  {GenerationFailed, 0},
		genStepFailed:  {GenerationFailed, 0},
		genSuperseded:  {GenerationFailed, 0},
		genDeadline:    {GenerationFailed, 0},
		genEvicted:     {GenerationFailed, 0},
		genStopOrdered: {GenerationFailed, 0},
		genFastStop:    {GenerationFailed, doStopFast},
		genEmpty:       {GenerationFailed, doRetire},
	},
}
