package slurmtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startMunge starts a munged of the cluster's own.
func (c *Cluster) startMunge(ctx context.Context) error {
	own, err := ids("munge")
	if err != nil {
		return err
	}
	key := make([]byte, 128)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	path := c.Path("munge", "key")
	if err := os.WriteFile(path, key, 0o400); err != nil {
		return fmt.Errorf("write munge key: %w", err)
	}
	if err := os.Chown(path, own[0], own[1]); err != nil {
		return fmt.Errorf("write munge key: %w", err)
	}
	munged, err := look("munged")
	if err != nil {
		return err
	}
	cmd := exec.Command(munged, "--foreground", "--force", "--num-threads=4", "--key-file="+path, "--socket="+c.MungeSocket,
		"--pid-file="+c.Path("munge", "pid"), "--log-file="+c.Path("munge", "munged.log"), "--seed-file="+c.Path("munge", "seed"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(own[0]), Gid: uint32(own[1])}}
	if err := c.spawn("munged", cmd); err != nil {
		return err
	}
	if !Wait(ctx, 10*time.Second, func() bool {
		conn, err := net.Dial("unix", c.MungeSocket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}) {
		return errors.New("munged does not answer")
	}
	return nil
}

// spawn starts a daemon in the foreground with its output in the log folder. It
// dies with this process.
func (c *Cluster) spawn(name string, cmd *exec.Cmd) error {
	log, err := os.OpenFile(c.Path("log", name+".out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	c.procs[name] = cmd.Process
	go func() { _ = cmd.Wait() }() // its end shows in what no longer answers
	return nil
}

// freePorts finds n ports that nobody listens on now.
func freePorts(n int) ([]int, error) {
	var ports []int
	var open []net.Listener
	defer func() {
		for _, l := range open {
			l.Close()
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		open = append(open, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// NodeName is the i-th node's name, from 0.
func NodeName(i int) string { return "n" + strconv.Itoa(i+1) }

// configure writes slurm.conf, gres.conf, cgroup.conf and the job_submit script.
func (c *Cluster) configure() error {
	o := &c.Options
	var err error
	if c.ports, err = freePorts(1 + o.Nodes); err != nil {
		return err
	}
	d := c.Dir
	lines := []string{
		"ClusterName=" + filepath.Base(d),
		fmt.Sprintf("SlurmctldHost=%s(127.0.0.1)", c.host),
		fmt.Sprintf("SlurmctldPort=%d", c.ports[0]),
		"SlurmUser=slurm",
		"AuthType=auth/munge",
		"AuthInfo=socket=" + c.MungeSocket,
		"CredType=cred/munge",
		"StateSaveLocation=" + d + "/state",
		"SlurmdSpoolDir=" + d + "/spool/%n",
		"SlurmctldPidFile=" + d + "/run/slurmctld.pid",
		"SlurmdPidFile=" + d + "/spool/%n.pid",
		"SlurmctldLogFile=" + d + "/log/slurmctld.log",
		"SlurmdLogFile=" + d + "/log/slurmd-%n.log",
		"ProctrackType=proctrack/linuxproc",
		"TaskPlugin=task/none",
		"SelectType=select/cons_tres",
		"SelectTypeParameters=CR_Core_Memory",
		"SlurmdParameters=config_overrides",
		"MpiDefault=none",
		"ReturnToService=2",
		"DefMemPerCPU=100",
		"MaxJobCount=20000",
		"MaxArraySize=10001",
		"KillWait=2",
		"SlurmdTimeout=30",
		"GresTypes=gpu," + o.Sharing,
	}
	opt := func(key, value string) {
		if value != "" {
			lines = append(lines, key+"="+value)
		}
	}
	opt("Prolog", o.Prolog)
	opt("Epilog", o.Epilog)
	opt("TaskProlog", o.TaskProlog)
	opt("EpilogSlurmctld", o.EpilogSlurmctld)
	opt("SchedulerParameters", o.Scheduler)
	if o.Lua != "" {
		lines = append(lines, "JobSubmitPlugins=lua")
		if err := c.installLua(); err != nil {
			return err
		}
	}
	lines = append(lines, o.Extra...)
	var gres, names []string
	flags := ""
	if o.AllSharing && o.Sharing == "mps" {
		flags = " Flags=all_sharing"
	}
	file := d + "/dev/nvidia0"
	if o.GPUs > 1 {
		file = fmt.Sprintf("%s/dev/nvidia[0-%d]", d, o.GPUs-1)
	}
	for i := range o.Nodes {
		n := NodeName(i)
		names = append(names, n)
		if err := os.MkdirAll(c.Path("spool", n), 0o755); err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("NodeName=%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=%d RealMemory=%d Gres=gpu:%s:%d,%s:%d State=UNKNOWN",
			n, c.host, c.ports[1+i], o.CPUs, o.MemMiB, o.GPUType, o.GPUs, o.Sharing, 100*o.GPUs))
		gres = append(gres,
			fmt.Sprintf("NodeName=%s Name=gpu Type=%s File=%s", n, o.GPUType, file),
			fmt.Sprintf("NodeName=%s Name=%s Count=%d File=%s%s", n, o.Sharing, 100*o.GPUs, file, flags))
	}
	lines = append(lines, fmt.Sprintf("PartitionName=gpu Nodes=%s Default=YES MaxTime=UNLIMITED State=UP", strings.Join(names, ",")))
	for name, text := range map[string]string{
		"slurm.conf":  strings.Join(lines, "\n") + "\n",
		"gres.conf":   strings.Join(gres, "\n") + "\n",
		"cgroup.conf": "CgroupPlugin=disabled\n",
	} {
		if name == "cgroup.conf" && o.Root == "" {
			text = "CgroupAutomount=no\n" // 22.05 has no disabled plugin
		}
		if err := os.WriteFile(c.Path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// installLua copies the job_submit script with this cluster's paths in it.
func (c *Cluster) installLua() error {
	text, err := os.ReadFile(c.Options.Lua)
	if err != nil {
		return err
	}
	s := strings.NewReplacer("/run/slurmbridge/gate", c.GateFile, "/run/slurmbridge/wake", c.WakeFile).Replace(string(text))
	return os.WriteFile(c.Path("job_submit.lua"), []byte(s), 0o644)
}

func (c *Cluster) daemon(name string, args ...string) (*exec.Cmd, error) {
	path := "/usr/sbin/" + name
	if c.Options.Root == "" {
		var err error
		if path, err = look(name); err != nil {
			return nil, err
		}
	}
	argv := append([]string{path}, args...)
	if c.Options.Root != "" {
		argv = append([]string{"chroot", c.Options.Root}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = c.Env()
	return cmd, nil
}

// StartController starts slurmctld and waits until it answers.
func (c *Cluster) StartController(ctx context.Context) error {
	cmd, err := c.daemon("slurmctld", "-D")
	if err != nil {
		return err
	}
	own, err := ids("slurm")
	if err != nil {
		return err
	}
	if c.Options.Root == "" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(own[0]), Gid: uint32(own[1])}}
	}
	if err := c.spawn("slurmctld", cmd); err != nil {
		return err
	}
	p := c.procs["slurmctld"]
	if !Wait(ctx, 20*time.Second, func() bool {
		if p.Signal(syscall.Signal(0)) != nil {
			return true
		}
		out, err := c.Run(ctx, "scontrol", "ping")
		return err == nil && strings.Contains(out, "is UP")
	}) || p.Signal(syscall.Signal(0)) != nil {
		return errors.New("slurmctld does not answer")
	}
	return nil
}

// StartNode starts the i-th node's slurmd.
func (c *Cluster) StartNode(i int) error {
	cmd, err := c.daemon("slurmd", "-D", "-N", NodeName(i))
	if err != nil {
		return err
	}
	return c.spawn("slurmd-"+NodeName(i), cmd)
}

func (c *Cluster) startDaemons(ctx context.Context) error {
	if err := c.StartController(ctx); err != nil {
		return err
	}
	for i := range c.Options.Nodes {
		if err := c.StartNode(i); err != nil {
			return err
		}
	}
	if !Wait(ctx, 30*time.Second, func() bool {
		out, err := c.Run(ctx, "sinfo", "-h", "-N", "-o", "%t")
		states := strings.Fields(out)
		return err == nil && len(states) == c.Options.Nodes && !slices.ContainsFunc(states, func(s string) bool { return s != "idle" })
	}) {
		return errors.New("the nodes do not become idle")
	}
	return nil
}

// StopController ends slurmctld as systemd would, KillController as a power cut.
func (c *Cluster) StopController() { c.stop("slurmctld", syscall.SIGTERM) }

// KillController ends slurmctld with SIGKILL.
func (c *Cluster) KillController() { c.stop("slurmctld", syscall.SIGKILL) }

// StopNode ends the i-th node's slurmd; its jobs go on.
func (c *Cluster) StopNode(i int) { c.stop("slurmd-"+NodeName(i), syscall.SIGTERM) }

func (c *Cluster) stop(name string, sig syscall.Signal) {
	p := c.procs[name]
	if p == nil {
		return
	}
	delete(c.procs, name)
	_ = p.Signal(sig)
	if !Wait(context.Background(), 10*time.Second, func() bool { return p.Signal(syscall.Signal(0)) != nil }) {
		_ = p.Kill()
	}
}

func (c *Cluster) stopDaemons() {
	for i := range c.Options.Nodes {
		c.stop("slurmd-"+NodeName(i), syscall.SIGTERM)
	}
	c.stop("slurmctld", syscall.SIGTERM)
}

// Close ends every process of the cluster, jobs too, and removes its folder if
// Start made it.
func (c *Cluster) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if c.procs["slurmctld"] != nil {
		// Jobs end the orderly way first.
		_, _ = c.Run(ctx, "scancel", "--full", "--signal=KILL", "--partition=gpu")
	}
	c.stopDaemons()
	c.reap()
	c.stop("munged", syscall.SIGTERM)
	c.unbind()
	if !c.remove {
		return nil
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		return fmt.Errorf("remove cluster folder: %w", err)
	}
	return nil
}

// reap kills what still runs with this cluster's slurm.conf: slurmstepd, jobs and
// what the hooks left.
func (c *Cluster) reap() {
	mark := "SLURM_CONF=" + c.Conf() + "\x00"
	for range 20 {
		found := false
		procs, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return
		}
		for _, path := range procs {
			pid, err := strconv.Atoi(strings.Split(path, "/")[2])
			if err != nil || pid == os.Getpid() {
				continue
			}
			env, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(env)+"\x00", mark) {
				continue
			}
			found = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if !found {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Logs returns the last n lines of every log, for a message.
func (c *Cluster) Logs(n int) string {
	var b strings.Builder
	_ = filepath.WalkDir(c.Path("log"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || len(text) == 0 {
			return nil
		}
		lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(&b, "\n--- %s\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-n):], "\n"))
		return nil
	})
	return b.String()
}
