package dqn

import (
	"math"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// TestTransitions compares with a computation by hand: 10 s of work and 4 s of
// time, then 2 and 6, then 3 and 2; τ = 2 s.
func TestTransitions(t *testing.T) {
	a, b, c := &Obs{}, &Obs{}, &Obs{}
	v := []visit{
		{obs: a, taken: 1},
		{obs: b, atS: 4, workS: 10},
		{obs: c, taken: 2, atS: 10, workS: 12},
		{atS: 12, workS: 15},
	}
	const tau = 2
	const r0, r1, r2 = 3., -2., 0.5 // (work − time) ÷ τ
	const gamma = 0.9
	after := func(s float64) float64 { return math.Pow(gamma, s/tau) }
	for n, want := range map[int][]transition{
		1: {{a, 1, r0, after(4), b}, {b, 0, r1, after(6), c}, {c, 2, r2, after(2), nil}},
		2: {{a, 1, r0 + after(4)*r1, after(10), c}, {b, 0, r1 + after(6)*r2, after(8), nil}, {c, 2, r2, after(2), nil}},
		9: {
			{a, 1, r0 + after(4)*r1 + after(10)*r2, after(12), nil},
			{b, 0, r1 + after(6)*r2, after(8), nil},
			{c, 2, r2, after(2), nil},
		},
	} {
		got := transitions(v, tau, n, 0, gamma)
		same := slices.EqualFunc(got, want, func(x, y transition) bool {
			return x.obs == y.obs && x.next == y.next && x.taken == y.taken &&
				math.Abs(x.reward-y.reward) < 1e-12 && math.Abs(x.decay-y.decay) < 1e-12
		})
		if !same {
			t.Errorf("%d steps: %+v, want %+v", n, got, want)
		}
	}
	must.Equal(t, transitions([]visit{{atS: 3}}, tau, 4, 0, 1), nil, "of a GPU without a choice")
}

// TestRewardsSumToWhatSharingSaves: without discount the return of an episode is
// all solo work less the makespan, whatever was chosen.
func TestRewardsSumToWhatSharingSaves(t *testing.T) {
	for seed := range uint64(20) {
		r := seeded(seed)
		cfg, _ := shuffled(light, heavy, light, heavy, light, heavy, even("middle", 0.5))(r)
		v := &visits{}
		p := &player{net: NewScorer(policy.Makespan, 8, newGuard().Predictor, seeded(1)), guard: newGuard(), m: 4, record: v}
		result := must.Get(p.play(cfg, 0.7, r))(t)
		must.Near(t, v.tau, 100, 1e-9, "τ")
		for _, n := range []int{1, 3} {
			sum := 0.0
			for i, x := range transitions(v.of[0], v.tau, n, 0, 1) {
				if i%n == 0 {
					sum += x.reward
				}
			}
			must.Near(t, sum, (700-result.MakespanS)/v.tau, 1e-9, "the sum of rewards: seed %d, %d steps", seed, n)
		}
	}
}

// TestUntrainedDecidesAsItsStart: a network that has learned nothing takes what the policy takes that it starts from.
func TestUntrainedDecidesAsItsStart(t *testing.T) {
	for _, aim := range []policy.Objective{policy.Turnaround, policy.Makespan} {
		guard := newGuard()
		start := must.Get(policy.New(Start(aim), policy.Setup{Predictor: guard.Predictor}))(t)
		a := rlcore.Decider{
			Policy: NewPolicy("dqn", NewScorer(aim, 8, guard.Predictor, seeded(1))), Guard: guard,
			M: 12,
		}
		b := rlcore.Decider{Policy: start, Guard: guard, M: 12}
		groups := 0
		for seed := range uint64(30) {
			r := seeded(seed)
			s := busy(2, 5+r.IntN(30))
			for i := range s.Pending {
				p := *s.Pending[i].Profile
				p.DurationS *= 0.5 + r.Float64()
				s.Pending[i].Profile = &p
			}
			for g := range s.GPUs {
				x, y := a.Decide(s, g), b.Decide(s, g)
				must.Equal(t, x.Combo, y.Combo, "%s, which starts from %s, seed %d", aim, Start(aim), seed)
				if x.Combo.Len() > 0 {
					groups++
				}
			}
		}
		if groups == 0 {
			t.Error("nothing was started")
		}
	}
}

// TestScoreOfOddWindows: jobs of which nothing is known, a card where none may start, an empty queue.
func TestScoreOfOddWindows(t *testing.T) {
	unknown := someWindow(5)
	unknown.State.Pending[0].Profile = nil
	unknown.State.Pending[3].Profile, unknown.State.Pending[3].LimitS = nil, 900
	unknown.State.GPUs[0].Running = nil
	joining := someWindow(3)
	joining.State.GPUs[0].Running[0].Profile = nil
	empty := someWindow(0)
	empty.State.Pending, empty.State.GPUs[0].Running = nil, nil
	wide := someWindow(6)
	net := newNet()
	shake(net, 3)
	p := NewPolicy("dqn", net)
	for what, w := range map[string]*rlcore.Window{
		"unknown": unknown, "joining unknown": joining, "empty": empty,
		"wide": wide,
	} {
		for _, combos := range [][]rlcore.Combo{{0}, {}, {1}, {0, 1, 2, 3, 8}, newGuard().Combos(nil, w)} {
			if n := len(combos); n > 0 && int(combos[n-1]) >= 1<<len(w.Jobs) {
				continue
			}
			dst := make([]float64, len(combos))
			p.Score(dst, w, combos)
			for i, v := range dst {
				if combos[i] == 0 && len(combos) > 1 && len(w.Card().Running) == 0 {
					if !math.IsInf(v, -1) {
						t.Errorf("%s: leaving a GPU idle is worth %v", what, v)
					}
					continue
				}
				if math.IsNaN(v) || math.IsInf(v, 0) && combos[i] < 1<<5 && len(combos) <= 32 {
					t.Errorf("%s: combination %b is worth %v", what, combos[i], v)
				}
			}
		}
	}
}

// Where a network for the turnaround is in doubt, its best few combinations are played out; one for the makespan
// decides alone.
func TestDoubtIsPlayedOut(t *testing.T) {
	for aim, plays := range map[policy.Objective]bool{policy.Turnaround: true, policy.Makespan: false} {
		guard := newGuard()
		net := NewScorer(aim, 8, guard.Predictor, seeded(1))
		shake(net, 1)
		own := &rlcore.Decider{Policy: NewPolicy("dqn", net), Guard: guard, M: 6}
		searching := &rlcore.Decider{Policy: Searching("dqn", net, guard.Predictor), Guard: newGuard(), M: 6}
		others := 0
		for n := range 30 {
			s := busy(2, 5+n)
			s.GPUs[0].Running = nil
			took := searching.Decide(s, 0).Combo
			if took != own.Decide(s, 0).Combo {
				others++
			}
			must.Equal(t, searching.Decide(s, 0).Combo, took, aim)
		}
		must.Equal(t, plays, others > 0, "%s: %d of 30 decisions aren't the network's own", aim, others)
	}
}

// TestEpisodesOfSeveralCards: each card's visits are its own and end with the episode.
func TestEpisodesOfSeveralCards(t *testing.T) {
	cfg := jobs(light, heavy, light, heavy, light, heavy, light, light)
	cfg.GPUs = append(cfg.GPUs, rlcore.TitanXp)
	visits := &visits{}
	p := &player{net: newNet(), guard: newGuard(), m: 4, record: visits}
	result := must.Get(p.play(cfg, 0.3, seeded(2)))(t)
	work := 0.0
	for g, v := range visits.of {
		last := v[len(v)-1]
		if last.obs != nil || math.Abs(last.atS-result.MakespanS) > 1e-9 {
			t.Errorf("card %d ends at %v s of %v", g, last.atS, result.MakespanS)
		}
		work += last.workS
	}
	must.Equal(t, len(visits.of), 2, "cards")
	must.Near(t, work, 800, 1e-6, "work in s")
	must.Fail(t, must.Err(p.play(sim.Config{}, 0, nil)), "", "an episode without cards")
}
