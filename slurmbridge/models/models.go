// Package models lets the network that decides learn on the job. A round draws what the site ran
// lately (Mix), trains a candidate on the first days of it, and replays the last days with the
// candidate and with the network in use. The candidate takes over only if it is better by more
// than the noise. The network that it replaces is judged by the same rule in the next round, and
// comes back if it is better after all.
//
// A round is a function of its arguments: the same mix, the same network to begin with and the
// same seed give the same candidate to the last bit. Dir keeps the networks as files.
package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

// Training says what a candidate was trained on.
type Training struct {
	From time.Time `json:"from"`
	// Split is when the part begins that training doesn't see and that judges the candidate.
	Split time.Time `json:"split"`
	To    time.Time `json:"to"`
	Runs  int       `json:"runs"` // learned from
	Held  int       `json:"held"` // judged on
	// Guessed counts runs that no poll showed waiting; their start stands for their arrival.
	Guessed   int            `json:"guessed_arrivals,omitempty"`
	LeftOut   map[string]int `json:"left_out,omitempty"`
	Seed      uint64         `json:"seed"`
	Rounds    int            `json:"rounds"`
	BestRound int            `json:"best_round"` // 0 = training found nothing better than its base
	Version   string         `json:"version"`    // of the program
}

// Change is what a round did to the network that decides.
type Change string

// The changes.
const (
	Kept     Change = "kept"     // the network in use stays
	Replaced Change = "replaced" // by the candidate
	Returned Change = "returned" // the previous network decides again
)

// Result is one round as it is kept.
type Result struct {
	At     time.Time `json:"at"`
	Change Change    `json:"change"`
	Why    string    `json:"why"`
	// Previous compares the previous network with the one in use; nil = there was none.
	Previous *Verdict `json:"previous,omitempty"`
	// Candidate compares the candidate with the better of those two; nil = there was none.
	Candidate *Verdict `json:"candidate,omitempty"`
	Trained   Training `json:"trained"`

	network *dqn.Checkpoint // the candidate
}

func (r *Result) decide() {
	r.Change, r.Why = Kept, "training found nothing better than the network in use"
	switch {
	case r.Candidate != nil && r.Candidate.Better:
		r.Change, r.Why = Replaced, r.Candidate.Why()
	case r.returns():
		r.Change, r.Why = Returned, r.Previous.Why()
	case r.Candidate != nil:
		r.Why = r.Candidate.Why()
	}
}

// returns reports whether the previous network is better than the one in use.
func (r *Result) returns() bool { return r.Previous != nil && r.Previous.Better }

// Apply carries out what the round found, and keeps the result. The caller holds the lock.
func (r *Result) Apply(d Dir, at time.Time) error {
	r.At = at.UTC()
	var err error
	if r.returns() { // the one that lost to it isn't kept as its previous one
		err = d.Return()
	}
	if r.Change == Replaced && err == nil {
		err = d.Replace(r.network)
	}
	if err != nil {
		return err
	}
	return d.Add(r)
}

// The errors that an admin can act on.
var (
	// ErrUnusable marks a network's file that can't be used, and says why.
	ErrUnusable = errors.New("network can't be used")
	// ErrTooFew says that too few runs ended to learn or judge from.
	ErrTooFew = errors.New("too few runs")
	// ErrBusy says that another retraining is running.
	ErrBusy = errors.New("another retraining is running")
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

// Run judges what is in use, trains a candidate from the better one on, and judges
// that on runs that neither learned from. The same Round gives the same Result, on any number of cores.
func (r *Round) Run(ctx context.Context) (*Result, error) {
	m, aim := r.Mix, r.Mix.rules.Objective
	f := &Result{Trained: m.Training}
	f.Trained.Seed, f.Trained.Rounds, f.Trained.Version = r.Seed, cmp.Or(r.Rounds, Rounds), r.Version
	progress := func(done int, what string) {
		if r.Progress != nil {
			r.Progress(done, f.Trained.Rounds+1, what)
		}
	}
	sets, drawn := m.sets(cmp.Or(r.Sets, judgeSets), r.Seed)
	if drawn < fewestBlocks || m.Runs < 2*blockJobs {
		return nil, fmt.Errorf("%w: %d to learn from and %d to judge by, in %d blocks of %d on the same GPUs; it takes %d and %d blocks",
			ErrTooFew, m.Runs, m.Held, drawn, blockJobs, 2*blockJobs, fewestBlocks)
	}
	net := func(c *dqn.Checkpoint) (dqn.Network, error) {
		if c == nil {
			var err error
			if c, err = pretrained.Checkpoint(aim); err != nil {
				return nil, err
			}
		}
		if c.Objective != aim {
			return nil, fmt.Errorf("retrain: a network for the %s can't go on learning for the %s", c.Objective, aim)
		}
		return c.Network(m.beliefs.Clone())
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
		progress(0, "judging the network in use")
		if f.Previous, err = m.judge(previous, base, sets, drawn); err != nil {
			return nil, err
		}
		if f.returns() {
			base = previous
		}
	}
	t := &dqn.Trainer{
		Options: dqn.Options{Seed: r.Seed, Rounds: f.Trained.Rounds, M: m.rules.Window},
		Net:     base.Twin(), Scenario: m.scenario, Tools: m.tools,
		Progress: func(p dqn.RoundStats) { progress(p.Round, "training") },
	}
	if err := t.Train(ctx); err != nil {
		return nil, fmt.Errorf("retrain: %w", err)
	}
	if f.Trained.BestRound = t.BestRound; t.BestRound > 0 {
		if f.network, err = dqn.FromTrainer(t, "this site's runs", "slurmbridge "+r.Version); err != nil {
			return nil, err
		}
		progress(f.Trained.Rounds, "judging the candidate")
		if f.Candidate, err = m.judge(t.Net, base, sets, drawn); err != nil {
			return nil, err
		}
	}
	f.decide()
	return f, nil
}
