package loop

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// scripts is a Slurm and a store of one application. It counts by job how often its script was read.
type scripts struct {
	job.Slurm
	sync.Mutex
	none    string // the job that has no script
	read    map[string]int
	profile *rlcore.Profile // of the application, nil = none is known
	naming  func()          // called as a job's application is named; nil = nothing
}

func (s *scripts) Script(_ context.Context, ref string) ([]byte, error) {
	s.Lock()
	defer s.Unlock()
	s.read[ref]++
	if ref == s.none {
		return nil, errors.New("no such script")
	}
	return []byte("#!/bin/sh\nlmp\n"), nil
}

func (s *scripts) Identify(context.Context, *job.Job, job.Terms, []byte) (string, error) {
	if s.naming != nil {
		s.naming()
	}
	return "lmp", nil
}

func (s *scripts) Profile(context.Context, string, string, string) (*rlcore.Profile, error) {
	if s.profile == nil {
		return nil, nil
	}
	p := *s.profile
	return &p, nil
}

// recognising is an identifier that has seen no job yet.
func recognising(s *scripts) *identifier {
	s.read = map[string]int{}
	return newIdentifier(&Bridge{
		Apps: s, Slurm: s, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Planner: &plan.Planner{Decider: &rlcore.Decider{M: 5}}, Sessions: job.Sessions{MemMiB: 4096, MaxSlowdown: 1.3},
	})
}

// look is what a plan hears of the jobs of a poll.
func (d *identifier) look(t *testing.T, jobs ...job.Job) *plan.Input {
	t.Helper()
	in := &plan.Input{Snap: &job.Snapshot{Jobs: jobs}, Tracker: tracker.New()}
	in.Tracker.Loans["lent"] = &tracker.Loan{Own: time.Hour}
	g := &job.Group{ID: 1}
	for i := range jobs {
		g.Members = append(g.Members, job.Member{Ref: jobs[i].Ref})
	}
	in.Tracker.Groups[1] = g
	d.identify(t.Context(), in)
	return in
}

// asks is a running job of ann's with a limit of an hour.
func asks(ref, comment string, kind job.RequestKind, count int) job.Job {
	return job.Job{
		Ref: ref, User: "ann", State: job.Running, TimeLimit: time.Hour, Comment: comment,
		Request: job.GPURequest{Kind: kind, Count: count},
	}
}

// What a job with a GPU of its own runs is found out once, and no plan hears of it; jobs that wait, and those with
// several GPUs, are no business of ours. A job without a script isn't asked for it for ever. An interactive session
// needs none, keeps its profile from tick to tick, and is no application.
func TestScriptsAreReadOnce(t *testing.T) {
	s := &scripts{none: "5"}
	d := recognising(s)
	waits := asks("2", "", job.WholeGPU, 1)
	waits.State = job.Pending
	var session *rlcore.Profile
	for range 10 {
		in := d.look(t, asks("1", "", job.WholeGPU, 1), waits, asks("3", "", job.WholeGPU, 4), asks("4", "", job.Shares, 50),
			asks("5", "", job.Shares, 50), asks("6", "share:interactive", job.Shares, 70))
		must.Equal(t, slices.Sorted(maps.Keys(in.Apps)), []string{"4", "5", "6"}, "jobs that a plan hears of")
		app := in.Apps["6"]
		if app.Key != "" || app.Profile.Busy == nil || session != nil && session != app.Profile ||
			in.Terms["6"].MaxSlowdown != 1.3 {
			t.Fatalf("%+v, terms %+v", app, in.Terms["6"])
		}
		session = app.Profile
	}
	must.Equal(t, s.read, map[string]int{"1": 1, "4": 1, "5": scriptTries}, "scripts read")
}

