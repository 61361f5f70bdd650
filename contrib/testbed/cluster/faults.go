package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// Names of daemons.
const (
	BridgeDaemon = "slurmbridge"
	controller   = "slurmctld"
)

// Fault is one kind of misfortune, and what it does to real daemons.
type Fault struct {
	Name   string
	Weight int // of random choices
	// Least and Most are how long it lasts, s; 0 = it breaks once and nothing is to be mended.
	Least, Most float64
	// Slurm: it breaks something of Slurm's. Plain: plain Slurm's jobs on that node, or at their
	// end, feel it, too, and Slurm doesn't show it.
	Slurm, Plain bool
	// Node: it is one node's.
	Node bool
	// program: one of its processes is killed. Otherwise thing names what breaks, one fault at a time.
	program      string
	thing        func(s *Stack, node int) string
	broken, mend func(s *Stack, thing string, node int) error
}

// ErrNothing says that there was nothing to break.
var ErrNothing = errors.New("nothing to break")

// Faults are all that is known.
var Faults = []Fault{
	{Name: "bridge killed", Weight: 6, Least: 1, Most: 8, thing: bridge, broken: kill, mend: again},
	{
		Name: "bridge killed for longer than the lease", Weight: 1, Least: 40, Most: 70, thing: bridge, broken: kill,
		mend: again,
	},
	{
		Name: "bridge stopped", Weight: 4, Least: 2, Most: 12, thing: bridge, broken: signal(syscall.SIGSTOP),
		mend: signal(syscall.SIGCONT),
	},
	{
		Name: "bridge stopped for longer than the lease", Weight: 1, Least: 35, Most: 60, thing: bridge,
		broken: signal(syscall.SIGSTOP), mend: signal(syscall.SIGCONT),
	},
	{Name: "agent killed", Weight: 8, Least: 1, Most: 20, Node: true, thing: agent, broken: kill, mend: again},
	{
		Name: "agent stopped", Weight: 4, Least: 2, Most: 20, Node: true, thing: agent, broken: signal(syscall.SIGSTOP),
		mend: signal(syscall.SIGCONT),
	},
	{Name: "agents cut off", Weight: 4, Least: 5, Most: 40, thing: named("wire"), broken: cut(true), mend: cut(false)},
	{Name: "hook killed", Weight: 12, program: "slurmbridge-hook"},
	{Name: "MPS control daemon killed", Weight: 2, program: "nvidia-cuda-mps-control"},
	{Name: "MPS server killed", Weight: 2, program: "nvidia-cuda-mps-server"},
	{
		Name: "slurmctld killed", Weight: 2, Least: 1, Most: 5, Slurm: true, Plain: true, thing: named(controller),
		broken: endController(true), mend: startController,
	},
	{
		Name: "slurmctld restarted", Weight: 2, Least: 1, Most: 5, Slurm: true, Plain: true, thing: named(controller),
		broken: endController(false), mend: startController,
	},
	{
		Name: "slurmctld stopped", Weight: 4, Least: 1, Most: 8, Slurm: true, Plain: true, thing: named(controller),
		broken: signalAll(syscall.SIGSTOP), mend: signalAll(syscall.SIGCONT),
	},
	{
		Name: "slurmd killed", Weight: 4, Least: 1, Most: 8, Slurm: true, Plain: true, Node: true, thing: nodes("slurmd "),
		broken: func(s *Stack, _ string, node int) error { s.KillNode(node); return nil },
		mend:   func(s *Stack, _ string, node int) error { return s.StartNode(node) },
	},
	{
		Name: "partition down", Weight: 4, Least: 5, Most: 30, Slurm: true, thing: partition, broken: update("State=DOWN"),
		mend: update("State=UP"),
	},
	{
		Name: "node drained", Weight: 4, Least: 5, Most: 40, Slurm: true, Node: true, thing: nodes("NodeName="),
		broken: update("State=DRAIN", "Reason=fault"), mend: update("State=RESUME"),
	},
	{
		Name: "disk full", Weight: 4, Least: 5, Most: 40, thing: named("disk"),
		broken: func(s *Stack, _ string, _ int) error { return s.Setup.Disk.Fill() },
		mend:   func(s *Stack, _ string, _ int) error { return s.Setup.Disk.Empty() },
	},
	{Name: "gate cancelled", Weight: 2, thing: named("gate"), broken: cancelGate},
}

