package loop

import (
	"context"
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

// identifier remembers the applications that were identified.
type identifier struct {
	byRef map[string]job.App
}

// identify fills in the terms and the applications of the jobs that a plan may want: those
// that run, and the first of the queue. The rest follows in later ticks.
func (b *Bridge) identify(ctx context.Context, in *plan.Input) {
	jobs := in.Snap.Jobs
	in.Apps, in.Terms = make(map[string]job.App, len(jobs)), map[string]job.Terms{}
	seen := make(map[string]bool, len(jobs))
	for i := range jobs {
		seen[jobs[i].Ref] = true
	}
	for ref := range b.apps.byRef {
		if !seen[ref] {
			delete(b.apps.byRef, ref)
		}
	}
	arrays := map[int64]job.App{} // the tasks of an array have one script
	seats := in.Tracker.Seats()
	lookups := b.lookups(in)
	for i := range jobs {
		j := &jobs[i]
		t := job.ParseTerms(j.Comment)
		if !t.None() {
			in.Terms[j.Ref] = t
		}
		if j.Request.Kind == job.WholeGPU || j.Request.Kind == job.NoGPU {
			continue
		}
		if j.State == job.Pending && !in.WaitsForBridge(j) && seats[j.Ref].Group == nil {
			continue
		}
		app, known := b.apps.byRef[j.Ref]
		if !known && j.ArrayID != 0 {
			app, known = arrays[j.ArrayID]
		}
		if app.Profile == nil && !lookups.next(known) {
			continue
		}
		if app.Profile == nil {
			app = b.lookUp(ctx, j, t, app)
			b.apps.remember(j.Ref, app)
		}
		if j.ArrayID != 0 {
			arrays[j.ArrayID] = app
		}
		in.Apps[j.Ref] = app
	}
}

// lookups bounds how many unknown jobs a tick looks up.
type lookups struct {
	left  int
	until time.Time
	now   func() time.Time
}

// lookups allows for the running jobs and a window for each GPU.
func (b *Bridge) lookups(in *plan.Input) *lookups {
	gpus := 0
	for i := range in.Snap.Nodes {
		gpus += in.Snap.Nodes[i].GPUs
	}
	return &lookups{left: b.Planner.Window()*(gpus+1) + 16, until: b.Now().Add(identifyBudget), now: b.Now}
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

func (i *identifier) remember(ref string, app job.App) {
	if i.byRef == nil {
		i.byRef = map[string]job.App{}
	}
	i.byRef[ref] = app
}

// lookUp finds a job's application. The script is read once; the profile is looked for
// again as long as there is none.
func (b *Bridge) lookUp(ctx context.Context, j *job.Job, t job.Terms, known job.App) job.App {
	var script []byte
	if known.Key == "" {
		var err error
		if script, err = b.Slurm.Script(ctx, j.Ref); err != nil {
			b.Log.Debug("no script", "job", j.Ref, "err", err)
		}
	}
	app, err := b.Apps.Identify(ctx, j, t, script)
	if err != nil {
		b.Log.Warn("application not identified", "job", j.Ref, "err", err)
	}
	return app
}
