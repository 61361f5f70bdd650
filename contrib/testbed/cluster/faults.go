package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
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
	agent        = "gpuprof"
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
	// thing is what breaks, one fault at a time: a daemon, a program of which one process is killed, or any name.
	thing  string
	breaks func(s *Stack, thing string, node int) (broken, error)
}

// broken is what a fault has done.
type broken struct {
	node string // which one's it was, "" = none or unknown
	mend func() error
}

// ErrNothing says that there was nothing to break.
var ErrNothing = errors.New("nothing to break")

// Faults are all that is known.
var Faults = []Fault{
	{Name: "bridge killed", Weight: 6, Least: 1, Most: 8, thing: BridgeDaemon, breaks: kill},
	{Name: "bridge killed for longer than the lease", Weight: 1, Least: 40, Most: 70, thing: BridgeDaemon, breaks: kill},
	{Name: "bridge stopped", Weight: 4, Least: 2, Most: 12, thing: BridgeDaemon, breaks: stop},
	{Name: "bridge stopped for longer than the lease", Weight: 1, Least: 35, Most: 60, thing: BridgeDaemon, breaks: stop},
	{Name: "agent killed", Weight: 8, Least: 1, Most: 20, Node: true, thing: agent, breaks: kill},
	{Name: "agent stopped", Weight: 4, Least: 2, Most: 20, Node: true, thing: agent, breaks: stop},
	{Name: "agents cut off", Weight: 4, Least: 5, Most: 40, thing: "wire", breaks: cut},
	{Name: "hook killed", Weight: 12, thing: "slurmbridge-hook", breaks: killOne},
	{Name: "MPS control daemon killed", Weight: 2, thing: "nvidia-cuda-mps-control", breaks: killOne},
	{Name: "MPS server killed", Weight: 2, thing: "nvidia-cuda-mps-server", breaks: killOne},
	{
		Name: "slurmctld killed", Weight: 2, Least: 1, Most: 5, Slurm: true, Plain: true, thing: controller,
		breaks: endController((*slurmtest.Cluster).KillController),
	},
	{
		Name: "slurmctld restarted", Weight: 2, Least: 1, Most: 5, Slurm: true, Plain: true, thing: controller,
		breaks: endController((*slurmtest.Cluster).StopController),
	},
	{Name: "slurmctld stopped", Weight: 4, Least: 1, Most: 8, Slurm: true, Plain: true, thing: controller, breaks: stop},
	{
		Name: "slurmd killed", Weight: 4, Least: 1, Most: 8, Slurm: true, Plain: true, Node: true, thing: "slurmd",
		breaks: func(s *Stack, _ string, node int) (broken, error) {
			s.KillNode(node)
			return broken{mend: func() error { return s.StartNode(node) }}, nil
		},
	},
	{Name: "partition down", Weight: 4, Least: 5, Most: 30, Slurm: true, thing: "partition", breaks: partitionDown},
	{
		Name: "node drained", Weight: 4, Least: 5, Most: 40, Slurm: true, Node: true, thing: "node",
		breaks: func(s *Stack, _ string, node int) (broken, error) {
			name := "NodeName=" + slurmtest.NodeName(node)
			return broken{mend: func() error { return s.update(name, "State=RESUME") }},
				s.update(name, "State=DRAIN", "Reason=fault")
		},
	},
	{
		Name: "disk full", Weight: 4, Least: 5, Most: 40, thing: "disk",
		breaks: func(s *Stack, _ string, _ int) (broken, error) {
			return broken{mend: s.Setup.Disk.Empty}, s.Setup.Disk.Fill()
		},
	},
	{Name: "gate cancelled", Weight: 2, thing: "gate", breaks: cancelGate},
}

// kill ends a daemon of ours as a power cut would.
func kill(s *Stack, daemon string, _ int) (broken, error) {
	if s.Daemon(daemon) == nil {
		return broken{}, ErrNothing // it never came to be started
	}
	s.Kill(daemon)
	return broken{mend: func() error { return s.Again(daemon) }}, nil
}

// stop has every process of a daemon stand still.
func stop(s *Stack, daemon string, _ int) (broken, error) {
	signal := func(sig syscall.Signal) error {
		if d := s.Daemon(daemon); d != nil {
			return d.Process.Signal(sig)
		}
		pids, err := s.Processes(daemon)
		for _, pid := range pids {
			err = errors.Join(err, syscall.Kill(pid, sig))
		}
		return err
	}
	return broken{mend: func() error { return signal(syscall.SIGCONT) }}, signal(syscall.SIGSTOP)
}

