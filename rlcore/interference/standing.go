package interference

import (
	"iter"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Standing is what is known of a user's application beside its profile and its slowdowns: whether it can share a GPU,
// and with whom. The zero value is that of an application of which nothing is known.
type Standing struct {
	FailsAlone bool `json:"fails_alone,omitempty"` // its last run alone failed
	// Served: a run of it ended well under MPS. NoMPS: it can't run there, and has GPUs of its own.
	Served bool `json:"served,omitempty"`
	NoMPS  bool `json:"no_mps,omitempty"`
	// TriedMiB is the most device memory with which a run of it was tried and failed, MiB; 0 = none was.
	TriedMiB float64 `json:"tried_mib,omitempty"`
	// Alone is since when it shares with no other, because it may have taken its co-runners along; zero = it may share.
	Alone time.Time `json:"alone,omitzero"`
	// Slower is when a job of it that was adopted last ran slower than its contract; zero = none has.
	Slower time.Time `json:"slower,omitzero"`
	// Others are the applications beside which it failed or broke its contract, the last one at the end.
	Others []Other `json:"others,omitempty"`
}

// Other is what came of running beside another application.
type Other struct {
	rlcore.Identity
	At      time.Time `json:"at,omitzero"`       // the end of the last run that changed it
	Accused bool      `json:"accused,omitempty"` // the application failed beside it
	Doubt   float64   `json:"doubt,omitempty"`   // factor on the slowdown's uncertainty, above 1; 0 = none
}

// MostOthers bounds Standing.Others. The oldest is forgotten first.
const MostOthers = 1 << 8

// mostDoubt bounds the factor by which broken contracts widen an uncertainty.
const mostDoubt = 8

// change changes what came of running beside another application. It leaves copies of the standing as they are.
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

// Accuse notes that the application failed beside another one. They don't share a GPU again.
func (s *Standing) Accuse(other rlcore.Identity, at time.Time) {
	s.change(other, at, func(o *Other) { o.Accused = true })
}

// Forgive revokes Accuse. What the other one says of the application stays.
func (s *Standing) Forgive(other rlcore.Identity, at time.Time) {
	s.change(other, at, func(o *Other) { o.Accused = false })
}

// Doubt doubles the uncertainty of the application's slowdown next to each of others, up to eightfold, since its
// contract was broken there.
func (s *Standing) Doubt(others []rlcore.Identity, at time.Time) {
	for _, other := range others {
		s.change(other, at, func(o *Other) { o.Doubt = min(mostDoubt, 2*max(1, o.Doubt)) })
	}
}

// Reassure halves the doubt again, since a contract was kept.
func (s *Standing) Reassure(others []rlcore.Identity, at time.Time) {
	for _, other := range others {
		if s.doubt(other) > 1 {
			s.change(other, at, func(o *Other) { o.Doubt /= 2 })
		}
	}
}

// AloneFor is how long Alone holds at least: an application takes its co-runners along once a day at most.
const AloneFor = 24 * time.Hour

// LetShare ends Alone after AloneFor; also where Alone lies that far ahead, by a clock that was wrong.
func (s *Standing) LetShare(at time.Time) {
	if at.Sub(s.Alone).Abs() >= AloneFor {
		s.Alone = time.Time{}
	}
}

// Forget forgets what came of running beside others before a time.
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

// Bounds of the applications whose standing is known, in all and of one user. The oldest is forgotten first.
const mostStandings, standingsOfUser = 1 << 12, 1 << 8

// Standing returns what is known of a user's application; without an owner, of any user's.
func (m *Model) Standing(of rlcore.Identity) Standing {
	s, _ := m.standings.Get(of)
	return s
}

// SetStanding sets what is known of a user's application.
func (m *Model) SetStanding(of rlcore.Identity, s Standing) {
	m.forget()
	m.standings.Put(of, s)
	m.strict = m.strict || !s.Alone.IsZero() || len(s.Others) > 0
}

// Standings are what is known of all applications, in no order.
func (m *Model) Standings() iter.Seq2[rlcore.Identity, Standing] { return m.standings.All() }

// Forbid keeps two users' applications from sharing a GPU, since the accuser failed next to the accused; without
// owners, all users'.
func (m *Model) Forbid(accuser, accused rlcore.Identity) {
	s := m.Standing(accuser)
	s.Accuse(accused, time.Time{})
	m.SetStanding(accuser, s)
}

// Doubt makes the victim's standing doubt its slowdown next to others.
func (m *Model) Doubt(victim rlcore.Identity, others []rlcore.Identity) {
	s := m.Standing(victim)
	s.Doubt(others, time.Time{})
	m.SetStanding(victim, s)
}

// Reassure revokes one Doubt.
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
