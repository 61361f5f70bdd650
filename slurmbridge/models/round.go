package models

import (
	"context"
	"fmt"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

// Rounds is how many rounds of training a candidate gets by default.
const Rounds = 80

// Round is one retraining.
type Round struct {
	Mix    *Mix
	Seed   uint64
	Rounds int // of training; 0 = Rounds
	Sets   int // that are drawn to judge by; 0 = 100
	// Base is in use; nil = the built-in network. Previous decided before it; nil = none did.
	Base, Previous *dqn.Checkpoint
	Version        string // of the program
	Progress       func(done, of int, what string)
}

// Finding is what came of a round. The runs that judge were not learned from.
type Finding struct {
	// Previous compares the previous network with the one in use; nil = there is none. If it is
	// Better, it returns, and the candidate is judged against it.
	Previous *Verdict
	// Candidate is what was trained; nil = nothing better than its base was found.
	Candidate *dqn.Checkpoint
	Verdict   *Verdict // of the candidate
	Trained   Training
}

// Result says what a round does to the network in use.
func (f *Finding) Result(at time.Time) *Result {
	r := &Result{At: at.UTC(), Change: Kept, Why: "training found nothing better than the network in use", Previous: f.Previous, Candidate: f.Verdict, Trained: f.Trained}
	switch {
	case f.Verdict != nil && f.Verdict.Better:
		r.Change, r.Why = Replaced, f.Verdict.Why()
	case f.Previous != nil && f.Previous.Better:
		r.Change, r.Why = Returned, f.Previous.Why()
	case f.Verdict != nil:
		r.Why = f.Verdict.Why()
	}
	return r
}

// Apply carries out what the finding says and keeps the result. The caller holds the lock.
func (f *Finding) Apply(d Dir, at time.Time) (*Result, error) {
	r := f.Result(at)
	var err error
	switch r.Change {
	case Replaced:
		if f.Previous != nil && f.Previous.Better {
			err = d.Return() // the one that lost to it isn't kept as its previous one
		}
		if err == nil {
			err = d.Replace(f.Candidate)
		}
	case Returned:
		err = d.Return()
	case Kept:
	}
	if err != nil {
		return nil, err
	}
	return r, d.Add(r)
}

// Run judges what is in use, trains a candidate from the better one on, and judges
// that. The same Round gives the same Finding, on any number of cores.
func (r *Round) Run(ctx context.Context) (*Finding, error) {
	w := newWorld(r.Mix)
	if r.Sets > 0 {
		w.drawSets = r.Sets
	}
	rounds := r.Rounds
	if rounds == 0 {
		rounds = Rounds
	}
	learn, held := r.Mix.Sizes()
	f := &Finding{Trained: Training{
		From: r.Mix.From, Split: r.Mix.Split, To: r.Mix.To, Runs: learn, Held: held, Guessed: r.Mix.Guessed, LeftOut: r.Mix.LeftOut,
		Seed: r.Seed, Rounds: rounds, Version: r.Version,
	}}
	if _, drawn := w.sets(r.Seed); drawn < fewestBlocks || learn < 2*blockJobs {
		return nil, fmt.Errorf("%w: %d to learn from and %d to judge by, in %d blocks of %d on the same GPUs; it takes %d and %d blocks",
			ErrTooFew, learn, held, drawn, blockJobs, 2*blockJobs, fewestBlocks)
	}
	model := r.Mix.model()
	net := func(c *dqn.Checkpoint) (dqn.Network, error) {
		if c == nil {
			var err error
			if c, err = pretrained.Checkpoint(r.Mix.Rules.aim()); err != nil {
				return nil, err
			}
		}
		if c.Objective != r.Mix.Rules.aim() {
			return nil, fmt.Errorf("retrain: a network for the %s can't go on learning for the %s", c.Objective, r.Mix.Rules.aim())
		}
		return c.Network(model)
	}
	base, err := net(r.Base)
	if err != nil {
		return nil, err
	}
	if r.Previous != nil {
		previous, err := net(r.Previous)
		if err != nil {
			return nil, err
		}
		r.progress(0, rounds, "judging the network in use")
		if f.Previous, err = w.judge(previous, base, r.Seed); err != nil {
			return nil, err
		}
		if f.Previous.Better {
			base = previous
		}
	}
	t := &dqn.Trainer{
		Options: dqn.Options{Seed: r.Seed, Rounds: rounds, M: r.Mix.Rules.Window},
		Net:     base.Twin(), Scenario: w.scenario(), Tools: w.tools,
		Progress: func(p dqn.RoundStats) { r.progress(p.Round, rounds+1, "training") },
	}
	if err := t.Train(ctx); err != nil {
		return nil, fmt.Errorf("retrain: %w", err)
	}
	f.Trained.BestRound = t.BestRound
	if t.BestRound == 0 {
		return f, nil
	}
	t.State = nil
	if f.Candidate, err = dqn.FromTrainer(t, "this site's runs", "slurmbridge "+r.Version); err != nil {
		return nil, err
	}
	r.progress(rounds, rounds+1, "judging the candidate")
	if f.Verdict, err = w.judge(t.Net, base, r.Seed); err != nil {
		return nil, err
	}
	return f, nil
}

func (r *Round) progress(done, of int, what string) {
	if r.Progress != nil {
		r.Progress(done, of, what)
	}
}
