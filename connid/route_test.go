package connid

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

func mustRouter(t testing.TB, config Config) *Router {
	t.Helper()
	r, err := NewRouter(config)
	if err != nil {
		t.Fatalf("NewRouter(%v): %v", config, err)
	}
	return r
}

func testRouter(t testing.TB) *Router {
	t.Helper()
	return mustRouter(t, Config{Rotation: 3, ServerID: []byte{1, 2, 3}, Key: unhex(t, draftKey), EncodeLength: true})
}

func TestRouterRoundTrip(t *testing.T) {
	for idLen := 1; idLen <= 3; idLen++ {
		for _, key := range [][]byte{nil, unhex(t, draftKey)} {
			r := mustRouter(t, Config{ServerID: bytes.Repeat([]byte{7}, idLen), Key: key})
			if r.Len() != 17 {
				t.Fatalf("Len = %d, want 17", r.Len())
			}
			for _, counter := range []uint64{0, 1, 1 << 32, ^uint64(0)} {
				for _, route := range []Route{{0, 1}, {255, 42}, {0xffff, 0xffffff}, {1, 0x01000002}, {0x1234, 1 << 24}} {
					id, err := r.ID(route, counter)
					if err != nil || id.Len() != 17 {
						t.Fatalf("ID(%v, %d) = %v, %v", route, counter, id, err)
					}
					want := Route{route.Slot, route.Incarnation & 0xffffff}
					if got, ok := r.Route(id.AppendTo(nil)); !ok || got != want {
						t.Errorf("Route(ID(%v, %d)) = %v, %v; want %v", route, counter, got, ok, want)
					}
				}
			}
		}
	}
}

// TestRouterLayout holds the drawing of the package comment.
func TestRouterLayout(t *testing.T) {
	r := mustRouter(t, Config{Rotation: 1, ServerID: []byte{0xaa}, EncodeLength: true})
	id, err := r.ID(Route{Slot: 0x0102, Incarnation: 0xff030405}, 0x060708090a0b0c0d)
	if want := "30" + "aa" + "0102" + "030405" + "0000" + "060708090a0b0c0d"; err != nil || id.String() != want {
		t.Errorf("ID = %v, %v; want %s", id, err, want)
	}
}

// TestRouterAsBalancerSeesIt: to whoever knows the configuration only, what
// names the process is part of the nonce.
func TestRouterAsBalancerSeesIt(t *testing.T) {
	id, err := testRouter(t).ID(Route{Slot: 9, Incarnation: 8}, 7)
	if err != nil {
		t.Fatal(err)
	}
	balancer := mustCodec(t, Config{Rotation: 3, ServerID: make([]byte, 3), NonceLen: 13, Key: unhex(t, draftKey)})
	serverID, nonce, ok := balancer.Decode(id.AppendTo(nil))
	if !ok || !bytes.Equal(serverID, []byte{1, 2, 3}) || len(nonce) != 13 {
		t.Errorf("Decode = %x, %x, %v", serverID, nonce, ok)
	}
}

