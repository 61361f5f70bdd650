package trace

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// swfFields are the 18 fields of the Standard Workload Format, version 2.2, as
// the Parallel Workloads Archive (Feitelson) defines it. -1 is unknown.
var swfFields = []string{
	"job number", "submit time", "wait time", "run time", "allocated processors",
	"average cpu time", "used memory", "requested processors", "requested time",
	"requested memory", "status", "user", "group", "executable", "queue", "partition",
	"preceding job", "think time",
}

// Why a row of a log is left out.
const (
	noRunTime = "without a run time"
	partial   = "partial runs of a job that is there as a whole"
)

// ReadSWF reads a log in the Standard Workload Format: 18 numbers a line, lines that start with a
// semicolon are comments. An application is an executable number, "swf-12", or "swf-unknown"; a
// user is a user number, a limit the requested time, if there is one. The format has no GPUs: GPUs
// is 0. Jobs with a run time that is unknown (-1) or 0 are left out, and so are partial runs
// (status 2 to 4) of jobs that were stopped and continued. Order, known and name are as for
// ReadJobs.
func ReadSWF(r io.Reader, name string, known ...string) ([]Job, Skipped, error) {
	t, err := table.NewRow(name, 0, swfFields)
	if err != nil {
		return nil, nil, err
	}
	var jobs []Job
	skipped := Skipped{}
	seen := map[string]bool{}
	err = table.EachLine(r, name, func(line int, text string) error {
		text = strings.TrimSpace(text)
		if text == "" || text[0] == ';' {
			return nil
		}
		fields := strings.Fields(text)
		if t.Set(line, fields); len(fields) != len(swfFields) {
			t.Fail("", fmt.Errorf("%d fields; the Standard Workload Format has %d", len(fields), len(swfFields)))
			return t.Err()
		}
		for _, f := range swfFields {
			t.Number(f, -1e15, 1e15)
		}
		if status := t.Number("status", -1, 5); status >= 2 && status <= 4 {
			skipped[partial]++
			return t.Err()
		}
		j := Job{
			ID:        strconv.FormatInt(whole(t, "job number", 0), 10),
			SubmitS:   t.Number("submit time", 0, maxSubmitS),
			App:       "swf-unknown",
			DurationS: t.Number("run time", -1, maxDurationS),
		}
		if limit := t.Number("requested time", -1e15, 1e15); limit >= minDurationS && limit <= maxDurationS {
			j.LimitS = limit // more stands for none
		}
		if e := whole(t, "executable", -1); e >= 0 {
			j.App = fmt.Sprintf("swf-%d", e)
		}
		if u := whole(t, "user", -1); u >= 0 {
			j.User = strconv.FormatInt(u, 10)
		}
		if seen[j.ID] {
			t.Fail("job number", fmt.Errorf("%s %w", j.ID, table.ErrTwice))
		}
		seen[j.ID] = true
		if t.Err() == nil && j.DurationS < minDurationS {
			skipped[noRunTime]++
			return nil
		}
		t.MustKnow("executable", j.App, known)
		jobs = append(jobs, j)
		return t.Err()
	})
	if err != nil {
		return nil, nil, err
	}
	if len(jobs) == 0 {
		return nil, nil, table.Nothing(name, skipped)
	}
	return inOrder(jobs), skipped, nil
}

// whole returns a whole number of at least lo.
func whole(r *table.Row, col string, lo float64) int64 {
	v := r.Number(col, lo, 1e15)
	if v != float64(int64(v)) {
		r.Fail(col, fmt.Errorf("%w: %.40s is not a whole number", table.ErrOutOfRange, r.Text(col)))
	}
	return int64(v)
}
