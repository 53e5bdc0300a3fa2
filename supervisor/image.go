package supervisor

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// running is a link to the program that this process runs, which leads there
// even after the file was replaced or removed.
const running = "/proc/self/exe"

// image is a program: the path where it was found, and the very file that lay
// there, which stays open. Whatever happens to the path later, the same program
// can be run again.
//
// It is shared by the generations that run it, and belongs to the loop.
type image struct {
	path   string   // absolute, as it was given: it may be a link that leads elsewhere by now
	file   *os.File // opened for reading
	script bool     // begins with "#!"
	users  int      // that hold it; the last one to release it closes the file
}

// openImage opens what lies at an absolute path now. The caller holds the
// image, once. Errors say what to do about it.
func openImage(path string) (*image, error) {
	// Not blocking: a FIFO would wait for somebody who writes.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no program lies at %s: install it there, or name another one", path)
	case err != nil:
		return nil, fmt.Errorf("open the program: %w", err)
	}
	img, err := newImage(path, f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return img, nil
}

// newImage makes an image of an open file. The image owns f when there is no
// error.
func newImage(path string, f *os.File) (*image, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("open the program: %w", err)
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory, not a program", path)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case info.Mode().Perm()&0o111 == 0:
		return nil, fmt.Errorf("%s is not executable (its mode is %s): chmod +x it", path, info.Mode().Perm())
	}
	head := make([]byte, 2)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the program: %w", err)
	}
	return &image{path: path, file: f, script: string(head[:n]) == "#!", users: 1}, nil
}

// ownImage returns the image of this process, by the path that it was started
// by, if that can be told.
func ownImage() (*image, error) {
	f, err := os.Open(running)
	if err != nil {
		return nil, fmt.Errorf("open the running program: %w", err)
	}
	img, err := newImage(ownPath(os.Args[0], f), f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return img, nil
}

// ownPath finds out by which path this process was started. A link is kept as
// it is: where it leads later is what an upgrade is to run.
func ownPath(name string, self *os.File) string {
	path, err := absoluteProgram(name)
	if err == nil && sameAsFile(path, self) {
		return path
	}
	// Started with another name than the file's, or the file has been
	// replaced already.
	if path, err = os.Readlink(running); err == nil {
		return strings.TrimSuffix(path, " (deleted)")
	}
	return running
}

// absoluteProgram makes a program's name absolute, as a shell would find it.
func absoluteProgram(name string) (string, error) {
	if !strings.Contains(name, "/") {
		found, err := exec.LookPath(name)
		if err != nil {
			return "", err
		}
		name = found
	}
	return filepath.Abs(name)
}

// hold adds a user.
func (i *image) hold() *image {
	i.users++
	return i
}

// release takes a user away. It may be called on nil.
func (i *image) release() {
	if i == nil {
		return
	}
	if i.users--; i.users == 0 {
		i.file.Close()
	}
}

// same reports whether two images are one file.
func (i *image) same(other *image) bool {
	if i == nil || other == nil {
		return false
	}
	a, errA := i.file.Stat()
	b, errB := other.file.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// inPlace reports whether the path still leads to this very file.
func (i *image) inPlace() bool { return sameAsFile(i.path, i.file) }

func sameAsFile(path string, f *os.File) bool {
	is, err := os.Stat(path)
	if err != nil {
		return false
	}
	was, err := f.Stat()
	return err == nil && os.SameFile(is, was)
}

// runnable returns a path that runs this very file: its own as long as it
// leads here, which looks best in process lists, else one by way of its
// descriptor.
func (i *image) runnable() string {
	if i.inPlace() {
		return i.path
	}
	return i.byDescriptor()
}

// byDescriptor returns a path that leads to the open file.
func (i *image) byDescriptor() string {
	fd, err := descriptor(i.file)
	if err != nil {
		return i.path // closed; running it says so
	}
	// In the new process, which has the descriptor until the program begins.
	// An interpreter looks later, and has to look here.
	of := "self"
	if i.script {
		of = strconv.Itoa(os.Getpid())
	}
	return fmt.Sprintf("/proc/%s/fd/%d", of, fd)
}

// descriptor returns the number of an open file's descriptor and leaves the
// file as it is; os.File.Fd would make it blocking.
func descriptor(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	n := -1
	err = raw.Control(func(fd uintptr) { n = int(fd) })
	return n, err
}

// checkNative reports why an image can't be run as a supervisor on this
// machine.
func (i *image) checkNative() error {
	if i.script {
		return fmt.Errorf("%s is a script, not a program: name the program itself", i.path)
	}
	theirs, err := elf.NewFile(i.file)
	if err != nil {
		return fmt.Errorf("%s is not a program for %s on %s: %w", i.path, runtime.GOOS, runtime.GOARCH, err)
	}
	ours, err := elf.Open(running)
	if err != nil {
		return fmt.Errorf("read the running program: %w", err)
	}
	defer ours.Close()
	if theirs.Machine != ours.Machine || theirs.Class != ours.Class || theirs.Data != ours.Data {
		return fmt.Errorf("%s is a program for another machine: it is built for %s, this one runs %s",
			i.path, machineName(theirs.Machine), machineName(ours.Machine))
	}
	return nil
}

func machineName(m elf.Machine) string {
	return strings.ToLower(strings.TrimPrefix(m.String(), "EM_"))
}

// workerImage returns the image that an operation's generation is to run, held
// for it. Only an upgrade looks at what lies on disk now: after a reload, as
// after a crash, the workers are of the program that serves.
func (s *Supervisor) workerImage(op *operation) (*image, error) {
	command := op.spec.Command
	switch {
	case op.image != nil:
		return op.image.hold(), nil
	case len(command) == 0 && s.current != nil && len(s.current.spec.Command) == 0:
		return s.current.image.hold(), nil
	case len(command) == 0:
		return s.self.hold(), nil
	case s.current != nil && len(s.current.spec.Command) > 0 && s.current.spec.Command[0] == command[0]:
		return s.current.image.hold(), nil
	}
	return openCommand(command)
}

// openCommand opens the program of a worker command.
func openCommand(command []string) (*image, error) {
	path, err := absoluteProgram(command[0])
	if err != nil {
		return nil, fmt.Errorf("worker.command: %w", err)
	}
	img, err := openImage(path)
	if err != nil {
		return nil, fmt.Errorf("worker.command: %w", err)
	}
	return img, nil
}
