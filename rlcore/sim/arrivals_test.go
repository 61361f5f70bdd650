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

// The gaps of a Poisson process have the given mean and a standard deviation equal to
// it, each within five standard errors.
func TestPoisson(t *testing.T) {
	const n, mean = 20000, 7.0
	jobs := make([]Arrival, n+1)
	poisson(jobs, mean, rand.New(rand.NewPCG(1, 2)))
	if jobs[0].SubmitS != 0 {
		t.Errorf("the first arrives at %v s", jobs[0].SubmitS)
	}
	var sum, sum2 float64
	for i := range n {
		gap := jobs[i+1].SubmitS - jobs[i].SubmitS
		if gap < 0 {
			t.Fatalf("job %d arrives before job %d", i+1, i)
		}
		sum += gap
		sum2 += gap * gap
	}
	got := sum / n
	sd := math.Sqrt(sum2/n - got*got)
	if math.Abs(got-mean) > 5*mean/math.Sqrt(n) {
		t.Errorf("mean gap %v s, want %v", got, mean)
	}
	// The standard error of an exponential's standard deviation is sqrt(2/n) of it.
	if math.Abs(sd-mean) > 5*mean*math.Sqrt(2.0/n) {
		t.Errorf("standard deviation of the gaps %v s, want %v", sd, mean)
	}
	again := make([]Arrival, n+1)
	poisson(again, mean, rand.New(rand.NewPCG(1, 2)))
	for i := range jobs {
		if jobs[i].SubmitS != again[i].SubmitS {
			t.Fatalf("job %d: %v and %v s by the same seed", i, jobs[i].SubmitS, again[i].SubmitS)
		}
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
