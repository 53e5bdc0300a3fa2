package config

import (
	"reflect"
	"strings"
)

// NeedsRestart returns the keys that differ between two configurations and
// take effect only when the instance is started again. Everything else takes
// effect with a new generation.
func NeedsRestart(old, next *Config) []string {
	var changed []string
	a, b := reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem()
	for i := range keys {
		if k := &keys[i]; k.effect == byRestart && !reflect.DeepEqual(field(a, k.path), field(b, k.path)) {
			changed = append(changed, k.path)
		}
	}
	return changed
}

// field returns the value at a path without lists.
func field(v reflect.Value, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		v = v.Field(fieldsOf(v.Type())[name])
	}
	return v.Interface()
}
