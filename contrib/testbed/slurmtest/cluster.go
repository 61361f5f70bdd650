// Package slurmtest runs a private real Slurm in one folder: slurmctld, some slurmds on this host, and munged, on ports
// and sockets of their own. Tests and the demo use it; a Slurm that is installed here is never touched.
//
// The daemons die with the process that started them. What a killed process
// leaves all the same (jobs, the folder) is cleared away by the next Start.
package slurmtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options says what cluster to start. A zero field means its default.
type Options struct {
	// Dir is the cluster's folder, new and empty; "" = one under the temporary folder, removed by Close. Its path must be
	// short, as it holds sockets, absolute and of plain characters. Every user must be able to reach it.
	Dir string
	// Nodes, default 1, named n1, n2, …; GPUs a node, default 1, Titan Xps.
	Nodes, GPUs int
	// Cards are the types of each node's GPUs, one by one; they overrule Nodes and GPUs. Where one is a MIG instance
	// ("1g.10gb"), shares are gres/shard without files.
	Cards [][]string
	// Apart are nodes, by number, that only Extra's partitions have.
	Apart []int
	// Sharing is "mps" (default), "shard", or "none": GPUs are handed out whole only.
	Sharing string
	// Unshared are the GPUs of each node, by index, that have no shares: split by MIG, say.
	Unshared []int
	// GPUMore is what else a GPU's line has in gres.conf; nil = nothing.
	GPUMore func(node, gpu int) string
	CPUs    int // a node, default 16
	MemMiB  int // a node, default 16000
	// Lua is a job_submit script to install; its default paths of gate and wake
	// file are replaced by the cluster's. "" = none.
	Lua string
	// JobSubmit is JobSubmitPlugins, "" = lua where there is a script.
	JobSubmit string
	// Hooks are programs' paths; "" = none. Under Root they must lie in the cluster's folder or in Binds.
	Prolog, Epilog, TaskProlog, EpilogSlurmctld string
	// NodeMore are further settings of each node's line in slurm.conf, such as its features.
	NodeMore []string
	// PowerSaving: Slurm has programs that power nodes down and up, which end and start their slurmds. When is Extra's to
	// say: SuspendTime and the like.
	PowerSaving bool
	// Scheduler is SchedulerParameters, "" = Slurm's defaults.
	Scheduler string
	// Extra are further lines of slurm.conf.
	Extra []string
	// Files are further files next to slurm.conf, or other ones than these options make, by name; DIR is the cluster's
	// folder there, with the GPUs in dev.
	Files map[string]string
	// Accounting gives the cluster a slurmdbd and a MariaDB of its own; see
	// MissingAccounting. What is enforced and counted is Extra's to say.
	Accounting bool
	// AuthSlurm lets Slurm identify users by itself (AuthType=auth/slurm), with a key of the
	// cluster's own and no munged; see RequireAuthSlurm.
	AuthSlurm bool
	// Backup starts a second slurmctld, which takes over where the first one is gone for BackupAfter; not with Root.
	Backup bool
	// OneCPU keeps daemons and jobs to one CPU of the machine. Linux 6.18 numbers namespaces by CPU, and refuses a job's
	// own where it was made on another CPU than the one before it.
	OneCPU bool
	// Root runs Slurm from another root folder (contrib/mkroot makes one). The folder is
	// only read: what is written there goes to memory and is gone with the cluster.
	Root string
	// Binds are further folders to be seen inside Root, at the same path.
	Binds []string
	// Driver: /proc/driver is the folder driver of the cluster's, which Prepare fills, to its daemons and jobs.
	Driver bool
	// Prepare is called when the folder is there and no daemon yet: it may put files there and set the hooks in c.Options.
	Prepare func(c *Cluster) error
}

// Prompt has Slurm look at its queue often (Options.Scheduler): its own pauses, of up to a minute, say nothing of ours.
const Prompt = "bf_interval=1,sched_interval=1,batch_sched_delay=0"

// SoonAgain is a line for Options.Extra: before 25.11 a job that is put back begins when its credential has expired, by
// default after two minutes.
const SoonAgain = "AuthInfo=socket=DIR/munge/socket,cred_expire=10"

// Cluster is a running private Slurm. Its methods may be called by several goroutines at once.
type Cluster struct {
	Dir     string
	Options Options
	// GateFile and WakeFile are where the job_submit script looks for the gate and
	// writes its wake-ups to. SlurmUser may write both.
	GateFile, WakeFile string
	// Release is Slurm's, e.g. "22.05.8".
	Release string
	// MungeSocket is the private munged's, which isn't there with Options.AuthSlurm.
	MungeSocket string

	remove bool // Start made the folder
	host   string
	lock   *os.File
	// slurmctld, slurmdbd, and slurmd of each node listen there.
	port, dbdPort string
	nodePorts     []string
	namespace     int // the process that holds the mount namespace of the daemons; 0 = they have none of their own

	mu      sync.Mutex
	claims  []io.Closer        // of ports, and the pipe of power saving
	daemons map[string]*Daemon // nil once it is closed
}

