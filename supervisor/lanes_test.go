package supervisor

import (
	"testing"

	"github.com/holdfast-quic/holdfast/shm"
)

// Each worker of two generations finds a lane for each QUIC listener, as far as
// the bounds of a queue allow; what was asked for is never less.
func TestLanesFollowTheWorkers(t *testing.T) {
	for _, tt := range []struct{ workers, quic, lanes, laneBytes, want int }{
		{2, 1, 32, 256 << 10, 32},
		{6, 1, 2, 256 << 10, 13},
		{16, 3, 32, 256 << 10, 99},
		{64, 4, 32, 256 << 10, 256},
		{64, 1, 32, 16 << 20, 32},
		{64, 1, 8, 16 << 20, 16},
	} {
		s := &Spec{Workers: tt.workers, Geometry: shm.Geometry{
			Slots: 256, TableEntries: 64, Lanes: tt.lanes, LaneBytes: tt.laneBytes,
		}}
		s.Listeners = append(s.Listeners, ListenerSpec{TCP: true})
		for range tt.quic {
			s.Listeners = append(s.Listeners, ListenerSpec{QUIC: true})
		}
		g := s.geometry()
		if g.Lanes != tt.want {
			t.Errorf("%+v: %d lanes", tt, g.Lanes)
		}
		if err := g.Validate(); err != nil {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
