package interference

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Lesson is what one co-run teaches about its victim, in a form that can be stored and learned again. The order in
// which lessons are learned doesn't matter, but for the rounding of sums and for doubts.
type Lesson struct {
	Card   string   `json:"card"`   // model, as GPUSpec names it
	Victim string   `json:"victim"` // application
	Others []string `json:"others"` // applications
	// Owner is the user of the victim's application, Owners the users of the aggressors', in the
	// same order; "" and nil = all users.
	Owner  string   `json:"owner,omitempty"`
	Owners []string `json:"owners,omitempty"`
	// Sharing is the card's way of sharing, as GPUSpec names it.
	Sharing string `json:"sharing,omitempty"`
	// Slowdown is the one observed, Off its z_seen − z_law (see learn.go), Weight as Observe has it.
	Slowdown float64 `json:"slowdown"`
	Off      float64 `json:"off"`
	Weight   float64 `json:"weight"`
	// Law is the slowdown by the law, averaged over how phases may meet, Alone what victim and aggressors use alone.
	Law   float64 `json:"law"`
	Alone []Alone `json:"alone"`
}

// Alone is what is known of an application's mean use alone.
type Alone struct {
	GPU     float64 `json:"gpu"`                // fraction of time a kernel runs, 0..1
	MemBusy float64 `json:"mem_busy,omitempty"` // fraction of time memory is read or written, 0..1
	StepS   float64 `json:"step_s,omitempty"`   // time of one iteration, s
}

// Lesson returns what Observe would learn of a co-run, without learning it; false where the co-run teaches nothing.
func (m *Model) Lesson(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, predicted, weight float64,
) (Lesson, bool) {
	if !observable(members) || !known(slowdown) {
		return Lesson{}, false
	}
	law, off, _ := m.compare(spec, members, slowdown, predicted)
	l := Lesson{
		Card: spec.Model, Sharing: spec.Sharing, Victim: members[0].App, Owner: members[0].Owner,
		Slowdown: slowdown, Law: law, Off: off, Weight: weight,
	}
	for _, p := range members {
		u := p.Mean()
		l.Alone = append(l.Alone, Alone{GPU: u.GPU, MemBusy: u.MemBusy, StepS: p.StepS})
	}
	for _, p := range members[1:] {
		l.Others, l.Owners = append(l.Others, p.App), append(l.Owners, p.Owner)
	}
	if !slices.ContainsFunc(l.Owners, func(o string) bool { return o != "" }) {
		l.Owners = nil
	}
	return l, !math.IsNaN(off)
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
	f, ok := l.traits()
	ok = ok && known(l.Slowdown) && l.Weight >= hardly*hardly && l.Weight <= 1
	if !ok || len(members) < 2 || len(members) > maxOthers+1 {
		return
	}
	spec := &rlcore.GPUSpec{Model: l.Card, Sharing: l.Sharing}
	m.learn(m.way(spec), spec, members, seen(l.Off, l.Weight, &f), true)
}

// traits returns the victim's traits; false where what members use can't be.
func (l *Lesson) traits() (x traits, ok bool) {
	if len(l.Alone) != 1+len(l.Others) || !known(l.Law) {
		return x, false
	}
	var members []*sketch
	for _, a := range l.Alone {
		if math.IsNaN(a.GPU + a.MemBusy + a.StepS) {
			return x, false
		}
		members = append(members, newSketch(clamp(a.GPU, 1), clamp(a.MemBusy, 1), min(a.StepS, math.MaxFloat64)))
	}
	return traitsOf(members, 0, excess(l.Law)), true
}

// mostDoubt bounds the factor by which broken contracts widen an uncertainty.
const mostDoubt = 8

// Doubt doubles the uncertainty of victim's slowdown next to each aggressor, up to eightfold, since
// its contract was broken there.
func (m *Model) Doubt(victim rlcore.Identity, others []rlcore.Identity) {
	m.forget()
	for _, o := range others {
		p := pair{victim, o}
		d, _ := m.doubts.Get(p)
		m.doubts.Put(p, min(mostDoubt, 2*max(1, d)))
	}
}

// Reassure halves the doubt again, since a contract was kept.
func (m *Model) Reassure(victim rlcore.Identity, others []rlcore.Identity) {
	for _, o := range others {
		p := pair{victim, o}
		if d, ok := m.doubts.Get(p); ok {
			m.forget()
			if m.doubts.Put(p, d/2); d <= 2 {
				m.doubts.Delete(p)
			}
		}
	}
}

// doubt returns the factor on member i's uncertainty: the largest over its co-runners.
func (m *Model) doubt(members []*rlcore.Profile, i int) float64 {
	d := 1.0
	if m.doubts.Len() == 0 {
		return d
	}
	for j, p := range members {
		if j != i {
			own, _ := m.doubts.Get(pair{members[i].Identity(), p.Identity()})
			anybodys, _ := m.doubts.Get(pair{ofAnyUser(members[i]), ofAnyUser(p)})
			d = max(d, own, anybodys)
		}
	}
	return d
}
