package config

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

func (v *validator) routes(routes []Route) {
	if v.set("routes") && v.ok("routes") && len(routes) == 0 {
		v.fault("routes", "no routes", "at least one")
	}
	paths := map[string]string{}
	for i := range routes {
		r, path := &routes[i], item("routes", i)
		if !v.ok(path) {
			continue
		}
		v.routePath(r.Path, path+".path")
		v.unique(paths, path+".path", r.Path, "path")
		v.action(r, path)
	}
}

func (v *validator) routePath(p, path string) {
	if !v.ok(path) || !v.set(path) {
		return
	}
	switch {
	case !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "?#\x00 \t\r\n"):
		v.fault(path, quote(p), keyOf("routes[].path").expected)
	case strings.HasPrefix(p+"/", ReservedPath):
		v.fault(path, quote(p), "a path outside of "+ReservedPath+", which is reserved")
	}
}

// actions are the keys of a route that say what answers.
var actions = []string{"respond", "files", "proxy", "whoami", "speedtest"}

func (v *validator) action(r *Route, path string) {
	var have []string
	for _, a := range actions {
		if v.set(path + "." + a) {
			have = append(have, a)
		}
	}
	switch {
	case len(have) == 0 && v.odd[path]: // the unknown key may be meant as one
	case len(have) == 0:
		v.fault(path, "a route without an action", "exactly one of "+enumerate(actions, "and"))
	case len(have) > 1:
		v.fault(path, enumerate(have, "and")+" in one route", "exactly one of "+enumerate(actions, "and"))
	}
	if r.Respond != nil {
		v.headers(r.Respond.Headers, path+".respond.headers")
	}
	if r.Files != nil {
		v.directory(r.Files.Root, path+".files.root")
	}
	if r.Proxy != nil {
		v.upstreams(r.Proxy.Upstreams, path+".proxy.upstreams")
	}
}

// framing are the header fields that say how the body is sent, which is
// not for a configuration to say.
var framing = []string{"Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func (v *validator) headers(headers map[string]string, path string) {
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		sub, value := join(path, name), headers[name]
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			v.fault(sub, quote(name), "the name of a header field")
		case slices.Contains(framing, http.CanonicalHeaderKey(name)):
			v.fault(sub, quote(name), "a header field that the server does not set itself")
		case !httpguts.ValidHeaderFieldValue(value):
			v.fault(sub, quote(value), "the value of a header field, without line breaks")
		default:
			v.unique(seen, sub, http.CanonicalHeaderKey(name), "header field")
		}
	}
}

func (v *validator) directory(dir, path string) {
	if !v.ok(path) || !v.set(path) {
		return
	}
	if err := v.files.isDir(dir); err != nil {
		v.fault(path, fileFault(err, dir), keyOf("routes[].files.root").expected)
	}
}

func (v *validator) upstreams(urls []string, path string) {
	if !v.ok(path) || !v.set(path) {
		return
	}
	if len(urls) == 0 {
		v.fault(path, "no upstreams", "at least one URL")
	}
	for i, s := range urls {
		sub := item(path, i)
		if !v.ok(sub) {
			continue
		}
		expected := keyOf("routes[].proxy.upstreams").expected
		switch {
		case strings.Contains(s, "@"):
			v.fault(sub, "a URL with a user name", expected) // not quoted: it may hold a password
		case !isUpstream(s):
			v.fault(sub, quote(s), expected)
		}
	}
}

func isUpstream(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return false
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
	}
	return u.RawQuery == "" && u.Fragment == ""
}
