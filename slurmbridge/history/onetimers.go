package history

import (
	"fmt"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// OneTimers counts jobs with a recognised application, and those of them whose application was seen no second time.
// What isn't seen again is learned for nothing: where there are many such jobs, something of no account tells their
// scripts apart.
type OneTimers struct {
	Jobs int `json:"jobs"`
	Once int `json:"once"`
}

// CountOneTimers counts runs by their users' applications; one without a name doesn't count.
func CountOneTimers(runs []Run) OneTimers {
	var s OneTimers
	times := map[[2]string]int{}
	for i := range runs {
		if r := &runs[i]; r.App != "" {
			times[[2]string{r.User, r.App}]++
			s.Jobs++
		}
	}
	for _, n := range times {
		if n == 1 {
			s.Once++
		}
	}
	return s
}

// Telling reports whether the jobs are so many, and so many of them of such applications, that it says something.
func (s OneTimers) Telling() bool { return s.Jobs >= 20 && 4*s.Once > s.Jobs }

// String says how many jobs are not known from earlier ones, and what to do about it.
func (s OneTimers) String() string {
	return fmt.Sprintf("%s of %d ran an application that was seen no second time; slurmbridge profiles identify SCRIPT "+
		"says what tells scripts apart", job.Count(s.Once, "job"), s.Jobs)
}
