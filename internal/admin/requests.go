package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
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
