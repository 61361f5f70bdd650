// Package soak is the campaign: random lives of jobs on a private real Slurm with
// simulated GPUs and the whole of slurmbridge, while daemons are killed, stopped and cut
// off, partitions go down and a disk fills.
//
// # What counts as harm
//
// A job is compared with what plain Slurm would have done with it. The truth is Slurm's
// own (`scontrol show jobs`, every few seconds), never the bridge's.
//
//   - timeout: it ended at its time limit although it fits alone.
//   - oom: it ended for want of GPU memory.
//   - deadline: it missed its --deadline although it would have met it.
//   - late: it ended after its plain end by more than a tenth of its solo time.
//   - contract: it ran slower than the contract allows.
//   - held_s_max: the longest that a job was kept at the gate too long, s: once the bridge
//     had been dead for a lease, or next to an idle GPU for longer than max_delay.
//   - lost: it neither ended, nor did its owner cancel it.
//   - failed: it ended with an error otherwise, such as that of an MPS server that was
//     killed. Nothing shields a job from that; it is counted and doesn't fail the campaign.
//
// # The plain end
//
// It is computed when all is over (plain.go) from what jobs truly need: whole GPUs, in order
// of submission. Begin times, dependencies, holds,
// requeues and cancellations are what they were. What a job's start and end take besides
// its solo time is measured: the median of the jobs that had a GPU to themselves, and a
// second between two jobs, Slurm's own.
//
// Faults slow plain Slurm as well. Where Slurm showed a node or partition as out of
// service, or did not answer, the plain schedule starts nothing there; an end that falls
// into a time without slurmctld is noticed when it is back. A job on a node whose slurmd
// was killed, or that ended while slurmctld was gone, is judged neither late nor slow. A
// slurmctld that is killed forgets the last seconds: jobs that it had just taken, which are
// left out, and ends of jobs, whose work is known to be done by a file that they leave. The
// bridge's, the agents' and MPS's deaths excuse nothing.
//
// Jobs whose owners ask for shares by hand are shared ones, since job_submit.lua makes them
// so. Jobs that their owner takes from the bridge by an edit, and those that ran more than
// once, are judged neither late nor slow.
//
// With --plain the same campaign runs without the bridge: what is late there is how far the
// plain schedule is from the truth.
package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

type options struct {
	base      *cluster.Setup
	length    time.Duration
	jobs      int
	seed      uint64
	nodes     int
	nodeGPUs  []int
	backlog   int
	perSecond float64
	everyS    float64
	policy    string
	plain     bool
	contract  float64
	lie       float64
	settings  string
	root      string
	out       string
	logs      string
}

// Settings of the bridge that harm is measured by.
const (
	lease    = 30 * time.Second
	maxDelay = time.Minute
)

// Command is `testbed soak`.
func Command(base *cluster.Setup) *cobra.Command {
	o := options{base: base}
	c := &cobra.Command{
		Use: "soak", Short: "Random lives of jobs while daemons are killed: what harm comes to them", Args: cobra.NoArgs,
		Example: "  make soak                            an hour\n  make soak SOAK=4m ARGS='--seed 7'    the same campaign again\n  make soak ARGS=--plain               how true the plain schedule is",
		RunE: func(c *cobra.Command, _ []string) error {
			// The disk that is filled is mounted in a namespace of this program's own, and disappears with it.
			status, again, err := private(c.Context())
			if again {
				if err == nil && status != 0 {
					os.Exit(status) // the second start has said why
				}
				return err
			}
			return run(c.Context(), &o)
		},
	}
	f := c.Flags()
	f.DurationVar(&o.length, "length", time.Hour, "how long jobs are submitted")
	f.IntVar(&o.jobs, "jobs", 0, "submit no more lives than this (0 = as many as there is time for)")
	f.Uint64Var(&o.seed, "seed", 0, "of all that is random (0 = another one each time)")
	f.IntVar(&o.nodes, "nodes", 44, "nodes with a GPU each; a quarter of them have two")
	f.IntVar(&o.backlog, "backlog", 0, "jobs that wait at a time (default three for two GPUs)")
	f.Float64Var(&o.perSecond, "rate", 6, "jobs a second at most")
	f.Float64Var(&o.everyS, "every", 10, "mean seconds between two faults (0 = none)")
	f.StringVar(&o.policy, "policy", "dqn", "the bridge's policy")
	f.BoolVar(&o.plain, "plain", false, "no bridge: how true the plain schedule is")
	f.Float64Var(&o.contract, "contract", 2.5, "max_slowdown")
	f.Float64Var(&o.lie, "lie", 1, "profiles say so many times less time and memory than jobs take: harm that must be counted")
	f.StringVar(&o.settings, "set", "", "further lines of slurmbridge.yaml, separated by semicolons")
	f.StringVar(&o.root, "root", os.Getenv("SLURMBRIDGE_TEST_ROOT"), "run the Slurm of this root folder")
	f.StringVar(&o.out, "out", "build/soak.json", "write all figures to `FILE`")
	f.StringVar(&o.logs, "logs", "build/soak", "write logs and the bridge's database into `DIR`")
	return c
}

