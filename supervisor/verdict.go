package supervisor

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/holdfast-quic/holdfast/shm"
)

// Descriptors of a program that is asked to verify.
const (
	verifyStateFD   = 3
	verifySegmentFD = 4
	verifyAnswerFD  = 5
)

// envVerify says in the environment that those descriptors are there.
const (
	envVerify  = "HOLDFAST_VERIFY"
	verifyMark = "3,4,5"
)

// Rehearsing reports whether this program was started as the supervisor that it
// is to become, to see whether it comes as far as that: it is to call Verify in
// the place of Run.
func Rehearsing() bool { return os.Getenv(envVerify) == verifyMark }

// Verify is the other side of an upgrade: this program is the new one, and the
// supervisor that runs wants to know whether it can take the instance over. It
// looks at a copy of the supervisor's state, at the segment, and at the
// configuration as load reads it, and answers on a descriptor that it
// inherited. It changes nothing.
//
// Errors: ErrUsage when it was not started by a supervisor; ErrConfig; or why
// it can't take over.
func Verify(version, buildID string, load func() (*Spec, error)) error {
	if !Rehearsing() {
		return errNotAsked // the descriptors are somebody else's
	}
	state, segment, answer := os.NewFile(verifyStateFD, "state"), os.NewFile(verifySegmentFD, "segment"), os.NewFile(verifyAnswerFD, "verdict")
	for _, f := range []*os.File{state, segment, answer} {
		if f == nil {
			return errNotAsked
		}
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return errNotAsked
		}
	}
	wire, err := io.ReadAll(io.NewSectionReader(state, 0, 1<<62))
	if err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	// Each refusal names this version; the supervisor adds its own.
	if _, err := decodeDocument(wire); err != nil {
		return fmt.Errorf("version %s: %w", version, err)
	}
	seg, err := shm.Attach(segment)
	if err != nil {
		return fmt.Errorf("version %s: %w", version, err)
	}
	if err := seg.Close(); err != nil {
		return err
	}
	spec, err := load()
	if err != nil {
		return configError{err}
	}
	lowPorts := bindsLowPorts()
	v := verdict{
		Version: version, BuildID: buildID, ABIMajor: shm.ABIMajor, ABIMinor: shm.ABIMinor,
		StateOldest: documentOldest, StateNewest: documentNewest, Spec: spec, LowPorts: &lowPorts,
	}
	if wire, err = json.Marshal(v); err != nil {
		return fmt.Errorf("encode the verdict: %w", err)
	}
	if _, err := answer.Write(wire); err != nil {
		return fmt.Errorf("write the verdict: %w", err)
	}
	return nil
}

var errNotAsked = fmt.Errorf("%w: only a supervisor can ask for this", ErrUsage)
