package config

import (
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func accountText(lines ...string) string {
	return "listeners: [{name: a, address: \":1\", tls: {self_signed: true}}]\nroutes: [{path: /, whoami: }]\n" + strings.Join(lines, "\n") + "\n"
}

func TestAccount(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Skip("this user has no entry")
	}
	group, err := user.LookupGroupId(me.Gid)
	if err != nil {
		t.Skip("this user's group has no entry")
	}
	for name, lines := range map[string][]string{
		"names":            {"user: " + strconv.Quote(me.Username), "group: " + strconv.Quote(group.Name)},
		"numbers":          {"user: " + me.Uid, "group: " + me.Gid},
		"numbers in words": {"user: '" + me.Uid + "'"},
	} {
		c, err := Parse("f.yaml", []byte(accountText(lines...)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		a := c.Account()
		if a.User != me.Username || a.UID != number(me.Uid) || a.GID != number(me.Gid) || a.Group != group.Name || a.Home != me.HomeDir || !slices.Contains(a.Groups, a.GID) {
			t.Errorf("%s: %+v is not %+v", name, a, me)
		}
		// A worker has become the user already, and may not be able to look.
		again, err := FromPayload(c.Payload())
		if err != nil || again.Account() != nil {
			t.Errorf("%s: from the payload: %+v, %v", name, again.Account(), err)
		}
	}
	c, err := Parse("f.yaml", []byte(accountText("user: 3999999999", "group: 3999999998")))
	if err != nil {
		t.Fatal(err)
	}
	if a := c.Account(); a.UID != 3999999999 || a.GID != 3999999998 || a.Groups != nil {
		t.Errorf("numbers without entries: %+v", a)
	}
	if c, err := Parse("f.yaml", []byte(accountText())); err != nil || c.Account() != nil {
		t.Errorf("no user: %+v, %v", c.Account(), err)
	}
}

func TestAccountFaults(t *testing.T) {
	const aUser, aGroup = "expected the name or the number of a user", "expected the name or the number of a group"
	for text, want := range map[string]string{
		"user: no-such-user":            `f.yaml:3:7: user: found the unknown user "no-such-user", ` + aUser,
		"user: 0\ngroup: no-such-group": `f.yaml:4:8: group: found the unknown group "no-such-group", ` + aGroup,
		"user: 3999999999":              `f.yaml:3:7: user: found the number 3999999999, which has no entry in the user database, and no key "group", ` + aUser,
		"user: -1":                      `f.yaml:3:7: user: found -1, ` + aUser + `, in quotes`,
		"user: 4294967295":              `f.yaml:3:7: user: found 4294967295, ` + aUser + `, in quotes`,
		`user: ""`:                      `f.yaml:3:7: user: found "", ` + aUser,
		"user: [a]":                     `f.yaml:3:7: user: found a list (a text that starts with [ needs quotes), ` + aUser,
		"group: 0":                      `f.yaml:3:8: group: found "0", expected none without the key user`,
	} {
		if _, err := Parse("f.yaml", []byte(accountText(text))); err == nil || err.Error() != want {
			t.Errorf("%q: have\n%v\nwant\n%s", text, err, want)
		}
	}
}

func TestWorkerCommand(t *testing.T) {
	const text = "listeners: [{name: a, address: \":1\", protocols: [quic, tcp], tls: {self_signed: true}}]\nworker: {command: [/bin/w, -v, \"2\"]}\n"
	c, err := Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if l := &c.Listeners[0]; !l.UDP() || !l.TCP() || c.IdleTimeout() == 0 || !slices.Equal(c.Worker.Command, []string{"/bin/w", "-v", "2"}) {
		t.Errorf("%+v, %+v", l, c.Worker)
	}
	c, err = Parse("/etc/f.yaml", []byte(strings.Replace(text, "/bin/w", "bin/w", 1)))
	if err != nil || c.Worker.Command[0] != "/etc/bin/w" {
		t.Errorf("a relative path became %q, %v", c.Worker.Command, err)
	}
	for text, want := range map[string]string{
		"worker: {command: []}":                `f.yaml:2:19: worker.command: found no program, expected a program built on package worker and its arguments, such as [/usr/local/bin/my-worker]`,
		"worker: {command: /bin/w}":            `f.yaml:2:19: worker.command: found "/bin/w", expected a program built on package worker and its arguments, such as [/usr/local/bin/my-worker]`,
		"worker: {}":                           `f.yaml:1:1: routes: found no key "routes", expected a list of routes`,
		"worker: {command: [a]}\nroutes: [{}]": `f.yaml:3:10: routes[0].path: found no key "path", expected a path that starts with "/"`,
	} {
		_, err := Parse("f.yaml", []byte("listeners: [{name: a, address: \":1\", tls: {self_signed: true}}]\n"+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: have\n%v\nwant\n%s", text, err, want)
		}
	}
	_, err = Parse("f.yaml", []byte("listeners: [{name: a, address: \":1\", protocols: [quic], tls: {self_signed: true}}]\nroutes: [{path: /, whoami: }]\n"))
	if want := `f.yaml:1:50: listeners[0].protocols[0]: found "quic", expected h3, h2 or http/1.1, unless there is a worker.command`; err == nil || err.Error() != want {
		t.Errorf("have\n%v\nwant\n%s", err, want)
	}
}

// What a worker of one's own gets is all that it needs to listen.
func TestPayloadHoldsCertificates(t *testing.T) {
	cert, private := keyPair(t, t.TempDir(), "self")
	chain, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse("f.yaml", []byte(accountText()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Listeners[0].KeyPairs(); err == nil {
		t.Error("a certificate that was not made yet")
	}
	c.SetSelfSigned(chain, key)
	again, err := FromPayload(c.Payload())
	if err != nil {
		t.Fatal(err)
	}
	if pairs, err := again.Listeners[0].KeyPairs(); err != nil || len(pairs) != 1 {
		t.Errorf("%d certificates, %v", len(pairs), err)
	}
}
