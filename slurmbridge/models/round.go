package models

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

// Rounds is how many rounds of training a candidate gets by default.
const Rounds = 80

// Encode writes a network as Dir keeps it: without the optimiser's state, since each
// round starts afresh.
func Encode(c *dqn.Checkpoint) ([]byte, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write checkpoint: %w", err)
	}
	// What couldn't be read again is no model.
	if _, err := dqn.Read(bytes.NewReader(text), "what was trained"); err != nil {
		return nil, err
	}
	return text, nil
}

// Round is one retraining.
type Round struct {
	Mix    *Mix
	Seed   uint64
	Rounds int // of training; 0 = Rounds
	Sets   int // that are drawn to judge by; 0 = 100
	// Base is in use; nil = the one built in. Former decided before it; nil = none did.
	Base, Former *dqn.Checkpoint
	Version      string // of the program
	Progress     func(done, of int, what string)
}

// Finding is what came of a round. The runs that judge were not learned from.
type Finding struct {
	// Former compares the one that decided before with the one in use; nil = there is
	// none. Where it is Better the one in use goes, and the candidate is held against
	// the former.
	Former *Verdict `json:"former,omitempty"`
	// Candidate is what was trained, nil = nothing better than what training began
	// with was found.
	Candidate *dqn.Checkpoint `json:"-"`
	Verdict   *Verdict        `json:"verdict,omitempty"` // of the candidate
	Trained   Training        `json:"trained"`
}

// Run judges what is in use, trains a candidate from the better one on, and judges
// that. The same Round gives the same Finding, on any number of cores.
func (r *Round) Run(ctx context.Context) (*Finding, error) {
	if err := r.Mix.validate(); err != nil {
		return nil, fmt.Errorf("retrain: %w", err)
	}
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
	if r.Former != nil {
		former, err := net(r.Former)
		if err != nil {
			return nil, err
		}
		r.progress(0, rounds, "judging the model in use")
		if f.Former, err = w.judge(former, base, r.Seed); err != nil {
			return nil, err
		}
		if f.Former.Better {
			base = former
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
