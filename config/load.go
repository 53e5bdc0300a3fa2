package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxFile bounds the size of a configuration file and of a certificate file.
const maxFile = 1 << 20

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
	return parse(source{name: abs, shown: name, base: filepath.Dir(abs), data: data}, disk{})
}

// parse is Parse with the files that the configuration names taken from f.
func parse(src source, f files) (*Config, error) {
	d := newDecoder(src.shown, src.base)
	c := new(Config)
	body, err := syntax(src.shown, src.data)
	if err != nil {
		return nil, err
	}
	if body == nil {
		body = ast.Null(token.New("", "", &token.Position{Line: 1, Column: 1}))
	}
	d.value(body, reflect.ValueOf(c).Elem(), "")
	if d.nodes > maxNodes {
		d.faults.sort()
		return nil, d.faults // of a part of the file only
	}
	v := &validator{decoder: d, files: f, contents: map[string][]byte{}}
	v.config(c)
	if len(d.faults) > 0 {
		d.faults.sort()
		return nil, d.faults
	}
	src.contents = v.contents
	c.src = src
	c.places = d.restartPlaces()
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
	if at, ok := notUTF8(data); ok {
		return nil, Errors{{File: name, Line: at.line, Column: at.column, Found: "bytes that are no UTF-8", Expected: "YAML in UTF-8"}}
	}
	tokens := lexer.Tokenize(strings.TrimPrefix(string(data), "\ufeff"))
	if at, deep := tooDeep(tokens); deep {
		return nil, Errors{{File: name, Line: at.line, Column: at.column, Found: "values nested too deeply", Expected: fmt.Sprintf("at most %d levels", maxDepth)}}
	}
	file, perr := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if perr != nil {
		f := Fault{File: name, Line: 1, Column: 1, Found: oneLine(perr.Error()), Expected: "YAML"}
		if e, ok := errors.AsType[yaml.Error](perr); ok {
			at := tokenPlace(e.GetToken())
			f.Line, f.Column, f.Found = at.line, at.column, "a syntax error ("+oneLine(e.GetMessage())+")"
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

// notUTF8 looks for the first byte that is not part of a character.
func notUTF8(data []byte) (place, bool) {
	if utf8.Valid(data) {
		return place{}, false
	}
	at := place{1, 1}
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError && size == 1 {
			break
		}
		at.column++
		if r == '\n' {
			at = place{at.line + 1, 1}
		}
		data = data[size:]
	}
	return at, true
}

// maxDepth bounds how deep values may be nested. The parser recurses, and
// running out of stack can't be recovered from.
const maxDepth = 64

// tooDeep looks for more than maxDepth open brackets, or as many levels begun
// on one line without any.
func tooDeep(tokens token.Tokens) (place, bool) {
	open, begun, line := 0, 0, 0
	for _, t := range tokens {
		if at := tokenPlace(t); at.line != line {
			line, begun = at.line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			open++
		case token.SequenceEndType, token.MappingEndType:
			open--
			begun = 0
		case token.CollectEntryType:
			begun = 0
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType, token.AnchorType, token.TagType:
			begun++
		}
		if open > maxDepth || begun > maxDepth {
			return tokenPlace(t), true
		}
	}
	return place{}, false
}

// files is where the files come from that a configuration names.
type files interface {
	read(path string) ([]byte, error)
	isDir(path string) error
	account(user, group string) (*Account, error)
}

type disk struct{}

// read takes regular files only: opening a named pipe would wait for its
// writer.
func (disk) read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errNotFile
	}
	if err != nil {
		return nil, err
	}
	return readFile(path)
}

func (disk) isDir(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return errNotDir
	}
	return err
}

var (
	errNotDir  = errors.New("what is no directory")
	errNotFile = errors.New("what is no regular file")
	errTooBig  = errors.New("a file of more than 1 MiB")
)

// readFile reads a file of bounded size.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
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
