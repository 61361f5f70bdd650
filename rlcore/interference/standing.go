package interference

import (
	"iter"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Standing says whether a user's application can share a GPU, and with which others. The zero value restricts nothing.
type Standing struct {
	FailsAlone bool `json:"fails_alone,omitempty"` // the last run alone failed
	// Served: a run ended well under MPS. NoMPS: the application can't run under MPS and gets GPUs of its own.
	Served bool `json:"served,omitempty"`
	NoMPS  bool `json:"no_mps,omitempty"`
	// TriedMiB is the largest limit of device memory, MiB, under which a run failed; 0 = none.
	TriedMiB float64 `json:"tried_mib,omitempty"`
	// Alone is set while the application shares with no other, to the end of the run that may have made its co-runners
	// fail.
	Alone time.Time `json:"alone,omitzero"`
	// Slower is the end of the last adopted job that broke its contract; zero = none.
	Slower time.Time `json:"slower,omitzero"`
	// Others lists the applications next to which a run failed or broke its contract, the latest last.
	Others []Other `json:"others,omitempty"`
}

// Other is the experience with one co-runner.
type Other struct {
	rlcore.Identity
	At      time.Time `json:"at,omitzero"`       // end of the last run that changed it
	Accused bool      `json:"accused,omitempty"` // a run failed beside the other
	Doubt   float64   `json:"doubt,omitempty"`   // factor on the slowdown's uncertainty, above 1; 0 = none
}

// MostOthers bounds Standing.Others. The oldest is forgotten first.
const MostOthers = 1 << 8

// mostDoubt bounds the factor by which broken contracts widen an uncertainty.
const mostDoubt = 8

// change changes the experience with another application. It doesn't modify copies of the standing.
func (s *Standing) change(other rlcore.Identity, at time.Time, f func(o *Other)) {
	o := Other{Identity: other}
	others := make([]Other, 0, len(s.Others)+1)
	for _, x := range s.Others {
		if x.Identity == other {
			o = x
		} else {
			others = append(others, x)
		}
	}
	f(&o)
	o.At = at
	if o.Accused || o.Doubt > 1 {
		others = append(others, o)
	}
	s.Others = others[max(0, len(others)-MostOthers):]
}

// Accuse notes a failure next to another application. The two don't share a GPU again.
func (s *Standing) Accuse(other rlcore.Identity, at time.Time) {
	s.change(other, at, func(o *Other) { o.Accused = true })
}

// Forgive revokes Accuse. The other application's own accusation stays.
func (s *Standing) Forgive(other rlcore.Identity, at time.Time) {
	s.change(other, at, func(o *Other) { o.Accused = false })
}

// Doubt doubles the uncertainty of the slowdown next to each of others after a broken contract, up to eightfold.
func (s *Standing) Doubt(others []rlcore.Identity, at time.Time) {
	for _, other := range others {
		s.change(other, at, func(o *Other) { o.Doubt = min(mostDoubt, 2*max(1, o.Doubt)) })
	}
}

// Reassure halves the doubt after a kept contract.
func (s *Standing) Reassure(others []rlcore.Identity, at time.Time) {
	for _, other := range others {
		if s.doubt(other) > 1 {
			s.change(other, at, func(o *Other) { o.Doubt /= 2 })
		}
	}
}

// AloneFor is the least time that Alone holds: an application makes its co-runners fail once a day at most.
const AloneFor = 24 * time.Hour

// LetShare clears Alone once AloneFor has passed, or if a wrong clock set Alone that far ahead.
func (s *Standing) LetShare(at time.Time) {
	if at.Sub(s.Alone).Abs() >= AloneFor {
		s.Alone = time.Time{}
	}
}

// Forget drops others that no run has changed since the given time.
func (s *Standing) Forget(before time.Time) {
	s.Others = slices.DeleteFunc(slices.Clone(s.Others), func(o Other) bool { return o.At.Before(before) })
}

func (s *Standing) doubt(other rlcore.Identity) float64 {
	for i := range s.Others {
		if s.Others[i].Identity == other {
			return s.Others[i].Doubt
		}
	}
	return 0
}

func (s *Standing) accuses(other rlcore.Identity) bool {
	return slices.ContainsFunc(s.Others, func(o Other) bool { return o.Accused && o.Identity == other })
}

// Bounds of the stored standings, in all and of one user. The oldest is forgotten first.
const mostStandings, standingsOfUser = 1 << 12, 1 << 8

// Standing returns an application's standing; an identity without an owner stands for all users.
func (m *Model) Standing(of rlcore.Identity) Standing {
	s, _ := m.standings.Get(of)
	return s
}

// SetStanding sets an application's standing.
func (m *Model) SetStanding(of rlcore.Identity, s Standing) {
	m.forget()
	m.standings.Put(of, s)
	m.strict = m.strict || !s.Alone.IsZero() || len(s.Others) > 0
}

// Standings iterates over all standings, in no order.
func (m *Model) Standings() iter.Seq2[rlcore.Identity, Standing] { return m.standings.All() }

// Forbid keeps two applications from sharing a GPU after the accuser failed next to the accused. Identities without
// owners stand for all users.
func (m *Model) Forbid(accuser, accused rlcore.Identity) {
	s := m.Standing(accuser)
	s.Accuse(accused, time.Time{})
	m.SetStanding(accuser, s)
}

// Doubt calls Standing.Doubt for the victim.
func (m *Model) Doubt(victim rlcore.Identity, others []rlcore.Identity) {
	s := m.Standing(victim)
	s.Doubt(others, time.Time{})
	m.SetStanding(victim, s)
}

// Reassure calls Standing.Reassure for the victim.
func (m *Model) Reassure(victim rlcore.Identity, others []rlcore.Identity) {
	if s := m.Standing(victim); len(s.Others) > 0 {
		s.Reassure(others, time.Time{})
		m.SetStanding(victim, s)
	}
}

// Forbidden implements rlcore.Forbidder.
func (m *Model) Forbidden(_ *rlcore.GPUSpec, members []*rlcore.Profile) bool {
	if !m.strict || len(members) < 2 {
		return false
	}
	for i, p := range members {
		own, anybodys := m.Standing(p.Identity()), m.Standing(ofAnyUser(p))
		if !own.Alone.IsZero() {
			return true
		}
		for k, q := range members {
			if i != k && (own.accuses(q.Identity()) || anybodys.accuses(ofAnyUser(q))) {
				return true
			}
		}
	}
	return false
}

// doubt returns the factor on member i's uncertainty: the largest over its co-runners.
func (m *Model) doubt(members []*rlcore.Profile, i int) float64 {
	d := 1.0
	if !m.strict {
		return d
	}
	own, anybodys := m.Standing(members[i].Identity()), m.Standing(ofAnyUser(members[i]))
	for j, p := range members {
		if j != i {
			d = max(d, own.doubt(p.Identity()), anybodys.doubt(ofAnyUser(p)))
		}
	}
	return d
}
