package main

import (
	"context"
	"fmt"
	"time"
)

const (
	requestConns   = 16 // connections of the small-request measurement
	requestStreams = 4  // requests in flight on each
	handshakers    = 8  // handshakes under way at once
)

// subject is a server with the connections that were opened to it before any
// reload.
type subject struct {
	server *server
	bulk   *client
	small  []*client
}

func newSubject(s *server) (*subject, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	subject := &subject{server: s}
	var err error
	if subject.bulk, err = dial(ctx, s.address); err != nil {
		return nil, err
	}
	for range requestConns {
		c, err := dial(ctx, s.address)
		if err != nil {
			return nil, err
		}
		subject.small = append(subject.small, c)
	}
	return subject, nil
}

func (s *subject) close() {
	s.bulk.close()
	for _, c := range s.small {
		c.close()
	}
}

// sample is what one round measured of one subject.
type sample struct {
	Download, Upload float64 // bytes per second
	DownloadCPU      float64 // CPU seconds per GB
	UploadCPU        float64
	Requests         requests
	RequestCPU       float64 // CPU microseconds per request
	Handshakes       float64 // per second
}

type bench struct {
	subjects []*subject
	length   time.Duration
	size     int64
	rounds   [][]sample // by round, then by subject
}

// round measures every subject once. The order rotates, so that none always
// runs on a machine that another has just heated.
func (b *bench) round(ctx context.Context, number int) error {
	samples := make([]sample, len(b.subjects))
	for i := range b.subjects {
		at := (i + number) % len(b.subjects)
		if err := b.measure(ctx, b.subjects[at], &samples[at]); err != nil {
			return fmt.Errorf("%s: %w", b.subjects[at].server.name, err)
		}
	}
	b.rounds = append(b.rounds, samples)
	return nil
}

func (b *bench) measure(ctx context.Context, s *subject, into *sample) error {
	address := s.server.address
	gigabytes := float64(b.size) / 1e9
	var err error

	before := s.server.cpu()
	if into.Download, err = s.bulk.download(ctx, address, b.size); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	after := s.server.cpu()
	into.DownloadCPU = (after - before) / gigabytes
	before = after
	if into.Upload, err = s.bulk.upload(ctx, address, b.size); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	after = s.server.cpu()
	into.UploadCPU = (after - before) / gigabytes
	before = after
	if into.Requests, err = small(ctx, s.small, address, requestStreams, b.length); err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	into.RequestCPU = (s.server.cpu() - before) / float64(into.Requests.Count) * 1e6
	if into.Handshakes, err = handshakes(ctx, address, handshakers, b.length); err != nil {
		return fmt.Errorf("handshakes: %w", err)
	}
	return nil
}
