package supervisor

import (
	"strings"
	"testing"
)

// A Spec whose program gives it no hash has one all the same, which changes
// with whatever changes in it.
func TestConfigHashOfItsOwn(t *testing.T) {
	hash := func(change func(*Spec)) string {
		s := Spec{Listeners: []ListenerSpec{{Name: "a", Address: "127.0.0.1:1", QUIC: true}}}
		change(&s)
		full, err := s.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		return full.ConfigHash
	}
	plain := hash(func(*Spec) {})
	if !strings.HasPrefix(plain, "sha256:") || plain != hash(func(*Spec) {}) {
		t.Errorf("hash %q is not stable", plain)
	}
	for name, change := range map[string]func(*Spec){
		"payload":  func(s *Spec) { s.Payload = []byte("x") },
		"address":  func(s *Spec) { s.Listeners[0].Address = "127.0.0.1:2" },
		"workers":  func(s *Spec) { s.Workers = 2 },
		"steering": func(s *Spec) { s.Steering = SteeringQueue },
	} {
		if hash(change) == plain {
			t.Errorf("another %s has the same hash", name)
		}
	}
	if got := hash(func(s *Spec) { s.ConfigHash = "sha256:1" }); got != "sha256:1" {
		t.Errorf("the program's own hash became %q", got)
	}
}

func TestUnknownSteeringIsRefused(t *testing.T) {
	s := Spec{Listeners: []ListenerSpec{{Name: "a", Address: "127.0.0.1:1", QUIC: true}}, Steering: "kernel"}
	if _, err := s.withDefaults(); err == nil || !strings.Contains(err.Error(), `"kernel"`) {
		t.Errorf("error %v", err)
	}
}
