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
	"errors"
	"time"
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