func named(thing string) func(*Stack, int) string { return func(*Stack, int) string { return thing } }

func nodes(kind string) func(*Stack, int) string {
	return func(_ *Stack, node int) string { return kind + slurmtest.NodeName(node) }
}

func bridge(*Stack, int) string             { return BridgeDaemon }
func agent(s *Stack, node int) string       { return s.Agent(node) }
func kill(s *Stack, d string, _ int) error  { s.Kill(d); return nil }
func again(s *Stack, d string, _ int) error { return s.Again(d) }

func signal(sig syscall.Signal) func(*Stack, string, int) error {
	return func(s *Stack, daemon string, _ int) error { return s.Daemon(daemon).Process.Signal(sig) }
}

// signalAll signals every process of a program.
func signalAll(sig syscall.Signal) func(*Stack, string, int) error {
	return func(s *Stack, program string, _ int) error {
		pids, err := s.Processes(program)
		for _, pid := range pids {
			err = errors.Join(err, syscall.Kill(pid, sig))
		}
		return err
	}
}

func cut(off bool) func(*Stack, string, int) error {
	return func(s *Stack, _ string, _ int) error { s.Wire.Set(off); return nil }
}

func endController(kill bool) func(*Stack, string, int) error {
	return func(s *Stack, _ string, _ int) error {
		if kill {
			s.KillController()
		} else {
			s.StopController()
		}
		return nil
	}
}

// startController starts slurmctld until it is there.
func startController(s *Stack, _ string, _ int) error {
	var err error
	for range 5 {
		if err = s.StartController(context.Background()); err == nil {
			return nil
		}
		s.KillController()
	}
	return err
}

// partition is the one that goes down where this node was drawn.
func partition(s *Stack, node int) string {
	all := []string{"PartitionName=" + slurmtest.Partition}
	for _, line := range s.Cluster.Options.Extra {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "PartitionName=") &&
			!strings.Contains(line, "Hidden=YES") {
			all = append(all, name)
		}
	}
	return all[node%len(all)]
}

// update has Slurm change a thing; it tries until slurmctld is there.
func update(change ...string) func(*Stack, string, int) error {
	return func(s *Stack, thing string, _ int) error {
		var err error
		for range 60 {
			if _, err = s.Run(context.Background(), "scontrol", append([]string{"update", thing}, change...)...); err == nil {
				return nil
			}
			time.Sleep(time.Second)
		}
		return err
	}
}

// Gate is the job that the gate file names, 0 = none.
func (s *Stack) Gate() (id int) {
	text, _ := os.ReadFile(s.GateFile)
	if _, err := fmt.Sscanf(string(text), "job=%d", &id); err != nil {
		return 0
	}
	return id
}

// cancelGate is the operator's off switch.
func cancelGate(s *Stack, _ string, _ int) error {
	id := s.Gate()
	if id == 0 {
		return ErrNothing
	}
	_, err := s.Run(context.Background(), "scancel", strconv.Itoa(id))
	return err
}

// Break plays the fault of this name, of this node if it is a node's, and returns what mends it.
func (s *Stack) Break(name string, node int) (mend func() error, err error) {
	for _, f := range Faults {
		if f.Name == name {
			thing := f.thing(s, node)
			return func() error { return f.mend(s, thing, node) }, f.broken(s, thing, node)
		}
	}
	return nil, fmt.Errorf("there is no fault %q", name)
}

