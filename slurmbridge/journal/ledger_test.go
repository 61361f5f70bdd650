package journal

import (
	"context"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// at is so many seconds after the beginning.
func at(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }

// poll is the status of that second with these jobs.
func poll(s int, jobs ...job.Job) *job.Status {
	return &job.Status{
		At: at(s), Mode: job.Active,
		Snap: &job.Snapshot{
			At: at(s), Jobs: jobs, Gates: []job.GateState{{ID: "5"}},
			Nodes: []job.Node{{Name: "n1", GPUs: 2, GPUType: "titanxp", Up: true, Partitions: []string{"a", "b"}}},
		},
	}
}

// waits is a pending job submitted at second s; after are its unmet dependencies.
func waits(ref string, s int, after ...string) job.Job {
	j := job.Job{
		Ref: ref, User: "ann", Account: "lab", Partition: "a", State: job.Pending, Priority: 1, Submit: at(s),
		Request: job.GPURequest{Kind: job.Shares, Count: 100},
	}
	for _, a := range after {
		j.Dependency.List = append(j.Dependency.List, job.Dependency{Type: "after", Job: a})
	}
	return j
}

// runs is the same job, running since second start on a GPU.
func runs(j job.Job, start int, gpus ...int) job.Job {
	j.State, j.Start, j.Nodes, j.GPUs, j.Dependency = job.Running, at(start), "n1", gpus, job.Dependencies{}
	return j
}

func record(t *testing.T, l *Journal, sts ...*job.Status) {
	t.Helper()
	for _, st := range sts {
		must.OK(t, l.RecordRuns(context.Background(), st, nil))
		must.OK(t, l.RecordPoll(context.Background(), st))
	}
}

func over(t *testing.T, l *Journal) map[string]history.Run {
	t.Helper()
	all := must.Get(database.List(t.Context(), l.db, func(r *history.Run) []any { return []any{database.JSON(r)} },
		`SELECT detail FROM run WHERE ended IS NOT NULL`))(t)
	out := map[string]history.Run{}
	for _, r := range all {
		out[r.Ref] = r
	}
	return out
}

// A job's wait begins when nothing but its turn keeps it: not while it is held or waits for another job.
func TestLedgerWaits(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "db"))
	held := waits("3", 0, "5")
	held.Priority = 0
	gated, chained := waits("1", 0, "5"), waits("2", 0, "5", "99")
	gated.QOS, gated.Reservation, gated.Deadline = "high", "course", at(3600) // which rules for adoption match
	held.Request = job.GPURequest{Kind: job.WholeGPU, Count: 2}
	record(t, l, poll(10, gated, chained, held))
	held.Priority = 1
	record(t, l, poll(20, gated, waits("2", 0, "5"), held))
	busy := poll(30, runs(gated, 25), runs(chained, 26, 1), runs(held, 27, 0, 1))
	busy.Groups = []job.Group{{ID: 7, Policy: "greedy", Members: []job.Member{
		{Ref: "1", Predicted: 1.2, Rule: "all", State: job.MemberRunning},
		{Ref: "2", State: job.MemberWaiting},
		{Ref: "4", State: job.MemberRestored},
	}}}
	// An active bridge intends nothing that it doesn't do.
	busy.Plan = &job.Plan{Groups: []job.PlannedGroup{{Group: job.Group{Members: []job.Member{{Ref: "3"}, {Ref: "9"}}}}}}
	busy.Apps = map[string]job.App{"1": {Key: "gromacs"}}
	// Which GPU the first is on is known a poll later.
	record(t, l, busy, poll(31, runs(gated, 25, 1), runs(chained, 26, 1), runs(held, 27, 0, 1)), poll(60))
	got := over(t, l)
	want := history.Run{
		Ref: "1", User: "ann", Account: "lab", Partition: "a", App: "gromacs", Submit: at(0), Ready: at(0), Start: at(25),
		End: at(60), Allotted: at(25), QOS: "high", Reservation: "course", Deadline: at(3600),
		Node: "n1", GPUs: []int{1}, Shares: 100, Mode: job.Active,
		Decided: history.Decision{Group: 7, Policy: "greedy", Rule: "all", Predicted: 1.2, Beside: true},
	}
	must.Equal(t, got["1"], want)
	for ref, ready := range map[string]int{"1": 0, "2": 20, "3": 20} {
		if !got[ref].Ready.Equal(at(ready)) {
			t.Errorf("job %s waits since %v, want %v", ref, got[ref].Ready, at(ready))
		}
	}
	if !reflect.DeepEqual(got["3"].GPUs, []int{0, 1}) || got["3"].Decided != (history.Decision{}) ||
		got["3"].WholeGPUs != 2 || got["3"].Shares != 0 {
		t.Errorf("%+v", got["3"])
	}
}