// A job of an application without a profile goes by what its owner says of its memory, from tick to tick by one
// profile, which jobs alike share. A job that asks for a GPU of its own doesn't.
func TestMemoryThatAnOwnerSaysIsRemembered(t *testing.T) {
	d := recognising(&scripts{})
	jobs := []job.Job{
		asks("1", "app=new,share:memory=8G", job.Shares, 70),
		asks("2", "app=new,share:memory=8G", job.Shares, 70),
		asks("3", "app=new,share:memory=4G", job.Shares, 70),
		asks("4", "app=new", job.Shares, 70),
		asks("5", "app=new,share:memory=8G", job.WholeGPU, 1),
	}
	first := d.look(t, jobs...).Apps
	held := map[string]float64{}
	for ref, app := range first {
		must.Equal(t, app.Key != "", true, "job %s has a key", ref)
		if app.Profile != nil {
			held[ref] = app.Profile.HeldMiB
		}
	}
	must.Equal(t, held, map[string]float64{"1": 8192, "2": 8192, "3": 4096})
	must.Equal(t, first["2"].Profile == first["1"].Profile, true, "jobs alike share a profile")
	must.Equal(t, d.look(t, jobs...).Apps["1"].Profile == first["1"].Profile, true, "the next tick has the same profile")
	d.look(t)
	must.Equal(t, len(d.asked), 0, "remembered for no job")
}

// However many jobs come at once, a tick spends no longer on them than it may, and the next goes on.
func TestIdentifyingIsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	d := recognising(&scripts{naming: func() { now = now.Add(10 * time.Millisecond) }})
	d.now, d.planner.Decider.M = func() time.Time { return now }, 1000
	var jobs []job.Job
	for i := range 500 {
		jobs = append(jobs, asks(strconv.Itoa(i), "app=lmp", job.Shares, 50))
	}
	known, ticks := 0, 0
	for ; known < len(jobs); ticks++ {
		began := now
		in := d.look(t, jobs...)
		if took := now.Sub(began); took > identifyBudget+time.Second || len(in.Apps) <= known {
			t.Fatalf("%d are known after %d, a tick took %v", len(in.Apps), known, took)
		}
		known = len(in.Apps)
	}
	must.Equal(t, ticks > 1, true, "it takes several ticks")
}

// Jobs of an application are expected to take what its runs with their time limit took; jobs with one limit share a
// profile, and waiting ones follow what is learned meanwhile.
func TestLengthsByLimit(t *testing.T) {
	s := &scripts{profile: &rlcore.Profile{
		App: "lmp", DurationS: 1000, DurationSD: 900, PeriodS: 1000, Series: []rlcore.Use{{}}, Runs: 8,
	}}
	for range 4 {
		s.profile.AddPast(rlcore.Past{SoloS: 100, LimitS: 3600}, rlcore.Past{SoloS: 1900, LimitS: 7200})
	}
	d := recognising(s)
	of := func(ref string, limit time.Duration) job.Job {
		j := asks(ref, "app=lmp", job.Shares, 20)
		j.State, j.TimeLimit = job.Pending, limit
		return j
	}
	jobs := []job.Job{of("1", time.Hour), of("2", 2*time.Hour), of("3", time.Hour)}
	first := d.look(t, jobs...).Apps
	short, long := first["1"].Profile, first["2"].Profile
	if short == nil || long == nil || short.DurationS > 700 || long.DurationS < 1300 || first["3"].Profile != short {
		t.Fatalf("expected are %+v and %+v", short, long)
	}
	// Three shorter runs end before the next job comes.
	brief := rlcore.Past{SoloS: 10, LimitS: 3600}
	s.profile.AddPast(brief, brief, brief)
	jobs = append(jobs, of("4", time.Hour))
	d.look(t, jobs...)
	next := d.look(t, jobs...).Apps
	if next["1"].Profile.DurationS >= short.DurationS || next["1"].Profile != next["4"].Profile {
		t.Errorf("then %v, and of the new job %v", next["1"].Profile, next["4"].Profile)
	}
	// A running job is first seen after a restart, with an hour that the bridge has lent it.
	lent := of("lent", 2*time.Hour)
	lent.State = job.Running
	if next := d.look(t, append(jobs, lent)...).Apps; next["lent"].Profile != next["4"].Profile {
		t.Errorf("with a lent hour %v is expected, without %v", next["lent"].Profile, next["4"].Profile)
	}
	if in := d.look(t); len(in.Apps) > 0 || len(d.foretold) > 0 {
		t.Errorf("without jobs %d profiles are kept", len(d.foretold))
	}
}
