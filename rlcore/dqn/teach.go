package dqn

import (
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/lookahead"
)

// lesson is what playing some combinations of a decision out has shown.
type lesson struct {
	obs  *Obs
	of   []int     // positions in obs.Combos
	want []float64 // their values less the mean, in the unit of obs
}

// teacher plays a decision's best combinations out.
type teacher struct {
	plays   *lookahead.Policy
	lessons []lesson
}

// look adds the lesson of a decision. scaleS is the unit of time.
func (t *teacher) look(g *rlcore.Guard, m int, w *rlcore.Window, o *Obs, values []float64, scaleS float64) {
	t.plays.Under(g, m)
	order, sums := t.plays.Try(values, w, o.Combos)
	if len(order) < 2 {
		return
	}
	l := lesson{obs: o, of: append([]int(nil), order...)}
	mean := 0.0
	for _, s := range sums {
		mean += s / float64(len(sums))
	}
	for _, s := range sums {
		l.want = append(l.want, -(s-mean)/scaleS/o.unit())
	}
	t.lessons = append(t.lessons, l)
}

// mostLessons bounds what is remembered.
const mostLessons = 20_000

// teach takes n gradient steps toward what the lessons say.
func (l *learner) teach(n int, lessons []lesson, p *RoundStats) {
	if len(lessons) < 4*l.o.Batch {
		return
	}
	var q []float64
	for range n {
		for range l.o.Batch {
			x := &lessons[l.rnd.IntN(len(lessons))]
			q = l.net.Values(q, x.obs)
			mean := 0.0
			for _, k := range x.of {
				mean += q[k] / float64(len(x.of))
			}
			for i, k := range x.of {
				e := q[k] - mean - x.want[i]
				d := max(-0.2, min(0.2, e))
				p.Loss += e * e / float64(n*l.o.Batch*len(x.of))
				l.net.Learn(x.obs, k, d/float64(l.o.Batch*len(x.of)))
			}
		}
		for b, m := range l.net.Params() {
			l.optims[b].Step(m.Theta, m.Grad)
		}
	}
}
