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
	// Miss is by how many standard deviations a first lesson differs from what was predicted; see Cell.
	Miss float64 `json:"miss,omitempty"`
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
	law, off, f := m.compare(spec, members, slowdown, predicted)
	if math.IsNaN(off) {
		return Lesson{}, false
	}
	one := seen(off, weight, &f)
	l := Lesson{
		Card: spec.Model, Sharing: spec.Sharing, Victim: members[0].App, Owner: members[0].Owner,
		Slowdown: slowdown, Law: law, Off: off, Weight: weight, Miss: m.miss(spec, members, &one),
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
	return l, true
}

// Take learns a lesson. An impossible one is ignored.
func (m *Model) Take(l *Lesson) {
	if c, ok := l.Cell(); ok {
		m.restore(&c)
	}
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
