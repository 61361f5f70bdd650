package loop

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
)

// Apps identifies the applications of jobs.
type Apps interface {
	// Identify names a job's application from its owner, script (nil = not read) and terms, and stores the name; "" =
	// none.
	Identify(ctx context.Context, j *job.Job, t job.Terms, script []byte) (key string, err error)
	// Profile looks up the profile of a user's application on a GPU model, "" = the one where it is fastest; nil = there
	// is none.
	Profile(ctx context.Context, user, key, model string) (*rlcore.Profile, error)
}

// identifyBudget bounds the time that a tick spends on jobs it sees for the first time, readers the scripts that it
// reads at once: each read runs scontrol.
const (
	identifyBudget = 2 * time.Second
	readers        = 8
)

// identifier identifies the applications of a bridge's jobs, and remembers them.
type identifier struct {
	*Bridge
	models []string // of the cluster's GPUs
	byRef  map[string]identified
	// profiles holds the profiles found so far. Jobs of one application share one, so that all see what is learned.
	profiles map[application]*rlcore.Profile
	// foretold holds the profile that a run is expected to have, by its application's profile and its time limit.
	foretold map[foretold]*rlcore.Profile
	// asked holds assumed profiles by the memory that owners say a job needs. Jobs with equal keys share a profile.
	asked map[asked]*rlcore.Profile
}

func newIdentifier(b *Bridge) identifier {
	return identifier{
		Bridge: b, byRef: map[string]identified{}, profiles: map[application]*rlcore.Profile{},
		foretold: map[foretold]*rlcore.Profile{},
	}
}

// foretold is the key of an expected run: an application's profile and a time limit.
type foretold struct {
	of    *rlcore.Profile
	limit time.Duration
}

// asked is the key of an assumed profile: an application without its own, and the memory and limit of the job.
type asked struct {
	user, key      string
	limitS, memMiB float64
}

// application is the key of a user's application on a GPU model.
type application struct{ user, key, model string }

// identified is a job's application, the number of failed reads of its script, and the last one's error.
type identified struct {
	job.App
	failed int
	err    string
}

// scriptTries bounds the failed reads of a job's script: some jobs have none.
const scriptTries = 3

// search is an attempt to identify a job's application.
type search struct {
	j      *job.Job
	terms  job.Terms
	known  identified
	first  bool // there was none before
	read   bool // the script is needed
	script []byte
	err    error // of reading it
	late   bool  // there was no time for it
}

// ownLimit returns a job's time limit without the time that the bridge has lent it; 0 = none.
func ownLimit(in *plan.Input, j *job.Job) time.Duration {
	if l := in.Tracker.Loans[j.Ref]; l != nil {
		return min(j.TimeLimit, l.Own)
	}
	return j.TimeLimit
}

