package test

import (
	"testing"

	"github.com/holdfast-quic/holdfast/internal/cli"
	"github.com/holdfast-quic/holdfast/test/kit"
)

func TestMain(m *testing.M) {
	kit.Main(m, kit.Roles{kit.RoleHoldfast: cli.Main, kit.RolePlain: kit.PlainMain})
}
