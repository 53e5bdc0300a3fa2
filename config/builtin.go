package config

import (
	"bytes"
	_ "embed"
)

//go:embed builtin.yaml
var builtinYAML []byte

// BuiltinName is the Path of the built-in configuration.
const BuiltinName = "(built-in)"

// Builtin returns the configuration that is served when no file is given: one
// listener with a self-signed certificate on 127.0.0.1:8443.
func Builtin() *Config {
	c, err := parse(source{name: BuiltinName, shown: BuiltinName, base: "/", data: builtinYAML}, captured(nil))
	if err != nil {
		panic("config: built-in configuration: " + err.Error())
	}
	return c
}

// BuiltinYAML returns the text of the built-in configuration.
func BuiltinYAML() []byte { return bytes.Clone(builtinYAML) }
