// Package cluster is the stage: a private real Slurm with simulated Titan Xps, one by
// default, optionally with the nodes' hooks, their agents and the bridge; the work that
// runs there, and the faults that hit it.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Owner submits the jobs, as in the thesis one user for all.
const Owner = "games"

// scheduler is the same for all runs: Slurm looks at the queue often, so that its
// own pauses weigh little on the scaled time.
const scheduler = "bf_interval=1,sched_interval=1,batch_sched_delay=0"

// Setup says what a stage has in addition to Slurm and the GPU.
type Setup struct {
	Scale float64 // GPU seconds that pass in a second
	Build string  // where make build put the programs
	// Policy is the bridge's; "" = no bridge.
	Policy string
	// Lua is the job_submit script, in contrib; needed with a bridge or hooks, which lie in etc.
	Lua string
	// Cold: the bridge starts without any application's profile.
	Cold bool
	// Hooks are the node's, which keep an MPS daemon for jobs with shares; with a
	// bridge they are always there.
	Hooks bool
	// Agents are the nodes'; with a bridge they are always there. StartAgents starts them without one.
	Agents bool
	// Sharing is "mps" (default) or "shard".
	Sharing string
	// Lease is how long the bridge's gate lasts without it. Default 30 s.
	Lease time.Duration
	// NodeGPUs are the GPUs of each node, Models their cards. Default one node with one, and Titan Xps.
	NodeGPUs []int
	Models   []string
	// Card is what else is to be of each node's GPUs: the numbers of their device files, their mode.
	Card gpusim.Config
	// Profiles are what the bridge knows beforehand. Default the catalogue's.
	Profiles []*rlcore.Profile
	// Settings are further lines of slurmbridge.yaml.
	Settings []string
	// Disk is where the bridge's database and the agents' spools lie, its owner the bridge's user. Default in the
	// cluster's folder.
	Disk *Disk
	// Keep: the cluster's folder stays.
	Keep bool
	// AuthSlurm is slurmtest's: there is no munged, and records travel with a key.
	AuthSlurm bool
	// Bare: nothing of ours is on the nodes and no GPU is simulated, for jobs that only sleep; an
	// Epilog takes a tenth of a second, as ours does.
	Bare bool
	// Standby: a second daemon, at Stack.StandbyURL, whose gates are head2's.
	Standby bool
	// Wired: agents reach the bridge through Stack.Wire.
	Wired bool
	// Adjust changes the options of Slurm; nil = nothing.
	Adjust func(o *slurmtest.Options)
}

func (s *Setup) hooks() bool { return !s.Bare && (s.Hooks || s.Policy != "") }

// Stack is a running stage.
type Stack struct {
	*slurmtest.Cluster
	Setup Setup
	// URL is the bridge's, StandbyURL the second daemon's.
	URL, StandbyURL string
	// Procs are the daemons other than Slurm's, in the order of their start.
	Procs []*Daemon
	// Wire is between the agents and the bridge; nil unless Setup.Wired.
	Wire *Wire
	// broken are the things that faults have broken, by name.
	broken sync.Map
}

// Require skips, or fails, a test on a machine that can't run a stack of the programs in
// build, as slurmtest.Require does.
func Require(tb testing.TB, build string) {
	tb.Helper()
	slurmtest.Require(tb)
	if _, err := os.Stat(filepath.Join(build, "slurmbridge")); err != nil {
		slurmtest.Need(tb, fmt.Errorf("the programs are not built (make build): %w", err))
	}
}

// New returns a stack that is not started.
func New(s Setup) *Stack {
	if s.Lease == 0 {
		s.Lease = 30 * time.Second
	}
	if len(s.NodeGPUs) == 0 {
		s.NodeGPUs = []int{1}
	}
	return &Stack{Setup: s}
}

// Options are the options of the stack's cluster, to be started with slurmtest.
func (s *Stack) Options() slurmtest.Options {
	o := slurmtest.Options{
		Scheduler: scheduler, Sharing: s.Setup.Sharing, NodeGPUs: s.Setup.NodeGPUs, GPUTypes: s.Setup.Models,
		AuthSlurm: s.Setup.AuthSlurm, Prepare: s.prepare,
	}
	// Without it a node shares one of its GPUs at a time.
	o.AllSharing = slices.Max(s.Setup.NodeGPUs) > 1
	if s.Setup.Policy != "" {
		o.Lua = s.Setup.Lua
		o.Extra = append(o.Extra, "PartitionName=slurmbridge Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1")
	}
	if len(s.Setup.Card.Instances) > 0 {
		s.cut(&o)
	}
	if s.Setup.Adjust != nil {
		s.Setup.Adjust(&o)
	}
	return o
}