// A daemon that starts anew sees pending jobs for the first time: one with a begin time, say, has been ready since that
// was over.
func TestLedgerWaitsOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	later := waits("1", 0)
	later.Eligible = at(100)
	record(t, open(t, path), poll(90, later))
	l := open(t, path)
	record(t, l, poll(200, later), poll(300, runs(later, 250)), poll(400))
	if ready := over(t, l)["1"].Ready; !ready.Equal(at(100)) {
		t.Errorf("it is taken to have waited since %v, not %v", ready, at(100))
	}
}

// Slurm gives a run another start once its node has powered up. It is one run all the same, also for a daemon that
// starts anew meanwhile.
func TestARunWhoseNodePowersUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	l := open(t, path)
	j := waits("1", 0)
	record(t, l, poll(10, runs(j, 5, 0)), poll(310, runs(j, 300, 0)))
	record(t, open(t, path), poll(610, runs(j, 600, 0)), poll(700))
	all := must.List(t, (&history.History{DB: l.db}).Runs(t.Context(), history.Filter{}))
	must.Equal(t, len(all), 1, "runs")
	if r := all[0]; !r.Start.Equal(at(600)) || !r.Allotted.Equal(at(600)) || !r.End.Equal(at(700)) {
		t.Errorf("%+v", r)
	}
}

// What ran and was requeued between two polls is a run of its own, which a record may complete; so is what waited under
// a number that Slurm gave to another job.
func TestARunBetweenTwoPolls(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "db"))
	again := waits("1", 40)
	again.User = "bob"
	record(t, l, poll(10, waits("1", 0)), poll(50, again), poll(90, runs(again, 80, 0)), poll(100))
	all := must.List(t, (&history.History{DB: l.db}).Runs(t.Context(), history.Filter{}))
	must.Equal(t, len(all), 2, "runs")
	if r := all[0]; r.User != "ann" || !r.Start.IsZero() || !r.Ready.Equal(at(0)) || !r.End.Equal(at(50)) {
		t.Errorf("between two polls: %+v", r)
	}
	if r := all[1]; r.User != "bob" || !r.Start.Equal(at(80)) || !r.Ready.Equal(at(40)) {
		t.Errorf("afterwards: %+v", r)
	}
}

// A second run of a requeued job is a run of its own; a daemon that starts anew
// ends what ended while it was away, and goes on with the rest.
func TestLedgerRunsAndRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	l := open(t, path)
	j := waits("1", 0)
	record(t, l, poll(1, j, waits("9", 0)), poll(10, runs(j, 5, 0), runs(waits("2", 0), 6, 1)), poll(20, j))
	l = open(t, path)
	record(t, l, poll(30, runs(j, 25, 0), runs(waits("4", 2), 21, 1)))
	ran := must.List(t, (&history.History{DB: l.db}).Runs(context.Background(),
		history.Filter{From: at(0), Running: true, Latest: 10}))
	type span struct {
		ref        string
		start, end int
	}
	var got []span
	for _, r := range ran {
		if r.Start.IsZero() {
			continue // it never ran
		}
		s := span{r.Ref, int(r.Start.Sub(began).Seconds()), 0}
		if !r.End.IsZero() {
			s.end = int(r.End.Sub(began).Seconds())
		}
		got = append(got, s)
	}
	want := []span{{"1", 25, 0}, {"4", 21, 0}, {"1", 5, 20}, {"2", 6, 20}}
	must.Equal(t, got, want)
	// 9 came and went between two polls.
	if r := over(t, l)["9"]; !r.Start.IsZero() || !r.End.Equal(at(10)) {
		t.Errorf("%+v", r)
	}
}

