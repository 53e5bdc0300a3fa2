package connid

import "testing"

func TestDecodeDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations are not counted under the race detector")
	}
	block := testRouter(t)
	feistel := mustCodec(t, Config{ServerID: make([]byte, 3), NonceLen: 4, Key: make([]byte, keyLen)})
	plain := mustCodec(t, Config{ServerID: make([]byte, 3), NonceLen: 4})
	id, err := block.ID(Route{Slot: 1, Incarnation: 2}, 3)
	if err != nil {
		t.Fatal(err)
	}
	cid, short := id.AppendTo(nil), make([]byte, 8)
	for name, f := range map[string]func(){
		"Router.Route":       func() { block.Route(cid) },
		"Codec.Decode":       func() { feistel.Decode(short) },
		"plain Codec.Decode": func() { plain.Decode(short) },
		"FromBytes":          func() { id, _ = FromBytes(cid) },
		"ID.AppendTo":        func() { cid = id.AppendTo(cid[:0]) },
		"ID.Words":           func() { id, _ = FromWords(id.Words()) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
