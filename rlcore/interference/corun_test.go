package interference

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// A run of 100 s teaches of all companies that it had for more than a tenth of its time, one after the other or at once.
func TestARunTeachesOfEachCompany(t *testing.T) {
	a, b := &rlcore.Profile{App: "a"}, &rlcore.Profile{App: "b"}
	for name, c := range map[string]struct {
		others []Overlap
		want   map[string]float64 // parts of the run, by the names of those who were there
		part   float64
	}{
		"alone":                    {nil, nil, 0},
		"with one all along":       {[]Overlap{{a, 0, 100}}, map[string]float64{"a": 1}, 1},
		"one for a part":           {[]Overlap{{a, 20, 50}}, map[string]float64{"a": .3}, .3},
		"one passing by":           {[]Overlap{{a, 20, 29}}, nil, .09},
		"one, and another passing": {[]Overlap{{a, 0, 90}, {b, 0, 5}}, map[string]float64{"a": .85}, .9},
		"one after the other":      {[]Overlap{{a, 0, 60}, {b, 60, 80}}, map[string]float64{"a": .6, "b": .2}, .8},
		"one and the same again":   {[]Overlap{{a, 0, 40}, {b, 40, 60}, {a, 60, 90}}, map[string]float64{"a": .7, "b": .2}, .9},
		"two at once":              {[]Overlap{{b, 20, 80}, {a, 0, 50}}, map[string]float64{"a": .2, "ab": .3, "b": .3}, .8},
		"two of one at once":       {[]Overlap{{a, 0, 50}, {a, 0, 50}}, map[string]float64{"aa": .5}, .5},
		"unknown":                  {[]Overlap{{a, 0, 50}, {nil, 50, 90}}, nil, 0},
		"unknown and passing by":   {[]Overlap{{a, 0, 90}, {nil, 0, 2}}, map[string]float64{"a": .88}, .9},
		"clocks that disagree":     {[]Overlap{{a, -5, 101}}, map[string]float64{"a": 1}, 1},
	} {
		all, part := Companies(100, c.others)
		got := map[string]float64(nil)
		for _, x := range all {
			if got == nil {
				got = map[string]float64{}
			}
			names := ""
			for _, p := range x.With {
				names += p.App
			}
			got[names] += x.Part
		}
		if diff := cmp.Diff(c.want, got, cmpopts.EquateApprox(0, 1e-12)); diff != "" || math.Abs(part-c.part) > 1e-12 {
			t.Errorf("%s: accompanied for %v of it, want %v; %s", name, part, c.part, diff)
		}
	}
	must.Near(t, CoRunSlowdown(120, 100, 0.5), 1.4, 1e-12, "while sharing, 20 % in half of the run")
}
