package experiment

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
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

// A search for the clairvoyant's schedules is worth its time up to mostSearched jobs: beyond, it finds hardly anything
// that the policies it starts from don't, and a share of what it found would flatter them. found is by how much it must
// be better than the best policy of each set, on average, to count.
const (
	mostSearched = 100
	found        = 0.01
)

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
	if c.o.Tries == 0 || len(c.sets[0].Jobs) > mostSearched {
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
	if err != nil {
		return fmt.Errorf("%s: %w", Clairvoyant, err)
	}
	if c.finds(best.results) {
		c.entries[Clairvoyant] = best
	}
	return nil
}

// finds reports whether a search has found what the policies don't.
func (c *contest) finds(searched []*sim.Result) bool {
	cost, by := sim.CostOf(c.aim), 0.0
	for i, r := range searched {
		best := math.Inf(1)
		for _, name := range c.o.Policies {
			best = min(best, cost(c.results(name)[i]))
		}
		by += (1 - cost(r)/best) / float64(len(searched))
	}
	return by >= found
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
	// runs lost for want of memory; with the thesis's workloads over all sets, like Ends
	OOM float64 `json:"oom"`
	Ends
	Lateness
	// VsBest is what the aim keeps small ÷ that of the best other policy of the contest, mean over the job sets of the
	// ratios; 0 = there is no other.
	VsBest float64 `json:"vs_best_other,omitempty"`
	// PossibleShare is the gain over the base, of the aim, as a part of what the lower bound leaves to gain; 1 where there
	// is nothing to gain.
	PossibleShare float64 `json:"share_of_possible_gain"`
	// GainShare is the same as a part of the clairvoyant's gain; 0 where there is no clairvoyant.
	GainShare   float64 `json:"share_of_clairvoyant_gain"`
	GainShareSD float64 `json:"share_of_clairvoyant_gain_sd"`
	// Kept is what the guard's reasons cost, the dearest first.
	Kept   []Kept  `json:"guard,omitempty"`
	TrainS float64 `json:"train_s"` // wall time of training, or of tuning a knob
	Note   string  `json:"note,omitempty"`
}

// Kept is what one reason of the guard's cost, means over the job sets: how many jobs waited, and how long in all,
// while they were the first that the guard refused for it on a GPU with room that got none; see sim.Kept.
type Kept struct {
	Reason string  `json:"reason"` // rlcore.Refusal's name
	Jobs   float64 `json:"jobs"`
	WaitH  float64 `json:"waited_h"`
}

// keptBy sums up what reasons cost in all the results.
func keptBy(rs []*sim.Result) []Kept {
	var sums [rlcore.Refusals]Kept
	for _, r := range rs {
		for _, k := range r.Kept {
			x := &sums[k.Reason]
			x.Reason, x.Jobs, x.WaitH = k.Reason.Name(), x.Jobs+float64(k.Jobs)/float64(len(rs)),
				x.WaitH+k.WaitS/3600/float64(len(rs))
		}
	}
	out := slices.DeleteFunc(sums[:], func(k Kept) bool { return k.Jobs == 0 })
	slices.SortStableFunc(out, func(a, b Kept) int { return cmp.Compare(b.WaitH, a.WaitH) })
	return out
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
	// part of the jobs that were late by more than a tenth of their own solo time, 0..1; mean over the seeds
	Late      float64 `json:"late"`
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
	if others := c.bestOther(name); others != nil {
		f.VsBest, _ = over(rs, func(i int, r *sim.Result) float64 { return cost(r) / cost(others[i]) })
	}
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

// bestOther are the results of the policy that does best on average of all but one; nil = there is no other.
func (c *contest) bestOther(name string) (best []*sim.Result) {
	cost, least := sim.CostOf(c.aim), math.Inf(1)
	for _, other := range c.o.Policies {
		if other == name || c.results(other) == nil {
			continue
		}
		if mean, _ := over(c.results(other), func(_ int, r *sim.Result) float64 { return cost(r) }); mean < least {
			best, least = c.results(other), mean
		}
	}
	return best
}

// sum sets what doesn't compare with others.
func (f *Fared) sum(rs []*sim.Result) {
	f.TurnaroundS, f.TurnaroundSD = over(rs, func(_ int, r *sim.Result) float64 { return r.MeanTurnaroundS })
	f.GPUUtil, _ = over(rs, func(_ int, r *sim.Result) float64 { return r.GPUUtil })
	f.MemUtil, _ = over(rs, func(_ int, r *sim.Result) float64 { return r.MemUtil })
	f.OOM, _ = over(rs, func(_ int, r *sim.Result) float64 { return float64(r.OOM) })
	f.Kept = keptBy(rs)
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
