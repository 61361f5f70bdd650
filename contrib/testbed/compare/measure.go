package compare

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
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
	root      string
}

// lease is longer than it takes to submit all jobs while the bridge is stopped.
const lease = 90 * time.Second

// cell is one workload under one variant.
type cell struct {
	workload
	variant variant
	setup   cluster.Setup
	title   string // "" = workload and variant
	hold    bool   // no job starts before the last one is there; not with workload.at

	ended   int // jobs so far
	over    bool
	says    string           // what came of it, in short
	figures *figures         // nil: it failed
	bridge  *cluster.Bridged // nil without a bridge
	err     error
}

func (c *cell) String() string { return cmp.Or(c.title, c.name+", "+c.variant.name) }

// comeS is when the last of the cell's jobs is submitted, GPU seconds.
func (c *cell) comeS() float64 { return slices.Max(append([]float64{0}, c.at...)) }

// cells lays the comparison out. A workload's jobs are the same under every variant; the same seed gives the same jobs.
func (o *options) cells() ([]*cell, error) {
	var out []*cell
	for _, name := range o.workloads {
		w, err := o.workload(name)
		if err != nil {
			return nil, err
		}
		for _, v := range o.variants {
			out = append(out, o.cell(w, v))
		}
	}
	return out, nil
}

func (o *options) cell(w workload, v variant) *cell {
	s := *o.base
	s.Scale, s.Policy, s.Sharing, s.Hooks, s.Lease = o.scale, v.policy, v.sharing, v.hooks, lease
	s.Settings = slices.Clone(v.settings)
	if v.policy == pretrained.Name {
		s.Policy = networkFor(objective(w.name))
	}
	if v.name == adopted {
		// A minute of the GPUs' time, the default.
		s.Settings = append(s.Settings, fmt.Sprintf("adopt_delay: %.0fs", max(1, 60/o.scale)))
		// A job is only adopted once its application has run alone.
		for _, n := range apps.Names() {
			p, _ := apps.ByName(n)
			known := *p
			known.Runs = 1
			s.Profiles = append(s.Profiles, &known)
		}
	}
	s.Adjust = func(so *slurmtest.Options) { so.Root = o.root }
	return &cell{workload: w, variant: v, setup: s, hold: w.at == nil}
}

// sum makes the cell's figures.
func (c *cell) sum(r *ran, o *options) error {
	f, err := sum(r, o.scale)
	if err != nil {
		return err
	}
	by := objective(c.name)
	f.Seed = c.seed
	if c.bridge = r.bridge; c.bridge != nil {
		f.Objective = by
	}
	if c.at != nil {
		f.Load = o.load
	}
	c.figures = f
	c.says = fmt.Sprintf("%s %5.0f s", by, f.of(by))
	if f.JobsFailed > 0 {
		c.says += fmt.Sprintf(", %d failed", f.JobsFailed)
	}
	return nil
}

// longestFirst orders cells so that no long one begins late: whole GPUs first, because jobs run one
// after the other there; then cells with the longest arrivals; then by work.
func longestFirst(cells []*cell) []*cell {
	out := slices.Clone(cells)
	rank := func(c *cell) int { return map[bool]int{false: 1}[c.variant.name == "whole"] }
	slices.SortStableFunc(out, func(a, b *cell) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.comeS(), a.comeS()),
			cmp.Compare(cluster.SoloS(b.apps), cluster.SoloS(a.apps)))
	})
	return out
}

// starters is how many clusters start and take in their jobs at a time: that is work, the rest is mostly waiting.
const starters = 2

// compare runs all cells, as many at once as the options say, the longest first. A cell that fails
// keeps its error; the rest continues.
func compare(ctx context.Context, o *options, cells []*cell, b *board) {
	starting := semaphore.NewWeighted(starters)
	var all errgroup.Group
	all.SetLimit(o.parallel)
	for _, c := range longestFirst(cells) {
		all.Go(func() error {
			c.err = c.measure(ctx, o, b, starting)
			b.over(c)
			return nil
		})
	}
	_ = all.Wait()
}

// measure runs the cell on a cluster of its own.
func (c *cell) measure(ctx context.Context, o *options, b *board, starting *semaphore.Weighted) error {
	if err := starting.Acquire(ctx, 1); err != nil {
		return err
	}
	started := sync.OnceFunc(func() { starting.Release(1) })
	defer started()
	// Alone one after the other, and ten times Slurm's usual pause.
	limit := time.Minute +
		time.Duration(((c.comeS()+2*cluster.SoloS(c.apps))/o.scale+10*float64(len(c.apps)))*float64(time.Second))
	every := 4 * time.Second
	if o.parallel <= 2 {
		every = time.Second
	}
	r, err := c.run(ctx, every, limit, func(ended int) {
		started() // the jobs are there, or begin to come
		b.at(c, ended)
	})
	if err != nil {
		return err
	}
	return c.sum(r, o)
}

// report is build/compare.json: figures by workload and variant.
type report map[string]map[string]*figures

// collect gathers what the cells measured; failed cells are missing.
func collect(cells []*cell) report {
	r := report{}
	for _, c := range cells {
		if c.figures == nil {
			continue
		}
		if r[c.name] == nil {
			r[c.name] = map[string]*figures{}
		}
		r[c.name][c.variant.name] = c.figures
	}
	for _, byVariant := range r {
		plain := byVariant["whole"]
		for name, f := range byVariant {
			if plain != nil && name != "whole" {
				f.againstWhole = f.against(plain)
			}
		}
	}
	return r
}

// board shows how far the runs have come: a line for each that is over, and one that changes for those under way.
type board struct {
	line  *cluster.Line
	began time.Time
	mu    sync.Mutex
	cells []*cell
}

func newBoard(line *cluster.Line, cells []*cell) *board {
	return &board{line: line, began: time.Now(), cells: cells}
}

// at says how many of a run's jobs have ended.
func (b *board) at(c *cell, ended int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.ended = ended
	jobs, of, over := 0, 0, 0
	text := b.clock()
	for _, c := range b.cells {
		jobs, of = jobs+c.ended, of+len(c.apps)
		if c.over {
			over++
		}
		if len(b.cells) == 2 { // side by side
			text += fmt.Sprintf("  %s %s %d/%d", c, cluster.Bar(16, c.ended, len(c.apps)), c.ended, len(c.apps))
		}
	}
	if len(b.cells) != 2 {
		text += fmt.Sprintf("  %s %d/%d jobs ended, %d/%d runs over", cluster.Bar(24, jobs, of), jobs, of, over, len(b.cells))
	}
	b.line.Show(text)
}

// over says that a run has come to its end.
func (b *board) over(c *cell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.over, c.ended = true, len(c.apps)
	text := c.says
	if c.err != nil {
		line, _, _ := strings.Cut(c.err.Error(), "\n")
		text = "failed: " + line
	}
	b.line.Keep(fmt.Sprintf("%s  %-22s %s", b.clock(), c, text))
}

func (b *board) clock() string { return fmt.Sprintf("%3.0f s", time.Since(b.began).Seconds()) }
