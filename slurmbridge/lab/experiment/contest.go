package experiment

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// contest lets policies schedule the same job sets.
type contest struct {
	world *World
	o     *Options
	sets  []sim.Config // one a seed
	aim   policy.Objective
	// train draws the job sets that contenders are trained and tuned on. With once, one contender serves all sets.
	train dqn.Scenario
	once  bool
	begin func(what string) // is called with what begins

	entries map[string]*entry
	lower   []float64 // of the aim, by set: less than sim.LowerBound is impossible
}

// entry is what came of a policy.
type entry struct {
	contender *Contender // of the last set
	trainS    float64    // mean over the sets
	results   []*sim.Result
	tookUS    []float64 // wall time of a decision with the simulation around it
}

// run plays all.
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
			if contenders[i], err = c.world.Prepare(ctx, name, c.train, c.o.Effort, c.o.Seed+uint64(i)); err != nil {
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
			e.contender = x
			e.trainS = e.trainS + x.TrainS/float64(len(contenders))
		}
		c.entries[name] = e
	}
	for _, set := range c.sets {
		c.lower = append(c.lower, sim.LowerBound(&set, c.aim))
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

// Line is how jobs fared under a policy: means over the job sets, worst cases over all of them.
type Line struct {
	VsFifo    float64 `json:"turnaround_vs_fifo"` // mean over the job sets of the ratios
	VsFifoSD  float64 `json:"turnaround_vs_fifo_sd"`
	MakespanS float64 `json:"makespan_s"`
	// MakespanVsFifo is set where the makespan is what counts; Thesis is its value in the thesis (ch. 5), if there is one.
	MakespanVsFifo   float64 `json:"makespan_vs_fifo,omitempty"`
	MakespanVsFifoSD float64 `json:"makespan_vs_fifo_sd,omitempty"`
	Thesis           float64 `json:"thesis_makespan_vs_sjf,omitempty"`
	TurnaroundS      float64 `json:"mean_turnaround_s"`
	MeanSlowdown     float64 `json:"mean_slowdown"`
	P95Slowdown      float64 `json:"p95_slowdown"`
	MaxSlowdown      float64 `json:"worst_slowdown"`
	GPUUtil          float64 `json:"gpu_util"` // 0..1, over the makespan
	MemUtil          float64 `json:"mem_util"` // 0..1
	OOM              float64 `json:"oom"`      // runs lost for want of memory
	// TimedOut counts the jobs that were ended at their limit, HarmedTimeout the timed-out jobs that alone would have
	// ended before it.
	TimedOut      float64 `json:"timed_out"`
	HarmedTimeout float64 `json:"harmed_timeout"`
	// Late is the part of the jobs, 0..1, that ended after plain Slurm would have ended them, with whole GPUs in order of
	// priority, by more than a tenth of their own solo time; WorstLate is the most that a job was late, in its own solo
	// times. See sim.Outcome.
	Late      float64 `json:"late"`
	WorstLate float64 `json:"worst_late"`
	// VsBest is what the aim keeps small ÷ that of the best other policy of the contest, mean over the job sets of the
	// ratios; 0 = there is no other.
	VsBest float64 `json:"vs_best_other,omitempty"`
	// PossibleShare is the gain over fifo, of the aim, as a part of what the lower bound leaves to gain; 1 where there
	// is nothing to gain.
	PossibleShare float64 `json:"share_of_possible_gain"`
	// VetoCosts is what the guard's reasons cost, the dearest first.
	VetoCosts  []VetoCost `json:"guard,omitempty"`
	TrainS     float64    `json:"train_s"` // wall time of training, or of tuning a knob
	Note       string     `json:"note,omitempty"`
	DecisionUS float64    `json:"decision_us"` // wall time of the simulation, µs a decision
}

// Ratio is what counts, makespan or turnaround, over fifo's.
func (l *Line) Ratio() (mean, sd float64) {
	if l.MakespanVsFifo > 0 {
		return l.MakespanVsFifo, l.MakespanVsFifoSD
	}
	return l.VsFifo, l.VsFifoSD
}

// VetoCost is what one reason of the guard's cost, means over the job sets: how many jobs waited, and how long in all,
// while they were the first that it alone kept from a GPU with room that got none; see sim.VetoCost.
type VetoCost struct {
	Reason string  `json:"reason"` // rlcore.Veto's name
	Jobs   float64 `json:"jobs"`
	WaitH  float64 `json:"waited_h"`
}

// vetoCosts sums up what reasons cost in all the results.
func vetoCosts(rs []*sim.Result) []VetoCost {
	var sums [rlcore.Vetoes]VetoCost
	for _, r := range rs {
		for _, k := range r.VetoCosts {
			x := &sums[k.Reason]
			x.Reason = k.Reason.Name()
			x.Jobs = x.Jobs + float64(k.Jobs)/float64(len(rs))
			x.WaitH = x.WaitH + k.WaitS/3600/float64(len(rs))
		}
	}
	out := slices.DeleteFunc(sums[:], func(k VetoCost) bool { return k.Jobs == 0 })
	slices.SortStableFunc(out, func(a, b VetoCost) int { return cmp.Compare(b.WaitH, a.WaitH) })
	return out
}

// over returns mean and standard deviation (divided by n) of a figure over the results.
func over(rs []*sim.Result, of func(i int, r *sim.Result) float64) (mean, sd float64) {
	x := make([]float64, len(rs))
	for i, r := range rs {
		x[i] = of(i, r)
	}
	return stat.PopMeanStdDev(x, nil)
}

// lines sum up all results, by policy.
func (c *contest) lines() map[string]*Line {
	out := map[string]*Line{}
	for name := range c.entries {
		out[name] = c.line(name)
	}
	return out
}

// line sums a policy's results up and compares them with fifo's, with the best other policy's and with the bound.
func (c *contest) line(name string) *Line {
	l := new(Line)
	e := c.entries[name]
	rs := c.results(name)
	fifo := c.results(Fifo)
	l.TrainS = e.trainS
	l.Note = e.contender.Note
	l.DecisionUS = stat.Mean(e.tookUS, nil)
	vs := func(others []*sim.Result, aim policy.Objective) (mean, sd float64) {
		return over(rs, func(i int, r *sim.Result) float64 { return r.Cost(aim) / others[i].Cost(aim) })
	}
	l.VsFifo, l.VsFifoSD = vs(fifo, policy.Turnaround)
	if c.aim == policy.Makespan {
		l.MakespanVsFifo, l.MakespanVsFifoSD = vs(fifo, policy.Makespan)
	}
	if others := c.bestOther(name); others != nil {
		l.VsBest, _ = vs(others, c.aim)
	}
	l.PossibleShare, _ = over(rs, func(i int, r *sim.Result) float64 {
		return gainShare(fifo[i].Cost(c.aim), r.Cost(c.aim), c.lower[i])
	})
	l.sum(rs)
	return l
}

// bestOther are the results of the policy that does best on average of all but one; nil = there is no other.
func (c *contest) bestOther(name string) (best []*sim.Result) {
	least := math.Inf(1)
	for _, other := range c.o.Policies {
		if other == name || c.results(other) == nil {
			continue
		}
		mean, _ := over(c.results(other), func(_ int, r *sim.Result) float64 { return r.Cost(c.aim) })
		if mean < least {
			best = c.results(other)
			least = mean
		}
	}
	return best
}

// sum sets the figures that need no comparison with other policies.
func (l *Line) sum(rs []*sim.Result) {
	l.TurnaroundS, _ = over(rs, func(_ int, r *sim.Result) float64 { return r.MeanTurnaroundS })
	l.MakespanS, _ = over(rs, func(_ int, r *sim.Result) float64 { return r.MakespanS })
	l.GPUUtil, _ = over(rs, func(_ int, r *sim.Result) float64 { return r.GPUUtil })
	l.MemUtil, _ = over(rs, func(_ int, r *sim.Result) float64 { return r.MemUtil })
	l.OOM, _ = over(rs, func(_ int, r *sim.Result) float64 { return float64(r.OOM) })
	l.VetoCosts = vetoCosts(rs)
	n := float64(len(rs))
	for _, r := range rs {
		if s := r.Slowdowns(); len(s) > 0 {
			l.MeanSlowdown += stat.Mean(s, nil) / n
			l.P95Slowdown += s[min(len(s)-1, int(0.95*float64(len(s))))] / n
			l.MaxSlowdown = max(l.MaxSlowdown, s[len(s)-1])
		}
		for k := range r.Jobs {
			o := &r.Jobs[k]
			if o.TimedOut {
				l.TimedOut += 1 / n
			}
			if o.Harmed {
				l.HarmedTimeout += 1 / n
			}
			by, late := o.Late()
			l.WorstLate = max(l.WorstLate, by)
			if late {
				l.Late += 1 / n / float64(len(r.Jobs))
			}
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
