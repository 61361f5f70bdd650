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
// everything of a group of the given jobs.
func observeAll(m *Metrics, refs ...string) {
	at := time.Unix(1e9, 0)
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
	g := &job.Group{Kind: job.StartNow, Free: at}
	for _, ref := range refs {
		g.Members = append(g.Members, job.Member{Ref: ref, User: "user" + ref, Start: at.Add(time.Second), Predicted: 1.1})
		m.event(tracker.Event{Kind: tracker.EventStarted, Ref: ref, Group: g})
	}
	m.released(g)
	m.planTime.Observe(1)
	m.state(&job.Status{
		Mode: job.Active, Policy: "pack", Lease: time.Minute, Waiting: 2, Groups: []job.Group{*g},
		Plan: &job.Plan{Running: &rlcore.State{GPUs: make([]rlcore.GPU, 2)}}, Snap: &job.Snapshot{Release: "22.05.8"},
		Refused: []job.RefusedChanges{{Step: job.StepPrepare, Code: "ESLURM_INVALID_GRES", Times: 3}},
	})
}

// What operators read is named well, counts what Slurm has refused by its error's name, and doesn't grow with jobs and
// users.
func TestWhatOperatorsRead(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg)
	observeAll(m, "1", "2")
	for _, p := range must.Get(testutil.GatherAndLint(reg))(t) {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	const want = `# HELP slurmbridge_refused_changes ` + refusedHelp + `
# TYPE slurmbridge_refused_changes gauge
slurmbridge_refused_changes{error="ESLURM_INVALID_GRES",step="prepare"} 3
`
	must.OK(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "slurmbridge_refused_changes"))
	first := must.Get(testutil.GatherAndCount(reg))(t)
	for i := range 200 {
		observeAll(m, fmt.Sprint(100+i))
	}
	must.Equal(t, must.Get(testutil.GatherAndCount(reg))(t), first, "series, with 200 jobs more")
}

// A job that is let go, or considered in company, counts once, however long it waits; one that did not start twice
// counts as let go, by that reason.
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
	m.event(tracker.Event{Kind: tracker.EventPassedOver, Ref: "3", Group: &job.Group{}})
	m.event(tracker.Event{Kind: tracker.EventLeft, Ref: "4", Group: &job.Group{}})
	for reason, want := range map[string]float64{"exclusive": 1, "size": 0, "not-started": 1} {
		must.Equal(t, testutil.ToFloat64(m.unmanaged.WithLabelValues(reason)), want, reason)
	}
	must.Equal(t, testutil.ToFloat64(m.considered), 1, "considered")
	look(nil, nil, &job.Snapshot{})
	must.Equal(t, len(m.ungated)+len(m.inCompany), 0, "remembered for ever")
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
		must.Equal(t, must.Get(testutil.GatherAndCount(reg, name))(t), series, name)
	}
}

// However many accounts there are, the number of series is bounded, what isn't known has none, and nothing is left out.
func TestUsageMetricsAreBounded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg)
	report := func(hours float64) *usage.Report {
		r := &usage.Report{}
		for i := range 500 {
			l := usage.Line{Name: fmt.Sprintf("account%d", i), Held: 2 * hours}
			if i%2 == 0 {
				l.Computed, l.TimeLost = &hours, &hours
			}
			r.Lines = append(r.Lines, l)
		}
		return r
	}
	held := func(account string) float64 { return testutil.ToFloat64(m.used.WithLabelValues(account, "held")) }
	m.Used(report(1), true, false)
	must.Equal(t, held("account0"), 0, "what was used before is not counted")
	m.Used(report(3), false, false)
	must.Equal(t, testutil.CollectAndCount(m.used), mostAccounts+mostAccounts/2+2, "series")
	must.Equal(t, held("account0"), 4*3600)
	must.Equal(t, held(otherAccounts), 4*3600*(500-mostAccounts), "others")
	m.Used(report(2), false, false)
	must.Equal(t, held("account0"), 4*3600, "a counter doesn't fall")
	m.Used(nil, true, false) // another period, in which there is nothing yet
	m.Used(report(1), false, false)
	must.Equal(t, held("account0"), 6*3600)
	m.Waits(report(1), false)
	must.Equal(t, testutil.CollectAndCount(m.saved), 0, "series of what isn't known")
	must.Equal(t, testutil.CollectAndCount(m.lost), mostAccounts/2+1, "series of time lost")
	m.Waits(report(1), true)
	must.Equal(t, testutil.CollectAndCount(m.lost), 1, "series where usage is hidden")
	must.Equal(t, must.Get(testutil.GatherAndLint(reg))(t), nil, "names")
}

// Each histogram has native buckets beside the fixed ones.
func TestHistogramsAreNativeToo(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	observeAll(NewMetrics(reg), "1")
	n := 0
	for _, family := range must.Get(reg.Gather())(t) {
		for _, m := range family.GetMetric() {
			if h := m.GetHistogram(); h != nil {
				n++
				must.Equal(t, h.Schema != nil && len(h.GetBucket()) > 0, true, family.GetName())
			}
		}
	}
	must.Equal(t, n > 5, true, "histograms")
}
