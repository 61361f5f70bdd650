package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// Names of daemons.
const (
	BridgeDaemon = "slurmbridge"
	AgentDaemon  = "gpuprof"
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
	broken, mend func(s *Stack, node int) error
}

// ErrNothing says that there was nothing to break.
var ErrNothing = errors.New("nothing to break")

// Faults are all that is known.
var Faults = []Fault{
	daemon("bridge killed", 6, 1, 8, false, false),
	daemon("bridge killed for longer than the lease", 1, 40, 70, false, false),
	daemon("bridge stopped", 4, 2, 12, false, true),
	daemon("bridge stopped for longer than the lease", 1, 35, 60, false, true),
	daemon("agent killed", 8, 1, 20, true, false),
	daemon("agent stopped", 4, 2, 20, true, true),
	{
		Name: "agents cut off", Weight: 4, Least: 5, Most: 40, thing: named("wire"),
		broken: func(s *Stack, _ int) error { s.Wire.Set(true); return nil },
		mend:   func(s *Stack, _ int) error { s.Wire.Set(false); return nil },
	},
	{Name: "hook killed", Weight: 12, program: "slurmbridge-hook"},
	{Name: "MPS control daemon killed", Weight: 2, program: "nvidia-cuda-mps-control"},
	{Name: "MPS server killed", Weight: 2, program: "nvidia-cuda-mps-server"},
	{
		Name: "slurmctld killed", Weight: 2, Least: 1, Most: 5, Slurm: true, Plain: true, thing: named(controller),
		broken: func(s *Stack, _ int) error { s.KillController(); return nil }, mend: startController,
	},
	{
		Name: "slurmctld restarted", Weight: 2, Least: 1, Most: 5, Slurm: true, Plain: true, thing: named(controller),
		broken: func(s *Stack, _ int) error { s.StopController(); return nil }, mend: startController,
	},
	{
		Name: "slurmctld stopped", Weight: 4, Least: 1, Most: 8, Slurm: true, Plain: true, thing: named(controller),
		broken: signalController(syscall.SIGSTOP), mend: signalController(syscall.SIGCONT),
	},
	{
		Name: "slurmd killed", Weight: 4, Least: 1, Most: 8, Slurm: true, Plain: true, Node: true,
		thing:  func(_ *Stack, node int) string { return "slurmd " + slurmtest.NodeName(node) },
		broken: func(s *Stack, node int) error { s.KillNode(node); return nil },
		mend:   func(s *Stack, node int) error { return s.StartNode(node) },
	},
	{
		Name: "partition down", Weight: 4, Least: 5, Most: 30, Slurm: true, thing: func(s *Stack, node int) string { return s.partition(node) },
		broken: func(s *Stack, node int) error { return s.insist("PartitionName="+s.partition(node), "State=DOWN") },
		mend:   func(s *Stack, node int) error { return s.insist("PartitionName="+s.partition(node), "State=UP") },
	},
	{
		Name: "node drained", Weight: 4, Least: 5, Most: 40, Slurm: true, Node: true,
		thing: func(_ *Stack, node int) string { return "state of " + slurmtest.NodeName(node) },
		broken: func(s *Stack, node int) error {
			return s.insist("NodeName="+slurmtest.NodeName(node), "State=DRAIN", "Reason=fault")
		},
		mend: func(s *Stack, node int) error {
			return s.insist("NodeName="+slurmtest.NodeName(node), "State=RESUME")
		},
	},
	{
		Name: "disk full", Weight: 4, Least: 5, Most: 40, thing: named("disk"),
		broken: func(s *Stack, _ int) error { return s.Setup.Disk.Fill() },
		mend:   func(s *Stack, _ int) error { return s.Setup.Disk.Empty() },
	},
	{Name: "gate cancelled", Weight: 2, thing: named("gate"), broken: cancelGate},
}

func named(thing string) func(*Stack, int) string { return func(*Stack, int) string { return thing } }

// daemon is a fault of a daemon of ours, killed and started again, or stopped for a while.
func daemon(name string, weight int, least, most float64, agent, stop bool) Fault {
	which := named(BridgeDaemon)
	if agent {
		which = func(s *Stack, node int) string { return s.Agent(node) }
	}
	f := Fault{
		Name: name, Weight: weight, Least: least, Most: most, Node: agent, thing: which,
		broken: func(s *Stack, node int) error { return s.Kill(which(s, node)) },
		mend:   func(s *Stack, node int) error { return s.Again(which(s, node)) },
	}
	if stop {
		signal := func(sig syscall.Signal) func(*Stack, int) error {
			return func(s *Stack, node int) error { return s.Daemon(which(s, node)).Process.Signal(sig) }
		}
		f.broken, f.mend = signal(syscall.SIGSTOP), signal(syscall.SIGCONT)
	}
	return f
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
	if err := f.broken(s, node); err != nil {
		return "", err
	}
	name := ""
	if f.Node {
		name = slurmtest.NodeName(node)
	}
	if f.mend == nil {
		return name, nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	}
	return name, f.mend(s, node)
}

// killOne kills a process of a program that comes and goes, and returns the node that it served.
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
	node := s.nodeOf(pid)
	if syscall.Kill(pid, syscall.SIGKILL) != nil {
		return "", ErrNothing
	}
	return node, nil
}

// startController starts slurmctld until it is there.
func startController(s *Stack, _ int) error {
	var err error
	for range 5 {
		if err = s.StartController(context.Background()); err == nil {
			return nil
		}
		s.KillController()
	}
	return err
}

func signalController(sig syscall.Signal) func(*Stack, int) error {
	return func(s *Stack, _ int) error {
		pids, err := s.Processes(controller)
		for _, pid := range pids {
			err = errors.Join(err, syscall.Kill(pid, sig))
		}
		return err
	}
}

// partition is the one that goes down where this node was drawn.
func (s *Stack) partition(node int) string {
	all := append([]string{slurmtest.Partition}, s.Setup.Partitions...)
	return all[node%len(all)]
}

// insist has Slurm update something; it tries until slurmctld is there.
func (s *Stack) insist(args ...string) error {
	var err error
	for range 60 {
		if _, err = s.Run(context.Background(), "scontrol", append([]string{"update"}, args...)...); err == nil {
			return nil
		}
		time.Sleep(time.Second)
	}
	return err
}

// cancelGate is the operator's off switch.
func cancelGate(s *Stack, _ int) error {
	text, err := os.ReadFile(s.GateFile)
	if err != nil {
		return ErrNothing
	}
	var id int
	if _, err := fmt.Sscanf(string(text), "job=%d", &id); err != nil {
		return ErrNothing
	}
	_, err = s.Run(context.Background(), "scancel", strconv.Itoa(id))
	return err
}

// nodeOf is the node that a process of a hook or of MPS serves, "" = unknown.
func (s *Stack) nodeOf(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	line, _ := os.ReadFile(dir + "/cmdline")
	vars, _ := os.ReadFile(dir + "/environ")
	text := strings.ReplaceAll(string(line)+"\x00"+string(vars)+"\x00", "\x00", "\n")
	for i := range s.Setup.NodeGPUs {
		name := slurmtest.NodeName(i)
		if strings.Contains(text, "SLURMD_NODENAME="+name+"\n") || strings.Contains(text, "-"+name+".yaml") || strings.Contains(text, s.StateOf(i)+"\n") {
			return name
		}
	}
	return ""
}