// Missing says what this machine lacks to run a cluster, nil = nothing.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("a private Slurm needs root: slurmd starts jobs as their users")
	}
	for _, prog := range []string{"slurmctld", "slurmd", "munged", "sbatch"} {
		if _, err := findProgram("", prog); err != nil {
			return fmt.Errorf("%s is missing: apt-get install slurm-wlm munge", prog)
		}
	}
	return nil
}

// findProgram finds a program in a root folder. Daemons need not be on every user's PATH.
func findProgram(root, prog string) (string, error) {
	if strings.Contains(prog, "/") {
		return prog, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		path := filepath.Join(dir, prog)
		if info, err := os.Stat(filepath.Join(root, path)); err == nil && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w in %s/", prog, exec.ErrNotFound, root)
}

// ReleaseOf returns the version of the Slurm in a root folder.
func ReleaseOf(ctx context.Context, root string) (string, error) {
	path, err := findProgram(root, "slurmctld")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, "-V")
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask for Slurm's version: %w", err)
	}
	words := strings.Fields(string(out)) // "slurm-wlm 22.05.8"
	if len(words) < 2 {
		return "", fmt.Errorf("ask for Slurm's version: it says %q", out)
	}
	return words[1], nil
}

func (o *Options) defaults() {
	if o.Cards == nil {
		o.Cards = slices.Repeat([][]string{slices.Repeat([]string{"titanxp"}, cmp.Or(o.GPUs, 1))}, cmp.Or(o.Nodes, 1))
	}
	o.Nodes = len(o.Cards)
	o.CPUs, o.MemMiB = cmp.Or(o.CPUs, 16), cmp.Or(o.MemMiB, 16000)
	o.Sharing = cmp.Or(o.Sharing, "mps")
	if o.instances() {
		o.Sharing = "shard"
	}
	if o.Lua != "" {
		o.JobSubmit = cmp.Or(o.JobSubmit, "lua")
	}
}

// isInstance reports whether a type of GPU is a MIG instance's.
func isInstance(kind string) bool { return strings.Contains(kind, "g.") }

// instances reports whether nodes have MIG instances.
func (o *Options) instances() bool { return slices.ContainsFunc(slices.Concat(o.Cards...), isInstance) }

// Start starts a cluster and returns when its nodes are idle. What was started is
// ended again where it fails; the error then carries the logs' last lines.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := Missing(); err != nil {
		return nil, err
	}
	o.defaults()
	sweep()
	c := &Cluster{Dir: filepath.Clean(o.Dir), Options: o, daemons: map[string]*Daemon{}}
	var err error
	if o.Dir == "" {
		if c.Dir, err = os.MkdirTemp("", prefix); err != nil {
			return nil, fmt.Errorf("make cluster folder: %w", err)
		}
		c.remove = true
	}
	if c.lock, err = claim(c.Dir); err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start cluster: %w%s", err, c.Logs(8)), c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.layout(); err != nil {
		return fmt.Errorf("lay out the folder: %w", err)
	}
	if c.Options.Prepare != nil {
		if err := c.Options.Prepare(c); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	ports := []*string{&c.port, &c.dbdPort}
	c.nodePorts = make([]string, c.Options.Nodes)
	for i := range c.nodePorts {
		ports = append(ports, &c.nodePorts[i])
	}
	var err error
	for _, p := range ports {
		if *p, err = c.FreePort(); err != nil {
			return err
		}
	}
	if c.Release, err = ReleaseOf(ctx, c.Options.Root); err != nil {
		return err
	}
	if err := c.makeNamespace(ctx); err != nil {
		return err
	}
	if err := c.configure(); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if c.Options.PowerSaving {
		if err := errors.Join(c.preparePower(), c.servePower()); err != nil {
			return fmt.Errorf("power saving: %w", err)
		}
	}
	if c.Options.AuthSlurm { // the key is next to slurm.conf
		err = own(c.Path("slurm.key"), random(1024), "slurm")
	} else {
		err = c.startMunge(ctx)
	}
	if err != nil {
		return err
	}
	if c.Options.Accounting {
		if err := c.startAccounting(ctx); err != nil {
			return fmt.Errorf("accounting: %w", err)
		}
	}
	if err := c.StartController(ctx); err != nil {
		return err
	}
	for i := range c.Options.Nodes {
		if err := c.StartNode(i); err != nil {
			return err
		}
	}
	if err := c.WaitNodes(ctx, time.Minute+time.Duration(c.Options.Nodes)*time.Second/4); err != nil ||
		!c.Options.Backup {
		return err
	}
	return c.startBackup()
}

