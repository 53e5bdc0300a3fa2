package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
)

const lastGoodName = "last-good.json"

// lastGood is the program that served last without being given up. It is kept
// in the state directory for a start that fails with another one, after a
// reboot, say: nothing else tells by then what used to work.
type lastGood struct {
	Version string    `json:"version"`
	BuildID string    `json:"build_id"`
	Program string    `json:"program"`
	Since   time.Time `json:"since"`
}

// noteGood records that the current generation's program serves.
func (s *Supervisor) noteGood() {
	g := s.current
	if g == nil || s.probation != nil {
		return
	}
	now := lastGood{Version: g.ver, BuildID: g.build, Program: g.image.path, Since: g.since}
	if was := s.good; was.Version == now.Version && was.BuildID == now.BuildID && was.Program == now.Program {
		return
	}
	s.good = now
	if err := now.write(s.opt.StateDir); err != nil {
		s.log.Warn("the version that serves is not recorded", zap.Error(err))
	}
}

func (l *lastGood) write(dir string) error {
	wire, err := json.Marshal(l)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, lastGoodName)
	if err := os.WriteFile(path+".tmp", append(wire, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// withLastGood adds to the reason of a start that failed which program used to
// serve here, if it was another one.
func (s *Supervisor) withLastGood(err error) error {
	wire, readErr := os.ReadFile(filepath.Join(s.opt.StateDir, lastGoodName))
	var l lastGood
	if readErr != nil || json.Unmarshal(wire, &l) != nil || l.BuildID == "" || l.BuildID == s.opt.BuildID {
		return err
	}
	return fmt.Errorf("%w; the last version that served here was %s (build %s, %s)", err, l.Version, l.BuildID, l.Program)
}