func TestLedgerOfShadow(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "db"))
	a, b := waits("1", 0), waits("2", 0)
	st := poll(10, a, b)
	st.Mode = job.Shadow
	pair := job.Group{
		Kind: job.Join, Node: "n1", GPU: 1, Policy: "dqn",
		Members: []job.Member{{Ref: "1", Predicted: 1.2}, {Ref: "2", Predicted: 1.1}},
	}
	st.Plan = &job.Plan{Groups: []job.PlannedGroup{{Group: pair}}}
	st.Explanations = map[string]*job.Explanation{
		"1": {Vetoes: []job.Veto{
			{With: []string{"2"}, Node: "n1", Reason: rlcore.VetoMemory},
			{With: []string{"3"}, Node: "n1", Reason: rlcore.VetoMemory},
		}},
		"2": {Vetoes: []job.Veto{{Node: "n1", Reason: rlcore.VetoNoShare}}},
	}
	st.Snap.Jobs = append(st.Snap.Jobs, runs(waits("8", 0), 3, 1))
	later := *st
	later.Plan = &job.Plan{Groups: []job.PlannedGroup{{Group: job.Group{
		Kind: job.StartNow, Node: "n1",
		Members: []job.Member{{Ref: "2"}},
	}}}}
	// What was last intended for a job before it starts stays with its run.
	shadow := func(s int, jobs ...job.Job) *job.Status {
		st := poll(s, jobs...)
		st.Mode = job.Shadow
		return st
	}
	record(t, l, st, st, &later, shadow(20, a, b), shadow(30, runs(a, 25, 0), runs(b, 26, 1)), shadow(40))
	ctx := context.Background()
	ran := over(t, l)
	must.Equal(t, ran["1"].Decided, history.Decision{Policy: "dqn", Predicted: 1.2, Beside: true})
	must.Equal(t, ran["2"].Decided, history.Decision{}, "alone")
	refused := must.Get(l.VetoCounts(ctx, at(0), at(100)))(t)
	want := []history.VetoCount{
		{Reason: rlcore.VetoMemory.String(), Jobs: 1, Looks: 3},
		{Reason: rlcore.VetoNoShare.String(), Jobs: 1, Looks: 3},
	}
	must.Equal(t, refused, want)
	nodes, err := l.Nodes(ctx, at(0))
	if err != nil || len(nodes) != 1 || nodes[0].GPUs != 2 || len(nodes[0].Partitions) != 2 {
		t.Errorf("%+v %v", nodes, err)
	}
}

// A node with cards of several types is read back with the type of each.
func TestNodesWithCardsOfSeveralTypes(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "db"))
	st := poll(10)
	alike, mixed := job.Node{Name: "n1", GPUs: 2, GPUType: "a100"}, job.Node{Name: "n2", GPUs: 2}
	mixed.ByIndex = []job.GPU{{Type: "a100", Units: job.Units}, {Type: "k80", Units: job.Units}}
	untyped := job.Node{Name: "n3", GPUs: 3}
	st.Snap.Nodes = []job.Node{alike, mixed, untyped}
	for i := range st.Snap.Nodes {
		st.Snap.Nodes[i].Up, st.Snap.Nodes[i].Partitions = true, []string{"a"}
	}
	record(t, l, st)
	must.Equal(t, must.Get(l.Nodes(t.Context(), at(0)))(t), st.Snap.Nodes)
}

// A quiet queue is not written again.
func TestLedgerIsQuiet(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "db"))
	l.db.SetMaxOpenConns(1) // which counts
	j := runs(waits("1", 0), 5, 0)
	record(t, l, poll(10, j, waits("2", 1)))
	before := changes(t, l)
	record(t, l, poll(11, j, waits("2", 1)), poll(12, j, waits("2", 1)))
	must.Equal(t, changes(t, l), before, "rows that were written, for nothing")
}

