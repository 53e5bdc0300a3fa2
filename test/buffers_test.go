package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// defaultBuffer is net.core.rmem_default of an ordinary host.
const defaultBuffer = 212992

// socketDrops returns what status says about the drops of each UDP socket, in
// rising order, and verifies that all of them have the buffer that was asked
// for.
func socketDrops(s kit.Status, buffer int) ([]int, error) {
	var drops []int
	for _, l := range s.Listeners {
		for _, sock := range l.Sockets {
			if sock.ReceiveBuffer == nil || sock.KernelDrops == nil {
				return nil, fmt.Errorf("socket %d of %s: nothing is known", sock.Index, l.Name)
			}
			if *sock.ReceiveBuffer != buffer {
				return nil, fmt.Errorf("socket %d of %s has a buffer of %d bytes, asked for %d", sock.Index, l.Name, *sock.ReceiveBuffer, buffer)
			}
			drops = append(drops, *sock.KernelDrops)
		}
	}
	slices.Sort(drops)
	return drops, nil
}

// accounted verifies that status and kernel agree about the drops of each of
// the sockets on a port, and returns them.
func accounted(t *testing.T, in *kit.Instance, sockets, buffer int) (drops []int) {
	t.Helper()
	kit.Eventually(t, 5*time.Second, "status and kernel agree", func() (err error) {
		if drops, err = socketDrops(in.Status(), buffer); err != nil {
			return err
		}
		if kernel := kit.SocketDrops(t, in.Port()); !slices.Equal(drops, kernel) || len(drops) != sockets {
			return fmt.Errorf("status says %v, the kernel %v of %d sockets", drops, kernel, sockets)
		}
		return nil
	})
	return drops
}

// C095: with the buffers of an ordinary host, and workers that pause for 20 ms
// and more, uploads lose packets. They are shown by socket, as the kernel has
// counted them, and the uploads end right over a reload.
func TestUploadSurvivesAPausingReader(t *testing.T) {
	port := kit.FreePort(t, "127.0.0.1")
	in := startWith(t, kit.Config{Workers: 2, Listeners: []kit.Listener{
		{Name: "v4", Address: fmt.Sprintf("127.0.0.1:%d", port)},
		{Name: "v6", Address: fmt.Sprintf("[::1]:%d", port)},
	}}.With("sockets", fmt.Sprintf("{receive_buffer: %d}", defaultBuffer)))
	const size = 48 << 20
	var uploads []*kit.Transfer
	for _, l := range in.Config.Listeners {
		c := dial(t, kit.ClientOptions{Server: l.Address})
		uploads = append(uploads, kit.StartUpload(t, c, "/speedtest", size, 30<<20))
	}
	for i := range 6 {
		for _, up := range uploads {
			up.AwaitBytes(t, int64(i+1)*size/8, 30*time.Second)
		}
		resume := kit.Pause(t, in.WorkerPIDs()...)
		kit.Every(20*time.Millisecond, 20*time.Millisecond, func(int) bool { return true })
		resume()
		if i == 2 {
			in.Reload()
		}
	}
	for _, up := range uploads {
		if _, r, err := up.Wait(t, 30*time.Second); err != nil || !strings.Contains(string(r.Body), fmt.Sprint(size)) {
			t.Errorf("upload: %q, %v", r.Body, err)
		}
	}
	drops := accounted(t, in, 4, defaultBuffer)
	t.Logf("drops by socket: %v; learnt by workers: %d", drops, in.Status().Counter("kernel_drops"))
	if drops[len(drops)-1] == 0 {
		t.Error("nothing was lost: the scenario pauses nobody")
	}
}

// C095: whatever its address family and whoever reads it, a socket whose
// buffer overflows shows so at once, while its reader does nothing, and the
// workers' total says the same when they are back.
func TestDropsAreShownForEverySocket(t *testing.T) {
	const buffer = 64 << 10
	port := kit.FreePort(t, "127.0.0.1")
	in := startWith(t, kit.Config{Workers: 2, Listeners: []kit.Listener{
		{Name: "v4", Address: fmt.Sprintf("127.0.0.1:%d", port)},
		{Name: "v6", Address: fmt.Sprintf("[::1]:%d", port)},
	}}.With("sockets", fmt.Sprintf("{receive_buffer: %d}", buffer)))
	if drops := accounted(t, in, 4, buffer); drops[3] != 0 {
		t.Fatalf("drops at the start: %v", drops)
	}
	in.Reload()
	resume := kit.Pause(t, in.WorkerPIDs()...)
	// The kernel chooses the socket by the sender's port.
	send := func(packets int) {
		for _, l := range in.Config.Listeners {
			for range 20 {
				raw, err := kit.OpenRaw(l.Address)
				if err != nil {
					t.Fatal(err)
				}
				for range packets {
					raw.Send(kit.ShortPacket(kit.RandomID(20), 1200))
				}
				raw.Close()
			}
		}
	}
	send(50)
	drops := accounted(t, in, 4, buffer)
	if drops[0] == 0 {
		t.Errorf("drops by socket: %v", drops)
	}
	if r := in.CLI("status"); strings.Count(r.Stdout, "its buffer of 64 KiB was full") != 4 {
		t.Errorf("status: %s", r.Stdout)
	}
	resume()
	kit.Eventually(t, 10*time.Second, "workers know the drops", func() error {
		send(1) // the kernel tells with the next packet
		total := 0
		for _, n := range accounted(t, in, 4, buffer) {
			total += n
		}
		if n := in.Status().Counter("kernel_drops"); n != uint64(total) {
			return fmt.Errorf("%d known to the workers, %d to the kernel", n, total)
		}
		return nil
	})
}
