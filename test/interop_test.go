package test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-quic/holdfast/test/kit"
)

// interopReloads is how many reloads each foreign client lives through.
const interopReloads = 3

// foreign runs programs of a Debian root that scripts/interop-root.sh made.
type foreign struct{ root string }

func foreignClients(t *testing.T) foreign {
	t.Helper()
	root := os.Getenv("HOLDFAST_INTEROP_ROOT")
	if root == "" {
		t.Skip("HOLDFAST_INTEROP_ROOT names no root with other clients; `make interop` makes one")
	}
	return foreign{root}
}

// command prepares a program inside the root; it shares our loopback.
func (f foreign) command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command("chroot", append([]string{f.root}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

// overReloads starts the command, reloads while it runs, and requires that it
// was still running at the last reload and then ended well.
func overReloads(t *testing.T, i *kit.Instance, cmd *exec.Cmd, out *bytes.Buffer) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	// The client must be connected before the first reload counts.
	i.AwaitStatus(10*time.Second, "the client is connected", func(s kit.Status) error {
		for _, g := range s.Generations {
			if quic, _ := g.Connections(); quic > 0 {
				return nil
			}
		}
		return fmt.Errorf("no connection")
	})
	for range interopReloads {
		i.Reload()
		select {
		case err := <-done:
			t.Fatalf("it ended before the last reload, so it proves nothing: %v\n%s", err, out)
		default:
		}
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	case <-time.After(2 * time.Minute):
		cmd.Process.Kill()
		<-done
		t.Fatalf("it does not end\n%s", out)
	}
}

func TestInteropCurlDownload(t *testing.T) {
	f := foreignClients(t)
	i := kit.Start(t, kit.Options{})
	const size = 16 << 20
	cmd, out := f.command("curl", "--http3-only", "-sSk", "--limit-rate", "4M",
		"-w", "%{http_version} %{response_code} %{size_download}", "-o", "/dev/null",
		fmt.Sprintf("https://%s/speedtest?bytes=%d", i.Addr(), size))
	overReloads(t, i, cmd, out)
	if want := fmt.Sprintf("3 200 %d", size); strings.TrimSpace(out.String()) != want {
		t.Fatalf("got %q, want %q", out, want)
	}
}

func TestInteropCurlRequests(t *testing.T) {
	f := foreignClients(t)
	i := kit.Start(t, kit.Options{})
	const count = 40
	args := []string{
		"curl", "--http3-only", "-sSk", "--fail", "--rate", "600/m",
		"-w", "%{http_version} %{response_code} %{num_connects}\n",
	}
	for range count {
		args = append(args, "-o", "/dev/null", "https://"+i.Addr()+"/whoami")
	}
	cmd, out := f.command(args...)
	overReloads(t, i, cmd, out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != count || lines[0] != "3 200 1" {
		t.Fatalf("%d answers, the first %q\n%s", len(lines), lines[0], out)
	}
	for _, line := range lines[1:] {
		if line != "3 200 0" {
			t.Fatalf("an answer that is not from the first connection: %q\n%s", line, out)
		}
	}
}

var h2loadTotals = regexp.MustCompile(`requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout`)

func TestInteropH2load(t *testing.T) {
	f := foreignClients(t)
	i := kit.Start(t, kit.Options{})
	cmd, out := f.command("h2load", "--alpn-list=h3", "-c", "8", "-m", "4", "-n", "2400", "--rps", "50",
		"https://"+i.Addr()+"/whoami")
	overReloads(t, i, cmd, out)
	m := h2loadTotals.FindStringSubmatch(out.String())
	if m == nil || m[3] != "2400" || m[4] != "0" || m[5] != "0" || m[6] != "0" || !strings.Contains(out.String(), "Application protocol: h3") {
		t.Fatalf("not all of 2400 requests succeeded over h3\n%s", out)
	}
}

func TestInteropGtlsclientDownloadWithMigration(t *testing.T) {
	f := foreignClients(t)
	i := kit.Start(t, kit.Options{})
	const size = 64 << 20
	want := i.WriteFile("large.bin", size)
	into, err := os.MkdirTemp(filepath.Join(f.root, "tmp"), "download-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(into)
	host, port, _ := strings.Cut(i.Addr(), ":")
	// The windows hold it back, so that the reloads come in the middle.
	cmd, out := f.command("gtlsclient", "-q", "--exit-on-all-streams-close", "--change-local-addr=300ms",
		"--max-stream-window=65536", "--max-window=65536", "--max-data=65536", "--max-stream-data-bidi-local=65536",
		"--download=/tmp/"+filepath.Base(into), host, port, "https://"+i.Addr()+"/files/large.bin")
	overReloads(t, i, cmd, out)
	raw, err := os.ReadFile(filepath.Join(into, "large.bin"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != want {
		t.Fatalf("the file differs\n%s", out)
	}
}

func TestInteropAioquic(t *testing.T) {
	f := foreignClients(t)
	i := kit.Start(t, kit.Options{})
	script, err := os.ReadFile("testdata/aioquic_client.py")
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(i.Addr(), ":")
	cmd := exec.Command("chroot", f.root, "python3", "-c", string(script), host, port)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var faults bytes.Buffer
	cmd.Stderr = &faults
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := bufio.NewReader(answers)
	if line, err := read.ReadString('\n'); err != nil || line != "connected\n" {
		t.Fatalf("%q %v\n%s", line, err, &faults)
	}
	kit.Every(time.Second, (interopReloads+1)*time.Second, func(int) bool {
		i.Reload()
		return true
	})
	in.Close()
	rest, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &faults)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(rest))); err != nil || n < 10 {
		t.Fatalf("%q answers over %d reloads", rest, interopReloads)
	}
}
