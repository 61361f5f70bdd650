package history

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(min float64) time.Time { return began.Add(time.Duration(min * float64(time.Minute))) }

// kept is what store and journal keep, in memory. What a test doesn't use isn't there.
type kept struct {
	Records
	Journal
	records  []Record
	shown    []Run
	outcomes []Outcome
}

func (k *kept) Ended(_ context.Context, from, to time.Time, limit int) ([]Run, error) {
	var out []Run
	for i := len(k.shown) - 1; i >= 0 && len(out) < limit; i-- {
		if r := k.shown[i]; !r.End.Before(from) && r.End.Before(to) {
			out = append(out, r)
		}
	}
	return out, nil
}

func (k *kept) Outcomes(context.Context, time.Time, time.Time) ([]Outcome, error) {
	return k.outcomes, nil
}

// nodes is the part of kept that a node sent.
type nodes struct{ *kept }

func (n nodes) Ended(_ context.Context, from, to time.Time, f func(*Record) error) error {
	for i := range n.records {
		r := n.records[i]
		if end := r.ControllerTime(r.End); end.Before(from) || !end.Before(to) {
			continue
		}
		if err := f(&r); err != nil {
			return err
		}
	}
	return nil
}

func (n nodes) Known(_ context.Context, user, app, _ string) (*rlcore.Profile, error) {
	return &rlcore.Profile{App: user + " " + app}, nil
}

func (n nodes) AppOf(context.Context, string, string) (app string, err error) { return "", nil }
func (n nodes) Learn(context.Context, string, *gpuprof.Record) (bool, error) {
	return false, nil
}
func (n nodes) After(context.Context, int64, int) ([]Record, error) { return nil, nil }

func (k *kept) Account(context.Context, string, time.Time) (string, error) { return "lab", nil }

// polls is a run of job 1 as polls showed it.
func polls(from, to float64) Run {
	return Run{
		Ref: "1", User: "ann", Account: "lab", Partition: "gpu", App: "md", Mode: job.Active, Ready: at(from - 5), Start: at(from), End: at(to),
		Node: "n1", GPUs: []int{0}, Shares: 100,
	}
}

// record is a run of job 1 as its node recorded it.
func record(id int64, from, to float64) Record {
	return Record{ID: id, App: "md", Record: gpuprof.Record{
		JobID: 1, Node: "n1", User: "ann", Start: at(from), End: at(to), GPUs: []gpuprof.GPU{{Index: 1}}, Shared: true,
	}}
}

// ended returns the runs that ended in a period, in minutes.
func ended(t *testing.T, k *kept, from, to float64) []Run {
	t.Helper()
	h := &History{Records: nodes{k}, Journal: k}
	runs := must.Get(h.Ended(t.Context(), at(from), at(to)))(t)
	return runs
}

func TestARunIsJoinedFromPollsAndRecord(t *testing.T) {
	k := &kept{shown: []Run{polls(0, 61)}, records: []Record{record(7, 0.1, 60)}, outcomes: []Outcome{{Run: 7, State: "COMPLETED"}}}
	runs := ended(t, k, 0, 100)
	if len(runs) != 1 {
		t.Fatalf("%d runs", len(runs))
	}
	r := &runs[0]
	if r.ID != 7 || r.Account != "lab" || r.Mode != job.Active || !r.Ready.Equal(at(-5)) || r.Shares != 100 {
		t.Errorf("of the polls: %+v", r)
	}
	if !r.Start.Equal(at(0.1)) || !r.End.Equal(at(60)) || r.GPUNames()[0] != "n1/1" || r.Outcome == nil || r.Profile.App != "ann md" {
		t.Errorf("of the record: %+v", r)
	}
}

// A job on two nodes has a record of each, and is one run with the GPUs of both.
func TestARunOnTwoNodes(t *testing.T) {
	shown := polls(0, 60)
	shown.Node, shown.GPUs, shown.Shares, shown.WholeGPUs = "n[1-2]", nil, 0, 2
	first, second := record(7, 0.1, 60), record(8, 0.2, 60.5)
	for i, r := range []*Record{&first, &second} {
		r.Node, r.GPUs = fmt.Sprint("n", i+1), []gpuprof.GPU{{Index: 0, MemMiB: 1000}, {Index: 1, MemMiB: 1000}}
	}
	k := &kept{records: []Record{first, second}, shown: []Run{shown}}
	runs, err := (&History{Records: nodes{k}, Journal: k}).Ended(t.Context(), at(0), at(120))
	must.OK(t, err)
	if len(runs) != 1 || runs[0].Node != "n[1-2]" || len(runs[0].GPUs) != 4 || runs[0].Account != "lab" {
		t.Fatalf("%+v", runs)
	}
	if f := runs[0].Footprint(); f.GPUs != 4 || !f.Whole {
		t.Errorf("%+v", f)
	}
	u := (&Use{KnownS: 100, ComputedS: 40, CardMiB: 1000, EnergyJ: 5}).and(&Use{KnownS: 100, ComputedS: 80, CardMiB: 3000, EnergyJ: 7}, 1, 3)
	must.Equal(t, *u, Use{KnownS: 100, ComputedS: 70, CardMiB: 4000, EnergyJ: 12})
}

func TestARunThatOnlyOneSideShows(t *testing.T) {
	k := &kept{shown: []Run{polls(0, 61)}, records: []Record{record(7, 30, 60)}}
	runs := ended(t, k, 0, 100)
	if len(runs) != 2 || !runs[0].Shown() || runs[0].ID != 0 || runs[1].Shown() || runs[1].ID != 7 {
		t.Errorf("%+v", runs)
	}
}

