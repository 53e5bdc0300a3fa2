package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// speedtestChunk is the period of the bytes that a speedtest sends.
const speedtestChunk = 64 << 10

// SpeedtestByte returns the byte at the given offset of what a speedtest
// sends, so that a client can tell whether what it got is what was sent.
func SpeedtestByte(offset int64) byte {
	o := offset % speedtestChunk
	return byte(o ^ o>>8)
}

// speedtest sends bytes on GET and counts them on POST and PUT.
type speedtest struct {
	maxBytes int64
	chunk    []byte // shared by all requests, never written to
	buffers  sync.Pool
}

func newSpeedtest(o *Speedtest) *speedtest {
	h := &speedtest{maxBytes: o.MaxBytes, chunk: make([]byte, speedtestChunk)}
	for i := range h.chunk {
		h.chunk[i] = SpeedtestByte(int64(i))
	}
	h.buffers.New = func() any { return new([speedtestChunk]byte) }
	return h
}

func (h *speedtest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		h.send(w, r)
	case http.MethodPost, http.MethodPut:
		h.receive(w, r)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST, PUT")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	}
}

func (h *speedtest) send(w http.ResponseWriter, r *http.Request) {
	n := int64(1 << 20)
	if h.maxBytes > 0 {
		n = min(n, h.maxBytes)
	}
	if q := r.URL.Query().Get("bytes"); q != "" {
		var err error
		n, err = strconv.ParseInt(q, 10, 64)
		if err != nil || n < 0 || (h.maxBytes > 0 && n > h.maxBytes) {
			http.Error(w, "bytes must be a number from 0 to "+strconv.FormatInt(h.maxBytes, 10), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	if r.Method == http.MethodHead {
		return
	}
	for n > 0 {
		part := h.chunk[:min(n, speedtestChunk)]
		if _, err := w.Write(part); err != nil {
			return
		}
		n -= int64(len(part))
	}
}

func (h *speedtest) receive(w http.ResponseWriter, r *http.Request) {
	buf := h.buffers.Get().(*[speedtestChunk]byte)
	defer h.buffers.Put(buf)
	start := time.Now()
	var total int64
	for {
		n, err := r.Body.Read(buf[:])
		total += int64(n)
		if h.maxBytes > 0 && total > h.maxBytes {
			http.Error(w, "more than "+strconv.FormatInt(h.maxBytes, 10)+" bytes", http.StatusRequestEntityTooLarge)
			return
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the body is not whole, so there is nothing true to answer
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct {
		Bytes   int64   `json:"bytes"`
		Seconds float64 `json:"seconds"`
	}{total, time.Since(start).Seconds()}) // the client may be gone
}