// identify fills in the terms and applications of the jobs that a plan may need: running jobs, and
// the first of the queue. Later ticks do the rest.
func (d *identifier) identify(ctx context.Context, in *plan.Input) {
	jobs := in.Snap.Jobs
	in.Apps, in.Terms = make(map[string]job.App, len(jobs)), map[string]job.Terms{}
	if d.Models != nil {
		seen, noLimits := d.Models(ctx)
		in.Models, in.NoLimits = job.NameCards(seen, in.Snap.Nodes), noLimits
	}
	d.models = job.CardNames(in.Models)
	d.forget(jobs)
	arrays := map[int64]string{} // the tasks of an array have one script: a task that was looked at
	memberships := in.Tracker.Memberships()
	next, until := d.lookups(in), d.Now().Add(identifyBudget)
	var searches []*search
	var sharers []*job.Job
	for i := range jobs {
		j := &jobs[i]
		t := d.terms(j)
		in.Terms[j.Ref] = t
		_, known := d.byRef[j.Ref] // an ungated job stays known
		if !sharer(j) && in.Rule(j) == nil || !known && j.State == job.Pending && !in.WaitsForBridge(j) &&
			memberships[j.Ref].Group == nil {
			continue
		}
		sharers = append(sharers, j)
		if t.Session {
			if !known {
				d.byRef[j.Ref] = identified{App: job.SessionApp(j, &t)}
			}
			continue
		}
		if j.ArrayID != 0 && (known || arrays[j.ArrayID] == "") {
			arrays[j.ArrayID] = j.Ref
		} else if j.ArrayID != 0 {
			continue
		}
		if l := d.search(j, t); l != nil && next(!l.first) {
			searches = append(searches, l)
		}
	}
	searches = append(searches, d.whole(jobs, next)...)
	found := map[application]*rlcore.Profile{}
	for _, l := range searches { // jobs that need no script don't wait for other scripts
		if !l.read && !(l.first && d.Now().After(until)) {
			d.byRef[l.j.Ref] = d.conclude(ctx, in, l, found)
		}
	}
	d.read(ctx, searches, until)
	for _, l := range searches {
		if l.read && !l.late {
			d.byRef[l.j.Ref] = d.conclude(ctx, in, l, found)
		}
	}
	said := map[asked]*rlcore.Profile{}
	for _, j := range sharers {
		app, known := d.byRef[j.Ref]
		if !known && j.ArrayID != 0 {
			app, known = d.byRef[arrays[j.ArrayID]]
		}
		if t := in.Terms[j.Ref]; known && app.Profile == nil && t.MemoryMiB > 0 && sharer(j) {
			of := asked{j.User, app.Key, ownLimit(in, j).Seconds(), t.MemoryMiB}
			if app.Profile = cmp.Or(said[of], d.asked[of]); app.Profile == nil {
				app.Profile = job.AskedProfile(of.user, of.key, of.limitS, of.memMiB)
			}
			said[of] = app.Profile
		}
		if known {
			d.renew(j, &app.App)
			in.Apps[j.Ref] = app.App
		}
	}
	d.asked = said
}

// terms returns a job's terms, with its application if its owner or the site names it.
func (d *identifier) terms(j *job.Job) job.Terms {
	t := d.Sessions.Terms(j)
	t.App = job.AppNamed(j, &t, d.AppNames)
	return t
}

// search returns what is still to be found for a job, nil = nothing. The script is read once; the profile is looked up
// until there is one.
func (d *identifier) search(j *job.Job, t job.Terms) *search {
	app, known := d.byRef[j.Ref]
	l := &search{j: j, terms: t, known: app, first: !known}
	l.read = t.App == "" && (!known || 0 < app.failed && app.failed < scriptTries)
	if app.Complete() || known && !l.read && app.Key == "" && app.err == "" {
		return nil
	}
	return l
}

// whole lists jobs with a GPU of their own, once each: their records become profiles, which show whether they could
// share. No decision depends on it.
func (d *identifier) whole(jobs []job.Job, next func(known bool) bool) []*search {
	var out []*search
	for i := range jobs {
		j := &jobs[i]
		if j.State != job.Running || j.Request.Kind != job.WholeGPU || j.Request.Count > 1 {
			continue
		}
		if app, known := d.byRef[j.Ref]; known && (app.failed == 0 || app.failed >= scriptTries) {
			continue
		}
		if l := d.search(j, d.terms(j)); l != nil && next(false) {
			out = append(out, l)
		}
	}
	return out
}

// read reads the scripts, some at a time, within the time it has.
func (d *identifier) read(ctx context.Context, searches []*search, until time.Time) {
	var g errgroup.Group
	g.SetLimit(readers)
	for _, l := range searches {
		if !l.read {
			continue
		}
		if l.late = d.Now().After(until); l.late {
			continue
		}
		g.Go(func() error {
			l.script, l.err = d.Slurm.Script(ctx, l.j.Ref)
			return nil
		})
	}
	_ = g.Wait() // each look has its own error
}

