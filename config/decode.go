package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// maxNodes bounds the work for one file: aliases can make a small file large.
const maxNodes = 100_000

// place is a position in the file.
type place struct{ line, column int }

// decoder fills a Config from the syntax tree and collects faults.
type decoder struct {
	file   string
	base   string // directory that relative paths start at
	faults Errors
	at     map[string]place // where the value of each path is; of absent ones, nothing
	bad    map[string]bool  // paths that have a fault already
	alias  map[string]ast.Node
	odd    map[string]bool // paths of mappings that have an unknown key
	meant  map[string]bool // paths of keys that are there, but misspelled
	open   map[string]bool // aliases being followed
	nodes  int
}

func newDecoder(file, base string) *decoder {
	return &decoder{
		file: file, base: base,
		at: map[string]place{}, bad: map[string]bool{}, alias: map[string]ast.Node{}, odd: map[string]bool{}, meant: map[string]bool{}, open: map[string]bool{},
	}
}

// fault records a fault at the value of path, or at the nearest value around
// it that is in the file.
func (d *decoder) fault(path, found, expected string) {
	d.faultAt(d.where(path), path, found, expected)
}

func (d *decoder) faultAt(p place, path, found, expected string) {
	d.bad[path] = true
	d.faults = append(d.faults, Fault{
		File: d.file, Line: p.line, Column: p.column, Key: path, Found: found, Expected: expected,
	})
}

func (d *decoder) where(path string) place {
	for {
		if p, ok := d.at[path]; ok {
			return p
		}
		if path == "" {
			return place{1, 1}
		}
		path = parent(path)
	}
}

// parent returns the path of what a path is in: a.b[1] is in a.b.
func parent(path string) string {
	if i := strings.LastIndexAny(path, ".["); i > 0 {
		return path[:i]
	}
	return ""
}

