package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// position returns where a node begins.
func position(n ast.Node) place {
	switch v := n.(type) {
	case nil:
		return place{1, 1}
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			return position(v.Values[0])
		}
	case *ast.MappingValueNode:
		return tokenPlace(v.Key.GetToken())
	}
	return tokenPlace(n.GetToken())
}

func tokenPlace(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{1, 1}
	}
	return place{max(t.Position.Line, 1), max(t.Position.Column, 1)}
}

// valuePosition returns where the value of an entry begins; for one that is
// absent, or on lines of its own, the place of the key.
func valuePosition(e *ast.MappingValueNode) place {
	key, val := position(e), position(e.Value)
	if _, null := e.Value.(*ast.NullNode); null || val.line != key.line {
		return key
	}
	return val
}

func keyName(e *ast.MappingValueNode) string {
	switch k := e.Key.(type) {
	case *ast.StringNode:
		return k.Value
	case *ast.MappingKeyNode:
		if s, ok := k.Value.(*ast.StringNode); ok {
			return s.Value
		}
		return strings.TrimSpace(k.Value.GetToken().Value)
	}
	return e.Key.GetToken().Value
}

// scalarText returns the text of a scalar as it is in the file, without its
// quotes.
func scalarText(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// describe says what a node is, for the "found" of a fault.
func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	}
	text, ok := scalarText(n)
	if !ok {
		return "a " + strings.ToLower(n.Type().YAMLName())
	}
	return quoteFor(n, text)
}

// quoteFor quotes texts and leaves other scalars bare.
func quoteFor(n ast.Node, text string) string {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return quote(text)
	}
	return shorten(oneLine(text))
}

// oneLine keeps what others wrote from breaking the line of a fault.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func quote(s string) string { return strconv.Quote(shorten(s)) }

// shorten keeps faults to one readable line.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// enumerate writes "a, b or c".
func enumerate(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	n := len(words) - 1
	return fmt.Sprintf("%s %s %s", strings.Join(words[:n], ", "), last, words[n])
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// nearest returns the known word that a misspelled one most likely means, or
// "".
func nearest(word string, known []string) string {
	best, bestDistance := "", min(3, len(word)/2+1)
	word = strings.ToLower(strings.ReplaceAll(word, "-", "_"))
	for _, k := range known {
		if d := distance(word, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with their
// neighbor to get from a to b (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