// conclude names the application and looks up its profiles on the GPU models that found doesn't have.
func (d *identifier) conclude(
	ctx context.Context, in *plan.Input, l *search, found map[application]*rlcore.Profile,
) identified {
	out := identified{App: l.known.App, failed: l.known.failed}
	switch {
	case l.err != nil:
		d.Log.Debug("no script", "job", l.j.Ref, "err", l.err)
		out.failed++
	case l.read:
		out.failed = 0
	}
	var err error
	if out.Key == "" {
		out.Key, err = d.Apps.Identify(ctx, l.j, l.terms, l.script)
	}
	profile := func(model string) *rlcore.Profile {
		of := application{l.j.User, out.Key, model}
		p, there := found[of]
		if err != nil || out.Key == "" || there {
			return p
		}
		p, err = d.Apps.Profile(ctx, of.user, of.key, of.model)
		if was := d.profiles[of]; err == nil && p != nil && was != nil && reflect.DeepEqual(p, was) {
			p = was
		}
		if err == nil {
			found[of], d.profiles[of] = p, p
		}
		return p
	}
	d.foretell(l.j.User, ownLimit(in, l.j), &out.App, profile)
	if err != nil {
		if out.err = err.Error(); out.err != l.known.err { // a full disk is full in every round
			d.Log.Warn("application not identified", "job", l.j.Ref, "err", err)
		}
	}
	return out
}

// foretell sets the profiles that a job is expected to have, on the fastest GPU model and on each, given its
// application's; nil = not known. Jobs with one limit share their profiles.
func (d *identifier) foretell(
	user string, limit time.Duration, app *job.App, of func(model string) *rlcore.Profile,
) {
	expected := func(model string) *rlcore.Profile {
		p := of(model)
		if p == nil {
			return nil
		}
		key := foretold{p, limit}
		if d.foretold[key] == nil {
			d.foretold[key] = p.Foretold(user, limit.Seconds())
		}
		return d.foretold[key]
	}
	app.Profile, app.Cards = expected(""), nil
	if len(d.models) > 1 && app.Profile != nil {
		app.Cards = map[string]*rlcore.Profile{}
		for _, model := range d.models {
			app.Cards[model] = expected(model)
		}
	}
}

// renew updates a waiting job's profiles with what was learned since they were looked up.
func (d *identifier) renew(j *job.Job, app *job.App) {
	known := func(model string) *rlcore.Profile { return d.profiles[application{j.User, app.Key, model}] }
	if j.State == job.Pending && app.Profile != nil && known("") != nil {
		d.foretell(j.User, j.TimeLimit, app, known)
	}
}

// sharer reports whether a job requests a shared GPU.
func sharer(j *job.Job) bool { return j.Request.Kind == job.Shares || j.Request.Kind == job.SharedGPU }

// forget drops the jobs that are gone, and profiles without jobs.
func (d *identifier) forget(jobs []job.Job) {
	type owned struct{ user, key string }
	seen, run := make(map[string]bool, len(jobs)), map[owned]bool{}
	for i := range jobs {
		j := &jobs[i]
		seen[j.Ref] = true
		run[owned{j.User, d.byRef[j.Ref].Key}] = true
	}
	maps.DeleteFunc(d.byRef, func(ref string, _ identified) bool { return !seen[ref] })
	maps.DeleteFunc(d.profiles, func(a application, _ *rlcore.Profile) bool { return !run[owned{a.user, a.key}] })
	used := map[*rlcore.Profile]bool{}
	for _, p := range d.profiles {
		used[p] = true
	}
	maps.DeleteFunc(d.foretold, func(f foretold, _ *rlcore.Profile) bool { return !used[f.of] })
}

// lookups returns a function that reports whether one more job may be identified in this tick: the running jobs and a
// window for each GPU. Known jobs always may, since a profile may have come: that costs one lookup per application.
func (d *identifier) lookups(in *plan.Input) (next func(known bool) bool) {
	gpus := 0
	for i := range in.Snap.Nodes {
		gpus += in.Snap.Nodes[i].GPUs
	}
	left := d.Planner.Window()*(gpus+1) + 16
	return func(known bool) bool {
		if !known {
			left--
		}
		return known || left >= 0
	}
}
