package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// source is what a Config was made from: enough to make it again.
type source struct {
	name     string            // absolute path of the file, or what stands for it
	shown    string            // the file as it was given, for faults
	base     string            // directory that relative paths start at
	data     []byte            // the file
	contents map[string][]byte // certificate and key files by absolute path
	made     *made             // self-signed certificate
}

// Hash returns "sha256:" and the hash of the configuration file, followed by
// the hashes of the certificate and key files that it names: a renewed
// certificate changes it. Without such files it is what sha256sum prints for
// the file.
func (c *Config) Hash() string {
	h := sha256.New()
	h.Write(c.src.data)
	for _, path := range slices.Sorted(maps.Keys(c.src.contents)) {
		sum := sha256.Sum256(c.src.contents[path])
		h.Write(sum[:])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// payloadVersion is raised when an older FromPayload can't read a payload.
const payloadVersion = 1

type payload struct {
	Version  int               `json:"version"`
	Name     string            `json:"name"`
	Base     string            `json:"base"`
	Data     []byte            `json:"data"`
	Contents map[string][]byte `json:"contents,omitempty"`
	Made     *made             `json:"made,omitempty"`
}

// made is a certificate that is in no file of the configuration.
type made struct {
	Chain []byte `json:"chain"`
	Key   []byte `json:"key"`
}

// Payload returns the configuration as bytes for a worker process. It holds
// the private keys of the certificates: it must not be logged or stored.
func (c *Config) Payload() []byte {
	b, err := json.Marshal(payload{payloadVersion, c.src.name, c.src.base, c.src.data, c.src.contents, c.src.made})
	if err != nil {
		panic("config: payload: " + err.Error()) // strings and bytes always marshal
	}
	return b
}

// FromPayload returns the configuration that Payload was called on. It reads
// no file, so a worker that is started again long after a reload has what the
// others of its generation have, whatever became of the files.
func FromPayload(b []byte) (*Config, error) {
	var p payload
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("read configuration payload: %w", err)
	}
	if p.Version != payloadVersion {
		return nil, fmt.Errorf("read configuration payload: found version %d, expected %d", p.Version, payloadVersion)
	}
	c, err := parse(source{name: p.Name, shown: p.Name, base: p.Base, data: p.Data}, captured(p.Contents))
	if err == nil && p.Made != nil {
		c.SetSelfSigned(p.Made.Chain, p.Made.Key)
	}
	return c, err
}

// captured is a files that holds what was read when the payload was made.
type captured map[string][]byte

func (c captured) read(path string) ([]byte, error) {
	b, ok := c[path]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return b, nil
}

func (captured) isDir(string) error { return nil }