// layout makes the folders and device nodes.
func (c *Cluster) layout() error {
	if err := os.Chmod(c.Dir, 0o755); err != nil {
		return err
	}
	for name, owner := range map[string]string{
		"state": "slurm", "log": "slurm", "run": "slurm", "munge": "munge", "out": "root", "dev/nvidia-caps": "root",
		"driver": "root", "root": "root", "spool": "root",
	} {
		own, err := IDs(owner)
		if err != nil {
			return err
		}
		path := c.Path(name)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chown(path, int(own.Uid), int(own.Gid)),
			os.Chmod(path, 0o755)); err != nil {
			return err
		}
	}
	// A GPU is a character device to Slurm, as is each file of a MIG instance; these are /dev/null's twins.
	files := map[string]int{"nvidia": 16}
	if c.Options.instances() {
		files["nvidia-caps/nvidia-cap"] = 300
	}
	for name, n := range files {
		for i := range n {
			if err := syscall.Mknod(c.Path("dev", fmt.Sprint(name, i)), syscall.S_IFCHR|0o600, 1<<8|3); err != nil {
				return fmt.Errorf("mknod %s: %w", name, err)
			}
		}
	}
	c.MungeSocket = c.Path("munge", "socket")
	c.GateFile, c.WakeFile = c.Path("run", "gate"), c.Path("run", "wake")
	host, err := os.Hostname()
	c.host, _, _ = strings.Cut(host, ".")
	return errors.Join(err, os.Chmod(c.Path("out"), 0o777|os.ModeSticky), own(c.WakeFile, nil, "slurm"))
}

// own writes a file that only its owner reads.
func own(path string, text []byte, owner string) error {
	id, err := IDs(owner)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path, text, 0o600), os.Chown(path, int(id.Uid), int(id.Gid)))
}

// random is a new key of so many bytes.
func random(bytes int) []byte {
	key := make([]byte, bytes)
	_, _ = rand.Read(key) // which never fails
	return key
}

// IDs are a user's numbers, the same in every Debian for the users it comes with.
func IDs(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	id := &syscall.Credential{}
	_, err = fmt.Sscan(u.Uid+" "+u.Gid, &id.Uid, &id.Gid)
	return id, err
}

// Env is the environment for Slurm's commands of this cluster.
func (c *Cluster) Env() []string {
	return []string{
		"SLURM_CONF=" + c.Conf(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LC_ALL=C", "TZ=UTC",
	}
}

// Conf is the path of slurm.conf.
func (c *Cluster) Conf() string { return c.Path("slurm.conf") }

// Path joins names to the cluster's folder.
func (c *Cluster) Path(names ...string) string {
	return filepath.Join(append([]string{c.Dir}, names...)...)
}

// Close ends every process of the cluster, jobs too, and removes its folder if
// Start made it. A second call does nothing more.
func (c *Cluster) Close() error {
	c.mu.Lock()
	for _, d := range c.daemons {
		// There is nothing to save: the state goes with the folder.
		_ = d.Process.Kill()
	}
	daemons := c.daemons
	c.daemons = nil
	c.mu.Unlock()
	for _, d := range daemons {
		<-d.done
	}
	err := kill(c.Dir)
	for _, claim := range c.claims {
		_ = claim.Close()
	}
	c.claims = nil
	if c.remove {
		if e := os.RemoveAll(c.Dir); e != nil {
			err = errors.Join(err, fmt.Errorf("remove cluster folder: %w", e))
		}
	}
	if c.lock != nil {
		_ = c.lock.Close()
		c.lock = nil
	}
	return err
}

// Logs returns the last n lines of every log, for a message.
func (c *Cluster) Logs(n int) string {
	const last = `find "$0" -type f -size +0 -print0 | sort -z | xargs -0r tail -v -n "$1"`
	out, _ := exec.Command("sh", "-c", last, c.Path("log"), strconv.Itoa(n)).Output()
	return "\n" + string(out)
}

// FreePort is FreePort, for as long as the cluster lives.
func (c *Cluster) FreePort() (string, error) {
	port, claim, err := FreePort()
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims = append(c.claims, claim)
	return port, nil
}

// FreePort takes a free TCP port, below the kernel's range for outgoing connections and above well-known services
// (Slurm's own 6817 among them). Nobody else gets it from here until the claim is closed: a socket named after the
// port, which the kernel gives to one only.
func FreePort() (port string, claim net.Listener, err error) {
	const low, high = 12000, 32000
	for range 1000 {
		port = strconv.Itoa(low + mathrand.IntN(high-low))
		claim, err = net.Listen("unix", "@slurmtest-port-"+port)
		if err != nil {
			continue
		}
		probe, err := net.Listen("tcp", ":"+port)
		if err != nil {
			_ = claim.Close()
			continue
		}
		_ = probe.Close()
		return port, claim, nil
	}
	return "", nil, errors.New("find a free port: none is free")
}
