package experiment

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// contest lets policies schedule the same job sets.
type contest struct {
	world *World
	o     *Options
	sets  []sim.Config // one a seed
	aim   policy.Objective
	// prepare makes a contender for one of the sets. With once, that of the first serves all.
	prepare func(ctx context.Context, name string, set int) (*Contender, error)
	once    bool
	begin   func(what string) // is called with what begins

	entries map[string]*entry
	lower   []float64 // of the aim, by set: less than sim.LowerBound is impossible
}

// entry is what came of a policy, or of the clairvoyant.
type entry struct {
	contender *Contender // of the last set; nil = the clairvoyant's
	trainS    float64    // mean over the sets
	results   []*sim.Result
	tookUS    []float64 // wall time of a decision with the simulation around it
}

// run plays all, and looks for the clairvoyant's schedules where there are tries.
func (c *contest) run(ctx context.Context) error {
	c.entries = map[string]*entry{}
	for _, name := range c.o.Policies {
		c.begin(name)
		e := &entry{results: make([]*sim.Result, len(c.sets)), tookUS: make([]float64, len(c.sets))}
		contenders := make([]*Contender, len(c.sets))
		for i := range c.sets {
			if i > 0 && c.once {
				contenders[i] = contenders[0]
				continue
			}
			var err error
			if contenders[i], err = c.prepare(ctx, name, i); err != nil {
				return err
			}
		}
		err := parallel(ctx, len(c.sets), func(i int) (err error) {
			began := time.Now()
			if e.results[i], err = contenders[i].Run(c.sets[i]); err == nil {
				e.tookUS[i] = time.Since(began).Seconds() * 1e6 / float64(max(1, e.results[i].Decisions))
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, x := range contenders {
			e.contender, e.trainS = x, e.trainS+x.TrainS/float64(len(contenders))
		}
		c.entries[name] = e
	}
	for _, set := range c.sets {
		c.lower = append(c.lower, sim.LowerBound(&set, c.aim))
	}
	c.begin(Clairvoyant)
	if c.o.Tries == 0 {
		return nil
	}
	best := &entry{results: make([]*sim.Result, len(c.sets))}
	err := parallel(ctx, len(c.sets), func(i int) (err error) {
		var from []*sim.Result
		for _, name := range c.o.Policies {
			from = append(from, c.entries[name].results[i])
		}
		best.results[i], err = c.world.Bound(c.sets[i], c.o.Tries, c.o.Seed+uint64(i), sim.CostOf(c.aim), from)
		return err
	})
	c.entries[Clairvoyant] = best
	if err != nil {
		return fmt.Errorf("%s: %w", Clairvoyant, err)
	}
	return nil
}

// results are a policy's; nil where it didn't take part.
func (c *contest) results(name string) []*sim.Result {
	if e := c.entries[name]; e != nil {
		return e.results
	}
	return nil
}

// lowest is the mean lower bound over the sets.
func (c *contest) lowest() float64 { return stat.Mean(c.lower, nil) }

// parallel runs f for 0 … n−1, two at a time, and returns the first error.
func parallel(ctx context.Context, n int, f func(i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i := range n {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return f(i)
		})
	}
	return g.Wait()
}

// Fared is how jobs fared under a policy: means over the job sets, worst cases over all of them.
type Fared struct {
	TurnaroundS  float64 `json:"mean_turnaround_s"`
	TurnaroundSD float64 `json:"mean_turnaround_sd_s"`
	MeanSlowdown float64 `json:"mean_slowdown"`
	P95Slowdown  float64 `json:"p95_slowdown"`
	MaxSlowdown  float64 `json:"worst_slowdown"`
	GPUUtil      float64 `json:"gpu_util"` // 0..1, over the makespan
	MemUtil      float64 `json:"mem_util"` // 0..1
	OOM          float64 `json:"oom"`      // runs lost for want of memory; with the thesis's workloads over all sets, like Ends
	Ends
	Lateness
	// GainShare is the gain over the base as a part of the clairvoyant's, of the aim; 1 where there is
	// nothing to gain, and without a clairvoyant.
	GainShare   float64 `json:"share_of_clairvoyant_gain"`
	GainShareSD float64 `json:"share_of_clairvoyant_gain_sd"`
	// PossibleShare is the same as a part of what the lower bound leaves to gain.
	PossibleShare float64 `json:"share_of_possible_gain"`
	TrainS        float64 `json:"train_s"` // wall time of training, or of tuning a knob
	Note          string  `json:"note,omitempty"`
}

// Ends counts the jobs that didn't run to their own end: means over the seeds.
type Ends struct {
	TimedOut      float64 `json:"timed_out"`      // ended at their limit
	HarmedTimeout float64 `json:"harmed_timeout"` // of these, the ones that alone would have ended before
	PastDeadline  float64 `json:"past_deadline"`  // ended at their deadline, or cancelled because of it
}

// add counts a job for part of a seed.
func (e *Ends) add(o *sim.Outcome, part float64) {
	switch o.Ended {
	case sim.AtLimit:
		e.TimedOut += part
	case sim.AtDeadline:
		e.PastDeadline += part
	}
	if o.Harmed {
		e.HarmedTimeout += part
	}
}

// Lateness is how many jobs ended after plain Slurm would have ended them, with whole GPUs
// in order of priority, and by how much; see sim.Outcome.
type Lateness struct {
	Late      float64 `json:"late"`       // part of the jobs that were late by more than a tenth of their own solo time, 0..1; mean over the seeds
	WorstLate float64 `json:"worst_late"` // the most that a job of any seed was late, in its own solo times
}

// add counts a job that stands for part of the jobs and seeds.
func (l *Lateness) add(o *sim.Outcome, part float64) {
	by, late := o.Late()
	l.WorstLate = max(l.WorstLate, by)
	if late {
		l.Late += part
	}
}

// over returns mean and standard deviation (divided by n) of a figure over the results.
func over(rs []*sim.Result, of func(i int, r *sim.Result) float64) (mean, sd float64) {
	x := make([]float64, len(rs))
	for i, r := range rs {
		x[i] = of(i, r)
	}
	return stat.PopMeanStdDev(x, nil)
}

// fared sums a policy's results up, with its gain over the base, both a part of the bounds' gains.
func (c *contest) fared(name, base string) (f Fared) {
	rs, bases, bound := c.results(name), c.results(base), c.results(Clairvoyant)
	e := c.entries[name]
	if f.TrainS = e.trainS; e.contender != nil {
		f.Note = e.contender.Note
	} else {
		f.Note = fmt.Sprintf("%d schedules tried a seed", c.o.Tries)
	}
	cost := sim.CostOf(c.aim)
	f.GainShare = 1
	if bound != nil {
		f.GainShare, f.GainShareSD = over(rs, func(i int, r *sim.Result) float64 {
			return gainShare(cost(bases[i]), cost(r), cost(bound[i]))
		})
	}
	f.PossibleShare, _ = over(rs, func(i int, r *sim.Result) float64 {
		return gainShare(cost(bases[i]), cost(r), c.lower[i])
	})
	f.sum(rs)
	return f
}

// sum sets what doesn't compare with others.
func (f *Fared) sum(rs []*sim.Result) {
	f.TurnaroundS, f.TurnaroundSD = over(rs, func(_ int, r *sim.Result) float64 { return r.MeanTurnaroundS })
	f.GPUUtil, _ = over(rs, func(_ int, r *sim.Result) float64 { return r.GPUUtil })
	f.MemUtil, _ = over(rs, func(_ int, r *sim.Result) float64 { return r.MemUtil })
	f.OOM, _ = over(rs, func(_ int, r *sim.Result) float64 { return float64(r.OOM) })
	n := float64(len(rs))
	for _, r := range rs {
		if s := r.Slowdowns(); len(s) > 0 {
			f.MeanSlowdown += stat.Mean(s, nil) / n
			f.P95Slowdown += s[min(len(s)-1, int(0.95*float64(len(s))))] / n
			f.MaxSlowdown = max(f.MaxSlowdown, s[len(s)-1])
		}
		for k := range r.Jobs {
			f.Ends.add(&r.Jobs[k], 1/n)
			f.Lateness.add(&r.Jobs[k], 1/n/float64(len(r.Jobs)))
		}
	}
}

// gainShare is the gain from base to got as a part of that to bound; 1 where the bound gains nothing.
func gainShare(base, got, bound float64) float64 {
	could := base - bound
	if could <= 1e-9*base {
		return 1
	}
	return (base - got) / could
}
