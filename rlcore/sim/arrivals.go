package sim

import "math/rand/v2"

// Arrivals: SubmitS of each job says when it arrives, s. A trace sets it job by
// job; these two set it for all.

// AllAtOnce lets all jobs arrive at 0 s; their order is their priority.
func AllAtOnce(jobs []Arrival) {
	for i := range jobs {
		jobs[i].SubmitS = 0
	}
}

// Poisson lets the jobs arrive in their order, the first at 0 s, with
// exponentially distributed gaps of meanGapS on average, s. New refuses what a
// negative, infinite or undefined gap makes.
func Poisson(jobs []Arrival, meanGapS float64, r *rand.Rand) {
	t := 0.0
	for i := range jobs {
		jobs[i].SubmitS = t
		t += meanGapS * r.ExpFloat64()
	}
}
