package kit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Transfer is a long download or upload in the background.
type Transfer struct {
	done   chan struct{}
	cancel context.CancelFunc

	mu       sync.Mutex
	bytes    int64
	last     time.Time     // when bytes grew last
	gap      time.Duration // longest time without progress
	sum      string
	response Response
	err      error
}

// pace is how often a paced transfer moves some bytes.
const pace = 20 * time.Millisecond

// StartDownload reads path on the client at the given rate in bytes a second
// (0: as fast as it comes) until it is whole. For the rate to be the server's
// too, give the client a small StreamWindow.
func StartDownload(t testing.TB, c *Client, path string, rate int64) *Transfer {
	t.Helper()
	x, ctx := newTransfer(t)
	go func() {
		defer close(x.done)
		resp, err := c.Open(ctx, path)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", resp.StatusCode)
			resp.Body.Close()
		}
		if err != nil {
			x.end("", Response{}, err)
			return
		}
		defer resp.Body.Close()
		h := sha256.New()
		err = x.copy(ctx, h, resp.Body, rate)
		x.end(hex.EncodeToString(h.Sum(nil)), Response{Status: resp.StatusCode, Header: resp.Header}, err)
	}()
	return x
}

// StartUpload sends size bytes to path at the given rate in bytes a second
// (0: as fast as it goes).
func StartUpload(t testing.TB, c *Client, path string, size, rate int64) *Transfer {
	t.Helper()
	x, ctx := newTransfer(t)
	r, w := io.Pipe()
	go func() {
		source := io.LimitReader(endless{}, size)
		w.CloseWithError(x.copy(ctx, w, source, rate)) // nil closes with io.EOF
	}()
	go func() {
		defer close(x.done)
		resp, err := c.Post(ctx, path, r)
		if err == nil && resp.Status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", resp.Status, bytes.TrimSpace(resp.Body))
		}
		r.Close()
		x.end("", resp, err)
	}()
	return x
}

func newTransfer(t testing.TB) (*Transfer, context.Context) {
	ctx, cancel := context.WithCancel(context.Background())
	x := &Transfer{done: make(chan struct{}), cancel: cancel, last: time.Now()}
	t.Cleanup(func() {
		cancel()
		<-x.done
	})
	return x, ctx
}

// endless reads bytes without end.
type endless struct{}

// Read implements io.Reader.
func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(i)
	}
	return len(b), nil
}

func (x *Transfer) copy(ctx context.Context, w io.Writer, r io.Reader, rate int64) error {
	size := int64(64 << 10)
	var tick <-chan time.Time
	if rate > 0 {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		tick, size = ticker.C, max(1, rate*int64(pace)/int64(time.Second))
	}
	buf := make([]byte, size)
	for {
		n, err := io.ReadFull(r, buf)
		if _, werr := w.Write(buf[:n]); werr != nil {
			return werr
		}
		x.progress(int64(n))
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
		if tick != nil {
			select {
			case <-tick:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (x *Transfer) progress(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	if x.bytes > 0 {
		x.gap = max(x.gap, now.Sub(x.last))
	}
	x.bytes, x.last = x.bytes+n, now
}

func (x *Transfer) end(sum string, r Response, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sum, x.response, x.err = sum, r, err
}

// Bytes is how much has passed so far.
func (x *Transfer) Bytes() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bytes
}

// Gap is the longest time without progress so far.
func (x *Transfer) Gap() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.gap
}

// AwaitBytes returns when that much has passed, and fails the test when the
// transfer ends before or takes longer.
func (x *Transfer) AwaitBytes(t testing.TB, n int64, within time.Duration) {
	t.Helper()
	Eventually(t, within, fmt.Sprintf("%d bytes passed", n), func() error {
		have := x.Bytes()
		if have >= n {
			return nil
		}
		select {
		case <-x.done:
			t.Fatalf("transfer ended after %d bytes: %v", have, x.err)
		default:
		}
		return fmt.Errorf("%d bytes", have)
	})
}

// Wait returns the SHA-256 sum of a download, or the response of an upload,
// and why it ended early.
func (x *Transfer) Wait(t testing.TB, within time.Duration) (sum string, r Response, err error) {
	t.Helper()
	select {
	case <-x.done:
	case <-time.After(within):
		t.Fatalf("transfer not done within %v; %d bytes so far", within, x.Bytes())
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sum, x.response, x.err
}

// MustBe fails the test when the download is not whole with that sum.
func (x *Transfer) MustBe(t testing.TB, sum string, within time.Duration) {
	t.Helper()
	got, _, err := x.Wait(t, within)
	if err != nil {
		t.Errorf("download ended after %d bytes: %v (%s)", x.Bytes(), err, Cause(err))
	} else if got != sum {
		t.Errorf("download of %d bytes has another sum than the file", x.Bytes())
	}
}

// Cancel gives the transfer up.
func (x *Transfer) Cancel() { x.cancel() }
