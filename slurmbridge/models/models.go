// Package models lets the network that decides learn on the job: it draws what a
// site ran lately (Mix), trains a candidate on the first days of it, and promotes
// that only if replaying the last days with it is better than with the network in
// use by more than the noise. The network it replaced is judged in later rounds by
// the same rule, and comes back if it is the better one after all.
//
// Everything here is a function of its arguments: the same mix, the same network to
// begin with and the same seed give the same candidate to the last bit.
package models

import (
	"errors"
	"time"
)

// State is where a model stands.
type State string

// The states. A candidate did better than what is in use, but could not take its
// place: an admin had pinned that, or put another in its place meanwhile.
const (
	Candidate  State = "candidate"
	Promoted   State = "promoted"
	Rejected   State = "rejected"
	RolledBack State = "rolled back"
)

// BuiltIn is the number of the network that comes with the program.
const BuiltIn int64 = 0

// Model is one network that a round of training came to, with all figures that it
// was judged by.
type Model struct {
	ID    int64     `json:"id"` // from 1
	Made  time.Time `json:"made"`
	State State     `json:"state"`
	// Base is the model that training began with and that it was judged against,
	// Former the one that decided before it was promoted; both may be BuiltIn.
	Base   int64 `json:"base"`
	Former int64 `json:"former"`
	// SHA256 is that of its file, "" = training found nothing better than its base
	// on its own job sets, and no file was written.
	SHA256 string `json:"sha256,omitempty"`
	// Mix is the SHA-256 of the file with what it was trained and judged on.
	Mix     string   `json:"mix"`
	Trained Training `json:"trained"`
	// Verdict is the comparison with its base, nil = there was nothing to compare.
	Verdict *Verdict `json:"verdict,omitempty"`
	History []Event  `json:"history"`
}

// Training says what a model was trained on.
type Training struct {
	From time.Time `json:"from"`
	// Split is when the part begins that training never saw: it judges on that.
	Split time.Time `json:"split"`
	To    time.Time `json:"to"`
	Runs  int       `json:"runs"` // learned from
	Held  int       `json:"held"` // judged on
	// Guessed counts runs that no poll showed waiting; their start stands for their arrival.
	Guessed   int            `json:"guessed_arrivals,omitempty"`
	LeftOut   map[string]int `json:"left_out,omitempty"`
	Seed      uint64         `json:"seed"`
	Rounds    int            `json:"rounds"`
	BestRound int            `json:"best_round"` // 0 = nothing better than the base was found
	Version   string         `json:"version"`    // of the program
}

// Event is one change of a model's state.
type Event struct {
	At  time.Time `json:"at"`
	To  State     `json:"state"`
	Why string    `json:"why"`
}

// Use says which model decides.
type Use struct {
	Model int64 `json:"model"`
	// Pinned: an admin chose it, and no round changes that.
	Pinned bool      `json:"pinned"`
	Since  time.Time `json:"since"` // zero = from the beginning
}

// The errors that people can do something about.
var (
	// ErrNoModel says that there is no model of that number.
	ErrNoModel = errors.New("there is no such model")
	// ErrUnusable marks a model's file that can't be used, and says why.
	ErrUnusable = errors.New("model can't be used")
	// ErrTooFew says that too few runs ended to learn or judge from.
	ErrTooFew = errors.New("too few runs")
	// ErrBusy says that another retraining is going on.
	ErrBusy = errors.New("another retraining is going on")
)
