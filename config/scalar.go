package config

import (
	"encoding/hex"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// scalar decodes a node into a field that is no mapping and no list.
func (d *decoder) scalar(n ast.Node, v reflect.Value, path string) {
	k := keyOf(pattern(path))
	expected := k.expectation(v.Type())
	text, ok := scalarText(n)
	if !ok {
		found := describe(n)
		if _, list := n.(*ast.SequenceNode); list && v.Kind() == reflect.String {
			found += " (a text that starts with [ needs quotes)"
		}
		d.faultAt(position(n), path, found, expected)
		return
	}
	for _, l := range k.later {
		if l.value == text {
			d.faultAt(position(n), path, quoteFor(n, text), l.instead)
			d.faults[len(d.faults)-1].Later = true
			return
		}
	}
	if !k.set(v, text, n.GetToken().Type) {
		if _, text := n.(*ast.StringNode); v.Kind() == reflect.String && !text {
			expected += ", in quotes"
		}
		d.faultAt(position(n), path, describe(n), expected)
		return
	}
	if k.special == isPath && !slices.Contains(k.words, text) && !filepath.IsAbs(text) {
		v.SetString(filepath.Join(d.base, text))
	}
}

// set parses text into v and reports whether it is within the limits of k.
// The token type tells a quoted "5" from the number 5; UnknownType is taken
// for whatever fits.
func (k *key) set(v reflect.Value, text string, t token.Type) bool {
	isText := slices.Contains([]token.Type{
		token.StringType, token.SingleQuoteType, token.DoubleQuoteType, token.LiteralType, token.FoldedType,
	}, t)
	switch {
	case v.Type() == bytesType:
		b, err := hex.DecodeString(text)
		if err != nil || len(b) < 1 || len(b) > 3 {
			return false
		}
		v.SetBytes(b)
	case v.Type() == durationType:
		dur, err := time.ParseDuration(text)
		if err != nil || !k.inLimits(int64(dur)) {
			return false
		}
		v.SetInt(int64(dur))
	case v.Type() == sizeType:
		n, ok := parseUnits(text, sizeUnits)
		if !ok || !k.inLimits(n) {
			return false
		}
		v.SetInt(n)
	case v.Kind() == reflect.Bool:
		if isText || text != "true" && text != "false" {
			return false
		}
		v.SetBool(text == "true")
	case v.Kind() == reflect.Int:
		if k.special == isCountAuto && text == "auto" {
			v.SetInt(0)
			return true
		}
		units := countUnits
		if k.special != isCount {
			units = nil
		}
		if isText && units == nil {
			return false
		}
		n, ok := parseUnits(text, units)
		if !ok || !k.inLimits(n) {
			return false
		}
		v.SetInt(n)
	case k.special == isAccount:
		if !isText && t != token.UnknownType && !isNumber(text) || text == "" {
			return false
		}
		v.SetString(text)
	case v.Kind() == reflect.String:
		if !isText && t != token.UnknownType || k.special == isPath && (text == "" || strings.ContainsRune(text, 0)) {
			return false
		}
		if k.enum != nil && !slices.Contains(k.enum, text) {
			return false
		}
		v.SetString(text)
	default:
		return false
	}
	return true
}

func (k *key) inLimits(n int64) bool {
	if k.zero && n == 0 {
		return true
	}
	if k.max != 0 && (n < k.min || n > k.max) {
		return false
	}
	return !k.power2 || n > 0 && n&(n-1) == 0
}

type unit struct {
	name string
	size int64
}

var (
	sizeUnits  = []unit{{"GiB", int64(GiB)}, {"MiB", int64(MiB)}, {"KiB", int64(KiB)}}
	countUnits = []unit{{"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}}
)

// parseUnits reads a whole decimal number with an optional unit.
func parseUnits(text string, units []unit) (int64, bool) {
	factor := int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			text, factor = strings.TrimSuffix(rest, " "), u.size
			break
		}
	}
	if text == "" || strings.Trim(text, "0123456789") != "" || text[0] == '0' && len(text) > 1 {
		return 0, false // not 010 either, which is 8 to some
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > math.MaxInt64/factor {
		return 0, false
	}
	return n * factor, true
}

// expectation says what is expected of a value of the key.
func (k *key) expectation(t reflect.Type) string {
	if k.expected != "" {
		return k.expected
	}
	if k.enum != nil && t.Kind() == reflect.String {
		return enumerate(k.enum, "or")
	}
	power := ""
	if k.power2 {
		power = ", a power of two,"
	}
	switch {
	case t == durationType:
		return k.zeroOr() + fmt.Sprintf("a duration from %s to %s, such as \"30s\"", formatDuration(k.min), formatDuration(k.max))
	case t == sizeType:
		return fmt.Sprintf("a size%s from %s to %s, such as \"1MiB\"", power, formatUnits(k.min, sizeUnits), formatUnits(k.max, sizeUnits))
	case t.Kind() == reflect.Bool:
		return "true or false"
	case k.special == isCountAuto:
		return fmt.Sprintf("auto or a whole number from %d to %d", k.min, k.max)
	case k.special == isCount:
		return fmt.Sprintf("a whole number%s from %s to %s, such as \"64Ki\"", power, formatUnits(k.min, countUnits), formatUnits(k.max, countUnits))
	case t.Kind() == reflect.Int:
		return fmt.Sprintf("a whole number from %d to %d", k.min, k.max)
	case t.Kind() == reflect.Slice && k.def != "":
		return "a list, such as " + k.def
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Pointer:
		return "a mapping"
	}
	return "a text"
}

func formatUnits(n int64, units []unit) string {
	for _, u := range units {
		if n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// formatDuration writes a duration without the zeros that Go adds: 1h, not
// 1h0m0s.
func formatDuration(n int64) string {
	s := time.Duration(n).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
