package supervisor

import (
	"errors"
	"fmt"
	"strconv"
)

// Account is the user that the workers of a generation run as. Names are for
// logs; the numbers count, and stay the same for the life of the generation.
type Account struct {
	User  string
	Group string // the primary one
	UID   uint32
	GID   uint32
	// Groups are the further ones that the user is in.
	Groups []uint32
	// Home is the value of HOME in the worker's environment; may be empty.
	Home string
}

// ErrAccount is the class of errors about a user that workers can't run as.
var ErrAccount = errors.New("workers can't run as this user")

// String names the account for people.
func (a *Account) String() string {
	name := a.User
	if name == "" {
		name = strconv.FormatUint(uint64(a.UID), 10)
	}
	group := a.Group
	if group == "" {
		group = strconv.FormatUint(uint64(a.GID), 10)
	}
	return fmt.Sprintf("%s:%s", name, group)
}

// environ replaces what names a user in an environment.
func (a *Account) environ(environ []string) []string {
	out := make([]string, 0, len(environ)+3)
	for _, e := range environ {
		switch envName(e) {
		case "HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME":
		default:
			out = append(out, e)
		}
	}
	if a.Home != "" {
		out = append(out, "HOME="+a.Home)
	}
	if a.User != "" {
		out = append(out, "USER="+a.User, "LOGNAME="+a.User)
	}
	return out
}

// mayRead and mayRun say whether permission bits of a file of that owner allow
// it to the account.
func (a *Account) mayRead(uid, gid, mode uint32) bool { return a.allowed(uid, gid, mode, 0o4) }
func (a *Account) mayRun(uid, gid, mode uint32) bool  { return a.allowed(uid, gid, mode, 0o1) }

func (a *Account) allowed(uid, gid, mode, bit uint32) bool {
	switch {
	case a.UID == uid:
		return mode&(bit<<6) != 0
	case a.in(gid):
		return mode&(bit<<3) != 0
	}
	return mode&bit != 0
}

func (a *Account) in(gid uint32) bool {
	if a.GID == gid {
		return true
	}
	for _, g := range a.Groups {
		if g == gid {
			return true
		}
	}
	return false
}
