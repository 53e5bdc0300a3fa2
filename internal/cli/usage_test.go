package cli

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// What is wrong with a command line is one line in our words: no names of Go
// functions, no tabs, and what would have been right.
func TestWrongUsageIsExplained(t *testing.T) {
	for line, want := range map[string]string{
		"drain --generation x":         `drain: --generation: found "x", expected a whole number from 0 to 4294967295`,
		"drain --generation -4":        `drain: --generation: found "-4", expected a whole number from 0 to 4294967295`,
		"drain --timeout x":            `drain: --timeout: found "x", expected a duration such as "30s" or "1h30m"`,
		"conns --slot x":               `conns: --slot: found "x", expected a whole number`,
		"status --watch=maybe":         `status: --watch: found "maybe", expected true or false`,
		"status --timeout":             `status: --timeout needs a value`,
		"check -c":                     `check: --config needs a value`,
		"status --no-such-flag":        `status: there is no flag --no-such-flag; "holdfast status --help" lists those that there are`,
		"status -z":                    `status: there is no flag -z; "holdfast status --help" lists those that there are`,
		"--no-such-flag":               `there is no flag --no-such-flag; "holdfast --help" lists those that there are`,
		"conns close":                  `conns close: found nothing, expected "close ID"`,
		"conns close 1.2.3 4.5.6":      `conns close: found "1.2.3 4.5.6", expected "close ID"`,
		"conns cloe 1.2.3":             `conns: there is no command "cloe"; did you mean "close"?`,
		"reload x":                     `reload: found "x", but this command takes no arguments`,
		"reloda --name x":              `there is no command "reloda"; did you mean "reload"?`,
		"--name x reloda":              `there is no command "reloda"; did you mean "reload"?`,
		"nonsense":                     `there is no command "nonsense"; "holdfast --help" lists those that there are`,
		"help nonsense":                `there is no command "nonsense"; "holdfast --help" lists those that there are`,
		"completion":                   `completion: found nothing, expected "completion SHELL"`,
		"demo --connections 1 --x=y z": `demo: there is no flag --x; "holdfast demo --help" lists those that there are`,
	} {
		code, b := call(t, strings.Fields(line)...)
		if code != exitUsage {
			t.Errorf("holdfast %s: exit code %d", line, code)
		}
		if got := b.err.String(); got != "holdfast: "+want+"\n" {
			t.Errorf("holdfast %s: reason %q, expected %q", line, got, want)
		}
	}
}

// Every flag of every command is of a type whose values can be explained: one
// of valueKinds, or one of ours, which explains itself.
func TestEveryFlagHasWordsForItsValue(t *testing.T) {
	a := testApp(t)
	for name := range manPages(a.root()) {
		command := strings.Split(strings.TrimSuffix(strings.TrimPrefix(name, "holdfast"), ".8"), "-")[1:]
		c, _, err := a.root().Find(command)
		if err != nil { // a name with a hyphen of its own
			if c, _, err = a.root().Find([]string{strings.Join(command, "-")}); err != nil {
				t.Fatal(err)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			foreign := strings.HasSuffix(reflect.TypeOf(f.Value).Elem().PkgPath(), "/pflag")
			if kind := f.Value.Type(); foreign && kind != "string" && valueKinds[kind] == "" {
				t.Errorf("%s: --%s has the type %s", name, f.Name, kind)
			}
		})
	}
}

func TestHelpOfACommandIsTheSameEitherWay(t *testing.T) {
	code, help := call(t, "help", "conns", "close")
	_, flag := call(t, "conns", "close", "--help")
	if code != exitDone || help.out.String() != flag.out.String() {
		t.Errorf("exit code %d:\n%s\nand\n%s", code, help.out.String(), flag.out.String())
	}
}

func TestCountsHaveTheRightNumber(t *testing.T) {
	for n, want := range map[int]string{0: "0 routes", 1: "1 route", 2: "2 routes"} {
		if got := count(n, "route"); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}

func TestStatusThatTakesTooLongNamesItsLimit(t *testing.T) {
	f := fakeAdmin(t)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	f.handle("GET /v1/status", func(http.ResponseWriter, *http.Request) { <-over })
	code, b := call(t, "status", "--timeout", (50 * time.Millisecond).String(), "--runtime-dir", f.dir)
	if code != exitTimeout {
		t.Errorf("exit code %d", code)
	}
	oneReason(t, b, "50ms")
}

// run is known by its name wherever it stands, since it catches signals before
// its command line is parsed.
func TestRunIsKnownEarly(t *testing.T) {
	for line, want := range map[string]bool{
		"run": true, "run --config x": true, "--name edge run": true, "--name=edge run -c x": true, "-c x run": true,
		"": false, "reload": false, "reload --name run": false, "--name run reload": false, "help run": false, "-h": false,
	} {
		if got := isRun(strings.Fields(line)); got != want {
			t.Errorf("holdfast %s: %v", line, got)
		}
	}
}
