package experiment

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// UserOutcome is how one user's jobs fared under a policy: means over jobs and seeds,
// worst cases over both.
type UserOutcome struct {
	Jobs int `json:"jobs"`
	// WaitS is from submission to the start of the last run; TurnaroundS to its end. The other two
	// are the difference to fifo's, and the ratio.
	WaitS        float64 `json:"mean_wait_s"`
	WaitVsFifoS  float64 `json:"mean_wait_vs_fifo_s"`
	TurnaroundS  float64 `json:"mean_turnaround_s"`
	VsFifo       float64 `json:"turnaround_vs_fifo"`
	Later        float64 `json:"ended_later_than_fifo"` // part of the jobs, 0..1
	MeanSlowdown float64 `json:"mean_slowdown"`         // over the jobs that ran
	MaxSlowdown  float64 `json:"worst_slowdown"`
	Ends
	Lateness
	// MaxDelayS is the longest that a job was kept waiting next to an idle GPU, s.
	MaxDelayS float64 `json:"max_delay_s"`

	neverRan float64 // part of the jobs and seeds
}

// witness is a policy that writes down how long the jobs that it scores were delayed, s. The decision that starts a
// job sees the last of it.
type witness struct {
	rlcore.Policy
	delays map[string]float64
}

// Score implements rlcore.Policy.
func (p *witness) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	for i := range w.Jobs {
		j := w.Job(i)
		p.delays[j.ID] = max(p.delays[j.ID], j.DelayedS)
	}
	p.Policy.Score(dst, w, combos)
}

// Under implements rlcore.Foresighted for policies that do.
func (p *witness) Under(g *rlcore.Guard, m int) {
	if f, ok := p.Policy.(rlcore.Foresighted); ok {
		f.Under(g, m)
	}
}

// watched is a contender with recorded decisions.
func (c *Contender) watched() (*Contender, map[string]float64) {
	delays := map[string]float64{}
	w := *c
	w.policy = func(m *interference.Model) rlcore.Policy { return &witness{c.policy(m), delays} }
	return &w, delays
}

// seen is a result with what its decisions saw.
type seen struct {
	*sim.Result
	delays map[string]float64
}

// byUser sums up the results of each policy, one a seed, by the jobs' owners.
func byUser(jobs []sim.Arrival, results map[string][]seen) map[string]map[string]*UserOutcome {
	out := map[string]map[string]*UserOutcome{}
	counts := map[string]int{}
	for i := range jobs {
		counts[jobs[i].User]++
	}
	for name, rs := range results {
		for user, n := range counts {
			if out[user] == nil {
				out[user] = map[string]*UserOutcome{}
			}
			out[user][name] = &UserOutcome{Jobs: n}
		}
		for seed, r := range rs {
			fifo := results[Fifo][seed]
			for i := range r.Jobs {
				x := out[jobs[i].User][name]
				part := 1 / float64(x.Jobs*len(rs))
				x.add(&r.Jobs[i], &fifo.Jobs[i], r.delays[r.Jobs[i].ID], part)
				x.Ends.add(&r.Jobs[i], 1/float64(len(rs)))
				x.Lateness.add(&r.Jobs[i], part)
			}
		}
	}
	for _, policies := range out {
		for _, x := range policies {
			if x.neverRan > 0 && x.MeanSlowdown > 0 {
				x.MeanSlowdown /= 1 - x.neverRan
			}
			x.WaitVsFifoS = x.WaitS - policies[Fifo].WaitS
			x.VsFifo = 1
			if fifo := policies[Fifo].TurnaroundS; fifo > 0 { // elsewhere all were cancelled when they came
				x.VsFifo = x.TurnaroundS / fifo
			}
		}
	}
	return out
}

// add counts a job that stands for part of the user's jobs and seeds.
func (x *UserOutcome) add(o, fifo *sim.Outcome, delayS, part float64) {
	x.WaitS += (o.StartS - o.SubmitS) * part
	x.TurnaroundS += (o.EndS - o.SubmitS) * part
	if x.MeanSlowdown += o.Slowdown * part; o.Slowdown == 0 {
		x.neverRan += part
	}
	x.MaxSlowdown = math.Max(x.MaxSlowdown, o.Slowdown)
	x.MaxDelayS = math.Max(x.MaxDelayS, delayS)
	if o.EndS > fifo.EndS+1e-6 {
		x.Later += part
	}
}