func cut(s *Stack, _ string, _ int) (broken, error) {
	if s.Wire == nil {
		return broken{}, ErrNothing
	}
	s.Wire.Set(true)
	return broken{mend: func() error { s.Wire.Set(false); return nil }}, nil
}

// endController ends slurmctld, and starts it until it is there.
func endController(end func(*slurmtest.Cluster)) func(*Stack, string, int) (broken, error) {
	return func(s *Stack, _ string, _ int) (broken, error) {
		end(s.Cluster)
		return broken{mend: func() (err error) {
			for range 5 {
				if err = s.StartController(context.Background()); err == nil {
					break
				}
				s.KillController()
			}
			return err
		}}, nil
	}
}

// partitionDown closes a partition that users have, drawn by the node.
func partitionDown(s *Stack, _ string, node int) (broken, error) {
	all := []string{"PartitionName=" + slurmtest.Partition}
	for _, line := range s.Cluster.Options.Extra {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "PartitionName=") &&
			!strings.Contains(line, "Hidden=YES") {
			all = append(all, name)
		}
	}
	name := all[node%len(all)]
	return broken{mend: func() error { return s.update(name, "State=UP") }}, s.update(name, "State=DOWN")
}

// update has Slurm change a thing; it tries until slurmctld is there.
func (s *Stack) update(change ...string) (err error) {
	for range 60 {
		if _, err = s.Run(context.Background(), "scontrol", append([]string{"update"}, change...)...); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	return err
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
func cancelGate(s *Stack, _ string, _ int) (broken, error) {
	id := s.Gate()
	if id == 0 {
		return broken{}, ErrNothing
	}
	_, err := s.Run(context.Background(), "scancel", strconv.Itoa(id))
	return broken{}, err
}

// killOne kills a process of a program that comes and goes.
func killOne(s *Stack, program string, _ int) (broken, error) {
	var pids []int
	// A hook is there for milliseconds: wait for one.
	for end := time.Now().Add(3 * time.Second); len(pids) == 0 && time.Now().Before(end); {
		var err error
		if pids, err = s.Processes(program); err != nil {
			return broken{}, err
		}
	}
	if len(pids) == 0 {
		return broken{}, ErrNothing
	}
	pid := pids[rand.IntN(len(pids))] //nolint:gosec // not secret
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	vars, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if syscall.Kill(pid, syscall.SIGKILL) != nil {
		return broken{}, ErrNothing
	}
	text := strings.ReplaceAll(string(line)+"\x00"+string(vars)+"\x00", "\x00", "\n")
	for i, name := range s.Nodes() {
		if strings.Contains(text, "SLURMD_NODENAME="+name+"\n") || strings.Contains(text, "-"+name+".yaml") ||
			strings.Contains(text, s.StateOf(i)+"\n") {
			return broken{node: name}, nil
		}
	}
	return broken{}, nil
}

// Break plays the fault of this name, of this node if it is a node's, and returns what mends it.
func (s *Stack) Break(name string, node int) (mend func() error, err error) {
	for i := range Faults {
		if f := &Faults[i]; f.Name == name {
			b, err := f.breaks(s, f.of(node), node)
			if b.mend == nil {
				b.mend = func() error { return nil }
			}
			return b.mend, err
		}
	}
	return nil, fmt.Errorf("there is no fault %q", name)
}

// of is the thing that breaks where this node was drawn.
func (f *Fault) of(node int) string {
	if f.Node {
		return of(f.thing, node)
	}
	return f.thing
}

// Play breaks something, of this node if it is a node's, for so many seconds, and mends it in any case. It
// returns the node that was hit, "" = none or unknown, and ErrNothing where nothing could be broken.
func (f *Fault) Play(ctx context.Context, s *Stack, node int, seconds float64) (string, error) {
	thing := f.of(node)
	if _, taken := s.broken.LoadOrStore(thing, true); taken {
		return "", ErrNothing
	}
	defer s.broken.Delete(thing)
	b, err := f.breaks(s, thing, node)
	if f.Node {
		b.node = slurmtest.NodeName(node)
	}
	if err != nil || b.mend == nil {
		return b.node, err
	}
	Sleep(ctx, seconds)
	return b.node, b.mend()
}

// Sleep waits for so many seconds; false: the context has ended before.
func Sleep(ctx context.Context, s float64) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(s * float64(time.Second))):
		return true
	}
}

// Disk is a small file system of its own, for the bridge's database and the agents' spools; see Setup.Disk.
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
	on.ErrorLog = log.New(io.Discard, "", 0) // a killed bridge answers nothing: that is the campaign's own doing
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
