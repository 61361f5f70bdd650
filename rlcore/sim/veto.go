package sim

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// VetoCost is what one veto of the guard has cost. While a decision lets nothing join a GPU that has room, the first
// job of its window that only one veto keeps off waits for it; see rlcore.Decision.SoleVeto. A job counts once however
// many GPUs the veto keeps it from, and once for each veto. So the times don't add up: each is what lifting that veto
// alone could save.
type VetoCost struct {
	Reason rlcore.Veto
	WaitS  float64 // of all jobs, s
	Jobs   int
}

// waiting is a job that waits for a reason; the zero value is none.
type waiting struct {
	job int // in Sim.jobs
	why rlcore.Veto
}

// at is the index in Sim.waited.
func (x waiting) at() int { return x.job*rlcore.Vetoes + int(x.why) }

// noteVeto notes the job that a decision for the current GPU keeps waiting, until the next decision or until the GPU
// changes.
func (s *Sim) noteVeto(dec *rlcore.Decision) {
	s.vetoes[s.gpu] = waiting{}
	if i, why := dec.SoleVeto(); why != rlcore.Allowed {
		s.vetoes[s.gpu] = waiting{s.wait[dec.Window.Jobs[i]], why}
	}
}

// countVetoes adds dt s to what the jobs that are kept waiting have waited.
func (s *Sim) countVetoes(dt float64) {
	s.scratch.counted = s.scratch.counted[:0]
	for g := range s.vetoes {
		x := s.vetoes[g]
		if x.why != rlcore.Allowed && !slices.Contains(s.scratch.counted, x) {
			s.scratch.counted = append(s.scratch.counted, x)
			s.waited[x.at()] += dt
		}
	}
}

// noLonger notes that job i doesn't wait any more.
func (s *Sim) noLonger(i int) {
	for g := range s.vetoes {
		if s.vetoes[g].job == i {
			s.vetoes[g] = waiting{}
		}
	}
}

// vetoCosts sums up what each reason cost, the dearest first.
func (s *Sim) vetoCosts() []VetoCost {
	var out []VetoCost
	for why := range rlcore.Veto(rlcore.Vetoes) {
		k := VetoCost{Reason: why}
		for i := range s.jobs {
			if t := s.waited[waiting{i, why}.at()]; t > 0 {
				k.Jobs, k.WaitS = k.Jobs+1, k.WaitS+t
			}
		}
		if k.Jobs > 0 {
			out = append(out, k)
		}
	}
	slices.SortStableFunc(out, func(a, b VetoCost) int { return cmp.Compare(b.WaitS, a.WaitS) })
	return out
}
