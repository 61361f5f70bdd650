package loop

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// learning knows one application, of which more becomes known.
type learning struct {
	named
	profile *rlcore.Profile
}

func (l *learning) Profile(context.Context, string, string, string) (*rlcore.Profile, error) {
	p := *l.profile
	return &p, nil
}

// Jobs of an application are expected to take what its runs with their time limit took; jobs with one limit share a
// profile, and waiting ones follow what is learned meanwhile.
func TestLengthsByLimit(t *testing.T) {
	apps := &learning{profile: &rlcore.Profile{
		App: "lmp", DurationS: 1000, DurationSD: 900, PeriodS: 1000,
		Series: []rlcore.Use{{}}, Runs: 8,
	}}
	for range 4 {
		apps.profile.AddPast(rlcore.Past{SoloS: 100, LimitS: 3600}, rlcore.Past{SoloS: 1900, LimitS: 7200})
	}
	d := &identifier{
		apps: apps, log: slog.New(slog.DiscardHandler), now: time.Now, window: func() int { return 5 },
		byRef:    map[string]identified{},
		profiles: map[application]*rlcore.Profile{}, foretold: map[*rlcore.Profile]map[time.Duration]*rlcore.Profile{},
	}
	of := func(ref string, limit time.Duration) job.Job {
		return job.Job{
			Ref: ref, User: "ann", State: job.Pending, Comment: "app=lmp", TimeLimit: limit,
			Request: job.GPURequest{Kind: job.Shares, Count: 20},
		}
	}
	snap := &job.Snapshot{Jobs: []job.Job{of("1", time.Hour), of("2", 2*time.Hour), of("3", time.Hour)}}
	look := func() map[string]job.App {
		in := &plan.Input{Snap: snap, Tracker: tracker.New()}
		in.Tracker.Loans["5"] = &tracker.Loan{Own: time.Hour}
		in.Tracker.Groups[1] = &job.Group{ID: 1, Members: []job.Member{{Ref: "1"}, {Ref: "2"}, {Ref: "3"}, {Ref: "4"}}}
		d.identify(t.Context(), in)
		return in.Apps
	}
	first := look()
	short, long := first["1"].Profile, first["2"].Profile
	if short == nil || long == nil || short.DurationS > 700 || long.DurationS < 1300 || first["3"].Profile != short {
		t.Fatalf("expected are %+v and %+v", short, long)
	}
	// Three shorter runs end before the next job comes.
	apps.profile.AddPast(rlcore.Past{SoloS: 10, LimitS: 3600}, rlcore.Past{SoloS: 10, LimitS: 3600},
		rlcore.Past{SoloS: 10, LimitS: 3600})
	snap.Jobs = append(snap.Jobs, of("4", time.Hour))
	look()
	if next := look(); next["1"].Profile.DurationS >= short.DurationS || next["1"].Profile != next["4"].Profile {
		t.Errorf("then %v, and of the new job %v", next["1"].Profile, next["4"].Profile)
	}
	// A running job is first seen after a restart, with an hour that the bridge has lent it.
	lent := of("5", 2*time.Hour)
	lent.State = job.Running
	snap.Jobs = append(snap.Jobs, lent)
	if next := look(); next["5"].Profile != next["4"].Profile {
		t.Errorf("with a lent hour %v is expected, without %v", next["5"].Profile, next["4"].Profile)
	}
	if snap.Jobs = nil; len(look()) > 0 || len(d.foretold) > 0 {
		t.Errorf("without jobs %d profiles are kept", len(d.foretold))
	}
}
