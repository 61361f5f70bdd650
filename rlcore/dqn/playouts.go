package dqn

import (
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/lookahead"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// playoutLearner learns what playing combinations out has shown, by regression: no reward is waited for. Of each
// decision of an episode, lookahead plays out the combinations that the network values most, and the sums of
// turnarounds that come out are a lesson; then step is called Options.Steps times.
type playoutLearner struct {
	descent
	o       Options
	lessons []lesson
	rnd     *rand.Rand
	drawn   []*lesson // the batch
}

// lesson is what playing some combinations of a decision out has shown.
type lesson struct {
	obs  *Obs
	of   []int     // positions in obs.Combos
	want []float64 // their values less the mean, in the unit of obs
}

// mostLessons bounds what is remembered.
const mostLessons = 20_000

// mostSlope bounds the derivative of a lesson's loss, as Huber's loss does.
const mostSlope = 0.2

func newPlayoutLearner(o Options, net *Scorer) *playoutLearner {
	return &playoutLearner{
		descent: newDescent(o, net), o: o, rnd: rand.New(rand.NewPCG(o.Seed, seedOfLearner)), drawn: make([]*lesson, o.Batch),
	}
}

// learn takes gradient steps, once there are enough lessons for them.
func (l *playoutLearner) learn(_ float64, p *RoundStats) {
	if len(l.lessons) < 4*l.o.Batch {
		return
	}
	for range l.o.Steps {
		p.Loss += l.step() / float64(l.o.Steps)
	}
}

// step takes one gradient step toward what a batch of lessons says, and returns its mean squared error. Only
// differences between a decision's combinations count.
func (l *playoutLearner) step() (loss float64) {
	l.obs = l.obs[:0]
	for i := range l.drawn {
		l.drawn[i] = &l.lessons[l.rnd.IntN(len(l.lessons))]
		l.obs = append(l.obs, l.drawn[i].obs)
	}
	l.values()
	at := 0
	for _, x := range l.drawn {
		part := 1 / float64(len(x.of))
		mean := 0.0
		for _, k := range x.of {
			mean += l.q[at+k] * part
		}
		part /= float64(len(l.drawn))
		for i, k := range x.of {
			err := l.q[at+k] - mean - x.want[i]
			loss += err * err * part
			l.d[at+k] = max(-mostSlope, min(mostSlope, err)) * part
		}
		at += len(x.obs.Combos)
	}
	l.net.Learn(l.d)
	l.apply()
	return loss
}

// teacher records the lessons of a player's episode.
type teacher struct {
	learner *playoutLearner
	guard   *rlcore.Guard
	plays   *lookahead.Policy
	lessons []lesson
}

func (l *playoutLearner) recorder(g *rlcore.Guard) recorder {
	return &teacher{learner: l, guard: g, plays: lookahead.New(g.Predictor)}
}

func (t *teacher) begin(*sim.Config) { t.lessons = t.lessons[:0] }

// decided plays a decision's best combinations out, and adds the lesson.
func (t *teacher) decided(d *decision) {
	t.plays.Under(t.guard, t.learner.o.M)
	order, sums := t.plays.Try(d.values, d.window, d.obs.Combos)
	if len(order) < 2 {
		return
	}
	average := mean(sums)
	l := lesson{obs: d.obs, of: slices.Clone(order)}
	for _, s := range sums {
		l.want = append(l.want, -(s-average)/d.scaleS/d.obs.unit())
	}
	t.lessons = append(t.lessons, l)
}

func (t *teacher) end(*sim.Sim) {}

// commit adds the episode's lessons to the stored ones, and drops the oldest beyond mostLessons.
func (t *teacher) commit() {
	all := append(t.learner.lessons, t.lessons...)
	t.learner.lessons = all[max(0, len(all)-mostLessons):]
}