func changes(t *testing.T, l *Journal) (n int) {
	t.Helper()
	must.OK(t, l.db.QueryRow(`SELECT total_changes()`).Scan(&n))
	return n
}

// What can't be written is written with the next poll.
func TestLedgerTriesAgain(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "db"))
	j := runs(waits("1", 0), 5, 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	must.Fail(t, l.RecordRuns(ctx, poll(10, j), nil), "")
	record(t, l, poll(11, j), poll(12))
	if r := over(t, l)["1"]; !r.Start.Equal(at(5)) || !r.End.Equal(at(12)) {
		t.Errorf("%+v", r)
	}
}

// A node knows an array's task by its own number, which leads to its name for as long as the task runs, and a neighbour
// that came hours after its start asks for it, too. A number may be given again: to a later run of the task, or to
// another job once slurmctld has lost its state.
func TestANodeKnowsATaskByItsNumber(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	task := func(ref string, id int64, start int) job.Job {
		j := runs(waits(ref, start), start, 0)
		j.ID, j.ArrayID = id, 5
		return j
	}
	const hour, month = 3600, 30 * 24 * 3600
	l := open(t, path)
	record(t, l, poll(10, task("5_0", 7, 5), waits("5_[1-9]", 0)), poll(20, task("5_0", 7, 5), task("5_2", 8, 15)))
	l = open(t, path)
	record(t, l, poll(9*hour, task("5_0", 7, 5)), poll(10*hour), poll(2*month, task("9_0", 8, 2*month)))
	names := &history.History{DB: l.db}
	for what, c := range map[string]struct {
		id         int64
		start, end int
		want       string
	}{
		"while it runs":                  {7, 5, 60, "5_0"},
		"hours after its start":          {7, 6 * hour, 6*hour + 60, "5_0"},
		"a clock is off by half an hour": {7, 10*hour + 1800, 10*hour + 1900, "5_0"},
		"the next task":                  {8, 15, 20, "5_2"},
		"the number given again":         {8, 2 * month, 2*month + 60, "9_0"},
		"long after its end":             {7, month, month + 60, "7"},
		"long before its start":          {7, -month, 60 - month, "7"},
		"of no task":                     {9, 0, 60, "9"},
	} {
		must.Equal(t, must.Get(names.TaskName(t.Context(), c.id, at(c.start), at(c.end)))(t), c.want, what)
	}
}

// How a run ended is written when a poll no longer shows it, once: also by a daemon that starts after one was killed,
// before it had written that or before it had noted that it has, and where an earlier poll showed the job ending.
func TestAnEndIsWrittenOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	j := runs(waits("1", 0), 5, 0)
	ending := j
	ending.State = job.Completing
	record(t, open(t, path), poll(10, j), poll(20, ending))
	for _, doneS := range []float64{7, 8} {
		e := history.Ending{RunState: history.RunState{Start: at(5), Progress: job.Progress{DoneS: doneS}, Node: "n1"}}
		must.OK(t, open(t, path).RecordRuns(t.Context(), poll(30), []tracker.Left{{Ref: "1", Ending: e}}))
	}
	l := open(t, path)
	r := over(t, l)["1"]
	must.Equal(t, r.Ending.DoneS, 7, "work done")
	must.Equal(t, r.End, at(20), "end")
	must.Equal(t, r.Ending.Node, "", "the node, which stands in the run")
	// One that came and went between two polls has no start, and is what its member was.
	gone := tracker.Left{Ref: "2", Ending: history.Ending{Member: &job.Member{Ref: "2", Predicted: 1.5}}}
	record(t, l, poll(40, waits("2", 35)))
	must.OK(t, l.RecordRuns(t.Context(), poll(50), []tracker.Left{gone}))
	r = over(t, l)["2"]
	must.Equal(t, r.Predicted(), 1.5, "the slowdown predicted")
}
