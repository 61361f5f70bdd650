package interference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// additive is a world in which a member's excess is the sum of those with each co-runner alone.
type additive struct {
	apps []*rlcore.Profile
	pair map[[2]*rlcore.Profile]float64 // excess of the first next to the second
}

// newAdditive draws applications and what each pair does: the law's excess, times what is each one's own.
func newAdditive(seed uint64, strong float64) *additive {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &additive{pair: map[[2]*rlcore.Profile]float64{}}
	var as, of []float64
	for i := range 10 {
		w.apps = append(w.apps, &rlcore.Profile{
			App: fmt.Sprint(i), DurationS: 60, PeriodS: 60, StepS: math.Exp(r.NormFloat64()) / 10,
			Series: []rlcore.Use{{GPU: 0.2 + 0.8*r.Float64(), MemBusy: r.Float64()}},
		})
		as, of = append(as, math.Exp(0.5*r.NormFloat64())), append(of, math.Exp(0.7*r.NormFloat64()))
	}
	law, dst := New(&contention.MPS), make([]rlcore.Prediction, 2)
	for i, v := range w.apps {
		for j, a := range w.apps {
			law.Predict(dst, anyCard, []*rlcore.Profile{v, a})
			w.pair[[2]*rlcore.Profile{v, a}] = strong * (dst[0].Slowdown - 1 + 0.05) * as[i] * of[j]
		}
	}
	return w
}

func (w *additive) truth(members []*rlcore.Profile) []float64 {
	out := make([]float64, len(members))
	for i, v := range members {
		out[i] = 1
		for j, a := range members {
			if i != j {
				out[i] += w.pair[[2]*rlcore.Profile{v, a}]
			}
		}
	}
	return out
}

// Pairs alone teach what groups do, without bias, with an idea of how well, and the less sure the more members meet.
func TestPairsTeachGroups(t *testing.T) {
	for _, strong := range []float64{0.5, 1, 2} {
		before := 0.0 // mean SD of groups of one member fewer
		for size := 2; size <= 4; size++ {
			var predicted, measured, off, within, sd, n float64
			for seed := range uint64(10) {
				w := newAdditive(seed, strong)
				m := New(&contention.MPS)
				for i, v := range w.apps {
					for _, a := range w.apps[:i] {
						pair := []*rlcore.Profile{v, a}
						m.all(anyCard, pair, w.truth(pair)...)
					}
				}
				r := rand.New(rand.NewPCG(seed, 2))
				dst := make([]rlcore.Prediction, size)
				for range 100 {
					var members []*rlcore.Profile
					for _, k := range r.Perm(len(w.apps))[:size] {
						members = append(members, w.apps[k])
					}
					m.Predict(dst, anyCard, members)
					for i, s := range w.truth(members) {
						sd += dst[i].SD
						predicted, measured, off, n = predicted+dst[i].Slowdown, measured+s, off+math.Abs(dst[i].Slowdown-s), n+1
						if math.Abs(dst[i].Slowdown-s) <= dst[i].SD {
							within++
						}
					}
				}
			}
			t.Logf("strength %v, groups of %d: predicted ÷ measured %.3f, mean error %.3f of %.2f, %.2f within an SD", strong,
				size, predicted/measured, off/n, measured/n, within/n)
			if ratio := predicted / measured; ratio < 0.9 || ratio > 1.1 || within/n < 0.6 {
				t.Errorf("biased, or surer than it may be")
			}
			if sd /= n; sd <= before {
				t.Errorf("groups of %d: SD %.3f, of one member fewer %.3f", size, sd, before)
			}
			before = sd
		}
	}
}

// A member meets for the first time whom it was never seen with; a group that was seen is known, and so is one of known
// pairs. What other users' applications did says nothing.
func TestFirstMeetings(t *testing.T) {
	app := func(name, owner string) *rlcore.Profile {
		return &rlcore.Profile{App: name, Owner: owner, DurationS: 10, PeriodS: 10, Series: []rlcore.Use{{GPU: 0.5}}}
	}
	a, b, c, d := app("a", "u"), app("b", "u"), app("c", "u"), app("d", "u")
	m := New(&contention.MPS)
	for _, seen := range [][]*rlcore.Profile{
		{a, b},
		{b, a},
		{b, c},
		{c, b},
		{a, b, d},
		{app("a", "other"), c},
		{c, app("a", "other")},
	} {
		m.all(anyCard, seen, 1.2)
	}
	for _, x := range []struct {
		members []*rlcore.Profile
		want    []bool
	}{
		{[]*rlcore.Profile{a, b}, []bool{false, false}},
		{[]*rlcore.Profile{a, c}, []bool{true, true}},
		{[]*rlcore.Profile{a, b, c}, []bool{true, false, true}},
		{[]*rlcore.Profile{a, b, d}, []bool{false, true, true}},
		{[]*rlcore.Profile{a, b, b}, []bool{false, true, true}}, // b next to b
	} {
		for i, p := range predictions(m, corun{anyCard, x.members, nil}) {
			must.Equal(t, p.First, x.want[i], "%s of %d members: first", x.members[i].App, len(x.members))
		}
	}
}
