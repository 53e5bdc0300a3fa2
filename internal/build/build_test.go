package build

import (
	"encoding/hex"
	"testing"
)

func TestIDIsReadFromTheRunningImage(t *testing.T) {
	if raw, err := hex.DecodeString(ID()); err != nil || len(raw) != 8 {
		t.Fatalf("build ID %q is not eight bytes in hexadecimal", ID())
	}
	if Version() == "" {
		t.Fatal("no version")
	}
}
