package loop

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// observeAll makes every series that there can be, as a bridge does that has seen
// everything.
func observeAll(m *Metrics, at time.Time) {
	m.polled(time.Second)
	m.pollFailed()
	m.gateErrors.Inc()
	for _, err := range []error{nil, job.ErrNoJob, job.ErrDown, errors.New("other")} {
		for _, step := range []string{"prepare", "release", "undo"} {
			m.changed(step, err)
		}
		m.Command("squeue", time.Second, err)
	}
	for _, r := range []string{"new", "duplicate", "refused", "failed"} {
		m.Record(r)
	}
	m.Skew(time.Second)
	m.delay.Observe(3)
	g := &job.Group{
		Kind: job.StartNow, Free: at,
		Members: []job.Member{{Ref: "1", Start: at.Add(time.Second), Predicted: 1.1}, {Ref: "2", Predicted: 1.3}},
	}
	m.released(g)
	m.event(tracker.Event{Kind: tracker.EventStarted, Ref: "1", Group: g})
	plan := &job.Plan{Running: &rlcore.State{GPUs: make([]rlcore.GPU, 2)}}
	m.planTime.Observe(1)
	refused := []job.RefusedChanges{{Step: job.StepPrepare, Code: "ESLURM_INVALID_GRES", Times: 3}}
	m.state(&job.Status{
		Mode: job.Active, Policy: "pack", Lease: time.Minute, Waiting: 2, Groups: []job.Group{*g}, Plan: plan,
		Snap: &job.Snapshot{Release: "22.05.8"}, Refused: refused,
	})
}

// What Slurm has refused is counted by its error's name.
func TestRefusalsAreCountedByName(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	observeAll(NewMetrics(reg), time.Unix(1e9, 0))
	const want = `# HELP slurmbridge_refused_changes ` + refusedHelp + `
# TYPE slurmbridge_refused_changes gauge
slurmbridge_refused_changes{error="ESLURM_INVALID_GRES",step="prepare"} 3
`
	must.OK(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "slurmbridge_refused_changes"))
}

func TestMetricsAreNamedWell(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	observeAll(NewMetrics(reg), time.Unix(1e9, 0))
	problems := must.Get(testutil.GatherAndLint(reg))(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// The number of series doesn't grow with jobs and users.
func TestMetricsDoNotGrowWithTheLoad(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg)
	count := func() int {
		n := must.Get(testutil.GatherAndCount(reg))(t)
		return n
	}
	observeAll(m, time.Unix(1e9, 0))
	first := count()
	for i := range 200 {
		ref := fmt.Sprint(100 + i)
		g := &job.Group{
			Kind: job.StartNow, Free: time.Unix(1e9, 0),
			Members: []job.Member{{Ref: ref, User: "user" + ref, Start: time.Unix(1e9+1, 0)}},
		}
		m.released(g)
		m.event(tracker.Event{Kind: tracker.EventStarted, Ref: ref, Group: g})
	}
	if n := count(); n != first {
		t.Errorf("%d series, %d before", n, first)
	}
}

// A job that is let go, or considered in company, counts once, however long it waits.
func TestSharersAreCountedOnce(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	snap := &job.Snapshot{Jobs: []job.Job{{Ref: "1"}, {Ref: "2"}}}
	look := func(ungated map[string]job.Ungated, company map[string]bool, snap *job.Snapshot) {
		m.state(&job.Status{Plan: &job.Plan{Running: &rlcore.State{}, Ungated: ungated, InCompany: company}, Snap: snap})
	}
	for range 3 {
		look(map[string]job.Ungated{"1": job.UngatedExclusive}, map[string]bool{"2": true}, snap)
		look(nil, nil, snap) // no decision was due
	}
	for _, c := range []struct {
		name      string
		want, got float64
	}{
		{"exclusive", 1, testutil.ToFloat64(m.unmanaged.WithLabelValues("exclusive"))},
		{"size", 0, testutil.ToFloat64(m.unmanaged.WithLabelValues("size"))},
		{"considered", 1, testutil.ToFloat64(m.considered)},
	} {
		must.Equal(t, c.got, c.want, c.name)
	}
	look(nil, nil, &job.Snapshot{})
	must.Equal(t, len(m.counted), 0, "remembered for ever")
}

// A job that did not start twice counts as let go, by that reason.
func TestNotStartedIsCounted(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	m.event(tracker.Event{Kind: tracker.EventKept, Ref: "1", Group: &job.Group{}})
	m.event(tracker.Event{Kind: tracker.EventLeft, Ref: "2", Group: &job.Group{}})
	if n := testutil.ToFloat64(m.unmanaged.WithLabelValues("not-started")); n != 1 {
		t.Errorf("%v count as let go, want 1", n)
	}
}

// Only a policy that isn't the configured one counts as a fall back.
func TestFallbackIsShown(t *testing.T) {
	m := NewMetrics(prometheus.NewPedanticRegistry())
	plan := &job.Plan{Running: &rlcore.State{}}
	for _, c := range []struct {
		policy, wanted string
		want           float64
	}{{"dqn", "dqn", 0}, {"greedy", "dqn", 1}, {"greedy", "greedy", 0}, {"greedy", "", 0}} {
		m.state(&job.Status{Policy: c.policy, Wanted: c.wanted, Plan: plan, Snap: &job.Snapshot{}})
		must.Equal(t, testutil.ToFloat64(m.fallback), c.want, "%s for %q", c.policy, c.wanted)
	}
}

// What alerts ask for is there, at 0, before the first event.
func TestCountersBeginAtZero(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg)
	for name, series := range map[string]int{
		"slurmbridge_polls_total": 2, "slurmbridge_groups_total": 3, "slurmbridge_records_total": 4,
		"slurmbridge_contracts_total": 2, "slurmbridge_shared_failures_total": 2, "slurmbridge_policy_fallback": 1,
		"slurmbridge_jobs_harmed_total": 7,
	} {
		if n, err := testutil.GatherAndCount(reg, name); err != nil || n != series {
			t.Errorf("%s: %d series, want %d: %v", name, n, series, err)
		}
	}
}

// However many accounts there are, the number of series is bounded, what isn't known has none, and nothing is left out.
func TestUsageMetricsAreBounded(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	r := &usage.Report{}
	for i := range 500 {
		one := 1.0
		l := usage.Line{Name: fmt.Sprintf("account%d", i), Held: 2}
		if i%2 == 0 {
			l.Computed = &one
		}
		r.Lines = append(r.Lines, l)
		r.Total.Held += 2
	}
	m.Usage(r, false)
	if n := testutil.CollectAndCount(m.usageHours); n != mostAccounts+mostAccounts/2+2 {
		t.Errorf("%d series", n)
	}
	if v := testutil.ToFloat64(m.usageHours.WithLabelValues(otherAccounts, "held")); v != 2*(500-mostAccounts) {
		t.Errorf("all others held %v h", v)
	}
	if n := testutil.CollectAndCount(m.usageSaved); n != 0 {
		t.Errorf("%d series of what isn't known", n)
	}
	m.Usage(r, true)
	if n := testutil.CollectAndCount(m.usageHours); n != 1 {
		t.Errorf("%d series where usage is hidden", n)
	}
	m.Usage(nil, false)
	if n := testutil.CollectAndCount(m.usageHours); n != 0 {
		t.Errorf("%d series of nothing", n)
	}
}
