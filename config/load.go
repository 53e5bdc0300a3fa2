package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxFile bounds the size of a configuration file and of a certificate file.
const maxFile = 4 << 20

// Load reads and checks the configuration file at path. Relative paths in it
// start at its directory. The error is an Errors with every fault.
func Load(path string) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, Errors{{File: path, Found: reason(err), Expected: "a readable configuration file"}}
	}
	return Parse(path, data)
}

// Parse checks the configuration data of the file name, which is not read:
// it appears in faults, and relative paths start at its directory. The error
// is an Errors with every fault.
func Parse(name string, data []byte) (*Config, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, Errors{{File: name, Found: "a name that can't be made absolute: " + err.Error(), Expected: "a file name"}}
	}
	return parse(source{name: abs, base: filepath.Dir(abs), data: data}, name, disk{})
}

// parse is Parse with the files that the configuration names taken from f.
func parse(src source, name string, f files) (*Config, error) {
	d := newDecoder(name, src.base)
	c := new(Config)
	body, err := syntax(name, src.data)
	if err != nil {
		return nil, err
	}
	if body == nil {
		body = ast.Null(token.New("", "", &token.Position{Line: 1, Column: 1}))
	}
	d.value(body, reflect.ValueOf(c).Elem(), "")
	v := &validator{decoder: d, files: f, contents: map[string][]byte{}}
	v.config(c)
	if len(d.faults) > 0 {
		d.faults.sort()
		return nil, d.faults
	}
	src.contents = v.contents
	c.src = src
	return c, nil
}

// syntax parses YAML and returns the root of the only document, nil when it
// is empty.
func syntax(name string, data []byte) (body ast.Node, err error) {
	// The parser is not ours, and a configuration must not be able to end
	// the supervisor.
	defer func() {
		if r := recover(); r != nil {
			body, err = nil, Errors{{File: name, Line: 1, Column: 1, Found: fmt.Sprintf("a file that can't be parsed (%v)", r), Expected: "YAML"}}
		}
	}()
	if len(data) > maxFile {
		return nil, Errors{{File: name, Found: fmt.Sprintf("%d bytes", len(data)), Expected: fmt.Sprintf("at most %d", maxFile)}}
	}
	file, perr := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if perr != nil {
		f := Fault{File: name, Line: 1, Column: 1, Found: perr.Error(), Expected: "YAML"}
		if e, ok := errors.AsType[yaml.Error](perr); ok {
			at := tokenPlace(e.GetToken())
			f.Line, f.Column, f.Found = at.line, at.column, "a syntax error: "+e.GetMessage()
		}
		return nil, Errors{f}
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			at := position(doc.Body)
			return nil, Errors{{File: name, Line: at.line, Column: at.column, Found: "a second document", Expected: "one document"}}
		}
		body = doc.Body
	}
	return body, nil
}

// files is where the files come from that a configuration names.
type files interface {
	read(path string) ([]byte, error)
	isDir(path string) error
}

type disk struct{}

func (disk) read(path string) ([]byte, error) { return readFile(path) }

func (disk) isDir(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return errNotDir
	}
	return err
}

var (
	errNotDir  = errors.New("not a directory")
	errNotFile = errors.New("not a regular file")
	errTooBig  = errors.New("a file of more than 4 MiB")
)

// readFile reads a file of bounded size.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, errNotFile
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = errTooBig
	}
	return data, err
}

// reason puts a file error into a few words, without the path.
func reason(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file"
	case errors.Is(err, fs.ErrPermission):
		return "a file that may not be read (permission denied)"
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}
