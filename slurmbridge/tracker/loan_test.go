package tracker_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

const m = time.Minute

// The end of a queue of jobs without a limit may be thousands of years off. Rows and status hold it as JSON, whose years
// end with 9999: such a time isn't known.
func TestTimesThatJSONHasNoYearFor(t *testing.T) {
	for s, known := range map[float64]bool{-1: false, 0: false, 1e9: true, 4e9: true, 3e11: false, 1e300: false} {
		at := tracker.Time(s)
		must.Equal(t, at.IsZero(), !known, "%g s: unknown", s)
		must.Get(json.Marshal(at))(t)
	}
}

// at is a poll, after the given time, of one job that began at 0.
func at(after time.Duration, state job.JobState, limit time.Duration) *job.Snapshot {
	start := time.Unix(1e9, 0)
	j := job.Job{Ref: "1", State: state, TimeLimit: limit, Priority: 1}
	if state != job.Pending {
		j.Start = start
	}
	return &job.Snapshot{At: start.Add(after), Jobs: []job.Job{j}}
}

func observe(t *tracker.Tracker, s *job.Snapshot) []job.Change {
	repairs, _ := t.Observe(s, "7")
	t.LastAt = s.At
	return repairs
}

// An hour's limit is raised by ten minutes; what polls show of it afterwards says whose limit it is.
func TestWhoseLimitIsShown(t *testing.T) {
	for name, c := range map[string]struct {
		shown    []time.Duration
		own      time.Duration
		lent     time.Duration
		lendable bool
	}{
		"not shown yet":                       {[]time.Duration{60 * m}, 60 * m, 0, true},
		"shown":                               {[]time.Duration{70 * m}, 60 * m, 10 * m, true},
		"lowered by its owner":                {[]time.Duration{70 * m, 65 * m}, 65 * m, 0, false},
		"lowered by its owner to what it was": {[]time.Duration{70 * m, 60 * m}, 60 * m, 0, false},
		"lowered before it was shown":         {[]time.Duration{50 * m}, 50 * m, 0, false},
		"raised by an administrator":          {[]time.Duration{70 * m, 130 * m}, 120 * m, 10 * m, true},
		"no limit any more":                   {[]time.Duration{70 * m, 0}, 0, 0, false},
	} {
		tr := tracker.New()
		s := at(50*m, job.Running, 60*m)
		observe(tr, s)
		tr.Lend(&s.Jobs[0], 70*m, s.At)
		for i, limit := range c.shown {
			s = at(51*m+time.Duration(i)*m, job.Running, limit)
			observe(tr, s)
		}
		own, ok := tr.Lendable(&s.Jobs[0], s.At)
		if lent := tr.Loans["1"].Lent(); own != c.own || lent != c.lent || ok != c.lendable {
			t.Errorf("%s: its own limit is %v and %v lent, more: %v", name, own, lent, ok)
		}
	}
}

// What is known of a job's progress and of its loan is there when its run is judged, also for a bridge that
// was away while the job went on and ended.
func TestEndingOfALentJob(t *testing.T) {
	tr := tracker.New()
	s := at(0, job.Running, 60*m)
	observe(tr, s)
	tr.SetSlowdowns(&rlcore.State{GPUs: []rlcore.GPU{{Running: []rlcore.Running{
		{Job: rlcore.Job{ID: "1", Profile: &rlcore.Profile{DurationS: 3000}}},
		{Job: rlcore.Job{ID: "2", Profile: &rlcore.Profile{DurationS: 3000}}},
		{Job: rlcore.Job{ID: "3"}},
	}}}}, fixed{1.5})
	observe(tr, at(30*m, job.Running, 60*m))
	tr.Lend(&s.Jobs[0], 70*m, s.At)
	observe(tr, at(45*m, job.Running, 70*m))
	tr.LastAt = time.Time{} // a new bridge that has read the journal
	gone := at(80*m, job.Running, 70*m)
	gone.Jobs = nil
	observe(tr, gone)
	must.Equal(t, len(tr.Left), 1, "runs that are over")
	e := tr.Left[0].Ending
	must.Equal(t, [5]float64{e.RunS, e.DoneS, e.LeastS, e.LimitS, e.LentS}, [5]float64{2700, 1800, 900, 4200, 600})
	must.Equal(t, len(tr.Loans), 0)
}

// fixed predicts one slowdown for all.
type fixed struct{ slow float64 }

func (f fixed) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, _ []*rlcore.Profile) {
	for i := range dst {
		dst[i].Slowdown = f.slow
	}
}

// A bridge that was away counts the work that was done meanwhile.
func TestProgressWhileTheBridgeWasAway(t *testing.T) {
	tr := tracker.New()
	observe(tr, at(10*m, job.Running, 60*m))
	tr.Done["1"].Slow, tr.Done["1"].Worst = 2, 2
	tr.LastAt = time.Time{}
	observe(tr, at(30*m, job.Running, 60*m))
	for _, suspended := range []bool{false, true} {
		must.Equal(t, tr.Done["1"].RunS, 1800)
		must.Equal(t, tr.Done["1"].DoneS, 1200)
		must.Equal(t, tr.Done["1"].Suspended, suspended)
		observe(tr, at(40*m, job.Suspended, 60*m)) // then it does nothing
	}
}

// While a requeued job is completing Slurm 26.05 shows a guess of its next start, and no GPU: its run is the one before.
func TestTheRunOfAJobThatWasRequeued(t *testing.T) {
	tr := tracker.New()
	running := at(10*m, job.Running, 60*m)
	running.Jobs[0].Nodes, running.Jobs[0].GPUs = "n1", []int{0}
	observe(tr, running)
	completing := at(11*m, job.Completing, 60*m)
	completing.Jobs[0].Start = completing.At
	observe(tr, completing)
	observe(tr, at(12*m, job.Pending, 60*m))
	must.Equal(t, len(tr.Left), 1, "runs that are over")
	e := tr.Left[0].Ending
	must.Equal(t, e.Start, running.Jobs[0].Start)
	must.Equal(t, e.GPUs, []int{0})
}

// A requeued job is completing before it is pending, without a start. Then it gets its own limit back, once.
func TestARequeuedJobHasItsOwnLimit(t *testing.T) {
	tr := tracker.New()
	s := at(50*m, job.Running, 60*m)
	observe(tr, s)
	tr.Lend(&s.Jobs[0], 70*m, s.At)
	completing := at(51*m, job.Completing, 70*m)
	completing.Jobs[0].Start = time.Time{}
	must.Equal(t, observe(tr, completing), nil, "changes while it is completing")
	must.Equal(t, observe(tr, at(52*m, job.Pending, 70*m))[0].Update.TimeLimit, 60*m)
	must.Equal(t, observe(tr, at(53*m, job.Pending, 60*m)), nil, "changes then")
	must.Equal(t, len(tr.Loans), 0, "loans")
}
