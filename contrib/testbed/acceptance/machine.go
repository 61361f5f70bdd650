package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec" //nolint:depguard // machines are booted here, and commands run on them
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// machine is one booted Debian: a systemd-nspawn container with systemd as process 1.
// Its files are an overlay on the cached root, in memory.
type machine struct {
	name, addr string
	dir        string // root folder, seen from outside
	leader     int    // its process 1
	cmd        *exec.Cmd
	exited     chan struct{} // closed when systemd-nspawn has ended, for endErr
	endErr     error
}

// env is what commands on a machine find; nothing of the host's reaches them.
var env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root", "TERM=dumb", "SYSTEMD_PAGER="}

// newMachine lays a machine's own files over root, in the tmpfs at work.
func newMachine(work, root, name, addr string) (*machine, error) {
	m := &machine{name: name, addr: addr, dir: filepath.Join(work, name, "root")}
	upper, scratch := filepath.Join(work, name, "upper"), filepath.Join(work, name, "work")
	for _, d := range []string{m.dir, upper, scratch} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	opts := "lowerdir=" + root + ",upperdir=" + upper + ",workdir=" + scratch
	if err := unix.Mount("overlay", m.dir, "overlay", 0, opts); err != nil {
		return nil, fmt.Errorf("mount overlay of %s: %w", name, err)
	}
	return m, nil
}

// write puts a file onto the machine.
func (m *machine) write(path, text string, mode os.FileMode) error {
	full := filepath.Join(m.dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(full, []byte(text), mode); err != nil {
		return err
	}
	return os.Chmod(full, mode)
}

// boot starts the machine on the bridge; its groups of processes lie below cgroup.
func (m *machine) boot(ctx context.Context, bridge, cgroup string) error {
	for _, dir := range cgroups() {
		if err := os.MkdirAll(filepath.Join(dir, cgroup, m.name), 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
	}
	// In a control group of its own before it makes more: two machines in one would take each
	// other's.
	const start = `for d in $1; do echo $$ >"$d/$2/cgroup.procs" || exit; done; shift 2; exec systemd-nspawn "$@"`
	m.cmd = exec.Command("sh", "-c", start, "sh", strings.Join(cgroups(), " "), cgroup+"/"+m.name,
		"--quiet", "--directory="+m.dir, "--machine="+m.name, "--hostname="+m.name, "--network-bridge="+bridge,
		"--register=no", "--keep-unit", "--boot", "--console=pipe", "--resolv-conf=off", "--link-journal=no", "--timezone=off")
	// One hierarchy of control groups, as Debian has it, also where the host mixes two.
	m.cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1", "UNIFIED_CGROUP_HIERARCHY=1")
	console, err := os.Create(m.dir + ".console")
	if err != nil {
		return err
	}
	defer console.Close()
	m.cmd.Stdout, m.cmd.Stderr = console, console
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("boot %s: %w", m.name, err)
	}
	exited := make(chan struct{})
	m.exited = exited
	go func() {
		m.endErr = m.cmd.Wait()
		close(exited)
	}()
	said := ""
	err = until(ctx, 90*time.Second, func() error {
		select {
		case <-m.exited:
			return errors.Join(errors.New("systemd-nspawn ended"), m.endErr)
		default:
		}
		if m.leader = childOf(m.cmd.Process.Pid); m.leader == 0 {
			return errors.New("process 1 isn't there")
		}
		out, _ := m.sh(ctx, "systemctl is-system-running")
		if said = strings.TrimSpace(out); said != "running" && said != "degraded" {
			return fmt.Errorf("systemd says %q", said)
		}
		return nil
	})
	if err == nil && said == "degraded" {
		var failed string
		failed, err = m.sh(ctx, "systemctl --failed --plain --no-legend")
		if err == nil {
			err = errors.New("units failed at boot: " + failed)
		}
	}
	if err != nil {
		text, _ := os.ReadFile(m.dir + ".console")
		return fmt.Errorf("boot %s: %w; console: %s", m.name, err, tail(string(text)))
	}
	return nil
}

// cut is the power's loss: nothing on the machine gets to say goodbye.
func (m *machine) cut(ctx context.Context) error {
	if err := syscall.Kill(m.leader, syscall.SIGKILL); err != nil {
		return fmt.Errorf("cut the power of %s: %w", m.name, err)
	}
	select {
	case <-m.exited:
		m.leader = 0
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// childOf is a process's one child, 0 = it has none yet.
func childOf(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0
	}
	child, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, _ := strconv.Atoi(child)
	return n
}

// enter is the command that leads onto the machine.
func (m *machine) enter() []string {
	return append([]string{"nsenter", "--target", strconv.Itoa(m.leader), "--all", "--", "env", "-i"}, env...)
}

// sh runs commands as root in /root and returns what they printed. The first that fails
// ends them.
func (m *machine) sh(ctx context.Context, script string) (string, error) {
	out, err := call(ctx, "", append(m.enter(), "sh", "-ec", "cd /root\n"+script)...)
	if err != nil {
		return out, fmt.Errorf("on %s: %w", m.name, err)
	}
	return out, nil
}

// as runs commands as a user, in a folder below the user's home.
func (m *machine) as(ctx context.Context, user, folder, script string) (string, error) {
	out, err := call(ctx, "", append(m.enter(), "runuser", "-l", user, "-c", "set -e; cd ~/"+folder+"\n"+script)...)
	if err != nil {
		return out, fmt.Errorf("%s on %s: %w", user, m.name, err)
	}
	return out, nil
}
