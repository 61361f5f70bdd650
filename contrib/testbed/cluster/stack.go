// Package cluster is the stage: a private real Slurm with simulated Titan Xps, one by default, optionally with the
// nodes' hooks, their agents and the bridge; the work that runs there, and the faults that hit it.
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
	// Hooks are the node's, which keep an MPS daemon for jobs with shares; with a bridge they are always there.
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

// model is that of the i-th node's GPUs.
func (s *Setup) model(i int) string {
	if i < len(s.Models) {
		return s.Models[i]
	}
	return "titanxp"
}

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
		Scheduler: slurmtest.Prompt, Sharing: s.Setup.Sharing, AuthSlurm: s.Setup.AuthSlurm, Prepare: s.prepare,
	}
	for i, gpus := range s.Setup.NodeGPUs {
		o.Cards = append(o.Cards, slices.Repeat([]string{s.Setup.model(i)}, gpus))
	}
	if s.Setup.Policy != "" {
		o.Lua = s.Setup.Lua
		o.Extra = append(o.Extra, "PartitionName=slurmbridge Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1 OverSubscribe=NO")
	}
	if len(s.Setup.Card.Instances) > 0 {
		s.cut(&o)
	}
	if s.Setup.Disk != nil {
		o.Binds = append(o.Binds, s.Setup.Disk.Dir)
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

// CloseAfter closes the stack after an error or none; an error then carries the logs' last lines.
func (s *Stack) CloseAfter(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w%s", err, s.Logs(6))
	}
	return errors.Join(err, s.Close())
}

// Close ends everything and removes the cluster's folder.
func (s *Stack) Close() error {
	s.Stop()
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

// agents reports whether the nodes have agents, and hooks whether they have hooks.
func (s *Stack) agents() bool { return (s.Setup.Policy != "" || s.Setup.Agents) && !s.Setup.Bare }
func (s *Stack) hooks() bool  { return (s.Setup.Policy != "" || s.Setup.Hooks) && !s.Setup.Bare }

// prepare copies the programs where every user may run them, makes the GPUs and writes the hooks.
func (s *Stack) prepare(c *slurmtest.Cluster) error {
	s.Cluster = c
	var programs []string
	for name, needed := range map[string]bool{
		"gpusim": !s.Setup.Bare, "slurmbridge-hook": s.hooks(), "slurmbridge": s.Setup.Policy != "",
		agent: s.agents(), built.Library: s.agents(),
	} {
		if needed {
			programs = append(programs, name)
		}
	}
	if err := built.Copy(s.Setup.Build, c.Path("bin"), programs...); err != nil {
		return fmt.Errorf("%w; run make build", err)
	}
	if err := os.Symlink("node", c.Path("node-"+slurmtest.NodeName(0))); err != nil { // hooks name each node's alike
		return err
	}
	for i := range s.Setup.NodeGPUs {
		if err := errors.Join(os.MkdirAll(s.runDir(i), 0o755), os.MkdirAll(s.spool(i), 0o755)); err != nil {
			return err
		}
		if s.Setup.Bare {
			continue
		}
		if err := s.makeGPUs(i); err != nil {
			return err
		}
		node := fmt.Sprintf("run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\n",
			s.runDir(i), s.Bin("nvidia-cuda-mps-control"), s.StateOf(i))
		if err := os.WriteFile(s.nodeSettings(i), []byte(node), 0o644); err != nil {
			return err
		}
	}
	o := &c.Options
	hooks := map[string]*string{}
	if s.hooks() {
		hooks = map[string]*string{"prolog": &o.Prolog, "epilog": &o.Epilog, "taskprolog": &o.TaskProlog}
	}
	if s.hooks() || s.Setup.Policy != "" {
		hooks["epilog-slurmctld"] = &o.EpilogSlurmctld
	}
	// A site's files with this cluster's paths.
	paths := strings.NewReplacer(
		"/usr/sbin/slurmbridge-hook", s.Bin("slurmbridge-hook")+" --settings "+c.Path("node")+"-$SLURMD_NODENAME.yaml",
		"/run/slurmbridge/wake", c.WakeFile,
		"/run/slurmbridge/jobs", c.Path("node")+"-$SLURMD_NODENAME/jobs",
	)
	for name, option := range hooks {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(s.Setup.Lua), "..", "etc", "hooks", name))
		if err != nil {
			return err
		}
		*option = s.Bin(name)
		if err := WriteProgram(*option, paths.Replace(string(text))); err != nil {
			return err
		}
	}
	if !s.Setup.Bare {
		return nil
	}
	// Without an Epilog on the node that takes longer than this, Slurm would not look at its queue as a job ends.
	o.Epilog = s.Bin("epilog")
	return WriteProgram(o.Epilog, "#!/bin/sh\nexec sleep 0.1\n")
}

// makeGPUs makes the i-th node's GPUs, and what the driver tells of them under /proc.
func (s *Stack) makeGPUs(i int) error {
	cfg, file := s.Setup.Card, s.StateOf(i)
	cfg.Scale, cfg.GPUs, cfg.UUIDSeed, cfg.Model = s.Setup.Scale, s.Setup.NodeGPUs[i], of("", i), s.Setup.model(i)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), gpusim.Create(file, cfg)); err != nil ||
		!s.Cluster.Options.Driver {
		return err
	}
	st, err := gpusim.Open(file)
	if err != nil {
		return err
	}
	return errors.Join(st.WriteDriver(s.Path("driver")), st.Close())
}

// runDir is the i-th node's folder where hooks and agent meet, nodeSettings the hooks' settings, and spool the folder
// of its records.
func (s *Stack) runDir(i int) string { return s.Path(of("node", i)) }

func (s *Stack) nodeSettings(i int) string { return s.Path("node-" + slurmtest.NodeName(i) + ".yaml") }
func (s *Stack) spool(i int) string        { return filepath.Join(s.disk(), of("spool-agent", i)) }

func (s *Stack) disk() string {
	if s.Setup.Disk != nil {
		return s.Setup.Disk.Dir
	}
	return s.Dir
}

// WriteProgram writes a file to be run. No child may be forked meanwhile: it would hold the file open for writing until
// it runs its own program, and a file that is can't be run ("text file busy").
func WriteProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

// Daemon is a process of a daemon of ours.
type Daemon struct {
	*slurmtest.Daemon
	// Name is its log's; several daemons may run the same program.
	Name string
	// Args are the program's.
	Args []string

	program, as string
	host        string // it takes this for its host's name; "" = this machine's
	node        int
}

// Spawn starts a daemon of ours, as a user ("" = root), with its output in the cluster's logs.
func (s *Stack) Spawn(program, as string, args ...string) error {
	return s.spawn(&Daemon{Name: program, program: program, as: as, Args: args})
}

func (s *Stack) spawn(d *Daemon) error {
	args := append([]string{s.Bin(d.program)}, d.Args...)
	as := d.as
	if d.host != "" {
		// Only root may name a host.
		args = append([]string{
			"unshare", "--uts", "sh", "-c", `hostname "$0" && exec "$@"`, d.host,
			"setpriv", "--clear-groups", "--reuid=" + as, "--regid=" + as, "--pdeathsig=KILL",
		}, args...)
		as = ""
	}
	cmd, err := s.Command(context.Background(), as, args[0], args[1:]...)
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

// Daemon returns the latest process of the daemon of this name, nil where it was never started.
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
	again := *s.Daemon(name)
	return s.spawn(&again)
}

// Stop ends the daemons other than Slurm's.
func (s *Stack) Stop() {
	for _, p := range slices.Backward(s.Procs) {
		p.End(syscall.SIGTERM)
	}
}
