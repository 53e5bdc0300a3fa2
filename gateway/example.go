package gateway

import (
	"embed"
	"io/fs"
)

//go:embed example
var embedded embed.FS

// exampleSite is what Files.Example serves.
func exampleSite() fs.FS {
	site, err := fs.Sub(embedded, "example")
	if err != nil {
		panic("gateway: example site: " + err.Error()) // its name is valid
	}
	return site
}
