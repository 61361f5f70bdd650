package slurmtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Daemon is a process of the cluster.
type Daemon struct {
	Process *os.Process
	done    chan struct{} // closed when it has ended
}

// Alive reports whether it has not ended.
func (d *Daemon) Alive() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// End sends it a signal and returns when it has ended; if it takes long, it is killed.
func (d *Daemon) End(sig syscall.Signal) {
	_ = d.Process.Signal(sig)
	select {
	case <-d.done:
	case <-time.After(10 * time.Second):
		_ = d.Process.Kill()
		<-d.done
	}
}

const controller = "slurmctld"

// Munged prepares a munged with a key, in a folder that then is its user's. It answers at Dir/socket.
func Munged(dir string, key []byte) (*exec.Cmd, error) {
	id, err := IDs("munge")
	if err != nil {
		return nil, err
	}
	munged, err := findProgram("", "munged")
	if err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	cmd := exec.Command(munged, "--foreground", "--force", "--num-threads=4", "--key-file="+in("key"),
		"--socket="+in("socket"),
		"--pid-file="+in("pid"), "--log-file="+in("munged.log"), "--seed-file="+in("seed"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: id}
	return cmd, errors.Join(own(in("key"), key, "munge"), os.Chown(dir, int(id.Uid), int(id.Gid)), os.Chmod(dir, 0o755))
}

// startMunge starts a munged of the cluster's own. It runs outside Options.Root: any release's Slurm can talk to it.
func (c *Cluster) startMunge(ctx context.Context) error {
	cmd, err := Munged(c.Path("munge"), random(128))
	if err != nil {
		return err
	}
	cmd.Env = c.Env()
	return c.serve(ctx, "munged", cmd, func() error {
		conn, err := net.Dial("unix", c.MungeSocket)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// serve starts a daemon and waits until it answers.
func (c *Cluster) serve(ctx context.Context, name string, cmd *exec.Cmd, answers func() error) error {
	d, err := c.spawn(name, cmd)
	if err != nil {
		return err
	}
	last := errors.New("it was not asked")
	Wait(ctx, time.Minute, func() bool {
		if d.Alive() {
			last = answers()
		}
		return last == nil || !d.Alive()
	})
	if last != nil || !d.Alive() {
		return fmt.Errorf("%s does not answer: %w", name, last)
	}
	return nil
}

// Keep starts a command that dies with the cluster, its output in a file of the log folder.
func (c *Cluster) Keep(file string, cmd *exec.Cmd) (*Daemon, error) {
	log, err := os.OpenFile(c.Path("log", file), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d := &Daemon{Process: cmd.Process, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	return d, nil
}

// spawn starts one of the daemons that Slurm needs in the foreground.
func (c *Cluster) spawn(name string, cmd *exec.Cmd) (*Daemon, error) {
	cmd.Dir = c.Path("log")
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.daemons == nil {
		return nil, fmt.Errorf("start %s: the cluster is closed", name)
	}
	if d := c.daemons[name]; d != nil && d.Alive() {
		return nil, fmt.Errorf("start %s: it is running", name)
	}
	d, err := c.Keep(name+".out", cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.daemons[name] = d
	return d, nil
}

// StartController starts slurmctld, as its own unprivileged user, and waits until it answers.
func (c *Cluster) StartController(ctx context.Context) error {
	cmd, err := c.Command(context.Background(), "slurm", controller, "-D")
	if err != nil {
		return err
	}
	return c.serve(ctx, controller, cmd, func() error {
		out, err := c.Run(ctx, "scontrol", "ping")
		if err == nil && !strings.Contains(out, "is UP") {
			err = errors.New(out)
		}
		return err
	})
}

// startBackup starts the second slurmctld. The name of its host, which is one of its
// own, tells it that it is the second; its files for a process number and a log are its own, too.
func (c *Cluster) startBackup() error {
	dir := c.Path("backup")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"gres.conf", "cgroup.conf", "job_submit.lua", "slurm.key"} {
		if err := os.Symlink(c.Path(name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	first, err := os.ReadFile(c.Conf())
	if err != nil {
		return err
	}
	conf := strings.NewReplacer("/slurmctld.pid", "/slurmctld-backup.pid", "/slurmctld.log",
		"/slurmctld-backup.log").Replace(string(first))
	for name, text := range map[string]string{"slurm.conf": conf, "hosts": "127.0.0.1 localhost " + c.host +
		"\n127.0.0.2 " + c.backupHost() + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	cmd, err := c.Command(context.Background(), "", controller, "-D", "-f", filepath.Join(dir, "slurm.conf"))
	if err != nil {
		return err
	}
	script := "mount --make-rprivate / && mount --bind " + filepath.Join(dir, "hosts") +
		` /etc/hosts && echo "$0" >/proc/sys/kernel/hostname && exec "$@"`
	cmd.Args = append([]string{"sh", "-c", script, c.backupHost(), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.Env = append(cmd.Env, "SLURM_CONF="+filepath.Join(dir, "slurm.conf"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS | syscall.CLONE_NEWNS}
	_, err = c.spawn(controller+"-backup", cmd)
	return err
}

// StopController ends slurmctld as systemd would: it saves its state.
func (c *Cluster) StopController() { c.stop(controller, syscall.SIGTERM) }

// KillController ends slurmctld as a power cut would.
func (c *Cluster) KillController() { c.stop(controller, syscall.SIGKILL) }

// StartNode starts the i-th node's slurmd, i from 0. WaitNodes waits until it is there.
func (c *Cluster) StartNode(i int) error { return c.startNode(i) }

func (c *Cluster) startNode(i int, more ...string) error {
	cmd, err := c.Command(context.Background(), "", "slurmd", append(more, "-D", "-N", NodeName(i))...)
	if err != nil {
		return err
	}
	_, err = c.spawn("slurmd-"+NodeName(i), cmd)
	return err
}

// KillNode ends the i-th node's slurmd as a power cut would; its jobs go on.
func (c *Cluster) KillNode(i int) { c.stop("slurmd-"+NodeName(i), syscall.SIGKILL) }

// WaitNodes waits until every node is in service, whether or not power saving has it powered down meanwhile.
func (c *Cluster) WaitNodes(ctx context.Context, d time.Duration) error {
	var states []string
	if !Wait(ctx, d, func() bool {
		out, err := c.Run(ctx, "sinfo", "-h", "-N", "-p", Partition, "-o", "%t")
		states = strings.Fields(strings.ReplaceAll(out, "~", ""))
		return err == nil && len(states) == c.Options.Nodes-len(c.Options.Apart) &&
			!slices.ContainsFunc(states, func(s string) bool { return s != "idle" && s != "mix" && s != "alloc" })
	}) {
		return fmt.Errorf("not all nodes are in service: %v", states)
	}
	return nil
}

func (c *Cluster) stop(name string, sig syscall.Signal) {
	c.mu.Lock()
	d := c.daemons[name]
	delete(c.daemons, name)
	c.mu.Unlock()
	if d == nil {
		return
	}
	if sig == syscall.SIGKILL {
		// Its helper processes go at the same time.
		_ = syscall.Kill(-d.Process.Pid, syscall.SIGKILL)
	}
	d.End(sig)
}
