package trace

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// Job is one job of a trace.
type Job struct {
	ID string
	// SubmitS is when it was submitted, s: on the file's own clock for CSV and
	// SWF, since the earliest submission for sacct.
	SubmitS float64
	App     string
	// DurationS is its run time, s: alone for CSV, as it was for SWF and sacct.
	// 0 = not given (CSV only): its application's profile says.
	DurationS float64
	User      string // "" = not given
	GPUs      int    // GPUs it held; 0 = not given
	// LimitS is its time limit, s; 0 = none.
	LimitS float64
	// DeadlineS is the latest end that its owner allows, s on SubmitS's clock and later
	// than SubmitS; 0 = none (CSV only).
	DeadlineS float64
}

// ReadJobs reads CSV with the columns job, submit_s, app and optionally duration_s, user, gpus,
// limit_s and deadline_s, which may be empty. A job may appear once. When known is given, an
// application that isn't in it is a table.ErrUnknownApp. The jobs come in the order of submission,
// jobs of one instant in the file's order. name is the file's name for messages.
func ReadJobs(r io.Reader, name string, known ...string) ([]Job, error) {
	var jobs []Job
	seen := map[string]bool{}
	err := table.ReadCSV(r, name, []string{"job", "submit_s", "app"}, func(t *table.Row) {
		j := Job{
			ID:        t.Name("job"),
			SubmitS:   t.Number("submit_s", 0, maxSubmitS),
			App:       t.OneOf("app", known),
			DurationS: t.NumberOr("duration_s", minDurationS, maxDurationS, 0),
			User:      t.NameOr("user", ""),
			GPUs:      count(t, "gpus"),
			LimitS:    t.NumberOr("limit_s", minDurationS, maxDurationS, 0),
			DeadlineS: t.NumberOr("deadline_s", 0, maxSubmitS, 0),
		}
		if t.Text("deadline_s") != "" && j.DeadlineS <= j.SubmitS {
			t.Fail("deadline_s", fmt.Errorf("%w: %g is not after the submission at %g", table.ErrOutOfRange, j.DeadlineS, j.SubmitS))
		}
		if seen[j.ID] {
			t.Fail("job", fmt.Errorf("%.40q %w", j.ID, table.ErrTwice))
		}
		seen[j.ID] = true
		jobs = append(jobs, j)
	})
	if err != nil {
		return nil, err
	}
	return inOrder(jobs), nil
}

// count returns a whole number from 1, 0 where it isn't given.
func count(r *table.Row, col string) int {
	v := r.NumberOr(col, 1, maxGPUs, 0)
	if v != math.Trunc(v) {
		r.Fail(col, fmt.Errorf("%w: %.40s is not a whole number", table.ErrOutOfRange, r.Text(col)))
	}
	return int(v)
}

func inOrder(jobs []Job) []Job {
	slices.SortStableFunc(jobs, func(a, b Job) int { return cmp.Compare(a.SubmitS, b.SubmitS) })
	return jobs
}
