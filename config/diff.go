package config

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
)

// NeedsRestart returns the keys that differ between two configurations and
// take effect only when the instance is started again. Everything else takes
// effect with a new generation.
func NeedsRestart(old, next *Config) []string {
	var changed []string
	for _, f := range restartFaults(old, next) {
		changed = append(changed, f.Key)
	}
	return changed
}

// CheckReload returns nil when next can take the place of old without a
// restart of the instance, else an Errors that names the keys of NeedsRestart
// with their places in the file of next.
func CheckReload(old, next *Config) error {
	if faults := restartFaults(old, next); len(faults) > 0 {
		faults.sort()
		return faults
	}
	return nil
}

func restartFaults(old, next *Config) Errors {
	var faults Errors
	for _, k := range restartKeys() {
		was, is := field(old, k.path), field(next, k.path)
		if equal(was, is) {
			continue
		}
		at := next.places[k.path]
		faults = append(faults, Fault{
			File: next.src.shown, Line: at.line, Column: at.column, Key: k.path,
			Found: k.format(is), Expected: k.format(was) + " as before, because a change takes a restart",
		})
	}
	return faults
}

// RefuseUser returns the error for a user that is known, but can't be had.
func (c *Config) RefuseUser(found, expected string) error {
	at := c.places["user"]
	return Errors{{File: c.src.shown, Line: at.line, Column: at.column, Key: "user", Found: found, Expected: expected}}
}

func restartKeys() []*key {
	var list []*key
	for i := range keys {
		if keys[i].effect == byRestart {
			list = append(list, &keys[i])
		}
	}
	return list
}

// restartPlaces keeps what CheckReload needs of the places in a file.
func (d *decoder) restartPlaces() map[string]place {
	m := map[string]place{}
	for _, k := range restartKeys() {
		m[k.path] = d.where(k.path)
	}
	m["user"] = d.where("user")
	return m
}

// field returns the value at a path without lists.
func field(c *Config, path string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		v = v.Field(fieldsOf(v.Type())[name])
	}
	return v
}

func equal(a, b reflect.Value) bool {
	if a.Type() == bytesType {
		return bytes.Equal(a.Bytes(), b.Bytes())
	}
	return a.Equal(b)
}

// format writes a value as it would stand in a file.
func (k *key) format(v reflect.Value) string {
	switch {
	case v.Type() == bytesType && v.Len() == 0:
		return "none"
	case v.Type() == bytesType:
		return quote(hex.EncodeToString(v.Bytes()))
	case v.Kind() == reflect.String:
		return quote(v.String())
	case v.Type() == sizeType:
		return formatUnits(v.Int(), sizeUnits)
	case k.special == isCount:
		return formatUnits(v.Int(), countUnits)
	}
	return formatUnits(v.Int(), nil)
}
