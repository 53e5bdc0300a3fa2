package shm

import (
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// documented is what docs/shm-abi.md must say: offset and size of each field; a
// size of 0 where it gives none.
var documented = map[string][2]int{
	"header.magic":            {headerMagic, 8},
	"header.major":            {headerMajor, 4},
	"header.minor":            {headerMinor, 4},
	"header.size":             {headerSize, 8},
	"header.slots":            {headerSlots, 4},
	"header.lanes":            {headerLanes, 4},
	"header.entries":          {headerEntries, 8},
	"header.lane":             {headerLane, 8},
	"header.secret":           {headerSecret, len(testSecret)},
	"header.created":          {headerCreated, 8},
	"header.checksum":         {headerChecksum, 8},
	"admission.choice":        {admissionChoice, 8},
	"admission.quic-turn":     {admissionQUIC, 8},
	"admission.tcp-turn":      {admissionTCP, 8},
	"directory.version":       {directoryVersion, 8},
	"directory.records":       {directoryHead, 0},
	"record.identity":         {recordIdentity, 8},
	"record.generation":       {recordGeneration, 8},
	"record.pid":              {recordPID, 8},
	"record.listeners":        {recordListeners, 8},
	"record.phase":            {recordPhase, 8},
	"record.heartbeat":        {recordHeartbeat, 8},
	"record.connections":      {recordConnections, 16},
	"record.end":              {recordBytes, 0},
	"counters.named":          {0, int(QueueDelay) * 8},
	"counters.delay":          {int(QueueDelay) * 8, QueueDelayBuckets * 8},
	"counters.later":          {int(HandshakesFailed) * 8, int(NumCounters-HandshakesFailed) * 8},
	"counters.end":            {counterRowBytes, 0},
	"table.used":              {tableUsed, 8},
	"table.handshaking":       {tableHandshaking, 8},
	"table.handshake-limit":   {tableHandshakeLimit, 8},
	"table.established-limit": {tableEstablishedLimit, 8},
	"table.touched":           {tableHead, 0},
	"bucket.meta":             {bucketMeta, bucketEntries * 8},
	"bucket.keys":             {bucketKeys, bucketEntries * keyBytes},
	"bucket.end":              {bucketBytes, 0},
}

// documentedBits is what the page must say of bit fields: highest, lowest bit.
var documentedBits = map[string]uint64{
	"meta.state":       metaState,
	"meta.slot":        uint64(ownerMeta(Owner{Slot: maxSlots - 1})),
	"meta.incarnation": uint64(ownerMeta(Owner{Incarnation: lowIncarnation})),
	"meta.tag":         metaTag,
	"meta.epoch":       metaEpoch,
	"hash.tag":         0xfff << 52,
	"hash.first":       (bucketEntries - 1) << 49,
	"hash.second":      (1<<26 - 1) << 26,
	"hash.bucket":      1<<26 - 1,
}

func abiPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/shm-abi.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func TestPageHasTheOffsetsOfTheCode(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| (\d+) \| (\d*) ?\| ([a-z]+\.[a-z-]+) \|`)
	seen := make(map[string]bool)
	for _, m := range row.FindAllStringSubmatch(abiPage(t), -1) {
		name := m[3]
		want, ok := documented[name]
		if !ok {
			t.Errorf("the page has %s, the code has not", name)
			continue
		}
		off, _ := strconv.Atoi(m[1])
		size, _ := strconv.Atoi("0" + m[2])
		if off != want[0] || size != want[1] {
			t.Errorf("%s: offset %d, size %d on the page; %d, %d in the code", name, off, size, want[0], want[1])
		}
		seen[name] = true
	}
	for name := range documented {
		if !seen[name] {
			t.Errorf("the page lacks %s", name)
		}
	}
}

func TestPageHasTheBitsOfTheCode(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| (\d+)-(\d+) \| ([a-z]+\.[a-z]+) \|`)
	seen := make(map[string]bool)
	for _, m := range row.FindAllStringSubmatch(abiPage(t), -1) {
		mask := documentedBits[m[3]]
		if hi, lo := 63-bits.LeadingZeros64(mask), bits.TrailingZeros64(mask); m[1] != strconv.Itoa(hi) || m[2] != strconv.Itoa(lo) {
			t.Errorf("%s: bits %s-%s on the page, %d-%d in the code", m[3], m[1], m[2], hi, lo)
		}
		seen[m[3]] = true
	}
	for name := range documentedBits {
		if !seen[name] {
			t.Errorf("the page lacks %s", name)
		}
	}
	// Every bucket of the largest table can be reached, and the fields of a meta
	// word cover it without overlap.
	if maxEntries/bucketEntries > 1<<26 {
		t.Error("the bits of the hash do not reach every bucket")
	}
	var all uint64
	for _, name := range []string{"meta.state", "meta.slot", "meta.incarnation", "meta.tag", "meta.epoch"} {
		if all&documentedBits[name] != 0 {
			t.Errorf("%s overlaps", name)
		}
		all |= documentedBits[name]
	}
	if all != 1<<64-1 || metaOwner != documentedBits["meta.slot"]|documentedBits["meta.incarnation"] {
		t.Errorf("meta words have holes: %#x", all)
	}
}

func TestPageHasVersionAndSize(t *testing.T) {
	page := abiPage(t)
	version := fmt.Sprintf("%d.%d", ABIMajor, ABIMinor)
	if !strings.HasPrefix(page, "# The shared segment: ABI "+version+"\n") || !strings.Contains(page, "\n| "+version+" | ") {
		t.Errorf("the page is not about ABI %s, or its history lacks it", version)
	}
	size := strconv.FormatInt(DefaultGeometry().Size(), 10)
	if !strings.Contains(strings.ReplaceAll(page, " ", ""), size+"bytes") {
		t.Errorf("the page lacks the default size, %s", size)
	}
}

// Fields of different writers are on different cache lines, words on 8-byte
// bounds.
func TestFieldsAreApart(t *testing.T) {
	const line = 64
	if recordListeners/line == recordPhase/line || recordBytes%(2*line) != 0 || directoryHead%line != 0 {
		t.Error("supervisor and worker share a line of the directory")
	}
	if tableUsed/line == tableHandshaking/line || tableHandshaking/line == tableHandshakeLimit/line {
		t.Error("counts and limits of the table share a line")
	}
	if counterRowBytes%(2*line) != 0 || bucketBytes%line != 0 || bucketKeys != line {
		t.Error("rows or buckets are not whole lines")
	}
	for name, f := range documented {
		if f[1] >= 8 && f[0]%8 != 0 {
			t.Errorf("%s is at %d", name, f[0])
		}
	}
}
