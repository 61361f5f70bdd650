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

// teach adds the lesson of a decision. scaleS is the unit of time.
func (t *teacher) teach(g *rlcore.Guard, m int, w *rlcore.Window, o *Obs, values []float64, scaleS float64) {
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
	drawn := make([]*lesson, l.o.Batch)
	for range n {
		l.obs = l.obs[:0]
		for i := range drawn {
			drawn[i] = &lessons[l.rnd.IntN(len(lessons))]
			l.obs = append(l.obs, drawn[i].obs)
		}
		l.values()
		at := 0
		for _, x := range drawn {
			mean, part := 0.0, 1/float64(len(x.of))
			for _, k := range x.of {
				mean += l.q[at+k] * part
			}
			part /= float64(len(drawn))
			for i, k := range x.of {
				e := l.q[at+k] - mean - x.want[i]
				p.Loss += e * e * part / float64(n)
				l.d[at+k] = max(-0.2, min(0.2, e)) * part
			}
			at += len(x.obs.Combos)
		}
		l.net.Learn(l.d)
		l.apply()
	}
}
