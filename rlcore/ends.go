package rlcore

import (
	"math"
	"slices"
)

// forecast predicts ends. It is scratch of a Guard.
type forecast struct {
	left  []float64 // solo work, s
	group []*Profile
	at    []int // of a member of group: its index among all members
	pred  []Prediction
	first bool // some members of the last group meet for the first time
}

// ends writes into dst, reusing its storage, when each member of a GPU will have ended, s from now, if no job joins.
// workS[i] s of solo work are left to member i. The members slow each other by the most that is allowed for of the
// remaining ones.
func (g *Guard) ends(dst []float64, spec *GPUSpec, members []*Profile, workS []float64) []float64 {
	f := &g.forecast
	dst = slices.Grow(dst[:0], len(members))[:len(members)]
	f.left, f.group, f.at = append(f.left[:0], workS...), append(f.group[:0], members...), f.at[:0]
	for i := range members {
		f.at = append(f.at, i)
	}
	f.first = false
	for t := 0.0; len(f.group) > 0; {
		f.pred = slices.Grow(f.pred[:0], len(f.group))[:len(f.group)]
		g.predictGroup(f.pred, spec, f.group)
		f.first = f.first || slices.ContainsFunc(f.pred, func(p Prediction) bool { return p.First })
		step, first := math.Inf(1), 0
		for i := range f.pred {
			s := g.slowest(&f.pred[i], len(f.group))
			f.pred[i].Slowdown = s
			if x := max(0, f.left[i]) * s; x < step {
				step, first = x, i
			}
		}
		t += step
		for i := range f.pred {
			f.left[i] = max(0, f.left[i]-step/f.pred[i].Slowdown)
		}
		dst[f.at[first]] = t
		f.left = slices.Delete(f.left, first, first+1)
		f.group = slices.Delete(f.group, first, first+1)
		f.at = slices.Delete(f.at, first, first+1)
	}
	return dst
}

// predictGroup predicts the slowdowns of a group; a job alone has none. Without a predictor, or where it fails, each is
// the number of members, the worst that a fair device can do.
func (g *Guard) predictGroup(dst []Prediction, spec *GPUSpec, group []*Profile) {
	worst := Prediction{Slowdown: float64(len(group))}
	if len(group) > 1 && g.Predictor != nil {
		g.Predictor.Predict(dst, spec, group)
	} else {
		for i := range dst {
			dst[i] = worst
		}
	}
	for i, p := range dst {
		if math.IsNaN(p.Slowdown) || math.IsNaN(p.SD) {
			dst[i] = worst // a failing predictor must not admit anything
		}
	}
}
