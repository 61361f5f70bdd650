// Package soak runs a campaign: random jobs on a private real Slurm with simulated GPUs and all of
// slurmbridge, while daemons are killed, stopped and cut off, partitions go down and a disk fills.
//
// # Harm
//
// Each job is compared with what plain Slurm would have done with it. The facts come from Slurm
// (`scontrol show jobs`, every few seconds), never from the bridge.
//
//   - timeout: it ended at its time limit although it fits alone.
//   - oom: it ran out of GPU memory.
//   - deadline: it missed its --deadline although plain Slurm would have met it.
//   - late: it ended after its end on plain Slurm by more than a tenth of its solo time.
//   - contract: it ran slower than the contract allows.
//   - held_s_max: the longest that a job was kept at the gate too long, s: once the bridge
//     had been dead for a lease, or next to an idle GPU for longer than max_delay.
//   - lost: it neither ended, nor did its owner cancel it.
//   - gpu_in_use: it has whole GPUs, and another job was seen running on one of them.
//   - wrong_gpu: it computed on a GPU that Slurm did not give it.
//   - failed: it ended with another error, such as that of an MPS server that was
//     killed. Nothing protects a job from that; it is counted and doesn't fail the campaign.
//
// # The jobs
//
// A third of the jobs request a whole GPU and a tenth two, some preempt others; life.go has the table. There are two
// kinds of cards, and nodes have only the cores of their GPUs' default. Releases that mistake GPUs in use for
// free ones (before 25.05) have nodes for jobs of several GPUs alone, and the other partitions hand out shares only.
//
// # The plain schedule
//
// plain.go computes it at the end from what jobs really need: whole GPUs, in order of submission, preempting jobs
// first. Begin times, dependencies, holds, requeues and cancellations are what they were. Start and end cost what they
// cost the median job with a GPU of its own, plus a second of Slurm's between two jobs.
//
// Faults slow plain Slurm as well. It starts nothing on a node or partition that Slurm showed as out of service, and
// nothing at all while Slurm did not answer; it notices an end without slurmctld once that is back. A job on a node
// whose slurmd was killed, or that ended while slurmctld was gone, is judged neither late nor slow. A slurmctld that is
// killed forgets its last seconds: jobs that it had just accepted, which don't count, and ends of jobs, which a file
// that they leave proves. The deaths of the bridge, the agents and MPS excuse nothing.
//
// Jobs that request shares by hand are shared ones, since job_submit.lua makes them so. Jobs that their owner takes
// from the bridge by an edit, and jobs that ran more than once, are judged neither late nor slow.
//
// With --plain the same campaign runs without the bridge: what is late there is the error of the plain schedule.
package soak

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/drawn"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

type options struct {
	base   *cluster.Setup
	length time.Duration
	jobs   int
	seed   uint64
	nodes  int
	everyS float64
	plain  bool
	root   string
	out    string
}

// Settings of the bridge that harm is measured by.
const (
	lease       = 30 * time.Second
	maxDelay    = time.Minute
	maxSlowdown = 2.5
)

// Command is `testbed soak`.
func Command(base *cluster.Setup) *cobra.Command {
	o := options{base: base}
	drawing := drawn.New(base, os.Stdout)
	c := &cobra.Command{
		Use: "soak", Short: "Random lives of jobs while daemons are killed: what harm comes to them", Args: cobra.NoArgs,
		Example: "  make soak                            an hour\n  make soak SOAK=4m ARGS='--seed 7'    the same " +
			"campaign again\n" +
			"  make soak ARGS=--plain               how true the plain schedule is\n" +
			"  make soak SEEDS=1..200 RELEASES='bookworm forky'     drawn clusters and jobs, beside plain Slurm",
		RunE: func(c *cobra.Command, _ []string) error {
			if drawing.Asked() {
				return drawing.Run(c.Context())
			}
			if o.nodes == 0 && o.length < 20*time.Minute { // too little time to fill more
				o.nodes = 8
			}
			if o.nodes = cmp.Or(o.nodes, 44); o.nodes < 4 {
				return fmt.Errorf("--nodes is %d, not at least 4: every fourth has two GPUs", o.nodes)
			}
			o.seed = cmp.Or(o.seed, rand.Uint64()>>12) // exact in JSON
			return run(c.Context(), &o)
		},
	}
	f := c.Flags()
	f.DurationVar(&o.length, "length", time.Hour, "how long jobs are submitted")
	f.IntVar(&o.jobs, "jobs", 0, "submit no more lives than this (0 = as many as there is time for)")
	f.Uint64Var(&o.seed, "seed", 0, "of all that is random (0 = another one each time)")
	f.IntVar(&o.nodes, "nodes", 0,
		"nodes with a GPU each; a quarter of them have two (default 44, or 8 for less than 20 minutes)")
	f.Float64Var(&o.everyS, "every", 10, "mean seconds between two faults (0 = none)")
	f.BoolVar(&o.plain, "plain", false, "no bridge: how true the plain schedule is")
	f.StringVar(&o.root, "root", os.Getenv("SLURMBRIDGE_TEST_ROOT"), "run the Slurm of this root folder")
	f.StringVar(&o.out, "out", "build/soak.json", "write all figures to `FILE`")
	drawing.AddFlags(f)
	return c
}

func run(ctx context.Context, o *options) error {
	fmt.Printf("seed %d, %d nodes, %v of jobs and faults on a private Slurm\n", o.seed, o.nodes, o.length)
	disk, err := cluster.NewDisk("slurm", diskMiB)
	if err != nil {
		return err
	}
	defer disk.Close()
	c, err := start(ctx, o, disk)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := c.campaign(ctx); err != nil {
		return c.s.CloseAfter(ctx, err)
	}
	rep := c.report(time.Since(began))
	if err := cluster.WriteJSON(o.out, rep); err != nil {
		return c.s.CloseAfter(ctx, err)
	}
	c.keep(ctx, rep)
	rep.show(os.Stdout)
	fmt.Printf("\nAll figures: %s; logs: %s\n", o.out, logs)
	if err := c.s.Close(); err != nil {
		return err
	}
	if broken := rep.broken(); broken != "" {
		return fmt.Errorf("jobs came to harm: %s", broken)
	}
	return nil
}

