package rlcore

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// Past is a run of an application that has ended by itself: how long it took alone, and what was known of it when it
// was submitted.
type Past struct {
	SoloS  float64 `json:"solo_s"`            // > 0
	LimitS float64 `json:"limit_s,omitempty"` // its time limit; 0 = none
	User   string  `json:"user,omitempty"`    // "" = the profile's owner
}

// MostPast bounds a profile's Past.
const MostPast = 100

// AddPast adds the latest runs to Past; the oldest make room.
func (p *Profile) AddPast(runs ...Past) {
	all := slices.Concat(p.Past, runs)
	p.Past = all[max(0, len(all)-MostPast):]
}

// What a past run counts for a run that is foretold. A run by the same user with the same limit counts 1, and half as
// much when halfLife later ones have ended: a user's last runs say most (Tsafrir, Etsion, Feitelson, Backfilling Using
// System-Generated Predictions, IEEE TPDS 18, 2007). All runs with the limit by other users count together as much as
// otherUsers, at most, and all with other limits as much as otherLimits, those with nearer limits more: a user who
// asks for eight hours in place of four knows something. Without them, the few runs of a new limit would count as all
// that there is. Several values of each did about as well (LEARNING.md).
const (
	halfLife    = 10.0
	otherUsers  = 2.0
	otherLimits = 2.0
	nearLimits  = 0.5 // the logarithm of two limits' ratio that divides the weight by e
)

// length is a run time, s, with sums over it and all longer ones: of the weights, of their squares, and of the weighted
// times.
type length struct{ s, weight, squares, weighted float64 }

// lengths are the run times that a run may have, ascending, and a last one of zeros.
type lengths []length

// Foretold returns the profile that a run is expected to have by past runs, p's Past and further ones, the oldest
// first: p with another length and spread, and with the distribution of these. user is the run's, limitS its time
// limit, 0 = none. It is p itself where there are none, and where all runs take equally long.
func (p *Profile) Foretold(user string, limitS float64, further ...Past) *Profile {
	const same, others, elsewhere = 0, 1, 2
	type run struct {
		s, weight float64
		kind      int
	}
	runs := make([]run, 0, len(p.Past)+len(further))
	var total, met [3]float64
	for _, list := range [][]Past{further, p.Past} {
		for i := len(list) - 1; i >= 0; i-- {
			x := &list[i]
			kind, weight := same, 1.0
			switch {
			case x.LimitS != limitS:
				kind = elsewhere
				if x.LimitS > 0 && limitS > 0 {
					weight = math.Exp(-math.Abs(math.Log(x.LimitS/limitS)) / nearLimits)
				}
			case cmp.Or(x.User, p.Owner) != user:
				kind = others
			}
			weight *= math.Exp2(-met[kind] / halfLife)
			met[kind]++
			total[kind] += weight
			runs = append(runs, run{x.SoloS, weight, kind})
		}
	}
	if len(runs) == 0 || p.Runs == 0 && p.DurationSD == 0 {
		return p
	}
	most := [3]float64{math.Inf(1), otherUsers, otherLimits}
	for i := range runs {
		if kind := runs[i].kind; total[kind] > most[kind] {
			runs[i].weight *= most[kind] / total[kind]
		}
	}
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.s, b.s) })
	known := make(lengths, len(runs)+1)
	for i := len(runs) - 1; i >= 0; i-- {
		r, behind := runs[i], known[i+1]
		known[i] = length{r.s, behind.weight + r.weight, behind.squares + r.weight*r.weight, behind.weighted + r.weight*r.s}
	}
	if known[0].weight == 0 { // no limit is anywhere near
		return p
	}
	mean, variance := known[0].weighted/known[0].weight, 0.0
	for _, r := range runs {
		variance += r.weight * (r.s - mean) * (r.s - mean) / known[0].weight
	}
	q := *p.Stretched(mean)
	q.DurationSD, q.lengths, q.Past = math.Sqrt(variance), known, nil
	return &q
}

// Foretelling says how well a profile's past runs would have been foretold, each by those before it.
type Foretelling struct {
	Runs    int     `json:"runs"`
	Within2 float64 `json:"within_a_factor_of_two"` // part of them
	Longer  float64 `json:"longer_than_foretold"`   // part of them
}

// Foretelling is how well Past's runs would have been foretold from the second on; Runs 0 = there are too few.
func (p *Profile) Foretelling() (f Foretelling) {
	q := *p
	for i := 1; i < len(p.Past); i++ {
		x := &p.Past[i]
		q.Past = p.Past[:i]
		was := q.Foretold(cmp.Or(x.User, p.Owner), x.LimitS).Left(0, x.LimitS)
		f.Runs++
		if was <= 2*x.SoloS && x.SoloS <= 2*was {
			f.Within2++
		}
		if x.SoloS > was {
			f.Longer++
		}
	}
	if f.Runs > 0 {
		f.Within2, f.Longer = f.Within2/float64(f.Runs), f.Longer/float64(f.Runs)
	}
	return f
}

// after is the index of the first run longer than s.
func (l lengths) after(s float64) int {
	return sort.Search(len(l)-1, func(i int) bool { return l[i].s > s })
}

// left returns the mean of min(X, limitS) − doneS over the runs X > doneS; false = there are too few of them.
func (l lengths) left(doneS, limitS float64) (s float64, known bool) {
	if !l.known(doneS) {
		return 0, false
	}
	longer := l[l.after(doneS)]
	work := longer.weighted
	if limitS > 0 {
		beyond := l[l.after(max(doneS, limitS))]
		work += limitS*beyond.weight - beyond.weighted
	}
	return max(0, work/longer.weight-doneS), true
}

// longer returns the part of the runs longer than doneS that are longer than s; false = there are too few of them.
func (l lengths) longer(s, doneS float64) (part float64, known bool) {
	if !l.known(doneS) {
		return 0, false
	}
	return l[l.after(s)].weight / l[l.after(doneS)].weight, true
}

// known reports whether enough runs are longer than s.
func (l lengths) known(s float64) bool {
	if len(l) == 0 {
		return false
	}
	longer := l[l.after(s)]
	return longer.weight > 0 && longer.weight*longer.weight >= leastLonger*longer.squares
}

// quantile is the run time that the given part of the runs longer than doneS don't exceed, s.
func (l lengths) quantile(part, doneS float64) float64 {
	most := (1 - part) * l[l.after(doneS)].weight
	return max(doneS, l[sort.Search(len(l)-1, func(i int) bool { return l[i+1].weight <= most })].s)
}
