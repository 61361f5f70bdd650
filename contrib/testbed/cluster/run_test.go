package cluster

import "testing"

// Work that can't be done is refused before anything is submitted.
func TestWorkRefused(t *testing.T) {
	for _, w := range []Work{
		{Apps: []string{"gromacs"}, At: []float64{}},
		{Apps: []string{"gromacs"}, At: []float64{1, 2}},
		{Apps: []string{"gromacs"}, At: []float64{1}, Hold: true},
	} {
		if _, err := (&Stack{}).Do(t.Context(), w); err == nil {
			t.Errorf("%+v: no error", w)
		}
	}
}
