package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// options are what to compare.
type options struct {
	workloads []string
	variants  []variant
	jobs      int
	seed      uint64
	load      float64 // of open workloads: work that comes ÷ what one GPU does without sharing
	scale     float64
	parallel  int
	build     string
	lua       string
	// limit ends a run that takes longer with an error; 0 = what fits the work.
	limit time.Duration
}

// cell is one workload under one variant.
type cell struct {
	workload string
	variant  variant
	apps     []string
	at       []float64 // when each job is submitted, GPU seconds; nil = all before the beginning
	seed     uint64
	figures  *figures // nil: it failed
	err      error
}

func (c *cell) name() string { return c.workload + ", " + c.variant.name }

// soloS is how long the cell's jobs take one after the other, GPU seconds.
func (c *cell) soloS() float64 { return cluster.SoloS(c.apps) }

// comeS is when the last of the cell's jobs is submitted, GPU seconds.
func (c *cell) comeS() float64 {
	if len(c.at) == 0 {
		return 0
	}
	return slices.Max(c.at)
}

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
			v.setup.Scale, v.setup.Build, v.setup.Lua = o.scale, o.build, o.lua
			v.setup.Settings = []string{"objective: " + string(objective(wl))}
			out = append(out, &cell{workload: wl, variant: v, apps: names, at: at, seed: o.seedOf(wl)})
		}
	}
	return out, nil
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
	s, err := cluster.Start(ctx, c.variant.setup)
	if err != nil {
		return nil, err
	}
	defer func() { err = s.CloseAfter(ctx, err) }()
	limit := o.limit
	if limit == 0 {
		// Alone one after the other, and ten times Slurm's usual pause.
		limit = time.Minute + time.Duration(((c.comeS()+2*c.soloS())/o.scale+10*float64(len(c.apps)))*float64(time.Second))
	}
	ran, err := s.Do(ctx, cluster.Work{
		Apps: c.apps, Gres: c.variant.gres, At: c.at, Hold: c.at == nil, Every: 4 * time.Second, Limit: limit,
		Progress: func(ended, running int, _ *gpusim.Snapshot) {
			started() // the jobs are there, or begin to come
			b.at(c, ended, running)
		},
	})
	if err != nil {
		return nil, err
	}
	if f, err = sum(ran, o.scale); err != nil {
		return nil, err
	}
	f.Seed = c.seed
	if c.variant.bridged() {
		f.Objective = objective(c.workload)
	}
	if c.at != nil {
		f.Load = o.load
	}
	if c.variant.repeatable {
		f.addSim()
	}
	return f, nil
}
