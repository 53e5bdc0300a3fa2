package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	File     string // as given to Load or Parse
	Line     int    // from 1; 0 = the file as a whole
	Column   int    // from 1, in characters
	Key      string // path of the key, such as listeners[0].address; may be empty
	Found    string
	Expected string
	Later    bool // what was found is announced for a later version
}

// String returns "FILE:LINE:COLUMN: KEY: found FOUND, expected EXPECTED", for
// Later "…: found FOUND, which is not available in this version; use EXPECTED".
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	if f.Key != "" {
		b.WriteString(": " + f.Key)
	}
	if f.Later {
		fmt.Fprintf(&b, ": found %s, which is not available in this version; use %s", f.Found, f.Expected)
	} else {
		fmt.Fprintf(&b, ": found %s, expected %s", f.Found, f.Expected)
	}
	return b.String()
}

// Errors holds every fault of a configuration, sorted by place. It is the
// only error type that Load and Parse return.
type Errors []Fault

// Error returns one line per fault, without a final newline.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, f := range e {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Key, b.Key))
	})
}
