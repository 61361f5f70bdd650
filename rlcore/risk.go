package rlcore

import (
	"math"
	"slices"
)

// mostRisk is the probability of a late end, because another job on the GPU takes longer than it is expected to, up to
// which a job may have company. A long run meets many others one after the other, so it must be small: with it about
// 1 % of jobs were late in worlds where nobody knows their lengths, on 10 to 100 GPUs (LEARNING.md).
const mostRisk = 0.02

// member is a job of known profile that is to share a GPU.
type member struct {
	doneS float64 // solo work done, s
	roomS float64 // by how much others may delay it, s
	joins bool
}

// unlikely reports whether it is unlikely, by mostRisk, that a member of the GPU becomes late because of a co-runner
// that takes longer than expected, where run times differ. membersKeep has noted the members' room. A member that is
// slowed by the factor s becomes late if it and the co-runner are still there after room/(1 − 1/s). Company that
// running jobs have already isn't counted against a newcomer.
func (p *promise) unlikely(r *Rules, w *Window) bool {
	varies := func(p *Profile) bool { return p.DurationSD > 0 }
	if len(p.risk) < 2 || r.Bare || !slices.ContainsFunc(p.members, varies) {
		return true
	}
	p.pred = resize(p.pred, len(p.members))
	r.predict(p.pred, &w.Card().Spec, p.members)
	for k, m := range p.risk {
		slow := p.pred[k].Slowdown
		if slow <= 1 {
			continue
		}
		inS := m.roomS / (1 - 1/slow)
		there := func(i int) float64 {
			return p.members[i].longer(p.risk[i].doneS+inS/max(1, p.pred[i].Slowdown), p.risk[i].doneS)
		}
		alone := 1.0
		for i, other := range p.risk {
			if i != k && (m.joins || other.joins) {
				alone *= 1 - there(i)
			}
		}
		if there(k)*(1-alone) > mostRisk {
			return false
		}
	}
	return true
}

// longer is the probability that a run takes longer than x s that has done doneS, 0..1.
func (p *Profile) longer(x, doneS float64) float64 {
	switch sigma := p.sigma(); {
	case x <= doneS:
		return 1
	case sigma == 0 && x < p.DurationS:
		return 1
	case sigma == 0:
		return 0
	default:
		if doneS <= 0 {
			return phi(-p.z(x))
		}
		if so := phi(-p.z(doneS)); so >= tail {
			return phi(-p.z(x)) / so
		}
		return math.Pow(doneS/x, p.z(doneS)/sigma) // Mills' ratio, as in Left
	}
}
