package config

import (
	"errors"
	"strings"
	"testing"
)

// FuzzParse: no input ends the process; every fault is one line with a place;
// what is accepted survives the way to a worker.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		minimal, string(builtinYAML), "", "{}", "a: [", "&a [*a]", "? - a\n: b", "drain: !!x {}", "listeners: &l\n- *l", "<<: *x",
		listenerText(`{name: a, address: "[::]:1", protocols: [h3], tls: {certificates: [{cert: a, key: b}]}, quic: {retry: always}}`),
		minimal + "- {path: /a, respond: {status: 404, body: |\n x, headers: {A: b}}}\n",
		minimal + "cid: {server_id: 0x1}\ntable: {entries: 64Ki}\nworkers: 7\n", "a: 'b\n\nc'\n\"d\": >+\n  e", "\ufeff\r\n\t%YAML 1.2\n---\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return // the parser takes time that grows with the square of odd inputs
		}
		c, err := parse(source{name: "/gw.yaml", shown: "gw.yaml", base: "/", data: data}, captured(nil))
		if err != nil {
			faults, ok := errors.AsType[Errors](err)
			if !ok || len(faults) == 0 || c != nil {
				t.Fatalf("%T %v, %v", err, err, c)
			}
			for _, fault := range faults {
				if fault.Line < 1 || fault.Column < 1 || fault.Found == "" || fault.Expected == "" || strings.ContainsAny(fault.String(), "\r\n") {
					t.Fatalf("%#v", fault)
				}
			}
			return
		}
		again, err := FromPayload(c.Payload())
		if err != nil || again.Hash() != c.Hash() {
			t.Fatalf("payload: %v", err)
		}
	})
}
