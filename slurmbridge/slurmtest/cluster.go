// Package slurmtest runs a private real Slurm in one folder: slurmctld, some
// slurmds on this host, and munged, on ports and sockets of their own. Tests and
// the demo use it; a Slurm that is installed here is never touched.
package slurmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Options says what cluster to start. A zero field means its default.
type Options struct {
	// Dir is the cluster's folder; "" = a new one under the temporary folder,
	// removed by Close. Its path must be short: it holds sockets.
	Dir string
	// Nodes, default 1, named n1, n2, …; GPUs a node, default 1.
	Nodes, GPUs int
	GPUType     string // default "titanxp"
	// Sharing is "mps" (default) or "shard". AllSharing sets gres.conf's
	// Flags=all_sharing for mps.
	Sharing    string
	AllSharing bool
	CPUs       int // a node, default 16
	MemMiB     int // a node, default 16000
	// Lua is a job_submit script to install; its default paths of gate and wake
	// file are replaced by the cluster's. "" = none.
	Lua string
	// Hooks are command lines of programs outside the cluster's folder; "" = none.
	Prolog, Epilog, TaskProlog, EpilogSlurmctld string
	// Scheduler is SchedulerParameters, "" = Slurm's defaults.
	Scheduler string
	// Extra lines of slurm.conf.
	Extra []string
	// Root runs Slurm from another root folder, by chroot.
	Root string
	// Binds are further folders to be seen inside Root at the same path.
	Binds []string
}

// Cluster is a running private Slurm.
type Cluster struct {
	Dir      string
	Options  Options
	GateFile string
	WakeFile string
	// MungeSocket is the private munged's.
	MungeSocket string

	remove bool
	host   string
	ports  []int
	procs  map[string]*os.Process
	mounts []string
}

// Missing says what this machine lacks to run a cluster, nil = nothing.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("a private Slurm needs root: slurmd starts jobs as their users")
	}
	for _, prog := range []string{"slurmctld", "slurmd", "munged", "sbatch"} {
		if _, err := look(prog); err != nil {
			return fmt.Errorf("%s is missing: apt-get install slurm-wlm munge", prog)
		}
	}
	if _, err := user.Lookup("slurm"); err != nil {
		return errors.New("there is no user slurm: apt-get install slurm-wlm")
	}
	return nil
}

// look finds a daemon, which need not be on everybody's PATH.
func look(prog string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		path := filepath.Join(dir, prog)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return exec.LookPath(prog)
}

func (o *Options) defaults() {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.Nodes, 1)
	def(&o.GPUs, 1)
	def(&o.CPUs, 16)
	def(&o.MemMiB, 16000)
	if o.GPUType == "" {
		o.GPUType = "titanxp"
	}
	if o.Sharing == "" {
		o.Sharing = "mps"
	}
}

// Start starts a cluster and returns when its nodes are idle. What was started is
// ended again where it fails.
func Start(ctx context.Context, o Options) (c *Cluster, err error) {
	if err := Missing(); err != nil {
		return nil, err
	}
	o.defaults()
	c = &Cluster{Dir: o.Dir, Options: o, procs: map[string]*os.Process{}}
	if c.Dir == "" {
		if c.Dir, err = os.MkdirTemp("", "sb"); err != nil {
			return nil, fmt.Errorf("make cluster folder: %w", err)
		}
		c.remove = true
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w%s", err, c.Logs(8))
			_ = c.Close() // the first error is the one to tell
			c = nil
		}
	}()
	if err := c.layout(); err != nil {
		return c, fmt.Errorf("lay out cluster: %w", err)
	}
	if err := c.startMunge(ctx); err != nil {
		return c, err
	}
	// Another cluster that starts at the same time may have taken a port between
	// its choice and slurmctld's bind: then once more with others.
	for try := 0; ; try++ {
		if err := c.configure(); err != nil {
			return c, fmt.Errorf("write slurm.conf: %w", err)
		}
		err := c.startDaemons(ctx)
		if err == nil {
			return c, nil
		}
		if try == 2 || ctx.Err() != nil {
			return c, err
		}
		c.stopDaemons()
	}
}

