// Package dqn decides by a network which combination of jobs starts, of those that the guard allows. The network
// ([Scorer]) and the training loop ([Trainer.Train]) are the same for both objectives; what a
// network learns from is not:
//
//   - For the turnaround, the default, it learns from playouts (playouts.go): the best combinations of a decision are
//     played out, and their values are fitted to what comes out. That is supervised learning, not Q-learning. Where the
//     network is in doubt, its few best combinations are also played out when it decides ([Searching]).
//   - For the makespan it learns from rewards (qlearning.go): Q-learning with double estimates, n-step returns,
//     prioritised replay (qlearning_replay.go) and a target network. It decides alone.
//
// LEARNING.md in rlcore has how the choices were made, and what the networks are worth.
package dqn

import (
	"context"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// RoundStats is one round of training, as it is logged. τ is the mean solo duration of an episode's jobs.
type RoundStats struct {
	Round    int     `json:"round"`
	Episodes int     `json:"episodes"` // played so far
	Eps      float64 `json:"eps"`      // probability of a random choice
	Loss     float64 `json:"loss"`     // mean weighted Huber loss, of playouts squared error; 0 before learning starts
	Error    float64 `json:"error"`    // mean |temporal-difference error|, in τ; of playouts 0
	Value    float64 `json:"value"`    // mean value of the combinations taken, in τ; of playouts 0
	// mean turnaround ÷ plain Slurm's of the round's episodes, or makespan ÷ (Σ solo ÷ GPUs)
	Train float64 `json:"train"`
	// the same over the validation episodes, without random choices; 0 = not in this round
	Check float64 `json:"check"`
}

// Scenario draws an episode.
type Scenario func(r *rand.Rand) (sim.Config, error)

// Trainer trains a network on episodes.
type Trainer struct {
	Options  Options
	Net      *Scorer
	Scenario Scenario
	// Guard makes one player's guard with its predictor: both keep scratch.
	Guard func() *rlcore.Guard
	// Progress, if set, is called after every round.
	Progress func(RoundStats)
	// Curve is what was logged.
	Curve []RoundStats
	// Best is the result of the parameters kept in the last validation, in terms of
	// RoundStats.Check, and BestRound the round that they are from.
	Best      float64
	BestRound int
}

// The random streams of a training, by what they are for.
const (
	seedOfValidation = 0xc0ffee
	seedOfFinal      = 0xf17a1
	seedOfLearner    = 0x1ea4
	seedPerRound     = 1_000_003
)

// finalChecks times Checks episodes are played by each finalist.
const finalChecks = 4

// Train learns until Rounds are done or ctx ends. Net then has the parameters that did best in validation if they are
// better than the initial ones by more than chance; see final. Those episodes are never learned from. The same seed
// gives the same network on any number of cores.
//
// If ctx ends, Net has what looked best so far and ctx's error is returned. Other
// errors are Scenario's and the simulator's.
func (t *Trainer) Train(ctx context.Context) error {
	o := t.Options.orDefaults()
	s := &session{Trainer: t, o: o, players: make([]*player, o.Episodes)}
	if t.Net.Objective() == policy.Turnaround {
		s.method = newPlayoutLearner(o, t.Net)
	} else {
		s.method = newQLearner(o, t.Net)
	}
	for i := range s.players {
		g := t.Guard()
		s.players[i] = &player{net: t.Net.Alias(g.Predictor), guard: g, m: o.M, record: s.method.recorder(g)}
	}
	if err := s.begin(); err != nil {
		return err
	}
	var kept *finalist
	defer func() {
		if kept == nil { // training was broken off
			kept = s.finalists.leader()
		}
		t.Best, t.BestRound = kept.check, kept.round
		restore(t.Net, kept.theta)
	}()
	for round := range o.Rounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.round(round); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	win, err := s.final()
	if err == nil {
		kept = &win
	}
	return err
}

// method is what a network learns from, and how.
type method interface {
	// recorder returns what records the episodes of one player, with its guard.
	recorder(g *rlcore.Guard) recorder
	// learn takes Options.Steps gradient steps and logs them. done is the part of all rounds that is over.
	learn(done float64, p *RoundStats)
	setRate(rate float64)
}

// recorder records an episode, for one player.
type recorder interface {
	begin(cfg *sim.Config)
	decided(d *decision)
	end(s *sim.Sim)
	// commit adds the episode to what the network learns from; no two recorders may do so at once.
	commit()
}

// session is a training in progress.
type session struct {
	*Trainer
	o         Options
	method    method
	players   []*player
	check     []sim.Config // the validation episodes
	finalists finalists
}

// begin draws the validation episodes and enters the initial parameters as finalist.
func (s *session) begin() error {
	var err error
	if s.check, err = s.episodes(s.o.Seed^seedOfValidation, s.o.Checks); err != nil {
		return err
	}
	first, err := validate(s.players, s.check)
	if err != nil {
		return err
	}
	s.Best, s.BestRound = mean(first), 0
	s.finalists = finalists{{0, s.Best, snapshot(s.Net)}}
	return nil
}

// round plays a round's episodes, learns from them, and validates where that is due.
func (s *session) round(round int) error {
	o := &s.o
	done := float64(round) / float64(o.Rounds)
	p := RoundStats{Round: round + 1, Episodes: (round + 1) * o.Episodes, Eps: o.epsilon(done)}
	if err := s.play(round, &p); err != nil {
		return err
	}
	s.method.setRate(o.Rate * (1 - 0.9*done))
	s.method.learn(done, &p)
	if (round+1)%o.Check == 0 || round+1 == o.Rounds {
		ratio, err := validate(s.players, s.check)
		if err != nil {
			return err
		}
		p.Check = mean(ratio)
		if p.Check < s.Best {
			s.Best, s.BestRound = p.Check, round+1
		}
		s.finalists.enter(finalist{round + 1, p.Check, snapshot(s.Net)})
	}
	s.Curve = append(s.Curve, p)
	if s.Progress != nil {
		s.Progress(p)
	}
	return nil
}

// play plays a round's episodes, one per player, and adds them to what the network learns from.
func (s *session) play(round int, p *RoundStats) error {
	o := &s.o
	cfgs, err := s.episodes(o.Seed+uint64(round)*seedPerRound, o.Episodes)
	if err != nil {
		return err
	}
	ratio := make([]float64, len(cfgs))
	err = each(len(cfgs), func(i int) error {
		r := rand.New(rand.NewPCG(o.Seed+uint64(round), uint64(i)))
		result, err := s.players[i].play(cfgs[i], p.Eps, r)
		if err != nil {
			return err
		}
		ratio[i] = relative(s.Net.Objective(), &cfgs[i], result)
		return nil
	})
	if err != nil {
		return err
	}
	for i := range s.players {
		s.players[i].record.commit()
		p.Train += ratio[i] / float64(len(ratio))
	}
	return nil
}

func (t *Trainer) episodes(seed uint64, n int) ([]sim.Config, error) {
	out := make([]sim.Config, n)
	for i := range out {
		var err error
		if out[i], err = t.Scenario(rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
			return nil, fmt.Errorf("train: drawing an episode: %w", err)
		}
	}
	return out, nil
}

// validate plays the episodes without random choices and returns relative of each.
func validate(players []*player, cfgs []sim.Config) ([]float64, error) {
	ratio := make([]float64, len(cfgs))
	err := each(len(players), func(k int) error {
		for i := k; i < len(cfgs); i += len(players) {
			result, err := players[k].play(cfgs[i], 0, nil)
			if err != nil {
				return err
			}
			ratio[i] = relative(players[k].net.Objective(), &cfgs[i], result)
		}
		return nil
	})
	return ratio, err
}

// Against is what RoundStats.Train and Check compare with, in words.
func (t *Trainer) Against() string {
	if t.Net.Objective() == policy.Makespan {
		return "one job after the other"
	}
	return "plain Slurm's"
}

// relative returns the makespan over what it is when every job runs alone and no GPU
// is ever idle; the turnaround over plain Slurm's.
func relative(aim policy.Objective, cfg *sim.Config, res *sim.Result) float64 {
	if aim != policy.Makespan {
		took, plain := 0.0, 0.0
		for i := range res.Jobs {
			took, plain = took+res.Jobs[i].EndS-res.Jobs[i].SubmitS, plain+res.Jobs[i].PlainEndS-res.Jobs[i].SubmitS
		}
		return took / plain
	}
	return res.MakespanS / (soloS(cfg) / float64(len(cfg.GPUs)))
}

// each runs f for 0 … n−1 in parallel and returns the first error.
func each(n int, f func(i int) error) error {
	var g errgroup.Group
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}
