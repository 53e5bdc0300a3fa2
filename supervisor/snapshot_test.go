package supervisor

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// taken returns what a running supervisor would leave.
func (r *rig) taken() (d *document) {
	r.t.Helper()
	if err := r.s.call(r.t.Context(), func(s *Supervisor) { d = s.snapshot() }); err != nil {
		r.t.Fatal(err)
	}
	return d
}

const secretPayload = "-----BEGIN PRIVATE KEY-----"

func TestDocumentRoundTrip(t *testing.T) {
	r := newRunning(t, func(r *rig) {
		r.spec.Payload = []byte(secretPayload)
		r.script.onDrain = func(*fakeWorker) {} // stays
	})
	r.mustReload()
	r.waitFor("a draining generation", func(st *Status) bool { return len(st.Generations) == 2 && r.current(st) == 2 })
	d := r.taken()
	wire, err := d.encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := decodeDocument(wire)
	if err != nil {
		t.Fatalf("%v\n%s", err, wire)
	}
	again, err := back.encode()
	if err != nil || !bytes.Equal(wire, again) {
		t.Errorf("%v\nwas %s\nis  %s", err, wire, again)
	}
	if len(back.Generations) != 2 || back.Generations[0].State != GenerationDraining || back.Generations[1].State != GenerationCurrent {
		t.Errorf("generations: %s", wire)
	}
	if back.Generations[0].Deadline.IsZero() || len(back.Generations[1].Workers) != 2 || back.NextGeneration != 3 || back.NextIncarnation != 5 {
		t.Errorf("%s", wire)
	}
}

func TestDocumentHoldsNoSecret(t *testing.T) { // C143
	r := newRunning(t, func(r *rig) { r.spec.Payload = []byte(secretPayload) })
	wire, err := r.taken().encode()
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string][]byte{"payload": []byte(secretPayload)}
	if err := r.s.call(t.Context(), func(s *Supervisor) {
		k := s.keys.keys()
		secrets["token key"], secrets["reset key"], secrets["CID key"] = k.Token, k.StatelessReset, k.CID
		secrets["ticket key"] = k.Tickets[0]
	}); err != nil {
		t.Fatal(err)
	}
	for name, secret := range secrets {
		asJSON, _ := json.Marshal(string(secret))
		for _, form := range [][]byte{secret, []byte(base64.StdEncoding.EncodeToString(secret)), asJSON[1 : len(asJSON)-1]} {
			if bytes.Contains(wire, form) {
				t.Errorf("the %s is in the document", name)
			}
		}
	}
	// The configuration before this one had its payload as well.
	if r.spec.Payload == nil {
		t.Error("the snapshot took the payload from the Spec itself")
	}
}

func TestDocumentVersions(t *testing.T) {
	r := newRunning(t, nil)
	d := r.taken()
	for version, want := range map[int]error{documentNewest + 1: errNewerDocument, documentOldest - 1: errDocument} {
		d.Version = version
		wire, err := d.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeDocument(wire); !errors.Is(err, want) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	// A later build of the same version may say more.
	d.Version = documentNewest
	wire, _ := d.encode()
	more := strings.Replace(string(wire), `{"version"`, `{"unheard_of":{"a":[1]},"version"`, 1)
	if _, err := decodeDocument([]byte(more)); err != nil {
		t.Errorf("unknown field: %v", err)
	}
}

func TestDocumentContradictions(t *testing.T) {
	r := newRunning(t, nil)
	wire, err := r.taken().encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(d *document){
		"no boot":               func(d *document) { d.BootID = "" },
		"no time":               func(d *document) { d.Time = time.Time{} },
		"no numbers":            func(d *document) { d.NextIncarnation = 0 },
		"listener twice":        func(d *document) { d.Listeners = append(d.Listeners, d.Listeners[0]) },
		"listener out of range": func(d *document) { d.Listeners[0].ID = maxListeners },
		"numbers out of range":  func(d *document) { d.Numbers[0].Listener = maxListeners },
		"network":               func(d *document) { d.Listeners[0].Sets[0].Network = "sctp" },
		"set twice":             func(d *document) { d.Listeners[0].Sets = append(d.Listeners[0].Sets, d.Listeners[0].Sets[0]) },
		"socket twice": func(d *document) {
			set := &d.Listeners[0].Sets[0]
			set.Sockets = append(set.Sockets, set.Sockets[0])
		},
		"generation twice":       func(d *document) { d.Generations = append(d.Generations, d.Generations[0]) },
		"generation to come":     func(d *document) { d.NextGeneration = 1 },
		"no configuration":       func(d *document) { d.Generations[0].Spec = nil },
		"bad configuration":      func(d *document) { d.Generations[0].Spec.Workers = -1 },
		"too few places":         func(d *document) { d.Generations[0].Members = nil },
		"unknown listener":       func(d *document) { d.Generations[0].Wants[0].Listener = 9 },
		"unconfigured listener":  func(d *document) { d.Generations[0].Wants[0].Name = "other" },
		"place out of range":     func(d *document) { d.Generations[0].Workers[0].Place = 2 },
		"no process":             func(d *document) { d.Generations[0].Workers[0].PID = 0 },
		"slot twice":             func(d *document) { d.Generations[0].Workers[0].Slot = d.Generations[0].Workers[1].Slot },
		"place twice":            func(d *document) { d.Generations[0].Workers[0].Place = d.Generations[0].Workers[1].Place },
		"incarnation to come":    func(d *document) { d.NextIncarnation = d.Generations[0].Workers[0].Incarnation },
		"incarnation twice":      func(d *document) { d.Generations[0].Workers[1].Incarnation = d.Generations[0].Workers[0].Incarnation },
		"slot of the supervisor": func(d *document) { d.Generations[0].Workers[0].Slot = probeSlot },
	} {
		d, err := decodeDocument(wire)
		if err != nil {
			t.Fatal(err)
		}
		spoil(d)
		bad, err := d.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeDocument(bad); !errors.Is(err, errDocument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":1,"boot_id":"b","monotonic":1,"time":"2026-01-01T00:00:00Z","next_generation":2,"next_incarnation":2,
		"listeners":[{"id":0,"name":"a","port":"1","real":"1","sets":[{"network":"udp","address":"127.0.0.1:1","sockets":[{"index":0,"bound":"127.0.0.1:1"}]}]}],
		"numbers":[{"listener":0,"udp":1}],
		"generations":[{"id":1,"state":"current","spec":{"Workers":1},"wants":[{"listener":0,"name":"a","address":"127.0.0.1:1"}],
		"members":[{}],"workers":[{"place":0,"member":true,"slot":0,"incarnation":1,"pid":7,"state":"serving"}]}]}`))
	f.Fuzz(func(t *testing.T, wire []byte) {
		d, err := decodeDocument(wire)
		if (d == nil) == (err == nil) {
			t.Fatal("neither a document nor a reason")
		}
		if err != nil {
			return
		}
		again, err := d.encode()
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		if _, err := decodeDocument(again); err != nil {
			t.Fatalf("what was written can't be read: %v", err)
		}
	})
}
