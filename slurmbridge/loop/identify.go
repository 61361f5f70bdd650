package loop

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
)

// Apps knows the applications of jobs.
type Apps interface {
	// Identify names the application of a job from its owner, script and terms, and looks
	// its profile up. A nil Profile means that it isn't known.
	Identify(ctx context.Context, j *job.Job, t job.Terms, script []byte) (job.App, error)
}

// identifyBudget bounds the time that a tick spends on identifying applications.
const identifyBudget = 2 * time.Second

// identifier finds out the applications of jobs, and remembers them.
type identifier struct {
	apps   Apps
	slurm  job.Slurm
	log    *slog.Logger
	now    func() time.Time
	window func() int
	byRef  map[string]identified
}

// identified is what is known of a job's application, how often its script was asked for in
// vain, and what kept it from being known at the last try.
type identified struct {
	job.App
	failed int
	err    string
}

// scriptTries is how often a job's script is asked for: some jobs have none.
const scriptTries = 3

// identify fills in the terms and the applications of the jobs that a plan may want: those
// that run, and the first of the queue. The rest follows in later ticks.
func (d *identifier) identify(ctx context.Context, in *plan.Input) {
	jobs := in.Snap.Jobs
	in.Apps, in.Terms = make(map[string]job.App, len(jobs)), map[string]job.Terms{}
	d.forget(jobs)
	arrays := map[int64]identified{} // the tasks of an array have one script
	seats := in.Tracker.Seats()
	lookups := d.lookups(in)
	for i := range jobs {
		j := &jobs[i]
		t := job.ParseTerms(j.Comment)
		if !t.None() {
			in.Terms[j.Ref] = t
		}
		if !sharer(j) || j.State == job.Pending && !in.WaitsForBridge(j) && seats[j.Ref].Group == nil {
			continue
		}
		app, known := d.byRef[j.Ref]
		if !known && j.ArrayID != 0 {
			app, known = arrays[j.ArrayID]
		}
		if app.Profile == nil && !lookups.next(known) {
			continue
		}
		if app.Profile == nil {
			app = d.lookUp(ctx, j, t, app, !known || 0 < app.failed && app.failed < scriptTries)
			d.byRef[j.Ref] = app
		}
		if j.ArrayID != 0 {
			arrays[j.ArrayID] = app
		}
		in.Apps[j.Ref] = app.App
	}
	d.recognise(ctx, in, lookups)
}

// recognise finds out, once each, what jobs with a GPU of their own run: their records become profiles, by which it is
// known whether they could share. Nothing is decided by it.
func (d *identifier) recognise(ctx context.Context, in *plan.Input, lookups *lookups) {
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		if j.State != job.Running || j.Request.Kind != job.WholeGPU || j.Request.Count > 1 {
			continue
		}
		app, known := d.byRef[j.Ref]
		if known && (app.failed == 0 || app.failed >= scriptTries) || !lookups.next(false) {
			continue
		}
		d.byRef[j.Ref] = d.lookUp(ctx, j, job.ParseTerms(j.Comment), app, true)
	}
}

// sharer reports whether a job asks for a shared GPU.
func sharer(j *job.Job) bool { return j.Request.Kind == job.Shares || j.Request.Kind == job.SharedGPU }

// forget drops the jobs that are gone.
func (d *identifier) forget(jobs []job.Job) {
	seen := make(map[string]bool, len(jobs))
	for i := range jobs {
		seen[jobs[i].Ref] = true
	}
	maps.DeleteFunc(d.byRef, func(ref string, _ identified) bool { return !seen[ref] })
}

// lookups bounds how many unknown jobs a tick looks up.
type lookups struct {
	left  int
	until time.Time
	now   func() time.Time
}

// lookups allows for the running jobs and a window for each GPU.
func (d *identifier) lookups(in *plan.Input) *lookups {
	gpus := 0
	for i := range in.Snap.Nodes {
		gpus += in.Snap.Nodes[i].GPUs
	}
	return &lookups{left: d.window()*(gpus+1) + 16, until: d.now().Add(identifyBudget), now: d.now}
}

// next reports whether one more job may be looked up. A job that was identified before
// always may: its profile may have come since.
func (l *lookups) next(known bool) bool {
	if !known && (l.left <= 0 || l.now().After(l.until)) {
		return false
	}
	l.left--
	return true
}

// lookUp finds a job's application. The script is read once; the profile is looked for
// again as long as there is none.
func (d *identifier) lookUp(ctx context.Context, j *job.Job, t job.Terms, known identified, read bool) identified {
	var script []byte
	out := identified{failed: known.failed}
	if read {
		var err error
		if script, err = d.slurm.Script(ctx, j.Ref); err != nil {
			d.log.Debug("no script", "job", j.Ref, "err", err)
			out.failed++
		} else {
			out.failed = 0
		}
	}
	var err error
	if out.App, err = d.apps.Identify(ctx, j, t, script); err != nil {
		if out.err = err.Error(); out.err != known.err { // a full disk is full in every round
			d.log.Warn("application not identified", "job", j.Ref, "err", err)
		}
	}
	return out
}
