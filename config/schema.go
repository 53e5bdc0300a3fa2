package config

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// Schema returns the JSON Schema (draft 7, which editors know best) of the
// configuration file, made from the types and the key table. A file that it
// refuses is refused by Parse too; Parse also checks what a schema can't say.
func Schema() []byte {
	root := schemaOf(reflect.TypeFor[Config](), "")
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Holdfast configuration"
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("config: schema: " + err.Error()) // maps of plain values always marshal
	}
	return append(b, '\n')
}

type object = map[string]any

// schemaOf describes a value of the type whose key has the path.
func schemaOf(t reflect.Type, path string) object {
	k := keyOf(path)
	s := object{}
	switch {
	case t.Kind() == reflect.Pointer:
		s = structSchema(t.Elem(), path)
	case t.Kind() == reflect.Struct:
		s = structSchema(t, path)
	case t.Kind() == reflect.Map:
		s["type"] = []string{"object", "null"}
		s["additionalProperties"] = object{"type": []string{"string", "number", "boolean"}}
	case t.Kind() == reflect.Slice && t != bytesType:
		s["type"] = "array"
		s["items"] = schemaOf(t.Elem(), path+"[]")
		if k.required || k.def != "" {
			s["minItems"] = 1
		}
	default:
		s = k.schema(t)
	}
	if row, ok := keyIndex[path]; ok {
		s["description"] = row.doc
		if row.example != "" {
			s["examples"] = []string{row.example}
		}
		if row.def != "" {
			s["default"] = defaultJSON(t, row.def)
		}
	}
	return s
}

func structSchema(t reflect.Type, path string) object {
	properties, required := object{}, []string{}
	for _, name := range fieldNames(t) {
		f := t.Field(fieldsOf(t)[name])
		properties[name] = schemaOf(f.Type, join(path, name))
		if keyOf(join(path, name)).required {
			required = append(required, name)
		}
	}
	s := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	} else {
		s["type"] = []string{"object", "null"} // "drain:" with nothing below it
	}
	if t == reflect.TypeFor[Route]() {
		var one []object
		for _, a := range actions {
			one = append(one, object{"required": []string{a}})
		}
		s["oneOf"] = one
	}
	return s
}

const durationPattern = `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)`

// schema describes a scalar.
func (k *key) schema(t reflect.Type) object {
	number := object{"type": "integer", "minimum": k.min, "maximum": k.max}
	switch {
	case t == bytesType:
		return object{"type": []string{"string", "number"}, "pattern": "^([0-9a-fA-F]{2}){1,3}$"}
	case t == durationType && k.zero:
		return object{"anyOf": []object{{"type": "string", "pattern": durationPattern}, {"const": 0}, {"const": "0"}}}
	case t == durationType:
		return object{"type": "string", "pattern": durationPattern}
	case t == sizeType:
		return object{"anyOf": []object{number, {"type": "string", "pattern": "^[0-9]+( ?(KiB|MiB|GiB))?$"}}}
	case k.special == isCount:
		return object{"anyOf": []object{number, {"type": "string", "pattern": "^[0-9]+( ?(Ki|Mi|Gi))?$"}}}
	case k.special == isCountAuto:
		return object{"anyOf": []object{{"const": "auto"}, number}}
	case t.Kind() == reflect.Int:
		return number
	case t.Kind() == reflect.Bool && len(k.later) > 0:
		return object{"const": k.def == "true"}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case k.enum != nil:
		return object{"enum": k.enum}
	case k.special == isAccount:
		return object{"anyOf": []object{{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}}}
	case k.special == isPath || k.required:
		return object{"type": "string", "minLength": 1}
	}
	return object{"type": "string"}
}

// defaultJSON turns a default of the key table into a value of JSON.
func defaultJSON(t reflect.Type, def string) any {
	switch {
	case t.Kind() == reflect.Slice:
		return strings.Split(strings.Trim(def, "[]"), ", ")
	case t.Kind() == reflect.Bool:
		return def == "true"
	case t.Kind() == reflect.Int:
		if n, err := strconv.Atoi(def); err == nil {
			return n
		}
	}
	return strings.Trim(def, `"`)
}
