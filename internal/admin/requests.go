package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// Conns lists the live connections of the workers of a generation (0 = all)
// and in a slot (negative = all), and names the workers that did not answer in
// time.
func (c *Client) Conns(ctx context.Context, generation uint32, slot int) (conns []Conn, silent []string, err error) {
	query := url.Values{}
	if generation != 0 {
		query.Set("generation", strconv.FormatUint(uint64(generation), 10))
	}
	if slot >= 0 {
		query.Set("slot", strconv.Itoa(slot))
	}
	data, err := c.Get(ctx, "/v1/conns?"+query.Encode())
	if err != nil {
		return nil, nil, err
	}
	var list struct {
		Conns  []Conn   `json:"conns"`
		Silent []string `json:"silent"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, nil, fmt.Errorf("read connections: %w", err)
	}
	return list.Conns, list.Silent, nil
}

// CloseConn ends one connection in order.
func (c *Client) CloseConn(ctx context.Context, id string) error {
	_, err := c.Post(ctx, "/v1/conns/close", map[string]any{"id": id})
	return err
}

// Upgrade is what POST /v1/upgrade takes.
type Upgrade struct {
	Binary string        `json:"binary,omitempty"` // absolute path; empty: that which the instance was started by
	Canary float64       `json:"canary,omitempty"` // percent of new connections
	Soak   time.Duration `json:"soak,omitempty"`
	Auto   bool          `json:"auto,omitempty"`
}

// Upgrade asks for an upgrade and returns the number of the operation.
func (c *Client) Upgrade(ctx context.Context, u Upgrade) (uint64, error) {
	return c.begin(ctx, "/v1/upgrade", u)
}

// Promote asks for the canary to become current and returns the number of the
// operation.
func (c *Client) Promote(ctx context.Context) (uint64, error) {
	return c.begin(ctx, "/v1/promote", nil)
}

// Rollback asks for the end of the canary, or for the generation before, and
// returns the number of the operation. New connections have turned back then.
func (c *Client) Rollback(ctx context.Context) (uint64, error) {
	return c.begin(ctx, "/v1/rollback", nil)
}

// begin posts what begins an operation and returns its number.
func (c *Client) begin(ctx context.Context, path string, body any) (uint64, error) {
	data, err := c.Post(ctx, path, body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Operation uint64 `json:"operation"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return 0, fmt.Errorf("read answer: %w", err)
	}
	return answer.Operation, nil
}

// Operation returns an operation once it has ended, or as it is after the wait.
func (c *Client) Operation(ctx context.Context, id uint64, wait time.Duration) (*Operation, error) {
	path := fmt.Sprintf("/v1/operations/%d", id)
	if wait >= time.Second {
		path += fmt.Sprintf("?wait=%d", wait/time.Second)
	}
	data, err := c.Get(ctx, path)
	if err != nil {
		return nil, err
	}
	o := new(Operation)
	if err := json.Unmarshal(data, o); err != nil {
		return nil, fmt.Errorf("read operation: %w", err)
	}
	return o, nil
}

// Drain tells an old generation to say goodbye to its clients, or takes that
// back.
func (c *Client) Drain(ctx context.Context, generation uint32, cancel bool) error {
	_, err := c.Post(ctx, "/v1/drain", map[string]any{"generation": generation, "cancel": cancel})
	return err
}

// Stop ends the instance and returns when its last worker is gone. The
// supervisor itself ends right after.
func (c *Client) Stop(ctx context.Context, fast bool) error {
	_, err := c.Post(ctx, "/v1/stop", map[string]any{"fast": fast})
	return err
}

// CheckSegment returns the faults of the shared segment.
func (c *Client) CheckSegment(ctx context.Context) ([]string, error) {
	data, err := c.Get(ctx, "/v1/check-segment")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Faults []string `json:"faults"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("read check: %w", err)
	}
	return answer.Faults, nil
}
