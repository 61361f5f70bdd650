package loop_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// optimist predicts that no job slows another.
type optimist struct{}

func (optimist) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, _ []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{Slowdown: 1}
	}
}

// writing is a bridge that keeps what it knows in a real database, and believes that no job slows another.
func writing(m *model, st *store.Store) *loop.Bridge {
	b := bridge(m, journal.New(st.DB()))
	b.Runs, b.Beliefs = &history.History{DB: st.DB(), Profiles: st}, interference.New(&contention.MPS)
	b.Planner.Decider.Guard.Predictor = optimist{}
	return b
}

// send delivers the record that a job's node has of its run beside another job.
func (m *model) send(t *testing.T, st *store.Store, j, other *mjob) {
	t.Helper()
	r := &gpuprof.Record{
		JobID: j.ID, Node: j.Nodes, User: j.User, Start: j.began, End: j.over, Shared: true,
		GPUs:       []gpuprof.GPU{{MemMiB: 12196}},
		Neighbours: []gpuprof.Neighbour{{JobID: other.ID, User: other.User, From: other.began, To: other.over}},
	}
	must.OK(t, st.SetApp(t.Context(), other.Ref, other.User, other.profil.App))
	must.Get(st.AddRecord(t.Context(), r, j.profil.App))(t)
}

// The records of two jobs that shared a GPU come a day after Slurm has forgotten the jobs, to a daemon that has started
// since. The jobs' ends are known from polls: one met its time limit, the other ended late, and both count as harmed.
// In shadow mode it was plain Slurm that ended them, and nobody is late for the bridge.
func TestARecordThatComesADayLate(t *testing.T) {
	for name, c := range map[string]struct {
		shadow bool
		want   [][]history.Harm
	}{
		"active": {false, [][]history.Harm{{history.HarmTimeout}, {history.HarmLate}}},
		"shadow": {true, [][]history.Harm{{history.HarmTimeout}, nil}},
	} {
		m := newModel(node("n1", 1, 8))
		st := must.Get(store.Open(t.Context(), filepath.Join(t.TempDir(), "db")))(t)
		defer st.Close()
		together(m)
		b := writing(m, st)
		tick(t, b, m, time.Second)
		hasty, patient := app("hasty", 60, 0.7, 1000), app("patient", 60, 0.7, 1000)
		must.OK(t, st.Import(t.Context(), []*rlcore.Profile{hasty, patient}))
		two, one := m.submit("ann", time.Hour, patient, true), m.submit("ann", time.Hour, hasty, true)
		one.TimeLimit = 75 * time.Second
		tick(t, b, m, 3*time.Second)
		bothRun(t, one, two)
		b.Planner.Decider.Guard.Predictor = fair{} // from now on it is known how much they slow each other
		if c.shadow {
			b.Mode = job.Shadow
		}
		untilEnded(t, b, m, one, two)
		tick(t, b, m, 5*time.Second)
		must.Equal(t, one.State, "TIMEOUT", "%s: state", name)
		m.jobs = nil
		m.advance(24 * time.Hour)
		m.send(t, st, one, two)
		m.send(t, st, two, one)
		b = writing(m, st)
		tick(t, b, m, 2*time.Second)
		runs := must.List(t, b.Runs.Runs(t.Context(), history.Filter{Judged: true}))
		must.Equal(t, len(runs), 2, "runs judged")
		for i := range runs {
			must.Equal(t, runs[i].Harm(), c.want[i], "%s: harm of job %s", name, runs[i].Ref)
		}
	}
}

// A job that starts and ends between two polls is judged as the member that it was: it failed at once at its application's
// first run under MPS, and runs again, alone.
func TestAMemberThatCameAndWent(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	st := must.Get(store.Open(t.Context(), filepath.Join(t.TempDir(), "db")))(t)
	defer st.Close()
	b := writing(m, st)
	b.RetryAlone = true
	tick(t, b, m, time.Second)
	m.unknown = "reader"
	j := m.submit("ann", time.Second, app("reader", 60, 0.3, 2000), true)
	j.Requeue, j.fails = true, true
	must.Get(b.Tick(t.Context()))(t)
	must.Get(b.Tick(t.Context()))(t)
	m.advance(3 * time.Second)
	must.Equal(t, j.ended, true, "the job has come and gone")
	r := &gpuprof.Record{
		JobID: j.ID, Node: "n1", User: j.User, Start: j.began, End: j.over, Shared: true, GPUs: []gpuprof.GPU{{MemMiB: 12196}},
	}
	must.Get(st.AddRecord(t.Context(), r, "reader"))(t)
	tick(t, b, m, 2*time.Second)
	runs := must.List(t, b.Runs.Runs(t.Context(), history.Filter{Judged: true}))
	if len(runs) != 1 || !runs[0].Outcome.Unserved || !runs[0].Outcome.Again {
		t.Errorf("%+v", runs)
	}
}