func TestTheRunsOfARequeuedJobAreKeptApart(t *testing.T) {
	k := &kept{
		shown:   []Run{polls(0, 2.1), polls(4, 6.1)},
		records: []Record{record(1, 0.1, 2), record(2, 4.1, 6)},
	}
	runs := ended(t, k, -10, 100)
	if len(runs) != 2 {
		t.Fatalf("%d runs", len(runs))
	}
	for _, r := range runs {
		if want := map[int64]float64{1: -5, 2: -1}[r.ID]; !r.Ready.Equal(at(want)) {
			t.Errorf("the run of record %d was ready at %v, not %v", r.ID, r.Ready, at(want))
		}
	}
}

func TestAJobBetweenTwoPollsKeepsItsTimeInTheQueue(t *testing.T) {
	quick := polls(0, 10)
	quick.Start, quick.Node, quick.GPUs = time.Time{}, "", nil
	runs := ended(t, &kept{shown: []Run{quick}, records: []Record{record(1, 9.6, 9.9)}}, 0, 100)
	if len(runs) != 1 || !runs[0].Ready.Equal(at(-5)) || !runs[0].Start.Equal(at(9.6)) {
		t.Errorf("%+v", runs)
	}
	if runs := ended(t, &kept{shown: []Run{quick}}, 0, 100); len(runs) != 0 {
		t.Errorf("it never ran: %+v", runs)
	}
}

// A job with all shares of a GPU has it alone, and its record says so; it may share all the same.
func TestAJobThatAskedForSharesMayShareThoughItHadThemAll(t *testing.T) {
	all := record(7, 0, 60)
	all.Shared = false
	k := &kept{shown: []Run{polls(0, 61)}, records: []Record{all}}
	if r := ended(t, k, 0, 100)[0]; r.WholeGPUs != 0 || r.Job().NoShare {
		t.Errorf("%+v", r)
	}
	k.shown = nil // nothing but the record knows
	if r := ended(t, k, 0, 100)[0]; r.WholeGPUs != 1 || !r.Job().NoShare {
		t.Errorf("%+v", r)
	}
}

// Polls show an end a while after the record has it, where the bridge was away a long one: a run at the
// bound of two periods is one of the first.
func TestARunIsOfOnePeriod(t *testing.T) {
	for _, end := range []float64{59.5, 45, 20} {
		k := &kept{shown: []Run{polls(0, 65)}, records: []Record{record(7, 0, end)}}
		if first, second := ended(t, k, 0, 60), ended(t, k, 60, 120); len(first) != 1 || len(second) != 0 || !first[0].Shown() {
			t.Errorf("ended at %v: %+v and %+v", end, first, second)
		}
	}
}

func TestTimesAreTheControllers(t *testing.T) {
	for _, behind := range []float64{-20, 0, 20} {
		rec := record(7, 0.1-behind, 60-behind)
		rec.ClockBehindS = 60 * behind
		runs := ended(t, &kept{shown: []Run{polls(0, 61)}, records: []Record{rec}}, 0, 62)
		if len(runs) != 1 || !runs[0].Shown() || !runs[0].Start.Equal(at(0.1)) || !runs[0].End.Equal(at(60)) {
			t.Errorf("a clock %v min behind: %+v", behind, runs)
		}
	}
}

func TestSolo(t *testing.T) {
	run := Run{Start: began, End: began.Add(120 * time.Second)}
	for _, tc := range []struct {
		outcome *Outcome
		seconds float64
		basis   Basis
	}{
		{nil, 120, Measured},
		{&Outcome{Slowdown: 1.2, SoloS: 100}, 120, Measured},
		{&Outcome{With: []string{"2"}, Slowdown: 1.2, SoloS: 100}, 100, ByProfile},
		{&Outcome{With: []string{"2"}, Predicted: 1.5}, 80, BySlowdown}, // cut short
		{&Outcome{With: []string{"2", "3"}}, 40, BySlowdown},            // and nothing was predicted
		{&Outcome{With: []string{"2"}, Suspect: "memory", Slowdown: 1.2, SoloS: 100}, 0, Lost},
	} {
		run.Outcome = tc.outcome
		if got, basis := run.Solo(); math.Abs(got-tc.seconds) > 1e-9 || basis != tc.basis {
			t.Errorf("%+v: %v s by %v, want %v by %v", tc.outcome, got, basis, tc.seconds, tc.basis)
		}
	}
}

func TestAnArrayTaskKnowsItsArray(t *testing.T) {
	for ref, want := range map[string]string{"12": "", "12_3": "12"} {
		must.Equal(t, (&Run{Ref: ref}).Job().Array, want, "job %s", ref)
	}
}

// A job alone takes its own time, whatever a model says.
func TestTruthOfOneJob(t *testing.T) {
	app := &rlcore.Profile{App: "a", DurationS: 10, PeriodS: 10, Series: []rlcore.Use{{GPU: 0.5, MemMiB: 100}}}
	truth := NewTruth(triple{}, nil)
	own := truth.Alone(app, 30)
	if own.DurationS != 30 || own == app || app.DurationS != 10 {
		t.Errorf("%+v", own)
	}
	card := truth.On(&rlcore.TitanXp)
	for n, want := range []float64{1: 1, 2: 3} {
		if n == 0 {
			continue
		}
		members := []*rlcore.Profile{own, own}[:n]
		if got := card.Slowdowns(nil, members, demands(n)); fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("%d jobs: %v", n, got)
		}
	}
}

// triple predicts that everything takes three times as long.
type triple struct{}

func (triple) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, _ []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{Slowdown: 3}
	}
}

func demands(n int) []contention.Demand { return make([]contention.Demand, n) }
