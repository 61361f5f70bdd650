package dqn

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// qLearner learns the values of combinations from rewards: Q-learning with double estimates and a target network (van
// Hasselt et al., AAAI 2016), n-step returns and prioritised replay. An episode is played with random choices of
// probability Options.EpsFrom to EpsTo; its decisions become transitions in the replay memory; then step is called
// Options.Steps times.
type qLearner struct {
	descent
	o      Options
	target network
	memory *replay
	rnd    *rand.Rand
	taken  int // steps

	// Of the batch, by position: which transitions, their importance weights, what the combinations taken should be
	// worth, and by how much they are worth more.
	idx    []int
	weight []float64
	goal   []float64
	err    []float64
	next   []float64 // values of the next decisions' combinations
	nextT  []float64 // the same by the target network
}

func newQLearner(o Options, net *Scorer) *qLearner {
	return &qLearner{
		descent: newDescent(o, net), o: o, target: net.Twin(), memory: newReplay(o.Capacity, o.Alpha),
		rnd: rand.New(rand.NewPCG(o.Seed, seedOfLearner)), idx: make([]int, o.Batch), weight: make([]float64, o.Batch),
		goal: make([]float64, o.Batch), err: make([]float64, o.Batch),
	}
}

// learn takes gradient steps, once the memory holds enough for them.
func (l *qLearner) learn(done float64, p *RoundStats) {
	if l.memory.len() < 4*l.o.Batch {
		return
	}
	beta := l.o.Beta + (1-l.o.Beta)*done
	n := float64(l.o.Steps)
	for range l.o.Steps {
		loss, err, value := l.step(beta)
		p.Loss += loss / n
		p.Error += err / n
		p.Value += value / n
	}
}

// step takes one gradient step. It returns the batch's weighted loss, its mean |temporal-difference error| and its mean
// value.
func (l *qLearner) step(beta float64) (loss, meanErr, value float64) {
	l.memory.draw(l.idx, l.weight, beta, l.rnd)
	loss, value = l.gradient()
	l.apply()
	for i, k := range l.idx {
		l.memory.update(k, l.err[i])
		meanErr += math.Abs(l.err[i]) / float64(l.o.Batch)
	}
	l.taken++
	if l.taken%l.o.Target == 0 {
		restore(l.target, snapshot(l.net))
	}
	return loss, meanErr, value
}

// gradient adds up the gradient of the batch drawn, and sets its errors. The loss is Huber's with its bend at 1.
func (l *qLearner) gradient() (loss, value float64) {
	l.goals()
	l.obs = l.obs[:0]
	for _, k := range l.idx {
		l.obs = append(l.obs, l.memory.items[k].obs)
	}
	l.values()
	n := float64(len(l.idx))
	most := slices.Max(l.weight)
	at := 0
	for i, k := range l.idx {
		t := &l.memory.items[k]
		q := l.q[at+t.taken]
		err := q - l.goal[i]
		l.err[i] = err
		value += q / n
		weight := l.weight[i] / most
		slope := max(-1, min(1, err))
		loss += weight * (math.Abs(slope) * (math.Abs(err) - math.Abs(slope)/2)) / n
		l.d[at+t.taken] = weight * slope / n
		at += len(t.obs.Combos)
	}
	l.net.Learn(l.d)
	return loss, value
}

// goals sets the values that the combinations taken should have, each in its own observation's unit: the reward and the
// target network's value of what the network would choose next.
func (l *qLearner) goals() {
	l.obs = l.obs[:0]
	for _, k := range l.idx {
		if next := l.memory.items[k].next; next != nil {
			l.obs = append(l.obs, next)
		}
	}
	l.nextT = l.target.Values(l.nextT, l.obs)
	l.next = l.net.Values(l.next, l.obs)
	at := 0
	for i, k := range l.idx {
		t := &l.memory.items[k]
		goal := t.reward
		if t.next != nil {
			own := l.next[at:][:len(t.next.Combos)]
			goal += t.decay * t.next.unit() * l.nextT[at+best(own)]
			at += len(own)
		}
		l.goal[i] = goal / t.obs.unit()
	}
}

// visit is a decision that left a choice.
type visit struct {
	obs   *Obs    // nil at the end of the episode
	taken int     // position in obs.Combos
	atS   float64 // when
	workS float64 // solo work done on the GPU until then, s
}

// visits records an episode's decisions by GPU, the last of each without observation.
type visits struct {
	learner *qLearner
	of      [][]visit
	tau     float64 // mean solo duration of the episode's jobs, s: the unit of time
}

func (l *qLearner) recorder(*rlcore.Guard) recorder { return &visits{learner: l} }

func (v *visits) begin(cfg *sim.Config) {
	v.of = make([][]visit, len(cfg.GPUs))
	v.tau = soloS(cfg) / float64(max(1, len(cfg.Jobs)))
}

// decided adds a visit. It replaces one at the same instant that chose to wait: another GPU took jobs, and the decision
// was due again.
func (v *visits) decided(d *decision) {
	g := d.sim.GPU()
	list := v.of[g]
	now := visit{obs: d.obs, taken: d.taken, atS: d.sim.NowS(), workS: d.sim.WorkS(g)}
	if n := len(list); n > 0 && list[n-1].atS == now.atS && list[n-1].obs.Combos[list[n-1].taken] == 0 {
		list = list[:n-1]
	}
	v.of[g] = append(list, now)
}

func (v *visits) end(s *sim.Sim) {
	for g := range v.of {
		v.of[g] = append(v.of[g], visit{atS: s.NowS(), workS: s.WorkS(g)})
	}
}

// commit adds the episode's transitions to the replay memory.
func (v *visits) commit() {
	o := &v.learner.o
	for _, list := range v.of {
		for _, t := range transitions(list, v.tau, o.NStep, o.Span, o.Gamma) {
			v.learner.memory.add(t)
		}
	}
}

// transition is several decisions on one GPU seen as one step from obs to next.
type transition struct {
	obs    *Obs
	taken  int     // position in obs.Combos
	reward float64 // discounted, in units of the episode's mean solo duration
	decay  float64 // discount of next's value
	next   *Obs    // nil: the episode ended
}

// transitions returns the visits of one GPU as n-step transitions.
//
// The reward between two visits is the solo work that the GPU did less the time that passed, in units of τ. Over an
// episode it sums to all solo work less the makespan on each GPU, so the largest return is the shortest makespan, and
// the effect of a decision shows soon after it.
//
// A transition covers at least n decisions and span·τ of time: with many GPUs, a decision is due whenever another GPU
// takes jobs, and n such decisions may pass before the first has any effect.
func transitions(v []visit, tau float64, n int, span, gamma float64) []transition {
	var out []transition
	for i := range len(v) - 1 {
		t := transition{obs: v[i].obs, taken: v[i].taken, decay: 1}
		last := min(i+n, len(v)-1)
		for last < len(v)-1 && v[last].atS-v[i].atS < span*tau {
			last++
		}
		for k := i; k < last; k++ {
			reward := ((v[k+1].workS - v[k].workS) - (v[k+1].atS - v[k].atS)) / tau
			t.reward += t.decay * reward
			t.decay = math.Pow(gamma, (v[k+1].atS-v[i].atS)/tau)
		}
		t.next = v[last].obs
		out = append(out, t)
	}
	return out
}
