package config

import (
	"bytes"
	_ "embed"
	"path/filepath"
)

//go:embed builtin.yaml
var builtinYAML []byte

// BuiltinName is the Path of the built-in configuration, and the directory that
// its relative paths start at: one that no file system has.
const BuiltinName = "(built-in)"

// Builtin returns the configuration that is served when no file is given: one
// listener with a self-signed certificate on 127.0.0.1:8443. It relies on no
// directory and no other server; see [Files.Builtin].
func Builtin() *Config {
	c, err := parse(source{name: BuiltinName, shown: BuiltinName, base: BuiltinName, data: builtinYAML}, captured(nil))
	if err != nil {
		panic("config: built-in configuration: " + err.Error())
	}
	return c
}

// Builtin reports whether the files are to come from the program, because the
// configuration does.
func (f *Files) Builtin() bool { return filepath.Dir(f.Root) == BuiltinName }

// BuiltinYAML returns the text of the built-in configuration.
func BuiltinYAML() []byte { return bytes.Clone(builtinYAML) }
