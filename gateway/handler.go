package gateway

import (
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"go.uber.org/zap"
)

// alpn returns the protocol of a request under its ALPN name.
func alpn(r *http.Request) string {
	switch r.ProtoMajor {
	case 3:
		return ProtocolHTTP3
	case 2:
		return ProtocolHTTP2
	default:
		return ProtocolHTTP1
	}
}

// handler answers all requests of one listener, whatever the protocol.
type handler struct {
	listener *Listener
	routes   *router
	access   *accessLog // nil = off
	count    func(failed bool)
	log      *zap.Logger
}

// ServeHTTP counts the request on its session for as long as it lasts, adds
// the headers that every response has, and hands it to its route.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s := trafficFrom(r.Context()); s != nil {
		s.requests.Add(1)
		defer s.requests.Add(-1)
		if r.ProtoMajor == 1 && s.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		if !repeatable(r.Method) && !s.awaitConfirmed(r.Context()) {
			panic(http.ErrAbortHandler)
		}
	}
	if r.URL.Path == ProbePath { // a probe is no client's request
		h.serve(w, r)
		return
	}
	rec := &recorder{ResponseWriter: w, start: time.Now()}
	defer func() {
		h.count(rec.panicked || rec.status >= http.StatusInternalServerError)
		if h.access != nil {
			h.access.write(h.listener.Name, r, rec)
		}
	}()
	h.serve(rec, r)
}

// repeatable reports whether a request may be carried out twice (RFC 9110,
// section 9.2.1).
func repeatable(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) {
	defer h.recoverPanic(w, r)
	header := w.Header()
	header.Set("Server", "holdfast")
	if r.ProtoMajor < 3 {
		h.setAltSvc(header, r)
	}
	if r.URL.Path == ProbePath {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if r.ProtoMajor == 1 && !h.listener.has(ProtocolHTTP1) {
		// A client without ALPN speaks HTTP/1.1 although nobody offered it.
		header.Set("Connection", "close")
		http.Error(w, "this listener does not speak HTTP/1.1", http.StatusHTTPVersionNotSupported)
		return
	}
	h.routes.ServeHTTP(w, r)
}

// setAltSvc tells TCP clients where HTTP/3 is (RFC 7838), or that it is gone,
// so that a client which remembers it does not try in vain.
func (h *handler) setAltSvc(header http.Header, r *http.Request) {
	if !h.listener.has(ProtocolHTTP3) {
		header.Set("Alt-Svc", "clear")
		return
	}
	port := h.listener.AdvertisePort
	if port == 0 {
		if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
			port = a.Port
		}
	}
	if port != 0 {
		header.Set("Alt-Svc", `h3=":`+strconv.Itoa(port)+`"; ma=86400`)
	}
}

// recoverPanic logs a handler's panic once and ends the response as broken
// instead of as complete.
func (h *handler) recoverPanic(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
		if rec, ok := w.(*recorder); ok {
			rec.panicked = true
		}
		h.log.Error("handler panicked", zap.Any("panic", p), zap.String("method", r.Method),
			zap.String("path", r.URL.Path), zap.ByteString("stack", debug.Stack()))
	}
	panic(http.ErrAbortHandler)
}
