package interference

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Lesson is what one co-run teaches about its victim, in a form that can be stored and
// learned again. The order in which lessons are learned doesn't matter, but for the
// rounding of sums and for doubts.
type Lesson struct {
	Card   string   `json:"card"`   // model, as GPUSpec names it
	Victim string   `json:"victim"` // application
	Others []string `json:"others"` // applications
	// Owner is the user whose application the victim is, Owners those of the others, in the
	// same order; "" and nil = anybody's.
	Owner  string   `json:"owner,omitempty"`
	Owners []string `json:"owners,omitempty"`
	// Slowdown is the one observed, Off its z_seen − z_law (see learn.go).
	Slowdown float64 `json:"slowdown"`
	Off      float64 `json:"off"`
}

// Lesson returns the lesson of a co-run without learning it: members[0] was slowed by
// slowdown, where Pace had predicted foreseen over the run as it was. With foreseen NaN
// the law's average over how phases may meet stands in. It returns false where the
// co-run teaches nothing.
func (m *Model) Lesson(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, foreseen float64) (Lesson, bool) {
	if !observable(members) || !known(slowdown) {
		return Lesson{}, false
	}
	l := Lesson{Victim: members[0].App, Owner: members[0].Owner, Slowdown: slowdown}
	if spec != nil {
		l.Card = spec.Model
	}
	for _, p := range members[1:] {
		l.Others, l.Owners = append(l.Others, p.App), append(l.Owners, p.Owner)
	}
	if !slices.ContainsFunc(l.Owners, func(o string) bool { return o != "" }) {
		l.Owners = nil
	}
	if known(foreseen) {
		already, _ := m.expect(spec, members, 0)
		l.Off = already + surplus(slowdown, foreseen)
	} else {
		law := make([]rlcore.Prediction, len(members))
		m.byLaw(law, spec, members)
		l.Off = surplus(slowdown, law[0].Slowdown)
	}
	return l, !math.IsNaN(l.Off)
}

// Take learns a lesson. An impossible one is ignored.
func (m *Model) Take(l *Lesson) {
	members := make([]*rlcore.Profile, 1+len(l.Others))
	members[0] = &rlcore.Profile{App: l.Victim, Owner: l.Owner}
	for i, app := range l.Others {
		members[1+i] = &rlcore.Profile{App: app}
		if i < len(l.Owners) {
			members[1+i].Owner = l.Owners[i]
		}
	}
	if len(members) < 2 || len(members) > maxOthers+1 || !known(l.Slowdown) {
		return
	}
	m.learn(&rlcore.GPUSpec{Model: l.Card}, members, 0, l.Slowdown, l.Off, true)
}

// mostDoubt bounds the factor by which broken contracts widen an uncertainty.
const mostDoubt = 8

// Doubt doubles the uncertainty of victim's slowdown next to each of others, up to
// eightfold, since its contract was broken there.
func (m *Model) Doubt(victim rlcore.Identity, others []rlcore.Identity) {
	m.kept = nil
	if m.doubts == nil {
		m.doubts = map[pair]float64{}
	}
	for _, o := range others {
		p := pair{victim, o}
		m.doubts[p] = min(mostDoubt, 2*max(1, m.doubts[p]))
	}
}

// Reassure halves the doubt again, since a contract was kept.
func (m *Model) Reassure(victim rlcore.Identity, others []rlcore.Identity) {
	for _, o := range others {
		p := pair{victim, o}
		if d, ok := m.doubts[p]; ok {
			m.kept = nil
			if m.doubts[p] = d / 2; d <= 2 {
				delete(m.doubts, p)
			}
		}
	}
}

// doubt returns the factor on member i's uncertainty: the largest over its co-runners.
func (m *Model) doubt(members []*rlcore.Profile, i int) float64 {
	d := 1.0
	if len(m.doubts) == 0 {
		return d
	}
	for j, p := range members {
		if j != i {
			d = max(d, m.doubts[pair{whose(members[i]), whose(p)}], m.doubts[pair{anybody(members[i]), anybody(p)}])
		}
	}
	return d
}
