package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// validator checks what spans several keys or needs files.
type validator struct {
	*decoder
	files    files
	contents map[string][]byte
}

// ok reports whether a value was decoded without a fault, so that checking
// its meaning makes sense.
func (v *validator) ok(path string) bool { return !v.bad[path] }

func (v *validator) config(c *Config) {
	v.listeners(c)
	v.worker(c)
	v.account(c)
	if total := Size(c.Queue.Lanes) * c.Queue.LaneSize; total > maxQueue && v.ok("queue.lanes") && v.ok("queue.lane_size") {
		v.fault("queue", formatUnits(int64(total), sizeUnits)+" of lanes per queue", "at most "+formatUnits(int64(maxQueue), sizeUnits))
	}
}

// worker checks which program runs, and the routes, which only the built-in
// one needs.
func (v *validator) worker(c *Config) {
	if v.ok("worker") && v.ok("worker.command") && v.set("worker.command") && (len(c.Worker.Command) == 0 || c.Worker.Command[0] == "") {
		v.fault("worker.command", "no program", keyOf("worker.command").expected)
	}
	if list := c.Worker.Command; len(list) > 0 && strings.Contains(list[0], "/") && !filepath.IsAbs(list[0]) {
		list[0] = filepath.Join(v.base, list[0])
	}
	if !v.set("worker.command") && !v.set("routes") && v.ok("routes") && v.ok("") && !v.meant["routes"] {
		v.fault("routes", `no key "routes"`, keyOf("routes").expected)
		return
	}
	if v.set("routes") {
		v.routes(c.Routes)
	}
}

// maxQueue bounds the address space that the queues of all worker slots take.
const maxQueue = 256 * MiB

// unique reports values that occur twice.
func (v *validator) unique(seen map[string]string, path, value, noun string) {
	if !v.ok(path) || value == "" {
		return
	}
	if first, ok := seen[value]; ok {
		at := v.where(first)
		v.fault(path, fmt.Sprintf("the %s %s a second time", noun, quote(value)), fmt.Sprintf("each %s once (first at %d:%d)", noun, at.line, at.column))
		return
	}
	seen[value] = path
}

// set reports whether the file has the key.
func (v *validator) set(path string) bool {
	_, ok := v.at[path]
	return ok
}

func isName(s string) bool { return isWord(strings.ReplaceAll(s, ".", "-")) && len(s) <= 64 }
