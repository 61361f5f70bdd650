package cluster

import "testing"

// A pause of Slurm's isn't held against a run, and a job has its grace.
func TestLate(t *testing.T) {
	const plain, solo, scale = 500, 100, 4
	for _, c := range []struct {
		end  float64
		want Lateness
	}{
		{400, Lateness{}},
		{plain + scale, Lateness{WorstS: scale}},
		{plain + 5, Lateness{Later: 1, WorstS: 5}},
		{plain + 10, Lateness{Later: 1, WorstS: 10}},
		{plain + 11, Lateness{Later: 1, Late: 1, WorstS: 11}},
	} {
		var got Lateness
		got.Add(c.end, plain, solo, scale)
		if got != c.want {
			t.Errorf("ended at %v: %+v, want %+v", c.end, got, c.want)
		}
	}
	// The tenth of a short job is less than a pause.
	var all Lateness
	all.Add(plain+30, plain, 100, 50)
	all.Add(plain+60, plain, 100, 50)
	if want := (Lateness{Later: 1, Late: 1, WorstS: 60}); all != want {
		t.Errorf("%+v, want %+v", all, want)
	}
}