// Play breaks something, of this node if it is a node's, for so many seconds, and mends it in any case. It
// returns the node that was hit, "" = none or unknown, and ErrNothing where nothing could be broken.
func (f *Fault) Play(ctx context.Context, s *Stack, node int, seconds float64, rnd *rand.Rand) (string, error) {
	if f.program != "" {
		return s.killOne(f.program, rnd)
	}
	thing := f.thing(s, node)
	if _, taken := s.broken.LoadOrStore(thing, true); taken {
		return "", ErrNothing
	}
	defer s.broken.Delete(thing)
	name := ""
	if f.Node {
		name = slurmtest.NodeName(node)
	}
	if err := f.broken(s, thing, node); err != nil || f.mend == nil {
		return name, err
	}
	Sleep(ctx, seconds)
	return name, f.mend(s, thing, node)
}

// killOne kills a process of a program that comes and goes, and returns the node that it served, "" = unknown.
func (s *Stack) killOne(program string, rnd *rand.Rand) (string, error) {
	var pids []int
	// A hook is there for milliseconds: wait for one.
	for end := time.Now().Add(3 * time.Second); len(pids) == 0 && time.Now().Before(end); {
		var err error
		if pids, err = s.Processes(program); err != nil {
			return "", err
		}
	}
	if len(pids) == 0 {
		return "", ErrNothing
	}
	pid := pids[rnd.IntN(len(pids))]
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	vars, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if syscall.Kill(pid, syscall.SIGKILL) != nil {
		return "", ErrNothing
	}
	text := strings.ReplaceAll(string(line)+"\x00"+string(vars)+"\x00", "\x00", "\n")
	for i, name := range s.Nodes() {
		if strings.Contains(text, "SLURMD_NODENAME="+name+"\n") || strings.Contains(text, "-"+name+".yaml") ||
			strings.Contains(text, s.StateOf(i)+"\n") {
			return name, nil
		}
	}
	return "", nil
}

// Disk is a small file system of its own, for the bridge's database and the agents' spools;
// see Setup.Disk.
type Disk struct {
	Dir string
	mib int
}

// NewDisk mounts a disk of so many MiB that belongs to a user. It takes root, and is there for
// every process in this one's mount namespace.
func NewDisk(owner string, mib int) (*Disk, error) {
	id, err := slurmtest.IDs(owner)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "slurmbridge-disk-")
	if err != nil {
		return nil, err
	}
	options := fmt.Sprintf("size=%dm,mode=755,uid=%d,gid=%d", mib, id.Uid, id.Gid)
	if err := unix.Mount("disk", dir, "tmpfs", 0, options); err != nil {
		return nil, fmt.Errorf("mount the disk: %w", errors.Join(err, os.Remove(dir)))
	}
	return &Disk{dir, mib}, nil
}

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Fill leaves no room.
func (d *Disk) Fill() error {
	err := os.WriteFile(d.ballast(), make([]byte, d.mib<<20), 0o600)
	if errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}

// Empty makes room again.
func (d *Disk) Empty() error { return os.Remove(d.ballast()) }

// Close unmounts it.
func (d *Disk) Close() { _ = errors.Join(unix.Unmount(d.Dir, unix.MNT_DETACH), os.Remove(d.Dir)) }

// Wire is what agents reach the bridge through, and can be cut.
type Wire struct {
	*httptest.Server
	mu  sync.Mutex
	cut chan struct{} // closed when it is mended; nil = it isn't cut
}

func newWire(to string) (*Wire, error) {
	at, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	w, on := &Wire{}, httputil.NewSingleHostReverseProxy(at)
	w.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		cut := w.cut
		w.mu.Unlock()
		if cut == nil {
			on.ServeHTTP(out, r)
		} else {
			<-cut // nothing comes through and nothing is refused
		}
	}))
	return w, nil
}

// Set cuts the wire or mends it; what hung on it breaks.
func (w *Wire) Set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.CloseClientConnections()
	if w.cut != nil {
		close(w.cut)
		w.cut = nil
	}
	if cut {
		w.cut = make(chan struct{})
	}
}
