package gateway

import (
	"encoding/json"
	"net/http"
)

// identity names the process that answers.
type identity struct {
	Generation  uint32 `json:"generation"`
	Slot        uint16 `json:"slot"`
	Incarnation uint32 `json:"incarnation"`
	PID         int    `json:"pid"`
	ConfigHash  string `json:"config_hash"`
	Version     string `json:"version"`
}

// whoami answers with the identity as JSON.
type whoami struct{ identity identity }

func (h whoami) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(struct {
		identity
		Protocol string `json:"protocol"`
		Remote   string `json:"remote"`
	}{h.identity, alpn(r), remoteAddr(r)}) // the client may be gone
}
