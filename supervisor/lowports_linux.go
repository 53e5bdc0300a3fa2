package supervisor

import (
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// lowPortsCure says how a supervisor that is not root gets the right to bind
// ports below net.ipv4.ip_unprivileged_port_start.
const lowPortsCure = "setcap cap_net_bind_service=+ep on the program, AmbientCapabilities=CAP_NET_BIND_SERVICE in a systemd unit, or sockets passed by the service manager"

// bindsLowPorts reports whether this process has CAP_NET_BIND_SERVICE.
func bindsLowPorts() bool { return hasCapability(unix.CAP_NET_BIND_SERVICE) }

// losesLowPorts: the program that this process is about to become has verified,
// with the rights that it will have, and can't bind what this one can.
const losesLowPorts = "the new program has no CAP_NET_BIND_SERVICE, which the running one has: what is bound stays, low ports that are added later can't be bound"

// hintLowPorts warns when the file that the next start or upgrade runs does not
// give CAP_NET_BIND_SERVICE any more, as after a package has replaced it, and
// this process has it by its file alone.
func (s *Supervisor) hintLowPorts() {
	if os.Geteuid() == 0 || !bindsLowPorts() || s.self.inPlace() {
		return
	}
	if ambient, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, unix.CAP_NET_BIND_SERVICE, 0, 0); err == nil && ambient == 1 {
		return
	}
	if n, err := unix.Getxattr(s.program, "security.capability", nil); err == nil && n > 0 {
		return
	}
	s.log.Warn("the program on disk has no CAP_NET_BIND_SERVICE, which the running one has: after an upgrade or a restart low ports can't be bound",
		zap.String("program", s.program), zap.String("hint", lowPortsCure))
}
