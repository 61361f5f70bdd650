// Package policy is the registry of policies: their names, what each is made of, and the objectives that they pursue.
package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Spec is what the rest of the project knows of a policy. Daemon, help texts, experiments and tables
// read it here and have no list of policies of their own.
//
// Each policy registers its spec from its own file: var _ = Register(…). An explicit table would be a second file
// to edit for each policy, and the lists that disagree are what the registry replaces. Registering only adds a row;
// nothing is built or opened.
type Spec struct {
	Name  string
	About string // one line, for help texts
	Rank  int    // position in lists and tables, ascending

	Live      bool // the daemon can decide by it
	Contender bool // experiments compare it
	Alone     bool // gives each job a GPU of its own
	// ShortestFirst policies look for the shortest job. A window shows them the first few only, so experiments sort
	// their queue.
	ShortestFirst bool
	Network       bool // decides by a trained network: takes a model file
	// Unguarded policies judge by themselves what fits: experiments hold them to the card's own rules only.
	Unguarded bool

	// New makes the policy; nil where only training does.
	New func(Setup) (rlcore.Policy, error)
	// Knobs are the settings among which experiments choose by job sets of their own; none = New's.
	Knobs []Knob
}

// Setup is what a policy may be made from.
type Setup struct {
	Predictor rlcore.Predictor
	Seed      uint64 // of random choices
	Model     string // file of a network; "" = the one built in
}

// Knob is one setting of a policy that has some to choose among.
type Knob struct {
	Note string // e.g. "crowd 0.12"
	New  func(rlcore.Predictor) rlcore.Policy
}

var policies []Spec

// Register registers a policy. It panics if the name is taken.
func Register(s Spec) Spec {
	if _, there := Named(s.Name); there || s.Name == "" {
		panic(fmt.Sprintf("rlcore: a policy %q is registered twice, or has no name", s.Name))
	}
	policies = append(policies, s)
	slices.SortFunc(policies, func(a, b Spec) int { return cmp.Or(a.Rank-b.Rank, cmp.Compare(a.Name, b.Name)) })
	return s
}

// Named returns the policy of a name.
func Named(name string) (Spec, bool) {
	i := slices.IndexFunc(policies, func(s Spec) bool { return s.Name == name })
	if i < 0 {
		return Spec{}, false
	}
	return policies[i], true
}

// Live returns the policies that the daemon can decide by, by rank.
func Live() []Spec {
	return slices.DeleteFunc(slices.Clone(policies), func(s Spec) bool { return !s.Live })
}

// Contenders are the policies that experiments compare, in the order of their ranks.
func Contenders() []Spec {
	return slices.DeleteFunc(slices.Clone(policies), func(s Spec) bool { return !s.Contender })
}

// Names are the names of specs.
func Names(specs []Spec) []string {
	out := make([]string, len(specs))
	for i := range specs {
		out[i] = specs[i].Name
	}
	return out
}

// New makes the live policy of a name. The error about an unknown name lists the known ones.
func New(name string, setup Setup) (rlcore.Policy, error) {
	s, ok := Named(name)
	if !ok || !s.Live {
		return nil, fmt.Errorf("there is no policy %q; there are %s", name, strings.Join(Names(Live()), ", "))
	}
	return s.New(setup)
}

// Shares reports whether a policy may have jobs share a GPU. One that isn't registered may.
func Shares(p rlcore.Policy) bool {
	s, _ := Named(p.Name())
	return !s.Alone
}
