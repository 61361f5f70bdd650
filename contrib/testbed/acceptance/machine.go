package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec" //nolint:depguard // machines are booted here, and commands run on them
	"path/filepath"
	"slices"
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
	dir        string        // root folder, seen from outside
	leader     int           // its process 1
	exited     chan struct{} // closed when systemd-nspawn has ended, for endErr
	endErr     error
}

// env is what commands on a machine find; nothing of the host's reaches them.
var env = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root",
	"TERM=dumb", "SYSTEMD_PAGER=",
}

// newMachine lays a machine's own files over root, in the tmpfs at work.
func newMachine(work, root, name, addr string) *machine {
	m := &machine{name: name, addr: addr, dir: filepath.Join(work, name, "root")}
	upper, scratch := filepath.Join(work, name, "upper"), filepath.Join(work, name, "work")
	for _, d := range []string{m.dir, upper, scratch} {
		check(os.MkdirAll(d, 0o755))
	}
	mount("overlay", m.dir, "lowerdir="+root+",upperdir="+upper+",workdir="+scratch)
	return m
}

func mount(kind, dir, options string) {
	check(because("mount "+kind+" on "+dir, unix.Mount(kind, dir, kind, 0, options)))
}

// write puts a file onto the machine.
func (m *machine) write(path, text string, mode os.FileMode) {
	full := filepath.Join(m.dir, path)
	check(os.MkdirAll(filepath.Dir(full), 0o755))
	check(os.WriteFile(full, []byte(text), mode))
	check(os.Chmod(full, mode))
}

// read is a file on the machine.
func (m *machine) read(path string) string {
	return string(must(os.ReadFile(filepath.Join(m.dir, path))))
}

// boot starts the machine on the bridge; its groups of processes lie in the run's control group.
func (r *rig) boot(m *machine) {
	for _, dir := range cgroups() {
		check(os.MkdirAll(filepath.Join(dir, r.group, m.name), 0o755))
	}
	// In a control group of its own before it makes more: two machines in one would take each
	// other's.
	const start = `for d in $1; do echo $$ >"$d/$2/cgroup.procs" || exit; done; shift 2; exec systemd-nspawn "$@"`
	cmd := exec.Command("sh", "-c", start, "sh", strings.Join(cgroups(), " "), r.group+"/"+m.name,
		"--quiet", "--directory="+m.dir, "--machine="+m.name, "--hostname="+m.name, "--network-bridge="+bridge,
		"--register=no", "--keep-unit", "--boot", "--console=pipe", "--resolv-conf=off", "--link-journal=no",
		"--timezone=off")
	// One hierarchy of control groups, as Debian has it, also where the host mixes two.
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1", "UNIFIED_CGROUP_HIERARCHY=1")
	console := must(os.Create(m.dir + ".console"))
	defer console.Close()
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(because("boot "+m.name, cmd.Start()))
	exited := make(chan struct{})
	m.exited = exited
	go func() {
		m.endErr = cmd.Wait()
		close(exited)
	}()
	err := attempt(func() {
		r.until(90*time.Second, func() {
			select {
			case <-m.exited:
				check(errors.Join(errors.New("systemd-nspawn ended"), m.endErr))
			default:
			}
			if m.leader = childOf(cmd.Process.Pid); m.leader == 0 {
				fail("process 1 isn't there")
			}
			said, _ := r.try(m, "systemctl is-system-running || systemctl --failed --plain --no-legend")
			if strings.TrimSpace(said) != "running" {
				fail("systemd says %q", said)
			}
		})
	})
	if err != nil {
		text, _ := os.ReadFile(m.dir + ".console")
		fail("boot %s: %w; console: %s", m.name, err, tail(string(text)))
	}
}

// cut is the power's loss: nothing on the machine gets to say goodbye.
func (r *rig) cut(m *machine) {
	check(because("cut the power of "+m.name, syscall.Kill(m.leader, syscall.SIGKILL)))
	select {
	case <-m.exited:
		m.leader = 0
	case <-r.ctx.Done():
		check(r.ctx.Err())
	}
}

// childOf is a process's one child, 0 = it has none yet.
func childOf(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	child, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, _ := strconv.Atoi(child)
	return n
}

// on runs a command on a machine.
func (r *rig) on(m *machine, argv ...string) (string, error) {
	enter := append([]string{"nsenter", "--target", strconv.Itoa(m.leader), "--all", "--", "env", "-i"}, env...)
	out, err := call(r.ctx, append(enter, argv...)...)
	return out, because("on "+m.name, err)
}

// try runs commands as root in /root of a machine and returns what they printed. The first that fails ends them.
func (r *rig) try(m *machine, script string) (string, error) {
	return r.on(m, "sh", "-ec", "cd /root\n"+script)
}

// sh is try for commands that the step can't go on without.
func (r *rig) sh(m *machine, script string) string { return must(r.try(m, script)) }

// as runs commands on the controller as a user, in a folder below the user's home.
func (r *rig) as(user, folder, script string) string {
	out, err := r.on(r.head, "runuser", "-l", user, "-c", "set -e; cd ~/"+folder+"\n"+script)
	check(because(user, err))
	return out
}

// most is how much of a command's output an error carries, bytes.
const most = 1500

// call runs a command and returns what it printed on both of its outputs.
func call(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// A daemon that was started keeps the outputs open.
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return out.String(), fmt.Errorf("%s: %w: %s", argv[0], err, tail(out.String()))
	}
	return out.String(), nil
}

// tail is the end of a text.
func tail(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = "… " + s[len(s)-most:]
	}
	return s
}

// cgroups are the hierarchies of control groups that systemd uses: the one of version 2,
// and in addition the named one where the host has version 1 as well.
func cgroups() []string {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(top + "/cgroup.controllers"); err == nil {
		return []string{top}
	}
	return slices.DeleteFunc([]string{top + "/systemd", top + "/unified"}, func(dir string) bool {
		_, err := os.Stat(dir + "/cgroup.procs")
		return err != nil
	})
}

// staleGroups are the control groups of runs that were killed.
func staleGroups() (out []string) {
	for _, top := range cgroups() {
		found, _ := filepath.Glob(filepath.Join(top, prefix+"*"))
		for _, dir := range found {
			name := filepath.Base(dir)
			if _, err := os.Stat("/proc/" + strings.TrimPrefix(name, prefix)); err != nil {
				out = append(out, name)
			}
		}
	}
	return out
}

// dropGroups removes the control groups, innermost first, once their processes are gone.
func dropGroups(name string) {
	for range 50 {
		left := false
		for _, top := range cgroups() {
			dir := filepath.Join(top, name)
			_ = exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
			_, err := os.Stat(dir)
			left = left || err == nil
		}
		if !left {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
