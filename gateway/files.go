package gateway

import (
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"
)

// newFiles serves the directory, or the example, below the route's path.
func newFiles(prefix string, o *Files) http.Handler {
	var site fs.FS = siteFS{o.Root}
	if o.Example {
		site = exampleSite()
	}
	files := http.StripPrefix(strings.TrimSuffix(prefix, "/"), http.FileServerFS(site))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		files.ServeHTTP(w, r)
	})
}

// siteFS is a directory whose content may be published. A symbolic link that
// leaves it is not followed, a directory without index.html is not listed, and
// what is no regular file does not exist. The directory is opened anew each
// time, so that swapping it by a symbolic link takes effect at once.
type siteFS struct{ dir string }

// Open opens the named file for reading.
func (s siteFS) Open(name string) (fs.File, error) {
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	defer root.Close()
	// Non-blocking, because opening a named pipe would otherwise wait for its writer.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if !publishable(root, f, name) {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return f, nil
}

func publishable(root *os.Root, f *os.File, name string) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	if !info.IsDir() {
		return info.Mode().IsRegular()
	}
	index, err := root.Stat(path.Join(name, "index.html"))
	return err == nil && index.Mode().IsRegular()
}
