package gateway

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// router chooses among the routes: the longest path that is the request's, or
// that ends in a slash and is a prefix of it.
type router struct {
	entries []entry // longest path first
}

type entry struct {
	path    string
	handler http.Handler
}

func (r *router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	for i := range r.entries {
		e := &r.entries[i]
		if path == e.path || (strings.HasSuffix(e.path, "/") && strings.HasPrefix(path, e.path)) {
			e.handler.ServeHTTP(w, req)
			return
		}
	}
	http.NotFound(w, req)
}

// routeEnv is what handlers need besides their own options.
type routeEnv struct {
	identity identity
	proxies  *proxyPool
}

// newRouter builds the handlers of all routes.
func newRouter(routes []Route, env routeEnv) (*router, error) {
	r := &router{}
	for i := range routes {
		h, err := newRoute(&routes[i], env)
		if err != nil {
			return nil, fmt.Errorf("%w: route %q: %w", ErrOptions, routes[i].Path, err)
		}
		r.entries = append(r.entries, entry{path: routes[i].Path, handler: h})
	}
	slices.SortStableFunc(r.entries, func(a, b entry) int { return cmp.Compare(len(b.path), len(a.path)) })
	return r, nil
}

func newRoute(r *Route, env routeEnv) (http.Handler, error) {
	switch {
	case r.Respond != nil:
		return newRespond(r.Respond), nil
	case r.Files != nil:
		return newFiles(r.Path, r.Files), nil
	case r.Proxy != nil:
		return env.proxies.handler(r.Proxy)
	case r.Whoami != nil:
		return whoami{env.identity}, nil
	case r.Speedtest != nil:
		return newSpeedtest(r.Speedtest), nil
	default:
		return nil, fmt.Errorf("it says nothing about the answer")
	}
}