// cut has Slurm hand out the MIG instances of nodes that are cut alike, each with 100 shares: shares without files are
// of all of a node's devices.
func (s *Stack) cut(o *slurmtest.Options) {
	card := &s.Setup.Card
	var types []string
	lines := ""
	add := func(kind, files string) {
		types = append(types, kind)
		lines += fmt.Sprintf("Name=gpu Type=%s %s\n", kind, files)
	}
	for i := range s.Setup.NodeGPUs[0] {
		minor := i
		if i < len(card.Minors) {
			minor = card.Minors[i]
		}
		file := fmt.Sprintf("DIR/dev/nvidia%d", minor)
		if slices.Contains(card.Uncut, i) {
			add(s.Setup.Models[0], "File="+file)
			continue
		}
		for k, profile := range card.Instances {
			gi, ci := gpusim.Caps(minor, card.GPUInstance(k))
			o.Caps = append(o.Caps, gi, ci)
			add(profile, fmt.Sprintf("MultipleFiles=%s,DIR/dev/nvidia-caps/nvidia-cap%d,DIR/dev/nvidia-caps/nvidia-cap%d", file,
				gi, ci))
		}
	}
	o.Driver, o.Cards = true, slices.Repeat([][]string{types}, len(s.Setup.NodeGPUs))
	o.Files = map[string]string{"gres.conf": fmt.Sprintf("%sName=%s Count=%d\n", lines, s.Setup.Sharing, 100*len(types))}
}

// Nodes are the nodes' names.
func (s *Stack) Nodes() []string {
	var out []string
	for i := range s.Setup.NodeGPUs {
		out = append(out, slurmtest.NodeName(i))
	}
	return out
}

// Start starts everything. Where it fails, what was started is ended again.
func Start(ctx context.Context, setup Setup) (*Stack, error) {
	s := New(setup)
	c, err := slurmtest.Start(ctx, s.Options())
	if err != nil {
		return nil, err
	}
	s.Cluster = c
	if setup.Policy != "" {
		if err := s.Bridge(ctx); err != nil {
			return nil, s.CloseAfter(ctx, err)
		}
	}
	return s, nil
}

// CloseAfter closes the stack after an error or none; an error then carries the logs'
// last lines.
func (s *Stack) CloseAfter(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w%s", err, s.Logs(6))
	}
	return errors.Join(err, s.Close())
}

// Close ends everything and removes the cluster's folder; one that is kept goes with its daemons at the process's end.
func (s *Stack) Close() error {
	s.Stop()
	if s.Setup.Keep {
		fmt.Println("kept:", s.Dir)
		return nil
	}
	return s.Cluster.Close()
}

// State is the path of the first node's state file of its GPUs.
func (s *Stack) State() string { return s.StateOf(0) }

// StateOf is State for the i-th node.
func (s *Stack) StateOf(i int) string { return s.Path("sim", of("state", i)) }

// of names a thing of the i-th node's.
func of(name string, i int) string {
	if i == 0 {
		return name
	}
	return name + "-" + slurmtest.NodeName(i)
}

// Bin is the path of one of the project's programs in the stack.
func (s *Stack) Bin(name string) string { return s.Path("bin", name) }

// programs are the programs that the stack runs.
func (s *Stack) programs() []string {
	var out []string
	for name, needed := range map[string]bool{
		"gpusim": !s.Setup.Bare, "slurmbridge-hook": s.Setup.hooks(), "slurmbridge": s.Setup.Policy != "",
		"gpuprof": s.agents(), built.Library: s.agents(),
	} {
		if needed {
			out = append(out, name)
		}
	}
	return out
}

// agents reports whether the nodes have agents.
func (s *Stack) agents() bool { return (s.Setup.Policy != "" || s.Setup.Agents) && !s.Setup.Bare }

