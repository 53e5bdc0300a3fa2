package config

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
)

// Account is the user that the keys user and group name, as it was looked up
// when the configuration was read.
type Account struct {
	User, Group string // names; empty when a number was given that has none
	UID, GID    uint32
	Groups      []uint32 // that the user is in besides the primary one
	Home        string   // may be empty
}

// Account returns whom the workers run as; nil for the supervisor's own user,
// and after FromPayload.
func (c *Config) Account() *Account { return c.account }

// accountError is about one of the two keys.
type accountError struct{ key, found string }

func (e *accountError) Error() string { return e.key + ": " + e.found }

func (v *validator) account(c *Config) {
	if !v.ok("user") || !v.ok("group") {
		return
	}
	if c.User == "" {
		if v.set("group") {
			v.fault("group", quote(c.Group), "none without the key user")
		}
		return
	}
	a, err := v.files.account(c.User, c.Group)
	if e, ok := errors.AsType[*accountError](err); ok {
		v.fault(e.key, e.found, keyOf(e.key).expected)
		return
	}
	c.account = a
}

// account looks a user up. Names and numbers are both right; a number needs no
// entry if the group is given too.
func (disk) account(name, group string) (*Account, error) {
	a := new(Account)
	u, err := lookUp(name, user.Lookup, user.LookupId)
	switch {
	case err == nil:
		a.User, a.Home = u.Username, u.HomeDir
		a.UID, a.GID = number(u.Uid), number(u.Gid)
	case !isNumber(name):
		return nil, &accountError{"user", accountFault("user", name, err)}
	case group == "":
		return nil, &accountError{"user", fmt.Sprintf("the number %s, which has no entry in the user database, and no key \"group\"", name)}
	default:
		a.UID = number(name)
	}
	if u != nil {
		ids, err := u.GroupIds()
		if err != nil {
			return nil, &accountError{"user", "a user whose groups can't be listed: " + oneLine(err.Error())}
		}
		for _, id := range ids {
			if isNumber(id) {
				a.Groups = append(a.Groups, number(id))
			}
		}
	}
	g, err := lookUp(group, user.LookupGroup, user.LookupGroupId)
	switch {
	case group == "":
		if g, err := user.LookupGroupId(strconv.FormatUint(uint64(a.GID), 10)); err == nil {
			a.Group = g.Name
		}
	case err == nil:
		a.Group, a.GID = g.Name, number(g.Gid)
	case !isNumber(group):
		return nil, &accountError{"group", accountFault("group", group, err)}
	default:
		a.GID = number(group)
	}
	return a, nil
}

// account is the supervisor's business: what a payload goes to has become the
// user already.
func (captured) account(string, string) (*Account, error) { return nil, nil }

// lookUp tries a text as a name first: there are names made of digits.
func lookUp[T any](text string, byName, byNumber func(string) (*T, error)) (*T, error) {
	if text == "" {
		return nil, nil
	}
	found, err := byName(text)
	if err != nil && isNumber(text) {
		found, err = byNumber(text)
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

func accountFault(what, name string, err error) string {
	var noUser user.UnknownUserError
	var noGroup user.UnknownGroupError
	if errors.As(err, &noUser) || errors.As(err, &noGroup) {
		return fmt.Sprintf("the unknown %s %s", what, quote(name))
	}
	return fmt.Sprintf("%s, which can't be looked up: %s", quote(name), oneLine(err.Error()))
}

// isNumber reports whether a text is the number of a user or group. The
// highest one means "no change" to the kernel.
func isNumber(s string) bool {
	n, err := strconv.ParseUint(s, 10, 32)
	return err == nil && n < 1<<32-1 && strconv.FormatUint(n, 10) == s
}

// number is the value of what isNumber.
func number(s string) uint32 {
	n, _ := strconv.ParseUint(s, 10, 32)
	return uint32(n)
}
