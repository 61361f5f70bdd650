package interference

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Lesson is what one co-run teaches about its victim, in a form that can be kept
// and taken again. Lessons taken in whatever order give the same model, but for
// the rounding of sums and for doubts.
type Lesson struct {
	Card   string   `json:"card"`   // model, as GPUSpec names it
	Victim string   `json:"victim"` // application
	Others []string `json:"others"` // applications
	// Slowdown that was seen, and by how much it was off the law, as the
	// logarithm of what exceeds 1 plus floor (see learn.go).
	Slowdown float64 `json:"slowdown"`
	Off      float64 `json:"off"`
}

// Lesson makes a lesson of a co-run without taking it: members[0] was slowed by
// slowdown, where foreseen was foretold by Pace, followed over the run as it was;
// NaN = it wasn't followed, and the average over how phases may meet stands in. false: it
// says nothing.
func (m *Model) Lesson(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, foreseen float64) (Lesson, bool) {
	if len(members) < 2 || len(members) > maxOthers+1 || !known(slowdown) {
		return Lesson{}, false
	}
	for _, p := range members {
		if p == nil || len(p.Series) == 0 {
			return Lesson{}, false
		}
	}
	l := Lesson{Victim: members[0].App, Slowdown: slowdown}
	if spec != nil {
		l.Card = spec.Model
	}
	for _, p := range members[1:] {
		l.Others = append(l.Others, p.App)
	}
	if known(foreseen) {
		already, _ := m.learned.predict(m.terms(spec, members, 0))
		l.Off = already + surplus(slowdown, foreseen)
	} else {
		law := make([]rlcore.Prediction, len(members))
		m.byLaw(law, spec, members)
		l.Off = surplus(slowdown, law[0].Slowdown)
	}
	return l, !math.IsNaN(l.Off)
}

// Take learns a lesson.
func (m *Model) Take(l *Lesson) {
	members := make([]*rlcore.Profile, 1+len(l.Others))
	members[0] = &rlcore.Profile{App: l.Victim}
	for i, app := range l.Others {
		members[1+i] = &rlcore.Profile{App: app}
	}
	if len(members) < 2 || len(members) > maxOthers+1 || !known(l.Slowdown) {
		return
	}
	m.learn(&rlcore.GPUSpec{Model: l.Card}, members, 0, l.Slowdown, l.Off)
}

// mostDoubt bounds the factor by which broken contracts widen an uncertainty.
const mostDoubt = 8

// Doubt doubles the uncertainty of victim beside each of others, up to eightfold:
// a contract of it was broken there.
func (m *Model) Doubt(victim string, others []string) {
	m.kept = nil
	if m.doubts == nil {
		m.doubts = map[pair]float64{}
	}
	for _, o := range others {
		p := pair{victim, o}
		m.doubts[p] = min(mostDoubt, 2*max(1, m.doubts[p]))
	}
}

// Reassure takes back half of what doubt there is: a contract was kept.
func (m *Model) Reassure(victim string, others []string) {
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

// doubt is the factor on the uncertainty of member i: that of the company it is
// doubted most in.
func (m *Model) doubt(members []*rlcore.Profile, i int) float64 {
	d := 1.0
	if len(m.doubts) == 0 {
		return d
	}
	for j, p := range members {
		if j != i {
			d = max(d, m.doubts[pair{members[i].App, p.App}])
		}
	}
	return d
}
