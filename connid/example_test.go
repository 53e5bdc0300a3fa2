package connid_test

import (
	"encoding/hex"
	"fmt"

	"github.com/holdfast-quic/holdfast/connid"
)

// A load balancer and a server that share a configuration: the server makes a
// connection ID, the balancer finds the server in it.
func ExampleCodec() {
	key, err := hex.DecodeString("fdf726a9893ec05c0632d3956680baf0")
	if err != nil {
		panic(err)
	}
	codec, err := connid.NewCodec(connid.Config{
		ServerID:     []byte{0x31, 0x44, 0x1a},
		NonceLen:     4,
		Key:          key,
		EncodeLength: true,
	})
	if err != nil {
		panic(err)
	}
	id, err := codec.Encode([]byte{0x9c, 0x69, 0xc2, 0x75}) // a nonce is used once only
	if err != nil {
		panic(err)
	}
	fmt.Println(id)

	serverID, nonce, ok := codec.Decode(id.AppendTo(nil))
	fmt.Printf("%x %x %v\n", serverID, nonce, ok)
	// Output:
	// 0767947d29be054a
	// 31441a 9c69c275 true
}

// Connection IDs that name the process that made them, from a range of nonces
// that nobody else has.
func ExampleGenerator() {
	router, err := connid.NewRouter(connid.Config{
		ServerID: []byte{1, 2, 3},
		Key:      []byte("0123456789abcdef"),
	})
	if err != nil {
		panic(err)
	}
	more := func() { fmt.Println("half of the nonces are used") }
	g := connid.NewGenerator(router, connid.Route{Slot: 7, Incarnation: 42}, connid.Range{From: 100, To: 102}, more)
	for range 3 {
		id, err := g.Generate()
		if err != nil {
			fmt.Println(err)
			return
		}
		route, ok := router.Route(id.AppendTo(nil))
		fmt.Println(id.Len(), route, ok)
	}
	// Output:
	// half of the nonces are used
	// 17 {7 42} true
	// 17 {7 42} true
	// connid: no nonces left
}
