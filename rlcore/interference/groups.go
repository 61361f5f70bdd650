package interference

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Co-runs of two teach what groups do. Measured excesses over 1 nearly add: those of a member with each of its
// co-runners alone make the one that it has with all of them. The factors of learn.go average the co-runners'
// logarithms instead, and so expect too little where co-runners differ. A group of more than two is therefore composed:
// with law the law's excess of the group, lawᵢ of each pair and eᵢ what is predicted of the pair,
//
//	e = Σ eᵢ + (law − Σ lawᵢ) · min(1, Σ eᵢ / Σ lawᵢ) · e₀ / (e₀ + Floor)
//
// with e₀ the least of the eᵢ. The second term is what the law expects of the group beyond its pairs: where each two
// leave room for each other, three may not. How much of it comes true grows with e₀: of 2 to 5 equal processes
// (MunQ-Lee/ParvaGPU_SC24, A100, 84 networks and batch sizes) 5 to 18 % where a pair's excess is below 0.1, 56 % where
// it is from 0.1 to 0.4, and 87 to 100 % above. The composition counts as far as the pairs are known; of unknown ones
// the law of the group is the better guess.
const (
	// addSD is the standard deviation of the logarithm of a group of three's excess around that of the composition, an
	// assumption; its variance grows with the number of members.
	addSD = 0.2
	// together is the correlation of the errors of two pairs with the same victim, an assumption.
	together = 0.5
)

// pairing is what is predicted of a member next to one other alone.
type pairing struct {
	excess, sd, law float64 // over 1
	known           float64 // how much of the prior's variance observations have resolved, 0..1
	first           bool    // see belief
}

// pairings predicts each member next to each other one.
func (m *Model) pairings(spec *rlcore.GPUSpec, members []*rlcore.Profile) [][maxKept]pairing {
	out := make([][maxKept]pairing, len(members))
	for i := range members {
		for j := range i {
			a := m.answer(spec, []*rlcore.Profile{members[i], members[j]})
			for k, at := range [2][2]int{{i, j}, {j, i}} {
				p, b := &a.predictions[k], &a.beliefs[k]
				out[at[0]][at[1]] = pairing{
					excess: p.Slowdown - 1, sd: max(minSD, (p.Slowdown-1+sdFloor)*b.sd), law: a.law[k] - 1,
					known: b.known(), first: b.first,
				}
			}
		}
	}
	return out
}

// compose returns mean and variance of member i's z − z_law, given what the factors alone say.
func (l *learned) compose(pairs [][maxKept]pairing, i int, z, mean, v float64) (composed, variance float64) {
	var sum, law, sds, squares, known float64
	least := math.Inf(1)
	for j := range pairs {
		if j == i {
			continue
		}
		p := &pairs[i][j]
		sum += p.excess
		least = min(least, p.excess)
		law += p.law
		sds += p.sd
		squares += p.sd * p.sd
		known += p.known / float64(len(pairs)-1)
	}
	beyond := (math.Exp(z) - Floor - law) * min(1, sum/max(law, 1e-9)) * least / (least + Floor)
	e := max(0, sum+beyond)
	c := math.Log(e+Floor) - z
	spread := (together*sds*sds + (1-together)*squares) / ((e + Floor) * (e + Floor))
	spread += addSD * addSD * float64(len(pairs)-2)
	// Groups that were observed teach how groups differ from pairs: then both count.
	if len(l.cov) > 0 {
		known *= (1 + l.cov[more][more]) / 2
	}
	apart := c - mean
	return mean + known*apart, known*known*spread + (1-known)*(1-known)*v + known*(1-known)*apart*apart
}
