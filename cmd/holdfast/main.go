// Command holdfast is the process manager of a QUIC gateway host: it keeps
// connections alive over reloads and crashes. See "holdfast help".
package main

import (
	"os"

	"github.com/holdfast-quic/holdfast/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
