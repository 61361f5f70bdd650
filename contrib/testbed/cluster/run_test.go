package cluster

import (
	"testing"
	"time"
)

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

func TestReleased(t *testing.T) {
	at := released(`time=2026-01-01T00:00:01.000Z level=INFO msg="group released" group=1 kind=start node=n1 gpu=0 jobs=1,2
time=2026-01-01T00:00:10.500Z level=INFO msg="group released" group=2 kind=start node=n1 gpu=0 jobs=3
time=soon level=INFO msg="group released" jobs=9
`)
	if len(at) != 3 || at["3"] != time.Date(2026, 1, 1, 0, 0, 10, 5e8, time.UTC) || at["1"] != at["2"] {
		t.Error(at)
	}
}
