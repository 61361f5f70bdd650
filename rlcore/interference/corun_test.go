package interference

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

func TestCompany(t *testing.T) {
	a, b := &rlcore.Profile{App: "a"}, &rlcore.Profile{App: "b"}
	for name, c := range map[string]struct {
		others []Overlap
		want   int // how many count; 0 = nothing is said
		part   float64
	}{
		"alone":                  {nil, 0, 0},
		"with one all along":     {[]Overlap{{a, 100}}, 1, 1},
		"one for most":           {[]Overlap{{a, 80}}, 1, 0.8},
		"two, one passing by":    {[]Overlap{{a, 90}, {b, 5}}, 1, 0.9},
		"two":                    {[]Overlap{{a, 90}, {b, 70}}, 2, 0.8},
		"only passing by":        {[]Overlap{{a, 9}}, 0, 0},
		"half of it":             {[]Overlap{{a, 50}}, 0, 0},
		"one more for half":      {[]Overlap{{a, 90}, {b, 50}}, 0, 0},
		"unknown":                {[]Overlap{{nil, 90}}, 0, 0},
		"unknown and passing by": {[]Overlap{{a, 90}, {nil, 2}}, 1, 0.9},
		"clocks that disagree":   {[]Overlap{{a, 101}}, 1, 1},
	} {
		with, part, ok := CoRunners(100, c.others)
		if ok != (c.want > 0) || len(with) != c.want || math.Abs(part-c.part) > 1e-12 {
			t.Errorf("%s: %d for %v of it, %v; want %d for %v", name, len(with), part, ok, c.want, c.part)
		}
	}
	if got := CoRunSlowdown(120, 100, 0.5); math.Abs(got-1.4) > 1e-12 {
		t.Errorf("20 %% in half of the run: %v while sharing", got)
	}
}
