package loop

import (
	"cmp"
	"context"
	"log/slog"
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

// identifier identifies the applications of jobs, and remembers them.
type identifier struct {
	apps     Apps
	slurm    job.Slurm // has the scripts
	sessions job.Sessions
	names    []job.AppName
	planner  *plan.Planner // has the window
	now      func() time.Time
	log      *slog.Logger

	models []string // of the cluster's GPUs
	byRef  map[string]identified
	// profiles holds the profiles found so far. Jobs of one application share one, so that all see what is learned.
	profiles map[application]*rlcore.Profile
	// foretold holds the profile that a run is expected to have, by its application's profile and its time limit.
	foretold map[foretold]*rlcore.Profile
	// asked holds assumed profiles by the memory that owners say a job needs. Jobs with equal keys share a profile.
	asked map[asked]*rlcore.Profile
}

func newIdentifier(b *Bridge) *identifier {
	return &identifier{
		apps: b.Apps, slurm: b.Slurm, sessions: b.Sessions, names: b.AppNames, planner: b.Planner, now: b.Now,
		log: b.Log, byRef: map[string]identified{}, profiles: map[application]*rlcore.Profile{},
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
	app    job.App
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
	in.Apps = make(map[string]job.App, len(jobs))
	in.Terms = map[string]job.Terms{}
	d.models = job.ModelNames(in.Models)
	d.forget(jobs)
	until := d.now().Add(identifyBudget)
	left := d.newJobs(in)
	sharers, arrays, searches := d.sharers(in, &left)
	searches = append(searches, d.whole(jobs, &left)...)
	found := map[application]*rlcore.Profile{}
	for _, s := range searches { // jobs that need no script don't wait for other scripts
		if !s.read && !(s.first && d.now().After(until)) {
			d.byRef[s.j.Ref] = d.conclude(ctx, in, s, found)
		}
	}
	d.read(ctx, searches, until)
	for _, s := range searches {
		if s.read && !s.late {
			d.byRef[s.j.Ref] = d.conclude(ctx, in, s, found)
		}
	}
	d.fillIn(in, sharers, arrays)
}

// newJobs is how many jobs may be identified for the first time in one tick: the running jobs and a window for each
// GPU.
func (d *identifier) newJobs(in *plan.Input) int {
	gpus := 0
	for i := range in.Snap.Nodes {
		gpus += in.Snap.Nodes[i].GPUs
	}
	return d.planner.Window()*(gpus+1) + 16
}

// sharers lists the jobs that may share, fills in their terms, and lists what is to be found for them; left is how many
// jobs may be new. The tasks of an array have one script: arrays names a task that was looked at.
func (d *identifier) sharers(in *plan.Input, left *int) (all []*job.Job, arrays map[int64]string, searches []*search) {
	memberships := in.Tracker.Memberships()
	arrays = map[int64]string{}
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		t := d.terms(j)
		in.Terms[j.Ref] = t
		if !isSharer(j) && in.Rule(j) == nil {
			continue
		}
		_, known := d.byRef[j.Ref] // an ungated job stays known
		if !known && j.State == job.Pending && !in.WaitsForBridge(j) && memberships[j.Ref].Group == nil {
			continue
		}
		all = append(all, j)
		if t.Session {
			if !known {
				d.byRef[j.Ref] = identified{app: job.SessionApp(j, &t)}
			}
			continue
		}
		if j.ArrayID != 0 && (known || arrays[j.ArrayID] == "") {
			arrays[j.ArrayID] = j.Ref
		} else if j.ArrayID != 0 {
			continue
		}
		s := d.search(j, t)
		if s != nil && s.may(left) {
			searches = append(searches, s)
		}
	}
	return all, arrays, searches
}

// may reports whether a search is for this tick, and counts the jobs that are new. Known jobs always may, since a
// profile may have come: that costs one lookup per application.
func (s *search) may(left *int) bool {
	if s.first {
		*left--
	}
	return !s.first || *left >= 0
}

// fillIn gives a plan the applications of the jobs that may share. A task of an array has the application of the task
// that was looked at.
func (d *identifier) fillIn(in *plan.Input, sharers []*job.Job, arrays map[int64]string) {
	said := map[asked]*rlcore.Profile{}
	for _, j := range sharers {
		known, is := d.byRef[j.Ref]
		if !is && j.ArrayID != 0 {
			known, is = d.byRef[arrays[j.ArrayID]]
		}
		if !is {
			continue
		}
		app := known.app
		mib := in.Terms[j.Ref].MemoryMiB
		if app.Profile == nil && mib > 0 && isSharer(j) {
			of := asked{j.User, app.Key, ownLimit(in, j).Seconds(), mib}
			app.Profile = cmp.Or(said[of], d.asked[of])
			if app.Profile == nil {
				app.Profile = job.AskedProfile(of.user, of.key, of.limitS, of.memMiB)
			}
			said[of] = app.Profile
		}
		d.renew(j, &app)
		in.Apps[j.Ref] = app
	}
	d.asked = said
}

// terms returns a job's terms, with its application if its owner or the site names it.
func (d *identifier) terms(j *job.Job) job.Terms {
	t := d.sessions.Terms(j)
	t.App = job.AppNamed(j, &t, d.names)
	return t
}

// search returns what is still to be found for a job, nil = nothing. The script is read once; the profile is looked up
// until there is one.
func (d *identifier) search(j *job.Job, t job.Terms) *search {
	known, is := d.byRef[j.Ref]
	s := &search{j: j, terms: t, known: known, first: !is}
	s.read = t.App == "" && (!is || 0 < known.failed && known.failed < scriptTries)
	if known.app.Complete() || is && !s.read && known.app.Key == "" && known.err == "" {
		return nil
	}
	return s
}

// whole lists jobs with a GPU of their own, once each: their records become profiles, which show whether they could
// share. No decision depends on it.
func (d *identifier) whole(jobs []job.Job, left *int) []*search {
	var out []*search
	for i := range jobs {
		j := &jobs[i]
		if j.State != job.Running || j.Request.Kind != job.WholeGPU || j.Request.Count > 1 {
			continue
		}
		known, is := d.byRef[j.Ref]
		if is && (known.failed == 0 || known.failed >= scriptTries) {
			continue
		}
		s := d.search(j, d.terms(j))
		if s == nil {
			continue
		}
		*left--
		if *left >= 0 {
			out = append(out, s)
		}
	}
	return out
}

// read reads the scripts, some at a time, within the time it has.
func (d *identifier) read(ctx context.Context, searches []*search, until time.Time) {
	var g errgroup.Group
	g.SetLimit(readers)
	for _, s := range searches {
		if !s.read {
			continue
		}
		s.late = d.now().After(until)
		if s.late {
			continue
		}
		g.Go(func() error {
			s.script, s.err = d.slurm.Script(ctx, s.j.Ref)
			return nil
		})
	}
	_ = g.Wait() // each look has its own error
}

// conclude names the application and looks up its profiles on the GPU models that found doesn't have.
func (d *identifier) conclude(
	ctx context.Context, in *plan.Input, s *search, found map[application]*rlcore.Profile,
) identified {
	out := identified{app: s.known.app, failed: s.known.failed}
	switch {
	case s.err != nil:
		d.log.Debug("no script", "job", s.j.Ref, "err", s.err)
		out.failed++
	case s.read:
		out.failed = 0
	}
	var err error
	if out.app.Key == "" {
		out.app.Key, err = d.apps.Identify(ctx, s.j, s.terms, s.script)
	}
	if err == nil && out.app.Key != "" {
		err = d.lookUp(ctx, s.j.User, out.app.Key, found)
	}
	d.foretell(s.j.User, ownLimit(in, s.j), &out.app, found)
	if err != nil {
		out.err = err.Error()
		if out.err != s.known.err { // a full disk is full in every round
			d.log.Warn("application not identified", "job", s.j.Ref, "err", err)
		}
	}
	return out
}

// lookUp adds a user's application to found: its profile where it is fastest, and on each GPU model of several.
func (d *identifier) lookUp(ctx context.Context, user, key string, found map[application]*rlcore.Profile) error {
	for _, model := range d.profileModels() {
		of := application{user, key, model}
		p, is := found[of]
		if !is {
			var err error
			p, err = d.apps.Profile(ctx, user, key, model)
			if err != nil {
				return err
			}
			was := d.profiles[of]
			if p != nil && was != nil && reflect.DeepEqual(p, was) {
				p = was
			}
			found[of] = p
			d.profiles[of] = p
		}
		if p == nil && model == "" {
			return nil // there is none on any model
		}
	}
	return nil
}

// profileModels are the GPU models of which a job's profiles are looked up, "" for the one where it is fastest.
func (d *identifier) profileModels() []string {
	if len(d.models) > 1 {
		return append([]string{""}, d.models...)
	}
	return []string{""}
}

// foretell sets the profiles that a job is expected to have, on the fastest GPU model and on each, given its
// application's; nil = not known. Jobs with one limit share their profiles.
func (d *identifier) foretell(
	user string, limit time.Duration, app *job.App, known map[application]*rlcore.Profile,
) {
	app.Profile = nil
	app.ByModel = nil
	for _, model := range d.profileModels() {
		p := known[application{user, app.Key, model}]
		if p != nil {
			p = d.expected(p, user, limit)
		}
		switch {
		case model == "" && p == nil:
			return
		case model == "":
			app.Profile = p
		default:
			if app.ByModel == nil {
				app.ByModel = map[string]*rlcore.Profile{}
			}
			app.ByModel[model] = p
		}
	}
}

// expected is the profile that a run with that limit is expected to have, given its application's.
func (d *identifier) expected(p *rlcore.Profile, user string, limit time.Duration) *rlcore.Profile {
	key := foretold{p, limit}
	if d.foretold[key] == nil {
		d.foretold[key] = p.Foretold(user, limit.Seconds())
	}
	return d.foretold[key]
}

// renew updates a waiting job's profiles with what was learned since they were looked up.
func (d *identifier) renew(j *job.Job, app *job.App) {
	if j.State == job.Pending && app.Profile != nil && d.profiles[application{j.User, app.Key, ""}] != nil {
		d.foretell(j.User, j.TimeLimit, app, d.profiles)
	}
}

// isSharer reports whether a job requests a shared GPU.
func isSharer(j *job.Job) bool {
	return j.Request.Kind == job.Shares || j.Request.Kind == job.SharedGPU
}

// forget drops the jobs that are gone, and profiles without jobs.
func (d *identifier) forget(jobs []job.Job) {
	type owned struct{ user, key string }
	seen := make(map[string]bool, len(jobs))
	run := map[owned]bool{}
	for i := range jobs {
		j := &jobs[i]
		seen[j.Ref] = true
		run[owned{j.User, d.byRef[j.Ref].app.Key}] = true
	}
	maps.DeleteFunc(d.byRef, func(ref string, _ identified) bool { return !seen[ref] })
	maps.DeleteFunc(d.profiles, func(a application, _ *rlcore.Profile) bool { return !run[owned{a.user, a.key}] })
	used := map[*rlcore.Profile]bool{}
	for _, p := range d.profiles {
		used[p] = true
	}
	maps.DeleteFunc(d.foretold, func(f foretold, _ *rlcore.Profile) bool { return !used[f.of] })
}
