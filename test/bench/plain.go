package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// filler is what downloads consist of; both servers write from memory.
var filler = make([]byte, 64<<10)

// servePlain is the yardstick: quic-go's own HTTP/3 server on its own UDP
// socket, with the same two handlers as the gateway, and nothing else.
func servePlain(address, certFile, keyFile string) error {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("load certificate: %w", err)
	}
	udp, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", udp)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "hello\n")
	})
	mux.HandleFunc("/speedtest", speedtest)
	transport := &quic.Transport{Conn: socket}
	listener, err := transport.ListenEarly(
		http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{cert}}),
		&quic.Config{Allow0RTT: true})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	return (&http3.Server{Handler: mux}).ServeListener(listener)
}

func speedtest(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, `{"bytes":%d}`, n)
		return
	}
	left, err := strconv.ParseInt(r.URL.Query().Get("bytes"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(left, 10))
	for left > 0 {
		n, err := w.Write(filler[:min(left, int64(len(filler)))])
		if err != nil {
			return
		}
		left -= int64(n)
	}
}
