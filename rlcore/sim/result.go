package sim

import (
	"fmt"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Outcome is the result for one job. Times are in s.
type Outcome struct {
	ID      string
	SubmitS float64
	GPU     int     // index in Config.GPUs, of a foreign job the first one
	On      []int   // all GPUs of a foreign job; nil = GPU alone
	StartS  float64 // of the last run
	EndS    float64
	SoloS   float64
	// Slowdown is (EndS − StartS) ÷ the solo time of what was done: SoloS unless the run was ended early.
	Slowdown float64
	Failures int  // runs that ran out of memory
	TimedOut bool // it was ended at its limit
	// PlainEndS is when plain Slurm would have ended it; see schedule.SlurmAlone.
	PlainEndS float64
	// Harmed: it was ended at its limit, and alone it would have ended before.
	Harmed bool
}

// Result is the outcome of a simulation. Times are in s, utilisations are averages
// over the GPUs and the makespan, 0..1.
type Result struct {
	Jobs      []Outcome // in Config's order
	MakespanS float64   // first arrival to last end
	// MeanTurnaroundS is from arrival to end, however a job ended: it makes a schedule that
	// loses jobs look good, so schedules are to be compared by Harmed first.
	MeanTurnaroundS float64
	GPUUtil         float64
	MemUtil         float64
	OOM             int // runs that ran out of memory
	Harmed          int // jobs that were ended at their limits, and alone would have ended before
	Decisions       int
	VetoCosts       []VetoCost // what the guard's reasons cost, the dearest first
}

// Result returns the outcome once all jobs have ended; else an error, which wraps ErrStuck.
func (s *Sim) Result() (*Result, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.left > 0 {
		return nil, fmt.Errorf("%w: %d jobs have not ended yet", ErrStuck, s.left)
	}
	r := &Result{OOM: s.oom, Decisions: s.decisions, VetoCosts: s.vetoCosts()}
	if len(s.jobs) == 0 {
		return r, nil
	}
	first := s.jobs[s.order[0]].SubmitS
	last := first
	for i := range s.jobs {
		j := &s.jobs[i]
		soloS := s.truth(i, j.gpu).DurationS
		o := Outcome{
			ID: j.ID, SubmitS: j.SubmitS, StartS: j.started, EndS: j.ended, GPU: j.gpu, On: j.on,
			SoloS: soloS, PlainEndS: s.truly.EndS(j.ID), Failures: j.failures, TimedOut: j.timedOut,
			Harmed: j.timedOut && soloS < j.LimitS,
		}
		if j.done > 0 {
			// The difference of two large times may round to less than the solo time.
			o.Slowdown = max(1, (o.EndS-o.StartS)/j.done)
		}
		if o.Harmed {
			r.Harmed++
		}
		r.MeanTurnaroundS += (o.EndS - o.SubmitS) / float64(len(s.jobs))
		last = max(last, o.EndS)
		r.Jobs = append(r.Jobs, o)
	}
	if r.MakespanS = last - first; r.MakespanS == 0 {
		return r, nil // no job ran for any time
	}
	for g := range s.devs {
		s.sync(g)
		d := &s.devs[g]
		r.GPUUtil += d.busyS / r.MakespanS / float64(len(s.devs))
		r.MemUtil += d.memMiBS / d.spec.MemMiB / r.MakespanS / float64(len(s.devs))
	}
	return r, nil
}

// Cost is what an objective keeps small, s: the makespan, or the mean turnaround.
func (r *Result) Cost(aim policy.Objective) float64 {
	if aim == policy.Makespan {
		return r.MakespanS
	}
	return r.MeanTurnaroundS
}

// Slowdowns returns the slowdowns of the jobs that ran, in ascending order.
func (r *Result) Slowdowns() []float64 {
	out := make([]float64, 0, len(r.Jobs))
	for i := range r.Jobs {
		if x := r.Jobs[i].Slowdown; x > 0 {
			out = append(out, x)
		}
	}
	slices.Sort(out)
	return out
}

// Run simulates all of cfg with the given Decider; M, MaxDelayS and ExtendLimit are the Decider's
// if cfg has none. Errors are the errors of New and Result.
func Run(cfg Config, d *rlcore.Decider) (*Result, error) {
	if cfg.M == 0 {
		cfg.M = d.M
	}
	if cfg.MaxDelayS == 0 {
		cfg.MaxDelayS = d.Guard.MaxDelayS
	}
	cfg.ExtendLimit = cfg.ExtendLimit || d.Guard.ExtendLimit
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	for s.Next() {
		s.Take(s.Decide(d))
	}
	return s.Result()
}

// Play simulates all of cfg. For each decision choose gets the combinations that the guard allows, in ascending order:
// without 0, which waits, where that isn't an option.
func Play(cfg Config, g *rlcore.Guard,
	choose func(s *Sim, w *rlcore.Window, combos []rlcore.Combo) rlcore.Combo,
) (*Sim, *Result, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, nil, err
	}
	var jobs []int
	var combos []rlcore.Combo
	for s.Next() {
		w := rlcore.NewWindow(jobs, s.State(), s.gpu, s.cfg.M)
		jobs, combos = w.Jobs, g.Combos(combos[:0], &w)
		allowed := combos
		if s.forced && len(combos) > 1 && combos[0] == 0 {
			allowed = combos[1:]
		}
		dec := rlcore.Decision{Window: w, Combo: choose(s, &w, allowed)}
		s.Start(dec.Jobs())
	}
	res, err := s.Result()
	return s, res, err
}

// Decide returns d's decision for the GPU that is due. Where waiting isn't an option,
// it is the best of the other combinations.
func (s *Sim) Decide(d *rlcore.Decider) rlcore.Decision {
	decide, state := d.Again, s.State()
	if s.begun != d {
		decide, s.begun = d.Decide, d
	}
	dec := decide(state, s.gpu)
	if dec.Combo != 0 || !s.forced {
		return dec
	}
	for i, c := range dec.Combos {
		if c != 0 && (dec.Combo == 0 || dec.Scores[i] > dec.Score) {
			dec.Combo, dec.Score = c, dec.Scores[i]
		}
	}
	return dec
}

// Take carries out a decision.
func (s *Sim) Take(dec rlcore.Decision) {
	s.noteVeto(&dec)
	s.Start(dec.Jobs())
}
