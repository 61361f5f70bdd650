package rlcore

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"

	"pgregory.net/rapid"
)

// A part of a part is the part, nothing is faster there, and all figures stay possible.
func TestOnPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := rapid.Float64Range(0, 1)
		gpu := one.Draw(t, "gpu")
		p := &Profile{App: "a", DurationS: 100, PeriodS: 100, DurationSD: 10, Past: []Past{{SoloS: 90}}, Series: []Use{
			{GPU: gpu, Core: gpu * one.Draw(t, "core"), MemMiB: 10},
		}}
		a, b := rapid.Float64Range(.1, 1).Draw(t, "a"), rapid.Float64Range(.1, 1).Draw(t, "b")
		q := p.OnPart(a)
		if err := q.Validate(); err != nil || q.DurationS < p.DurationS-1e-9 ||
			math.Abs(q.Past[0].SoloS/90-q.DurationS/100) > 1e-9 {
			t.Fatalf("%v %+v", err, q)
		}
		if d := q.OnPart(b).DurationS - p.OnPart(a*b).DurationS; math.Abs(d) > 1e-6 {
			t.Errorf("in two steps %v s longer", d)
		}
	})
	idle := &Profile{App: "a", DurationS: 100, PeriodS: 100, Series: []Use{{GPU: 1, Core: .5}}}
	must.Equal(t, idle.OnPart(.125).DurationS, 400, "half the SMs on an eighth")
}