// privateEnv marks the program's second start.
const privateEnv = "SOAK_PRIVATE"

// private starts this program again in a mount namespace of its own, and returns its exit
// status; again is false in the second start.
func private(ctx context.Context) (status int, again bool, err error) {
	if os.Getenv(privateEnv) != "" {
		return 0, false, nil
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it stops its daemons
	cmd.Env = append(os.Environ(), privateEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(1, exit.ExitCode()), true, nil
	}
	return 0, true, err
}

// defaults fills in what depends on other settings.
func (o *options) defaults() {
	if o.seed == 0 {
		o.seed = rand.Uint64() >> 12 // exact in JSON
	}
	gpus := 0
	for i := range o.nodes {
		o.nodeGPUs = append(o.nodeGPUs, 1)
		if i%4 == 3 {
			o.nodeGPUs[i] = 2
		}
		gpus += o.nodeGPUs[i]
	}
	if o.backlog == 0 {
		o.backlog = gpus * 3 / 2
	}
}

func run(ctx context.Context, o *options) error {
	o.defaults()
	fmt.Printf("seed %d, %d nodes, %v of jobs and faults on a private Slurm\n", o.seed, o.nodes, o.length)
	c, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer c.s.Setup.Disk.Close()
	began := time.Now()
	if err := c.campaign(ctx); err != nil {
		return c.s.CloseAfter(ctx, err)
	}
	pause := c.pause()
	rep := sum(c.fates(pause+slurmPauseS), rules{PauseS: pause, MarginS: 30})
	c.fill(rep, time.Since(began))
	if err := cluster.WriteJSON(o.out, rep); err != nil {
		return c.s.CloseAfter(ctx, err)
	}
	c.keep(ctx, rep)
	rep.show(os.Stdout)
	fmt.Printf("\nAll figures: %s; logs: %s\n", o.out, o.logs)
	if err := c.s.Close(); err != nil {
		return err
	}
	if broken := rep.Harm.broken(); broken != "" {
		return fmt.Errorf("jobs came to harm: %s", broken)
	}
	return nil
}

// slurmPauseS is Slurm's own time between two jobs on a GPU, s.
const slurmPauseS = 1

// diskMiB is the size of the disk that fills.
const diskMiB = 512

// start starts everything.
func start(ctx context.Context, o *options) (*campaign, error) {
	disk, err := cluster.NewDisk("slurm", diskMiB)
	if err != nil {
		return nil, err
	}
	known := catalogue()
	setup := *o.base
	setup.Scale, setup.Hooks, setup.Lease, setup.NodeGPUs, setup.Partitions = 1, true, lease, o.nodeGPUs, partitions[1:]
	setup.Profiles, setup.Disk, setup.Wired = believed(known, o.lie), disk, true
	setup.Settings = []string{fmt.Sprintf("max_slowdown: %g", o.contract), fmt.Sprintf("max_delay: %s", maxDelay), "retrain: false", "log_level: debug", "window: 8"}
	if o.settings != "" {
		setup.Settings = append(setup.Settings, strings.Split(o.settings, ";")...)
	}
	if !o.plain {
		setup.Policy = o.policy
	}
	s := cluster.New(setup)
	so := s.Options()
	so.Root, so.Binds = o.root, []string{disk.Dir}
	so.Extra = append(so.Extra, "JobRequeue=1", "MinJobAge=600")
	so.MemMiB, so.CPUs = 64000, 32
	prepare := so.Prepare
	so.Prepare = func(c *slurmtest.Cluster) error { return errors.Join(prepare(c), writeApps(c.Path("apps"), known)) }
	if _, err = slurmtest.Start(ctx, so); err == nil && !o.plain {
		if err = s.Bridge(ctx); err != nil {
			err = s.CloseAfter(ctx, err)
		}
	}
	if err != nil {
		disk.Close()
		return nil, err
	}
	return &campaign{
		o: o, s: s, known: known, load: cluster.NewLoad(), jobs: map[string]*record{}, kinds: map[string]int{}, groups: map[string]bool{}, acted: map[string]int{},
	}, nil
}

// believed is what the bridge knows of the applications.
func believed(known []*rlcore.Profile, lie float64) []*rlcore.Profile {
	var out []*rlcore.Profile
	for _, p := range known {
		out = append(out, app.Scaled(p, 1/lie, 1/lie))
	}
	return out
}

// writeApps writes what the applications truly do, for jobs to read.
func writeApps(dir string, known []*rlcore.Profile) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range apps.Names() {
		i := slices.IndexFunc(known, func(p *rlcore.Profile) bool { return strings.HasPrefix(p.App, name+"-") })
		body, err := json.Marshal(known[i])
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+".json"), body, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// campaign submits jobs and causes faults for the time in the options, mends everything, and waits
// for the last jobs.
func (c *campaign) campaign(ctx context.Context) error {
	all, stop := context.WithCancel(ctx)
	defer stop()
	go c.watch(all)
	if !c.o.plain {
		go c.pulse(all)
	}
	go c.progress(all)
	evil, stopEvil := context.WithCancel(all)
	var tormented sync.WaitGroup
	if c.o.everyS > 0 {
		tormented.Go(func() { c.torment(evil, rand.New(rand.NewPCG(c.o.seed, 2))) }) //nolint:gosec // repeatable, not secret
	}
	c.submit(all)
	stopEvil()
	tormented.Wait()
	// The longest life, and twice Slurm's own pauses: what isn't over then is lost.
	c.drain(all, 60*c.longestMin()+60)
	stop()
	return ctx.Err()
}

// longestMin is the longest limit of a job that is left, min; at least one.
func (c *campaign) longestMin() float64 {
	longest := 1.0
	for _, key := range c.left() {
		n, err := strconv.Atoi(strings.TrimPrefix(strings.Split(key, "_")[0], "life"))
		if err == nil {
			c.mu.Lock()
			longest = max(longest, float64(c.lives[n].LimitMin))
			c.mu.Unlock()
		}
	}
	return longest
}

// progress says how far it is.
func (c *campaign) progress(ctx context.Context) {
	line, began := cluster.NewLine(30*time.Second), now()
	for wait(ctx, 2) {
		left := len(c.left())
		c.mu.Lock()
		n := 0
		for i := range c.lives {
			n += max(1, c.lives[i].Tasks)
		}
		kills, states := 0, map[string]int{}
		for _, k := range c.kinds {
			kills += k
		}
		for _, r := range c.jobs {
			states[r.State]++
		}
		busy := 0.0
		if len(c.busy) > 0 {
			busy = c.busy[len(c.busy)-1]
		}
		line.Show(fmt.Sprintf("%5.0f s  %d jobs, %d ended, %d running, %d waiting; %d timeout, %d failed; %d faults; CPUs %.0f %% busy",
			now()-began, n, n-left, states["RUNNING"], c.pending, states["TIMEOUT"], states["FAILED"], kills, 100*busy))
		c.mu.Unlock()
	}
}

// fill adds what only the campaign knows.
func (c *campaign) fill(r *report, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Seed, r.Slurm, r.Seconds, r.Nodes, r.GPUs = c.o.seed, c.s.Release, math.Round(took.Seconds()), c.o.nodes, c.gpus()
	r.KillsByKind, r.Owners, r.SlowLooks = c.kinds, c.acted, c.slow
	for _, n := range c.kinds {
		r.Kills += n
	}
	r.BusyP50, r.BusyP95 = round(cluster.Quantile(0.5, c.busy)), round(cluster.Quantile(0.95, c.busy))
	for _, j := range c.jobs {
		if held := heldS(j.sights, lease.Seconds(), maxDelay.Seconds()); held > r.Harm.HeldSMax {
			r.Harm.HeldSMax = math.Round(held)
		}
	}
	r.Groups = len(c.groups)
}

// mostWhy bounds the harmed jobs that `why` is called for.
const mostWhy = 40

// keep saves the bridge's explanations of the harmed jobs, all logs and the bridge's database, for
// people to read: missing parts are left out.
func (c *campaign) keep(ctx context.Context, rep *report) {
	if err := os.MkdirAll(c.o.logs, 0o755); err != nil {
		return
	}
	save := func(name string, body []byte) { _ = os.WriteFile(filepath.Join(c.o.logs, name), body, 0o644) }
	for i, h := range rep.Harmed {
		if i == mostWhy || c.o.plain {
			break
		}
		said, err := c.s.Run(ctx, c.s.Bin("slurmbridge"), "why", "--server", c.s.URL, h.Job)
		if err == nil {
			save("why-"+h.Job+".txt", []byte(fmt.Sprintf("%s: %s (%s)\n%s", h.Kind, h.Why, h.What, said)))
		}
	}
	c.s.Stop()
	files, _ := filepath.Glob(c.s.Path("log", "*.log"))
	more, _ := filepath.Glob(filepath.Join(c.s.Setup.Disk.Dir, "slurmbridge.db*"))
	for _, f := range append(files, more...) {
		if body, err := os.ReadFile(f); err == nil && ctx.Err() == nil {
			save(filepath.Base(f), body)
		}
	}
}
