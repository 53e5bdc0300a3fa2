package config

// effect says what a change of a key needs.
type effect int

const (
	byReload  effect = iota // a new generation has it
	byRestart               // the instance has to be started again
)

// special says that a field is not what its Go type says.
type special int

const (
	plain       special = iota
	isPath              // a file name; relative ones start at the configuration file
	isCount             // a number that may be written with Ki, Mi, Gi
	isCountAuto         // a number or auto, which is 0
	isAccount           // the name or the number of a user or group
)

// later is a value that a later version will take.
type later struct {
	value   string
	instead string
}

// key describes one key of the configuration. [] in a path stands for an
// item of a list.
type key struct {
	path     string
	doc      string
	def      string // default, as it would be written in YAML
	defNote  string // default in words, where it is not a constant
	required bool
	expected string // what is expected, when it can't be told from type and limits
	example  string
	min, max int64 // limits of a number, size (bytes) or duration (ns); max 0 = no limits
	zero     bool  // 0 is allowed besides min to max
	power2   bool
	enum     []string
	words    []string // of a path: words that are no file name
	later    []later
	special  special
	effect   effect
}

var keyIndex = func() map[string]*key {
	m := make(map[string]*key, len(keys))
	for i := range keys {
		m[keys[i].path] = &keys[i]
	}
	return m
}()

// keyOf returns the description of a key by its path; items of a list of
// texts are described with the list.
func keyOf(path string) *key {
	if k, ok := keyIndex[path]; ok {
		return k
	}
	if n := len(path) - len("[]"); n > 0 && path[n:] == "[]" {
		if k, ok := keyIndex[path[:n]]; ok {
			return k
		}
	}
	return &key{path: path}
}
