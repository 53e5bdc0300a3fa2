package supervisor

import "errors"

// execInto makes this process run another program, which goes on with the
// instance as it is. It returns only when that could not be done; nothing has
// changed then.
//
// Preconditions: it is called by the loop, and op, if not nil, is under way.
func (s *Supervisor) execInto(img *image, op *operation) error {
	return errors.ErrUnsupported
}
