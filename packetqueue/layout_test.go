package packetqueue

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestSizeRefusesBadGeometry(t *testing.T) {
	for _, g := range [][2]int{
		{0, 4096}, {-1, 4096}, {257, 4096}, {1, 0}, {1, -4096}, {1, 4095}, {1, 5000}, {1, 2048}, {1, 1 << 27},
	} {
		if n := Size(g[0], g[1]); n != 0 {
			t.Errorf("Size(%d, %d) = %d", g[0], g[1], n)
		}
		if err := Format(make([]byte, 1<<16), g[0], g[1]); !errors.Is(err, ErrGeometry) {
			t.Errorf("Format(%d, %d): %v", g[0], g[1], err)
		}
	}
	if got, want := Size(32, 256<<10), 20480+32*(256<<10); got != want {
		t.Errorf("Size(32, 256 KiB) = %d, want %d", got, want)
	}
	if err := Format(make([]byte, Size(2, 4096)-1), 2, 4096); !errors.Is(err, ErrGeometry) {
		t.Errorf("Format of a short region: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, damage := range map[string]struct {
		do   func(b []byte) []byte
		want error
	}{
		"zeroes":         {func(b []byte) []byte { clear(b); return b }, ErrNotQueue},
		"empty":          {func([]byte) []byte { return nil }, ErrNotQueue},
		"magic":          {func(b []byte) []byte { b[0]++; return b }, ErrNotQueue},
		"version":        {func(b []byte) []byte { b[offVersion]++; return b }, ErrNotQueue},
		"no lanes":       {func(b []byte) []byte { clear(b[offLanes : offLanes+4]); return b }, ErrGeometry},
		"too many lanes": {func(b []byte) []byte { b[offLanes+3] = 0xff; return b }, ErrGeometry},
		"one lane more":  {func(b []byte) []byte { b[offLanes]++; return b }, ErrGeometry},
		"lane size":      {func(b []byte) []byte { b[offLaneBytes+7] = 0x80; return b }, ErrGeometry},
		"short":          {func(b []byte) []byte { return b[:len(b)-1] }, ErrGeometry},
	} {
		region := damage.do(newRegion(t, 2, 4096))
		if _, err := Lease(region, 1, 0); !errors.Is(err, damage.want) {
			t.Errorf("%s: Lease: %v, want %v", name, err, damage.want)
		}
		if _, err := OpenConsumer(region, 0); !errors.Is(err, damage.want) {
			t.Errorf("%s: OpenConsumer: %v, want %v", name, err, damage.want)
		}
		if faults := Check(region); len(faults) != 1 || !errors.Is(faults[0], damage.want) {
			t.Errorf("%s: Check: %v", name, faults)
		}
		if Reset(region) != 0 || Pending(region) != 0 || ReleaseDead(region, 1) != 0 {
			t.Errorf("%s: counted something in a region that is no queue", name)
		}
	}
}

func TestFieldsOfDifferentWritersAreApart(t *testing.T) {
	const pair = 128
	for _, d := range []int{laneTail - laneOwner, laneHead - laneTail, controlBytes - laneHead, offControls % pair, controlBytes % pair} {
		if d != 0 && d < pair {
			t.Errorf("fields are %d bytes apart", d)
		}
	}
	if chanDirty+8*dirtyWords > channelBytes || recordHeader%recordAlign != 0 {
		t.Error("blocks overlap")
	}
}

// TestDocumentedLayout compares the tables of docs/queue-abi.md with the code.
func TestDocumentedLayout(t *testing.T) {
	want := map[string]int{
		"magic": offMagic, "version": offVersion, "lanes": offLanes, "lane bytes": offLaneBytes,
		"header": 0, "channel blocks": offChannels, "lane control blocks": offControls,
		"armed": chanArmed, "dirty": chanDirty,
		"owner": laneOwner, "tail": laneTail, "head": laneHead,
		"frame": recFrame, "target": recTarget, "interface": recIfIndex, "pushed": recPushed,
		"remote": recRemote, "local": recLocal, "remote address": recRemoteAddr, "local address": recLocalAddr,
		"payload": recordHeader,
	}
	values := map[string]int{
		"Channels": Channels, "MaxLanes": MaxLanes, "MinLaneBytes": MinLaneBytes, "MaxLaneBytes": MaxLaneBytes,
		"MaxPayload": MaxPayload, "header bytes": headerBytes, "channel block bytes": channelBytes,
		"lane control block bytes": controlBytes, "record header bytes": recordHeader, "record alignment": recordAlign,
		"data alignment": dataAlign, "layout version": layoutVersion, "magic value": magic,
		"state free": int(stateFree), "state leased": int(stateLeased), "state closing": int(stateClosing), "state held": int(stateHeld),
		"kind packet": kindPacket, "kind padding": kindPadding,
		"owner: channel": channelShift, "owner: lease": seqShift, "owner: token": tokenShift,
		"frame: segment": frameSegment, "frame: kind": frameKind, "frame: channel": frameChannel, "frame: ECN": frameECN,
		"frame: reserved": frameReserved, "endpoint: port": endpointPort, "endpoint: family": endpointFamily,
	}
	page, err := os.ReadFile("../docs/queue-abi.md")
	if err != nil {
		t.Fatal(err)
	}
	offsets := readTable(t, string(page), `(?m)^\| (\d+) \| [^|]+ \| ([^|]+) \|`, 2, 1)
	constants := readTable(t, string(page), "(?m)^\\| ([^|]+) \\| `(0x[0-9a-f]+|\\d+)` \\|", 1, 2)
	for name, v := range want {
		if got, ok := offsets[name]; !ok || got != v {
			t.Errorf("offset of %q: the page says %d (%v), the code %d", name, got, ok, v)
		}
	}
	for name, v := range values {
		if got, ok := constants[name]; !ok || got != v {
			t.Errorf("constant %q: the page says %d (%v), the code %d", name, got, ok, v)
		}
	}
	if len(offsets) != len(want) || len(constants) != len(values) {
		t.Errorf("the page lists %d offsets and %d constants, the code %d and %d", len(offsets), len(constants), len(want), len(values))
	}
}

func readTable(t *testing.T, page, row string, key, value int) map[string]int {
	t.Helper()
	m := map[string]int{}
	for _, f := range regexp.MustCompile(row).FindAllStringSubmatch(page, -1) {
		n, err := strconv.ParseInt(f[value], 0, 64)
		if err != nil {
			t.Fatal(fmt.Errorf("row %q: %w", f[0], err))
		}
		name := strings.TrimSpace(f[key])
		if _, twice := m[name]; twice {
			t.Errorf("the page lists %q twice", name)
		}
		m[name] = int(n)
	}
	return m
}
