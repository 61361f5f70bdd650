package compare

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// options are what to compare.
type options struct {
	base      *cluster.Setup
	workloads []string
	variants  []variant
	jobs      int
	seed      uint64
	load      float64 // of open workloads: work that comes ÷ what one GPU does without sharing
	scale     float64
	parallel  int
	// limit ends a run that takes longer with an error; 0 = what fits the work.
	limit time.Duration
}

// cell is one workload under one variant.
type cell struct {
	workload string
	variant  variant
	setup    cluster.Setup
	title    string // "" = workload and variant
	loose    bool   // jobs may start before the last one is there
	apps     []string
	at       []float64 // when each job is submitted, GPU seconds; nil = all before the beginning
	seed     uint64
	// after is called before the cluster ends; nil = nothing to do.
	after func(ctx context.Context, s *cluster.Stack) error

	figures *figures         // nil: it failed
	bridge  *cluster.Bridged // nil without a bridge
	err     error
}

func (c *cell) name() string { return cmp.Or(c.title, c.workload+", "+c.variant.name) }

// comeS is when the last of the cell's jobs is submitted, GPU seconds.
func (c *cell) comeS() float64 { return slices.Max(append([]float64{0}, c.at...)) }

// cells lays the comparison out. A workload's jobs are the same under every
// variant; the same seed gives the same jobs.
func (o *options) cells() ([]*cell, error) {
	var out []*cell
	for _, wl := range o.workloads {
		names, at, err := o.jobsOf(wl)
		if err != nil {
			return nil, err
		}
		for _, v := range o.variants {
			c := o.cell(wl, v, names, at)
			c.setup.Settings = []string{"objective: " + string(objective(wl))}
			out = append(out, c)
		}
	}
	return out, nil
}

func (o *options) cell(wl string, v variant, names []string, at []float64) *cell {
	s := *o.base
	s.Scale, s.Policy, s.Sharing, s.Hooks, s.Lease = o.scale, v.policy, v.sharing, v.hooks, lease
	return &cell{workload: wl, variant: v, setup: s, apps: names, at: at, seed: o.seedOf(wl)}
}

// longestFirst orders cells so that no long one begins late: whole GPUs first, because jobs run one
// after the other there; then cells with the longest arrivals; then by work.
func longestFirst(cells []*cell) []*cell {
	out := slices.Clone(cells)
	rank := func(c *cell) int { return map[bool]int{false: 1}[c.variant.name == "whole"] }
	slices.SortStableFunc(out, func(a, b *cell) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.comeS(), a.comeS()), cmp.Compare(cluster.SoloS(b.apps), cluster.SoloS(a.apps)))
	})
	return out
}

// starters is how many clusters start and take in their jobs at a time: that is
// work, the rest is mostly waiting.
const starters = 2

// compare runs all cells, as many at once as the options say, the longest first. A cell that fails
// keeps its error; the rest continues.
func compare(ctx context.Context, o *options, cells []*cell, b *board) {
	run, starting := make(chan struct{}, o.parallel), make(chan struct{}, starters)
	var all sync.WaitGroup
	for _, c := range longestFirst(cells) {
		select {
		case run <- struct{}{}:
		case <-ctx.Done():
			c.err = ctx.Err()
			continue
		}
		all.Go(func() {
			defer func() { <-run }()
			c.figures, c.err = c.measure(ctx, o, b, starting)
			b.over(c)
		})
	}
	all.Wait()
}

// measure runs the cell on a cluster of its own.
func (c *cell) measure(ctx context.Context, o *options, b *board, starting chan struct{}) (f *figures, err error) {
	select {
	case starting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	started := sync.OnceFunc(func() { <-starting })
	defer started()
	s, err := cluster.Start(ctx, c.setup)
	if err != nil {
		return nil, err
	}
	defer func() { err = s.CloseAfter(ctx, err) }()
	limit := o.limit
	if limit == 0 {
		// Alone one after the other, and ten times Slurm's usual pause.
		limit = time.Minute + time.Duration(((c.comeS()+2*cluster.SoloS(c.apps))/o.scale+10*float64(len(c.apps)))*float64(time.Second))
	}
	every := 4 * time.Second
	if o.parallel == 1 {
		every = time.Second
	}
	ran, err := s.Do(ctx, cluster.Work{
		Apps: c.apps, Gres: c.variant.gres, At: c.at, Hold: c.at == nil && !c.loose, Every: every, Limit: limit,
		Progress: func(ended, running int, gpu *gpusim.Snapshot) {
			started() // the jobs are there, or begin to come
			b.at(c, ended, running, gpu)
		},
	})
	if err != nil {
		return nil, err
	}
	if f, err = sum(ran, o.scale); err != nil {
		return nil, err
	}
	f.Seed = c.seed
	if c.variant.policy != "" {
		f.Objective = objective(c.workload)
		if c.bridge, err = s.Ask(ctx); err != nil {
			return nil, err
		}
	}
	if c.at != nil {
		f.Load = o.load
	}
	if c.variant.repeatable {
		f.addSim()
	}
	if c.after != nil {
		err = c.after(ctx, s)
	}
	return f, err
}
