package supervisor

import (
	"net"
	"slices"
	"testing"
)

// Each UDP socket is shown with its buffer and what was lost in it, whoever
// reads it, or nobody.
func TestDropsAreShownBySocket(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		t.Run(host, func(t *testing.T) {
			r := newRunning(t, func(r *rig) { r.spec.Listeners[0].Address = host + ":0" })
			st := r.waitFor("two sockets", func(st *Status) bool { return len(st.Listeners) == 1 && len(st.Listeners[0].Sockets) == 2 })
			l := st.Listeners[0]
			for i, sock := range l.Sockets {
				if sock.Index != i || sock.Address != l.UDP[0] || sock.ReceiveBuffer == nil || *sock.ReceiveBuffer != 1<<16 ||
					sock.KernelDrops == nil || *sock.KernelDrops != 0 {
					t.Errorf("socket %d: %+v", i, sock)
				}
			}
			// One client's packets all go to one socket.
			c, err := net.Dial("udp", l.UDP[0])
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			const n = 1000
			for range n {
				if _, err := c.Write(make([]byte, 1200)); err != nil {
					t.Fatal(err)
				}
			}
			r.waitFor("drops of one socket", func(st *Status) bool {
				var drops []int
				for _, sock := range st.Listeners[0].Sockets {
					drops = append(drops, int(*sock.KernelDrops))
				}
				slices.Sort(drops)
				t.Logf("drops: %v", drops)
				return drops[0] == 0 && drops[1] > n/2 && drops[1] < n
			})
		})
	}
}
