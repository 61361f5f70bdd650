package sim

import (
	"fmt"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Sample is how busy the GPUs are from AtS on, on average over the GPUs.
type Sample struct {
	AtS     float64
	GPU     float64 // fraction of time a kernel runs, 0..1
	Mem     float64 // fraction of the device memory held, 0..1
	Running int     // jobs
}

// Outcome is what became of one job.
type Outcome struct {
	ID       string
	App      string
	SubmitS  float64
	GPU      int     // by index in Config.GPUs
	StartS   float64 // of the run that succeeded
	EndS     float64
	SoloS    float64
	Slowdown float64 // (EndS − StartS) ÷ SoloS
	Failures int     // runs lost for want of memory
}

// Result is what became of all jobs. Times are in s, utilisations are averages
// over the GPUs and the makespan, 0..1.
type Result struct {
	Jobs            []Outcome // in Config's order
	MakespanS       float64   // first arrival to last end
	MeanTurnaroundS float64
	GPUUtil         float64
	MemUtil         float64
	OOM             int // runs lost for want of memory
	Decisions       int
	Track           []Sample
}

// Result returns what became of the jobs; the error says why it isn't complete.
func (s *Sim) Result() (*Result, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.left > 0 {
		return nil, fmt.Errorf("%w: %d jobs have not ended yet", ErrStuck, s.left)
	}
	r := &Result{OOM: s.oom, Decisions: s.decisions, Track: s.track}
	if len(s.jobs) == 0 {
		return r, nil
	}
	first := s.jobs[s.order[0]].SubmitS
	last := first
	for i := range s.jobs {
		j := &s.jobs[i]
		o := Outcome{
			ID: j.ID, App: j.Truth.App, SubmitS: j.SubmitS, StartS: j.started, EndS: j.ended, GPU: j.gpu,
			SoloS: j.Truth.DurationS, Failures: j.failures,
		}
		// Nobody is faster than alone; the difference of two large times may say so.
		o.Slowdown = max(1, (o.EndS-o.StartS)/o.SoloS)
		r.MeanTurnaroundS += (o.EndS - o.SubmitS) / float64(len(s.jobs))
		last = max(last, o.EndS)
		r.Jobs = append(r.Jobs, o)
	}
	r.MakespanS = last - first
	for g := range s.devs {
		s.sync(g)
		d := &s.devs[g]
		r.GPUUtil += d.busyS / r.MakespanS / float64(len(s.devs))
		r.MemUtil += d.memMiBS / d.spec.MemMiB / r.MakespanS / float64(len(s.devs))
	}
	return r, nil
}

// Slowdowns returns the jobs' slowdowns in ascending order.
func (r *Result) Slowdowns() []float64 {
	out := make([]float64, len(r.Jobs))
	for i := range r.Jobs {
		out[i] = r.Jobs[i].Slowdown
	}
	slices.Sort(out)
	return out
}

// Run simulates with a Decider deciding. A Config's M and MaxDelayS that are zero
// are the Decider's.
func Run(cfg Config, d *rlcore.Decider) (*Result, error) {
	if cfg.M == 0 {
		cfg.M = d.M
	}
	if cfg.MaxDelayS == 0 {
		cfg.MaxDelayS = d.Guard.MaxDelayS
	}
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	for s.Next() {
		s.Take(d.Guard, s.Decide(d))
	}
	return s.Result()
}

// Decide asks the Decider for the decision that is due. Where waiting is no
// choice, the best of what is left is taken.
func (s *Sim) Decide(d *rlcore.Decider) rlcore.Decision {
	dec := d.Decide(s.State(), s.gpu)
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

// Take carries out a decision and keeps account of who was passed over.
func (s *Sim) Take(g *rlcore.Guard, dec rlcore.Decision) {
	s.scratch.passed = g.Passed(s.scratch.passed[:0], &dec.Window, dec.Combo)
	for _, i := range s.scratch.passed {
		s.PassOver(dec.Window.Jobs[i])
	}
	s.Start(dec.Jobs())
}
