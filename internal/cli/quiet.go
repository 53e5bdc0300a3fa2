package cli

import "os"

// quiet keeps quic-go from warning, past every log, about socket buffers. The
// supervisor makes the sockets and says it once.
func quiet() error { return os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") }
