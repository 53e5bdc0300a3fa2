package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference returns the description of every key as Markdown, one table per
// section, made from the key table. docs/configuration.md holds it.
func Reference() []byte {
	var b strings.Builder
	section := ""
	for i := range keys {
		k := &keys[i]
		top, rest, nested := strings.Cut(k.path, ".")
		top = strings.TrimSuffix(top, "[]")
		if top != section {
			section = top
			fmt.Fprintf(&b, "\n### %s\n\n", top)
			if !nested && isSection(k.path) {
				b.WriteString(k.doc + "\n\n")
			}
			b.WriteString("| key | value | default | meaning |\n|---|---|---|---|\n")
			if !nested && isSection(k.path) {
				continue
			}
		}
		if !nested {
			rest = k.path
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", rest, cell(k.values(typeOf(k.path))), cell(k.defaultText()), cell(k.doc+k.note()))
	}
	return []byte(strings.TrimPrefix(b.String(), "\n"))
}

// isSection reports whether a key holds other keys.
func isSection(path string) bool {
	t := typeOf(path)
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct
}

// typeOf returns the type of a key; a pointer's target.
func typeOf(path string) reflect.Type {
	t := reflect.TypeFor[Config]()
	for name := range strings.SplitSeq(path, ".") {
		name, isItem := strings.CutSuffix(name, "[]")
		t = t.Field(fieldsOf(t)[name]).Type
		if isItem {
			t = t.Elem()
		}
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return t
}

// values says in a few words what a key takes.
func (k *key) values(t reflect.Type) string {
	enum := "`" + strings.Join(k.enum, "`, `") + "`"
	switch {
	case t.Kind() == reflect.Slice && t != bytesType && k.enum != nil:
		return "list of " + enum
	case t.Kind() == reflect.Slice && t != bytesType:
		return "list"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "mapping"
	case k.enum != nil:
		return enum
	case t == bytesType:
		return "hexadecimal, 1 to 3 bytes"
	case t == durationType:
		return k.zeroOr() + "duration, " + formatDuration(k.min) + " to " + formatDuration(k.max)
	case t == sizeType:
		return "size, " + formatUnits(k.min, sizeUnits) + " to " + formatUnits(k.max, sizeUnits)
	case k.special == isCount:
		return "number, " + formatUnits(k.min, countUnits) + " to " + formatUnits(k.max, countUnits)
	case k.special == isCountAuto:
		return fmt.Sprintf("`auto` or %d to %d", k.min, k.max)
	case t.Kind() == reflect.Int:
		return fmt.Sprintf("%d to %d", k.min, k.max)
	case t.Kind() == reflect.Bool && len(k.later) > 0:
		return "`" + k.def + "`"
	case t.Kind() == reflect.Bool:
		return "`true`, `false`"
	case k.special == isPath && len(k.words) > 0:
		return "`" + strings.Join(k.words, "`, `") + "` or a path"
	case k.special == isPath:
		return "path"
	case k.special == isAccount:
		return "name or number"
	}
	return "text"
}

func (k *key) zeroOr() string {
	if k.zero {
		return "0 or "
	}
	return ""
}

func (k *key) defaultText() string {
	switch {
	case k.required:
		return "required"
	case k.def != "":
		return "`" + k.def + "`"
	}
	return k.defNote
}

func (k *key) note() string {
	if k.effect == byRestart {
		return " **A change takes a restart.**"
	}
	return ""
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