func TestRouteRefuses(t *testing.T) {
	r := testRouter(t)
	id, err := r.ID(Route{Slot: 1, Incarnation: 2}, 3)
	if err != nil {
		t.Fatal(err)
	}
	good := id.AppendTo(nil)
	for name, other := range map[string]Config{
		"rotation":         {Rotation: 4, ServerID: []byte{1, 2, 3}, Key: unhex(t, draftKey)},
		"server ID":        {Rotation: 3, ServerID: []byte{1, 2, 4}, Key: unhex(t, draftKey)},
		"server ID length": {Rotation: 3, ServerID: []byte{1, 2}, Key: unhex(t, draftKey)},
		"key":              {Rotation: 3, ServerID: []byte{1, 2, 3}, Key: make([]byte, 16)},
		"no key":           {Rotation: 3, ServerID: []byte{1, 2, 3}},
	} {
		if route, ok := mustRouter(t, other).Route(good); ok {
			t.Errorf("another %s: Route = %v, want none", name, route)
		}
	}
	for n := range MaxLen + 2 {
		if _, ok := r.Route(append(bytes.Clone(good), 0, 0, 0, 0)[:n]); ok != (n == 17) {
			t.Errorf("%d octets: Route reports %v", n, ok)
		}
	}
	if _, err := r.ID(Route{Slot: 1}, 3); !errors.Is(err, ErrRoute) {
		t.Errorf("ID of incarnation 0: error %v, want ErrRoute", err)
	}

	// With a short server ID the octets before the counter are a check, too.
	short := mustRouter(t, Config{ServerID: []byte{1}})
	plain := append([]byte{16, 1, 0, 1, 0, 0, 2, 0, 0}, make([]byte, 8)...)
	if _, ok := short.Route(plain); !ok {
		t.Fatal("the plain connection ID is not understood")
	}
	plain[8] = 1
	if route, ok := short.Route(plain); ok {
		t.Errorf("octets set before the counter: Route = %v, want none", route)
	}
}

func TestNewRouterRefuses(t *testing.T) {
	for name, config := range map[string]Config{
		"no server ID":     {},
		"server ID of 4":   {ServerID: make([]byte, 4)},
		"other nonce":      {ServerID: make([]byte, 3), NonceLen: 12},
		"rotation 7":       {ServerID: make([]byte, 3), Rotation: 7},
		"key of 17 octets": {ServerID: make([]byte, 3), Key: make([]byte, 17)},
	} {
		if _, err := NewRouter(config); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: error %v, want ErrConfig", name, err)
		}
	}
	if _, err := NewRouter(Config{ServerID: make([]byte, 3), NonceLen: 13}); err != nil {
		t.Errorf("nonce length spelled out: %v", err)
	}
}

func TestRandomOctetsRarelyRoute(t *testing.T) {
	r := testRouter(t)
	rnd := rand.NewChaCha8([32]byte{1})
	cid := make([]byte, 17)
	hits := 0
	for range 100_000 {
		_, _ = rnd.Read(cid) // never fails
		cid[0] = 3<<5 | 16
		if _, ok := r.Route(cid); ok {
			hits++
		}
	}
	if hits > 2 {
		t.Errorf("%d of 100,000 random connection IDs name a process", hits)
	}
}

func FuzzRoute(f *testing.F) {
	f.Add([]byte{}, uint8(3), true)
	f.Add(append([]byte{16, 1}, make([]byte, 15)...), uint8(1), false)
	f.Add(append([]byte{16, 1, 1, 1}, make([]byte, 13)...), uint8(3), false)
	f.Fuzz(func(t *testing.T, cid []byte, idLen uint8, encrypted bool) {
		config := Config{ServerID: bytes.Repeat([]byte{1}, int(idLen)%3+1), EncodeLength: true}
		if encrypted {
			config.Key = make([]byte, keyLen)
		}
		r := mustRouter(t, config)
		route, ok := r.Route(cid)
		if !ok || route.Incarnation == 0 {
			return
		}
		id, err := FromBytes(cid)
		if err != nil {
			t.Fatalf("Route(%x) = %v of something that is no connection ID", cid, route)
		}
		_, nonce, _ := r.codec.Decode(cid)
		counter := uint64(0)
		for _, c := range nonce[len(nonce)-8:] {
			counter = counter<<8 | uint64(c)
		}
		if again, err := r.ID(route, counter); err != nil || again != id {
			t.Fatalf("ID(%v, %d) = %v, %v; want %v", route, counter, again, err, id)
		}
	})
}

func BenchmarkRoute(b *testing.B) {
	r := testRouter(b)
	id, err := r.ID(Route{Slot: 1, Incarnation: 2}, 3)
	if err != nil {
		b.Fatal(err)
	}
	cid := id.AppendTo(nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := r.Route(cid); !ok {
				b.Error("not routed")
				return
			}
		}
	})
}
