// Package archive stores nodes' records, looks up the memory limits of jobs for nodes, and keeps the database within
// its bounds.
package archive

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// Archive is one database.
type Archive struct {
	Store   *store.Store
	Journal *journal.Journal
	Runs    *history.History
	// TaskName returns Slurm's name ("120_4") of a job by its number; nil = only the database is used.
	TaskName func(ctx context.Context, id int64) (string, error)
}

// Keep adds the array's task, the application and its parameters to a record, and stores it. The record's times stay in
// its node's clock, which is behind the controller's by the given time: they identify the record, and a group's members
// share that clock. isNew is false for a record that is stored already. skew is the time between the first and the last
// start in the job's group, negative where it isn't known.
func (a *Archive) Keep(ctx context.Context, r *gpuprof.Record, behind time.Duration) (
	isNew bool, skew time.Duration, err error,
) {
	const unknown = -1
	r.ClockBehindS = behind.Seconds()
	if r.ArrayJobID == 0 {
		// No release of Slurm so far lets a node's prolog know that a job is an array's task.
		name, err := a.Runs.TaskName(ctx, r.JobID, r.ControllerTime(r.Start), r.ControllerTime(r.End))
		if err != nil {
			return false, unknown, err
		}
		if array, task, is := strings.Cut(name, "_"); is {
			r.ArrayJobID, _ = strconv.ParseInt(array, 10, 64)
			r.ArrayTaskID, _ = strconv.ParseInt(task, 10, 64)
		}
	}
	// The application was recognised while the job waited, "" = it was not.
	app, err := a.Store.AppOf(ctx, r.Ref(), r.User)
	if err != nil {
		return false, unknown, err
	}
	known, err := a.Store.Family(ctx, r.User, app)
	if err != nil {
		return false, unknown, err
	}
	var params []string
	for _, s := range known.Sizes {
		params = append(params, s.Name+"="+strconv.FormatFloat(s.Value, 'g', -1, 64))
	}
	r.App = cmp.Or(known.Name, app)
	r.Params = strings.Join(params, "; ")
	if isNew, err = a.Store.AddRecord(ctx, r, app); err != nil || !isNew {
		return false, unknown, err
	}
	skew, complete, err := a.Journal.Started(ctx, r.Ref(), r.Start)
	switch {
	case errors.Is(err, journal.ErrNotFound):
		return true, unknown, nil
	case err != nil || !complete:
		return true, unknown, err
	}
	return true, skew, nil
}

// leastKept is how much of the past is kept however large it is.
const leastKept = 24 * time.Hour

// Tidy removes what is older than the database keeps. Where the rest takes more than mostBytes it removes ever younger
// parts of it, footprints last. It returns how much of the past is left.
func (a *Archive) Tidy(ctx context.Context, now time.Time, mostBytes int64) (kept time.Duration, err error) {
	footprints := usage.KeptFor
	for kept = history.KeptFor; ; kept = max(kept*3/4, leastKept) {
		before := now.Add(-kept)
		if err := errors.Join(
			a.Store.Tidy(ctx, before), a.Journal.Forget(ctx, before), a.Runs.Forget(ctx, before),
			history.ForgetFootprints(ctx, a.Store.DB(), now.Add(-footprints)),
		); err != nil {
			return kept, err
		}
		size, err := database.Size(ctx, a.Store.DB())
		switch {
		case err != nil || size <= mostBytes:
			return kept, err
		case kept > leastKept:
		case footprints > leastKept:
			footprints = max(footprints*3/4, leastKept)
		default:
			return kept, nil
		}
	}
}

// MemoryLimit returns the limit on its GPU's memory that a user's job got when its group was decided.
func (a *Archive) MemoryLimit(ctx context.Context, ref, user string) (none httpapi.MemoryReport, err error) {
	id, isNumber := strconv.ParseInt(ref, 10, 64)
	if isNumber == nil {
		// A node knows an array task by its number only.
		now := time.Now()
		if ref, err = a.Runs.TaskName(ctx, id, now, now); err != nil {
			return none, err
		}
	}
	m, err := a.Journal.MemberOf(ctx, ref)
	if err == nil && m == nil && isNumber == nil && a.TaskName != nil {
		// A task that starts has a number that no poll has shown yet.
		if ref, err = a.TaskName(ctx, id); err != nil {
			return none, nil //nolint:nilerr // Slurm doesn't answer: nothing is known of the job
		}
		m, err = a.Journal.MemberOf(ctx, ref)
	}
	switch {
	case err != nil:
		return none, err
	case m == nil:
		return httpapi.MemoryReport{ByHand: true}, nil
	case m.User != user || m.State.Final():
		return none, nil
	}
	return httpapi.MemoryReport{MiB: cmp.Or(m.ProcessMiB, m.MemMiB)}, nil
}