// pattern replaces the indices of a path: a[3].b becomes a[].b.
func pattern(path string) string {
	var b strings.Builder
	index := false
	for _, r := range path {
		switch {
		case r == '[':
			index = true
			b.WriteString("[]")
		case r == ']':
			index = false
		case !index:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// join returns the path of a key. A name that could be mistaken for more than
// one word is quoted.
func join(path, name string) string {
	if !isWord(name) {
		name = quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func isWord(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == "" && len(s) <= 80
}

func item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// resolve looks through anchors and aliases. It returns nil after a fault.
func (d *decoder) resolve(n ast.Node, path string) (node ast.Node, release func()) {
	release = func() {}
	for {
		if d.nodes++; d.nodes > maxNodes {
			if d.nodes == maxNodes+1 {
				d.faultAt(position(n), path, "too much content behind aliases", "fewer than "+strconv.Itoa(maxNodes)+" values in all")
			}
			return nil, release
		}
		switch v := n.(type) {
		case *ast.AnchorNode:
			d.alias[v.Name.GetToken().Value] = v.Value
			n = v.Value
		case *ast.AliasNode:
			name := v.Value.GetToken().Value
			target, ok := d.alias[name]
			if !ok || d.open[name] {
				d.faultAt(position(n), path, "the alias *"+name, "an alias of an anchor that is complete before it")
				return nil, release
			}
			d.open[name] = true
			inner := release
			release = func() { delete(d.open, name); inner() }
			n = target
		case *ast.TagNode:
			d.faultAt(position(n), path, "the tag "+v.Start.Value, "a value without a tag")
			return nil, release
		default:
			return n, release
		}
	}
}

// value decodes one node into v, whose key has the given path.
func (d *decoder) value(n ast.Node, v reflect.Value, path string) {
	if _, ok := d.at[path]; !ok {
		d.at[path] = position(n)
	}
	n, release := d.resolve(n, path)
	defer release()
	if n == nil {
		return
	}
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.mapping(n, v.Elem(), path)
	case v.Kind() == reflect.Struct:
		d.mapping(n, v, path)
	case v.Kind() == reflect.Map:
		d.dictionary(n, v, path)
	case v.Kind() == reflect.Slice && v.Type() != bytesType:
		d.list(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

// mapping decodes a node into the struct v: defaults first, then what the
// file has. A key without content ("drain:") is an empty mapping.
func (d *decoder) mapping(n ast.Node, v reflect.Value, path string) {
	setDefaults(v, pattern(path))
	var entries []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		entries = m.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{m}
	case *ast.NullNode:
	default:
		d.faultAt(position(n), path, describe(n), "a mapping with the "+plural(len(fieldNames(v.Type())), "key", "keys")+" "+enumerate(fieldNames(v.Type()), "and"))
		return
	}
	fields := fieldsOf(v.Type())
	seen := map[string]place{}
	for _, e := range entries {
		name, sub := keyName(e), join(path, keyName(e))
		if d.repeated(seen, e, sub) {
			continue
		}
		if index, ok := fields[name]; ok {
			d.at[sub] = valuePosition(e)
			d.value(e.Value, v.Field(index), sub)
			continue
		}
		d.meant[join(path, d.unknown(e, sub, v.Type()))] = true
		d.odd[path] = true
	}
	for _, name := range fieldNames(v.Type()) {
		k := keyOf(join(pattern(path), name))
		if _, ok := seen[name]; !ok && k.required && !d.meant[join(path, name)] {
			d.fault(join(path, name), fmt.Sprintf("no key %q", name), k.expectation(v.Field(fields[name]).Type()))
		}
	}
}

// repeated records the key of an entry in seen; one that is there already is
// a fault.
func (d *decoder) repeated(seen map[string]place, e *ast.MappingValueNode, path string) bool {
	name, at := keyName(e), position(e)
	first, again := seen[name]
	if again {
		d.faultAt(at, path, "the key "+quote(name)+" a second time", fmt.Sprintf("it once only (first at %d:%d)", first.line, first.column))
		return true
	}
	seen[name] = at
	return false
}

// unknown records the fault of an unknown key and returns the known one that
// was most likely meant, or "".
func (d *decoder) unknown(e *ast.MappingValueNode, path string, t reflect.Type) (meant string) {
	name, known := keyName(e), fieldNames(t)
	expected := "no keys here"
	if len(known) > 0 {
		expected = enumerate(known, "or")
		if meant = nearest(name, known); meant != "" {
			expected = fmt.Sprintf("a known key; did you mean %q?", meant)
		}
	}
	d.faultAt(position(e), path, "the unknown key "+quote(name), expected)
	return meant
}

// dictionary decodes a mapping of names that the user chooses.
func (d *decoder) dictionary(n ast.Node, v reflect.Value, path string) {
	if _, null := n.(*ast.NullNode); null {
		return
	}
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.faultAt(position(n), path, describe(n), "a mapping from names to values")
		return
	}
	out := map[string]string{}
	seen := map[string]place{}
	for _, e := range m.Values {
		name, sub := keyName(e), join(path, keyName(e))
		if d.repeated(seen, e, sub) {
			continue
		}
		d.at[sub] = position(e)
		val, release := d.resolve(e.Value, sub)
		release()
		if val == nil {
			continue
		}
		text, ok := scalarText(val)
		if !ok {
			d.faultAt(position(val), sub, describe(val), "a text")
			continue
		}
		out[name] = text
	}
	v.Set(reflect.ValueOf(out))
}

func (d *decoder) list(n ast.Node, v reflect.Value, path string) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.faultAt(position(n), path, describe(n), keyOf(pattern(path)).expectation(v.Type()))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values))
	for i, e := range s.Values {
		d.value(e, out.Index(i), item(path, i))
	}
	v.Set(out)
}

var (
	bytesType    = reflect.TypeFor[[]byte]()
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[Size]()
)

// setDefaults fills the struct v with the defaults of the key table.
func setDefaults(v reflect.Value, pat string) {
	for name, index := range fieldsOf(v.Type()) {
		f, sub := v.Field(index), join(pat, name)
		if f.Kind() == reflect.Struct {
			setDefaults(f, sub)
			continue
		}
		k := keyOf(sub)
		if k.def == "" {
			continue
		}
		if f.Type() == reflect.TypeFor[[]string]() {
			f.Set(reflect.ValueOf(strings.Split(strings.Trim(k.def, "[]"), ", ")))
			continue
		}
		text := k.def
		if unquoted, err := strconv.Unquote(text); err == nil {
			text = unquoted
		}
		if !k.set(f, text, token.UnknownType) {
			panic("config: bad default of " + sub)
		}
	}
}

func fieldsOf(t reflect.Type) map[string]int {
	m := map[string]int{}
	for i := range t.NumField() {
		if name, ok := t.Field(i).Tag.Lookup("yaml"); ok {
			m[name] = i
		}
	}
	return m
}

// fieldNames returns the keys of a struct in the order of its fields.
func fieldNames(t reflect.Type) []string {
	m := fieldsOf(t)
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int { return m[a] - m[b] })
}