const (
	slurmPauseS = 1   // Slurm's own time between two jobs on a GPU, s
	diskMiB     = 512 // the size of the disk that fills
	coresPerGPU = 3   // what a job of a GPU has by default, and a node has for each
	logs        = "build/soak"
)

// start starts everything.
func start(ctx context.Context, o *options, disk *cluster.Disk) (*campaign, error) {
	release, err := slurmtest.ReleaseOf(ctx, o.root)
	if err != nil {
		return nil, err
	}
	c := &campaign{
		o: o, known: catalogue(), load: cluster.NewLoad(), line: cluster.NewLine(30 * time.Second), began: now(),
		byName: map[string]*job{}, groups: map[string]bool{},
	}
	setup := *o.base
	models, apart := c.layOut(text.MistakesGPUs(release))
	setup.Scale, setup.Hooks, setup.Lease, setup.NodeGPUs, setup.Models = 1, true, lease, c.nodeGPUs, models
	setup.Disk, setup.Wired, setup.Profiles = disk, true, c.known
	only := ""
	if apart != nil {
		only = strings.Join([]string{dayPart, nightPart, urgentPart}, ", ")
	}
	setup.Settings = []string{
		fmt.Sprintf("max_slowdown: %g", maxSlowdown), fmt.Sprintf("max_delay: %s", maxDelay), "log_level: debug", "window: 8",
		"sharers_only: [" + only + "]",
	}
	if !o.plain {
		setup.Policy = "dqn"
	}
	setup.Adjust = func(so *slurmtest.Options) {
		so.Root, so.Binds, so.Apart = o.root, []string{disk.Dir}, apart
		so.MemMiB, so.CPUs = 64000, coresPerGPU*slices.Max(c.nodeGPUs)
		so.Extra = append(so.Extra, "JobRequeue=1", "MinJobAge=600", "PreemptType=preempt/partition_prio",
			"PreemptMode=REQUEUE")
		for _, p := range [][2]string{{nightPart, ""}, {urgentPart, " PriorityTier=2"}, {largePart, " PreemptMode=OFF"}} {
			var nodes []string
			for _, s := range c.slots {
				if slices.Contains(s.Partitions, p[0]) {
					nodes = append(nodes, slurmtest.NodeName(s.Node))
				}
			}
			so.Extra = append(so.Extra,
				fmt.Sprintf("PartitionName=%s Nodes=%s MaxTime=UNLIMITED State=UP DefCpuPerGPU=%d DefMemPerGPU=4000%s",
					p[0], strings.Join(slices.Compact(nodes), ","), coresPerGPU, p[1]))
		}
	}
	c.s, err = cluster.Start(ctx, setup)
	return c, err
}

// layOut sets which GPUs each node has, and which partitions. It returns the nodes' models, and the numbers of the
// nodes that are for jobs of several GPUs alone: there are some where the release gives GPUs in use to such jobs.
func (c *campaign) layOut(usedGPUs bool) (models []string, apart []int) {
	for i := range c.o.nodes {
		gpus, model, parts := 1, "titanxp", []string{dayPart, nightPart, urgentPart}
		if i%3 == 2 {
			model = "v100"
		}
		if i%4 == 3 {
			gpus = 2
			if !usedGPUs {
				parts = append(parts, largePart)
			} else if i%8 == 7 || c.o.nodes < 8 {
				parts, apart = []string{largePart}, append(apart, i)
			}
		}
		models, c.nodeGPUs = append(models, model), append(c.nodeGPUs, gpus)
		c.slots = append(c.slots, slices.Repeat([]slot{{i, parts}}, gpus)...)
	}
	return models, apart
}

// campaign submits jobs and causes faults for the time in the options, mends everything, and waits for the last jobs.
func (c *campaign) campaign(ctx context.Context) error {
	evil, calm := context.WithCancel(ctx)
	var torment sync.WaitGroup
	end := func() { calm(); torment.Wait() }
	defer end()
	if c.o.everyS > 0 {
		torment.Go(func() { c.torment(evil) })
	}
	_, err := c.s.Do(ctx, cluster.Work{
		Orders: func(yield func(cluster.Order) bool) {
			c.submit(ctx, yield)
			end()
			c.locked(func() {
				longest := 0 // of the limits of the jobs that have not ended; Slurm's own pauses take less than a minute
				for _, j := range c.left() {
					longest = max(longest, j.LimitMin)
				}
				c.until = now() + 60*float64(max(1, longest)+1)
			})
		},
		Refused: func(error) {},
		Every:   lookEvery * time.Second, Left: c.poll, Limit: c.o.length + 24*time.Hour,
	})
	return err
}

// mostWhy bounds the harmed jobs that `why` is called for.
const mostWhy = 40

// keep saves the bridge's explanations of the harmed jobs, all logs and the bridge's database, for
// people to read: missing parts are left out.
func (c *campaign) keep(ctx context.Context, rep *report) {
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return
	}
	save := func(name string, body []byte) { _ = os.WriteFile(filepath.Join(logs, name), body, 0o644) }
	for i, h := range rep.Harmed {
		if i == mostWhy || c.o.plain {
			break
		}
		said, err := c.s.Run(ctx, c.s.Bin("slurmbridge"), "why", "--verbose", "--server", c.s.URL, h.Job)
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