// layout makes the folders, device nodes and keys.
func (c *Cluster) layout() error {
	slurm, err := ids("slurm")
	if err != nil {
		return err
	}
	mungeUser, err := ids("munge")
	if err != nil {
		return err
	}
	if err := os.Chmod(c.Dir, 0o755); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		own  [2]int
		mode os.FileMode
	}{
		{"state", slurm, 0o700}, {"log", slurm, 0o755}, {"run", slurm, 0o755}, {"munge", mungeUser, 0o755},
		{"dev", [2]int{}, 0o755}, {"spool", [2]int{}, 0o755}, {"out", [2]int{}, 0o1777},
	} {
		path := filepath.Join(c.Dir, d.name)
		if err := os.MkdirAll(path, d.mode); err != nil {
			return err
		}
		if err := os.Chown(path, d.own[0], d.own[1]); err != nil {
			return err
		}
		if err := os.Chmod(path, d.mode); err != nil {
			return err
		}
	}
	for i := range c.Options.GPUs {
		// A GPU is a character device to Slurm; this one is /dev/null's twin.
		path := filepath.Join(c.Dir, "dev", fmt.Sprintf("nvidia%d", i))
		if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|3); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("mknod %s: %w", path, err)
		}
	}
	c.GateFile = filepath.Join(c.Dir, "run", "gate")
	c.WakeFile = filepath.Join(c.Dir, "run", "wake")
	c.MungeSocket = filepath.Join(c.Dir, "munge", "socket")
	if c.host, err = os.Hostname(); err != nil {
		return err
	}
	c.host, _, _ = strings.Cut(c.host, ".")
	return c.bind()
}

func ids(name string) ([2]int, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return [2]int{}, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return [2]int{}, err
	}
	gid, err := strconv.Atoi(u.Gid)
	return [2]int{uid, gid}, err
}

// Env is the environment for Slurm's commands of this cluster.
func (c *Cluster) Env() []string {
	return []string{"SLURM_CONF=" + c.Conf(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "TZ=UTC"}
}

// Conf is the path of slurm.conf.
func (c *Cluster) Conf() string { return filepath.Join(c.Dir, "slurm.conf") }

// Path joins names to the cluster's folder.
func (c *Cluster) Path(names ...string) string {
	return filepath.Join(append([]string{c.Dir}, names...)...)
}

// Command prepares one of Slurm's commands, run as the given user ("" = as is).
func (c *Cluster) Command(ctx context.Context, as, name string, args ...string) (*exec.Cmd, error) {
	argv := append([]string{name}, args...)
	if c.Options.Root != "" {
		argv = append([]string{"chroot", c.Options.Root}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = c.Env()
	cmd.Dir = c.Path("out")
	if as == "" || as == "root" {
		return cmd, nil
	}
	id, err := ids(as)
	if err != nil {
		return nil, err
	}
	if c.Options.Root != "" {
		// chroot changes the user itself, once it is inside.
		argv = append([]string{"chroot", fmt.Sprintf("--userspec=%d:%d", id[0], id[1]), c.Options.Root, name}, args...)
		cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = c.Env()
		return cmd, nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id[0]), Gid: uint32(id[1])}}
	return cmd, nil
}

// Run runs one of Slurm's commands as root and returns what it printed.
func (c *Cluster) Run(ctx context.Context, name string, args ...string) (string, error) {
	return c.RunAs(ctx, "", name, args...)
}

// RunAs is Run as another user.
func (c *Cluster) RunAs(ctx context.Context, as, name string, args ...string) (string, error) {
	cmd, err := c.Command(ctx, as, name, args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// Submit runs sbatch as a user with a script on standard input, and returns the
// job's number. Output goes to out/ID.out in the cluster's folder unless args say
// otherwise.
func (c *Cluster) Submit(ctx context.Context, as, script string, args ...string) (string, error) {
	args = append([]string{"--parsable", "--output=" + c.Path("out", "%A.out")}, args...)
	cmd, err := c.Command(ctx, as, "sbatch", args...)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(script, "#!") {
		script = "#!/bin/sh\n" + script
	}
	cmd.Stdin = strings.NewReader(script)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("sbatch %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	id, _, _ := strings.Cut(strings.TrimSpace(string(out)), ";")
	return id, nil
}

// Job returns the fields of `scontrol show job`. A job that is gone has none.
func (c *Cluster) Job(ctx context.Context, ref string) (map[string]string, error) {
	out, err := c.Run(ctx, "scontrol", "-o", "show", "job", ref)
	if err != nil {
		if strings.Contains(out, "Invalid job id") {
			return map[string]string{}, nil
		}
		return nil, err
	}
	f := map[string]string{}
	for _, word := range strings.Fields(out) {
		if k, v, ok := strings.Cut(word, "="); ok {
			if _, dup := f[k]; !dup {
				f[k] = v
			}
		}
	}
	return f, nil
}

// Wait polls until ok is true or the time is over, and reports which.
func Wait(ctx context.Context, d time.Duration, ok func() bool) bool {
	end := time.Now().Add(d)
	for {
		if ok() {
			return true
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// WaitState waits until the job is in one of the states, and returns the state it
// was last seen in ("" = it is gone).
func (c *Cluster) WaitState(ctx context.Context, d time.Duration, ref string, states ...string) (string, bool) {
	last := ""
	ok := Wait(ctx, d, func() bool {
		f, err := c.Job(ctx, ref)
		if err != nil {
			return false
		}
		last = f["JobState"]
		for _, s := range states {
			if s == last {
				return true
			}
		}
		return false
	})
	return last, ok
}
