package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// client is one HTTP/3 connection with a UDP socket of its own.
type client struct {
	socket    *net.UDPConn
	transport *quic.Transport
	conn      *quic.Conn
	http      *http3.ClientConn
}

func clientTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{http3.NextProtoH3}}
}

func dial(ctx context.Context, address string) (*client, error) {
	remote, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: remote.IP})
	if err != nil {
		return nil, err
	}
	c := &client{socket: socket, transport: &quic.Transport{Conn: socket}}
	c.conn, err = c.transport.Dial(ctx, remote, clientTLS(), &quic.Config{KeepAlivePeriod: 5 * time.Second})
	if err != nil {
		c.close()
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	c.http = (&http3.Transport{}).NewClientConn(c.conn)
	return c, nil
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.CloseWithError(0x100, "") // H3_NO_ERROR
	}
	c.transport.Close()
	c.socket.Close()
}

func (c *client) do(ctx context.Context, method, url string, body io.Reader, size int64) (int64, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, err
	}
	r.ContentLength = size
	resp, err := c.http.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		return n, err
	}
	if resp.StatusCode != http.StatusOK {
		return n, fmt.Errorf("%s %s: %s", method, url, resp.Status)
	}
	return n, nil
}

// zeros is an endless reader whose bytes cost nothing to make.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// download returns bytes per second of one transfer.
func (c *client) download(ctx context.Context, address string, size int64) (float64, error) {
	start := time.Now()
	n, err := c.do(ctx, http.MethodGet, fmt.Sprintf("https://%s/speedtest?bytes=%d", address, size), nil, 0)
	if err != nil {
		return 0, err
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// upload returns bytes per second of one transfer.
func (c *client) upload(ctx context.Context, address string, size int64) (float64, error) {
	start := time.Now()
	body := io.LimitReader(zeros{}, size)
	if _, err := c.do(ctx, http.MethodPost, "https://"+address+"/speedtest", body, size); err != nil {
		return 0, err
	}
	return float64(size) / time.Since(start).Seconds(), nil
}

// result of a closed loop of small requests.
type requests struct {
	PerSecond float64
	Count     int64
	P50, P99  time.Duration
}

// small keeps streams requests in flight on every connection for the time
// given.
func small(ctx context.Context, clients []*client, address string, streams int, length time.Duration) (requests, error) {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		all     []time.Duration
		failure error
		count   atomic.Int64
	)
	start := time.Now()
	end := start.Add(length)
	for _, c := range clients {
		for range streams {
			wg.Go(func() {
				var mine []time.Duration
				for time.Now().Before(end) {
					began := time.Now()
					if _, err := c.do(ctx, http.MethodGet, "https://"+address+"/", nil, 0); err != nil {
						mu.Lock()
						failure = err
						mu.Unlock()
						return
					}
					mine = append(mine, time.Since(began))
					count.Add(1)
				}
				mu.Lock()
				all = append(all, mine...)
				mu.Unlock()
			})
		}
	}
	wg.Wait()
	if failure != nil {
		return requests{}, failure
	}
	elapsed := time.Since(start)
	slices.Sort(all)
	return requests{
		PerSecond: float64(count.Load()) / elapsed.Seconds(),
		Count:     count.Load(),
		P50:       all[len(all)/2],
		P99:       all[len(all)*99/100],
	}, nil
}

// handshakes returns full handshakes per second, each from a fresh socket,
// with so many under way at once.
func handshakes(ctx context.Context, address string, parallel int, length time.Duration) (float64, error) {
	var (
		wg      sync.WaitGroup
		count   atomic.Int64
		failure atomic.Pointer[error]
	)
	start := time.Now()
	end := start.Add(length)
	for range parallel {
		wg.Go(func() {
			for time.Now().Before(end) {
				c, err := dial(ctx, address)
				if err != nil {
					failure.Store(&err)
					return
				}
				c.close()
				count.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failure.Load(); err != nil {
		return 0, *err
	}
	return float64(count.Load()) / time.Since(start).Seconds(), nil
}
