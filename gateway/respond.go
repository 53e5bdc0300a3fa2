package gateway

import (
	"net/http"
	"strconv"
)

// respond answers with fixed content.
type respond struct {
	status  int
	body    []byte
	headers http.Header
}

func newRespond(o *Respond) *respond {
	h := &respond{status: o.Status, body: []byte(o.Body), headers: http.Header{}}
	if h.status == 0 {
		h.status = http.StatusOK
	}
	h.headers.Set("Content-Type", "text/plain; charset=utf-8")
	for k, v := range o.Headers {
		h.headers.Set(k, v)
	}
	if bodyAllowed(h.status) {
		h.headers.Set("Content-Length", strconv.Itoa(len(h.body)))
	} else {
		h.body = nil
		h.headers.Del("Content-Type")
	}
	return h
}

// bodyAllowed reports whether a response with the status can have content
// (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func (h *respond) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	for k, v := range h.headers {
		header[k] = v
	}
	w.WriteHeader(h.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(h.body) // the client may be gone; nobody else wants to know
	}
}
