package sim

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// poisson lets the jobs arrive in their order, the first at 0 s, with exponentially
// distributed gaps of meanGapS on average, s.
func poisson(jobs []Arrival, meanGapS float64, r *rand.Rand) {
	t := 0.0
	for i := range jobs {
		jobs[i].SubmitS = t
		t += meanGapS * r.ExpFloat64()
	}
}

func TestAbsurdGapsAreRefused(t *testing.T) {
	for _, gap := range []float64{-1, math.NaN(), math.Inf(1)} {
		cfg := config(1, constant("a", 10, .5, 100), constant("b", 10, .5, 100))
		poisson(cfg.Jobs, gap, rand.New(rand.NewPCG(1, 2)))
		if _, err := New(cfg); !errors.Is(err, ErrBadConfig) {
			t.Errorf("mean gap %v s: %v", gap, err)
		}
	}
}