// prepare copies the programs where every user may run them, makes the GPU and
// writes the hooks.
func (s *Stack) prepare(c *slurmtest.Cluster) error {
	s.Cluster = c
	folders := []string{c.Path("sim")}
	for i := range s.Setup.NodeGPUs {
		folders = append(folders, s.runDir(i), s.spool(i))
	}
	for _, d := range folders {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("node", c.Path("node-"+slurmtest.NodeName(0))); err != nil { // hooks name each node's alike
		return err
	}
	if err := built.Copy(s.Setup.Build, c.Path("bin"), s.programs()...); err != nil {
		return fmt.Errorf("%w; run make build", err)
	}
	if s.Setup.Bare {
		// Without an Epilog on the node that takes longer than this, Slurm would not look at its queue as a job ends.
		c.Options.Epilog = s.Bin("epilog")
		if err := writeProgram(c.Options.Epilog, []byte("#!/bin/sh\nexec sleep 0.1\n")); err != nil || s.Setup.Policy == "" {
			return err
		}
		return s.install(c, hook{"epilog-slurmctld", &c.Options.EpilogSlurmctld})
	}
	for i, gpus := range s.Setup.NodeGPUs {
		cfg := s.Setup.Card
		cfg.Scale, cfg.GPUs, cfg.UUIDSeed = s.Setup.Scale, gpus, of("", i)
		if len(s.Setup.Models) > 0 {
			cfg.Model = s.Setup.Models[i]
		}
		if err := gpusim.Create(s.StateOf(i), cfg); err != nil {
			return err
		}
		if c.Options.Driver {
			if err := writeDriver(s.StateOf(i), c.Path("driver")); err != nil {
				return err
			}
		}
		node := fmt.Sprintf("run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\n",
			s.runDir(i), s.Bin("nvidia-cuda-mps-control"), s.StateOf(i))
		if err := os.WriteFile(c.Path("node-"+slurmtest.NodeName(i)+".yaml"), []byte(node), 0o644); err != nil {
			return err
		}
	}
	if !s.Setup.hooks() {
		return nil
	}
	o := &c.Options
	return s.install(c, hook{"prolog", &o.Prolog}, hook{"epilog", &o.Epilog}, hook{"taskprolog", &o.TaskProlog},
		hook{"epilog-slurmctld", &o.EpilogSlurmctld})
}

// writeDriver writes the driver's folder under /proc for the GPUs of a state file.
func writeDriver(state, dir string) error {
	st, err := gpusim.Open(state)
	if err != nil {
		return err
	}
	return errors.Join(st.WriteDriver(dir), st.Close())
}

// hook is a file that a site installs, and Slurm's option for it.
type hook struct {
	name   string
	option *string
}

// install writes hooks with this cluster's paths.
func (s *Stack) install(c *slurmtest.Cluster, hooks ...hook) error {
	paths := strings.NewReplacer(
		"/usr/sbin/slurmbridge-hook", s.Bin("slurmbridge-hook")+" --settings "+c.Path("node")+"-$SLURMD_NODENAME.yaml",
		"/run/slurmbridge/wake", c.WakeFile,
		"/run/slurmbridge/jobs", c.Path("node")+"-$SLURMD_NODENAME/jobs",
	)
	for _, h := range hooks {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(s.Setup.Lua), "..", "etc", "hooks", h.name))
		if err != nil {
			return err
		}
		*h.option = s.Bin(h.name)
		if err := writeProgram(*h.option, []byte(paths.Replace(string(text)))); err != nil {
			return err
		}
	}
	return nil
}

// runDir is the i-th node's folder where hooks and agent meet, spool its records'.
func (s *Stack) runDir(i int) string { return s.Path(of("node", i)) }

func (s *Stack) spool(i int) string { return filepath.Join(s.disk(), of("spool-agent", i)) }

func (s *Stack) disk() string {
	if s.Setup.Disk != nil {
		return s.Setup.Disk.Dir
	}
	return s.Dir
}

// writeProgram writes a file to be run. No child may be forked meanwhile: it would
// hold the file open for writing until it runs its own program, and a file that
// is can't be run ("text file busy").
func writeProgram(path string, body []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, body, 0o755)
}

// Daemon is a process of a daemon of ours.
type Daemon struct {
	*slurmtest.Daemon
	// Name is its log's; several daemons may run the same program.
	Name string
	// Args are the program's.
	Args []string

	program, as string
	node        int
}

// Spawn starts a daemon of ours, as a user ("" = root), with its output in the
// cluster's logs.
func (s *Stack) Spawn(program, as string, args ...string) error {
	return s.spawn(&Daemon{Name: program, program: program, as: as, Args: args})
}

func (s *Stack) spawn(d *Daemon) error {
	cmd, err := s.Command(context.Background(), d.as, s.Bin(d.program), d.Args...)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, "GPUSIM_STATE="+s.StateOf(d.node))
	if d.Daemon, err = s.Keep(d.Name+".log", cmd); err != nil {
		return fmt.Errorf("start %s: %w", d.Name, err)
	}
	s.Procs = append(s.Procs, d)
	return nil
}

// Daemon returns the latest process of the daemon of this name, nil where it was never
// started.
func (s *Stack) Daemon(name string) *Daemon {
	for _, p := range slices.Backward(s.Procs) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Kill ends a daemon as a power cut would.
func (s *Stack) Kill(name string) { s.Daemon(name).End(syscall.SIGKILL) }

// Again starts a daemon that was killed, as it was started before.
func (s *Stack) Again(name string) error {
	p := s.Daemon(name)
	return s.spawn(&Daemon{Name: p.Name, program: p.program, as: p.as, node: p.node, Args: p.Args})
}

// Stop ends the daemons other than Slurm's.
func (s *Stack) Stop() {
	for _, p := range slices.Backward(s.Procs) {
		p.End(syscall.SIGTERM)
	}
}
