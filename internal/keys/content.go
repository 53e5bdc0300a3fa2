package keys

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Lengths in octets.
const (
	secretLen          = 32 // reset master, token and ticket keys
	cidKeyLen          = 16 // AES-128
	defaultServerIDLen = 3
	maxServerIDLen     = 3 // leaves room for the route in a block of 16
)

const (
	fileFormat    = 1
	rotations     = 7 // QUIC-LB configurations 0 to 6
	keptTickets   = 3 // the one that encrypts and the two before it
	maxTicketKeys = 64
)

// content is what keys.json holds. It is never formatted or encoded as it is;
// encode and decodeContent are the only way to and from the file.
type content struct {
	instance  uint64 // inode of the directory that the file was last used in; 0: none yet
	serverID  []byte // the one that the file was last used with; empty: none yet
	cidConfig uint8
	cid       []byte
	reset     []byte // master: what a host uses is derived from it
	token     []byte
	tickets   []ticket // newest first
}

type ticket struct {
	key     []byte
	created time.Time
}

// file is the JSON form of content.
type file struct {
	Format         int          `json:"format"`
	Instance       uint64       `json:"instance,omitempty"`
	ServerID       string       `json:"server_id,omitempty"`
	CIDConfig      uint8        `json:"cid_config"`
	CID            string       `json:"cid"`
	StatelessReset string       `json:"stateless_reset"`
	Token          string       `json:"token"`
	Tickets        []fileTicket `json:"tickets"`
}

type fileTicket struct {
	Key     string    `json:"key"`
	Created time.Time `json:"created"`
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails, see crypto/rand
	return b
}

func newContent(now time.Time) content {
	return content{
		cid:     random(cidKeyLen),
		reset:   random(secretLen),
		token:   random(secretLen),
		tickets: []ticket{newTicket(now)},
	}
}

func newTicket(now time.Time) ticket {
	return ticket{key: random(secretLen), created: now.UTC().Truncate(time.Second)}
}

// resetKey derives the key of stateless reset tokens (RFC 9000, section
// 10.3.2) that is this host's alone: a host with the same master but another
// server ID or configuration cannot make a token that this one could.
func (c *content) resetKey() []byte {
	mac := hmac.New(sha256.New, c.reset)
	mac.Write([]byte("holdfast stateless reset 1"))
	mac.Write([]byte{c.cidConfig, byte(len(c.serverID))})
	mac.Write(c.serverID)
	return mac.Sum(nil)
}

func (c *content) encode() ([]byte, error) {
	f := file{
		Format:         fileFormat,
		Instance:       c.instance,
		ServerID:       hex.EncodeToString(c.serverID),
		CIDConfig:      c.cidConfig,
		CID:            hex.EncodeToString(c.cid),
		StatelessReset: hex.EncodeToString(c.reset),
		Token:          hex.EncodeToString(c.token),
	}
	for _, t := range c.tickets {
		f.Tickets = append(f.Tickets, fileTicket{hex.EncodeToString(t.key), t.created})
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode keys: %w", err) // a creation time that RFC 3339 cannot express
	}
	return append(b, '\n'), nil
}

// decodeContent returns what b holds, or what is wrong with it in words that
// quote nothing of b but names.
func decodeContent(b []byte) (c content, fault string) {
	var f file
	d := json.NewDecoder(bytes.NewReader(b))
	if d.Decode(&struct{ Format *int }{&f.Format}) != nil {
		return c, "not a JSON object with a format number"
	}
	if f.Format != fileFormat {
		return c, fmt.Sprintf("format %d, but this version reads format %d", f.Format, fileFormat)
	}
	d = json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if d.Decode(&f) != nil {
		return c, fmt.Sprintf("a value has the wrong type, or a field the wrong name, before offset %d", d.InputOffset())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return c, fmt.Sprintf("something follows the object at offset %d", d.InputOffset())
	}

	field := func(name, value string, lo, hi int) []byte {
		b, err := hex.DecodeString(value)
		if (err != nil || len(b) < lo || len(b) > hi) && fault == "" {
			fault = fmt.Sprintf("%s is not %d octets in hexadecimal", name, hi)
			if lo != hi {
				fault = fmt.Sprintf("%s is not %d to %d octets in hexadecimal", name, lo, hi)
			}
		}
		return b
	}
	c = content{
		instance:  f.Instance,
		serverID:  field("server_id", f.ServerID, 0, maxServerIDLen),
		cidConfig: f.CIDConfig,
		cid:       field("cid", f.CID, cidKeyLen, cidKeyLen),
		reset:     field("stateless_reset", f.StatelessReset, secretLen, secretLen),
		token:     field("token", f.Token, secretLen, secretLen),
	}
	for i, t := range f.Tickets {
		key := field(fmt.Sprintf("tickets[%d].key", i), t.Key, secretLen, secretLen)
		c.tickets = append(c.tickets, ticket{key, t.Created})
	}
	switch {
	case fault != "":
	case f.CIDConfig >= rotations:
		fault = fmt.Sprintf("cid_config is not 0 to %d", rotations-1)
	case len(f.Tickets) > maxTicketKeys:
		fault = fmt.Sprintf("tickets has more than %d keys", maxTicketKeys)
	}
	if fault != "" {
		return content{}, fault
	}
	return c, ""
}
