package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Limits of connections to upstreams. None of them bounds a response that
// goes on.
const (
	upstreamDialTimeout = 5 * time.Second
	upstreamIdleTimeout = 90 * time.Second
	upstreamIdleConns   = 256 // kept per upstream
	proxyBufferSize     = 32 << 10
)

// proxyPool is what all proxy routes of a process share: connections and
// copy buffers.
type proxyPool struct {
	transport *http.Transport
	buffers   proxyBuffers
	log       *zap.Logger
	errorLog  *log.Logger
}

func newProxyPool(logger *zap.Logger) *proxyPool {
	p := &proxyPool{
		transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: upstreamDialTimeout}).DialContext,
			TLSHandshakeTimeout:   upstreamDialTimeout,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true, // what the upstream sent goes on as it is
			MaxIdleConnsPerHost:   upstreamIdleConns,
			IdleConnTimeout:       upstreamIdleTimeout,
			ExpectContinueTimeout: time.Second,
		},
		log:      logger,
		errorLog: zap.NewStdLog(logger),
	}
	p.buffers.pool.New = func() any { return new([proxyBufferSize]byte) }
	return p
}

func (p *proxyPool) close() { p.transport.CloseIdleConnections() }

// handler returns the handler of one proxy route.
func (p *proxyPool) handler(o *Proxy) (http.Handler, error) {
	u := &upstreams{next: p.transport}
	for _, s := range o.Upstreams {
		target, err := url.Parse(s)
		if err != nil {
			return nil, err
		}
		if (target.Scheme != "http" && target.Scheme != "https") || target.Host == "" {
			return nil, fmt.Errorf("upstream %q is no http or https URL", s)
		}
		u.targets = append(u.targets, target)
	}
	if len(u.targets) == 0 {
		return nil, errors.New("it has no upstream")
	}
	return settleBody(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetXForwarded()
			r.Out.Host = "" // the upstream's own name; the client's is in X-Forwarded-Host
		},
		Transport:    u,
		BufferPool:   &p.buffers,
		ErrorLog:     p.errorLog,
		ErrorHandler: p.failed,
	}), nil
}

// settleBody finds out whether a GET or HEAD of HTTP/3 has a body. The length
// does not say so there when it is not given, and a request without a body can
// be tried with another upstream.
func settleBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			var first [1]byte
			switch n, err := r.Body.Read(first[:]); {
			case n > 0:
				r.Body = prefixed{io.MultiReader(bytes.NewReader(first[:n]), r.Body), r.Body}
			case errors.Is(err, io.EOF):
				r.Body, r.ContentLength = http.NoBody, 0
			}
		}
		next.ServeHTTP(w, r)
	})
}

// prefixed is a body of which something was read already.
type prefixed struct {
	io.Reader
	io.Closer
}

// failed answers for an upstream that did not.
func (p *proxyPool) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client left; there is nobody to answer
	}
	p.log.Warn("upstream failed", zap.String("path", r.URL.Path), zap.Error(err))
	status := http.StatusBadGateway
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		status = http.StatusGatewayTimeout
	}
	http.Error(w, http.StatusText(status), status)
}

// upstreams sends each request to the next target in turn. One that could not
// be connected to is passed over as long as nothing of the request was used up.
type upstreams struct {
	targets []*url.URL
	turn    atomic.Uint64
	next    http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (u *upstreams) RoundTrip(r *http.Request) (*http.Response, error) {
	first := u.turn.Add(1) - 1
	tries := len(u.targets)
	if r.Body != nil && r.Body != http.NoBody {
		tries = 1 // the transport closes the body even when it could not connect
	}
	var err error
	for i := range tries {
		target := u.targets[(first+uint64(i))%uint64(len(u.targets))]
		var resp *http.Response
		resp, err = u.next.RoundTrip(retarget(r, target))
		if err == nil {
			return resp, nil
		}
		if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" || r.Context().Err() != nil {
			break
		}
	}
	return nil, err
}

// retarget returns the request with scheme, host and path prefix of target.
func retarget(r *http.Request, target *url.URL) *http.Request {
	out := *r
	u := *r.URL
	u.Scheme, u.Host = target.Scheme, target.Host
	if target.Path != "" && target.Path != "/" {
		joined := target.JoinPath(r.URL.EscapedPath())
		u.Path, u.RawPath = joined.Path, joined.RawPath
	}
	out.URL = &u
	return &out
}

// proxyBuffers implements [httputil.BufferPool].
type proxyBuffers struct{ pool sync.Pool }

// Get returns a buffer of proxyBufferSize bytes.
func (b *proxyBuffers) Get() []byte { return b.pool.Get().(*[proxyBufferSize]byte)[:] }

// Put takes a buffer of Get back.
func (b *proxyBuffers) Put(buf []byte) { b.pool.Put((*[proxyBufferSize]byte)(buf)) }
