package loop_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

// ledger is Runs in memory.
type ledger struct {
	runs []history.Run
	kept []history.Outcome
}

func (l *ledger) Unjudged(context.Context) ([]history.Run, error) {
	last := int64(0)
	for i := range l.kept {
		last = max(last, l.kept[i].Run)
	}
	var out []history.Run
	for i := range l.runs {
		if l.runs[i].ID > last {
			out = append(out, l.runs[i])
		}
	}
	return out, nil
}

func (l *ledger) Store(_ context.Context, o *history.Outcome) error {
	if i := slices.IndexFunc(l.kept, func(k history.Outcome) bool { return k.Run == o.Run }); i >= 0 {
		l.kept[i] = *o
		return nil
	}
	l.kept = append(l.kept, *o)
	return nil
}

func (l *ledger) Runs(_ context.Context, f history.Filter) iter.Seq2[history.Run, error] {
	return func(yield func(history.Run, error) bool) {
		for _, o := range l.kept {
			if o.Run > f.After && !o.End.Before(f.From) && !yield(history.Run{ID: o.Run, Outcome: &o}, nil) {
				return
			}
		}
	}
}

// record is what a node would tell of a run that has ended, with who was there.
func (l *ledger) record(m *model, j *mjob, others ...*mjob) {
	r := history.Run{
		ID: int64(len(l.runs) + 1), Ref: j.Ref, User: j.User, App: j.profil.App, Node: j.Nodes, Start: j.began, End: m.now,
		Terms: job.ParseTerms(j.Comment), Profile: j.profil, Complete: true, Devices: []gpuprof.GPU{{MemMiB: 12196}},
	}
	for _, o := range others {
		r.CoRunners = append(r.CoRunners,
			history.CoRunner{
				Ref: o.Ref, App: o.profil.App, Owner: o.User, Profile: o.profil, OverlapS: r.DurationS(),
				AtEnd: true,
			})
	}
	l.runs = append(l.runs, r)
}

// learning is a bridge that learns by a model of its own.
func learning(m *model, mem *memory, l *ledger) (*loop.Bridge, *interference.Model) {
	b := bridge(m, mem)
	beliefs := interference.New(&contention.MPS)
	b.Runs, b.Beliefs, b.RetryAlone = l, beliefs, true
	b.Planner.Decider.Guard.Predictor = beliefs
	return b, beliefs
}

// learner is a cluster, what is kept of its runs, and a learning bridge that has made its gate there.
func learner(t testing.TB, nodes ...job.Node) (m *model, l *ledger, b *loop.Bridge, beliefs *interference.Model) {
	t.Helper()
	m, l = newModel(nodes...), &ledger{}
	b, beliefs = learning(m, m.mem, l)
	tick(t, b, m, time.Second)
	return m, l, b, beliefs
}

// victim submits a job that is going to fail, of an application that ended well alone,
// and one that starts beside it.
func victim(m *model) (v, n *mjob) {
	p, q := app("victim", 60, 0.3, 2000), app("neighbour", 600, 0.3, 2000)
	p.Runs, p.Owner, q.Owner = 1, "ann", "ann"
	v, n = m.submit("ann", 20*time.Second, p, true), m.submit("ann", 5*time.Minute, q, true)
	v.Requeue, v.fails, v.Comment = true, true, "share:retry"
	return v, n
}

// TestFailedBesideOthers: a job that fails among others runs once more with a GPU
// of its own, and its pair is kept apart; when it fails alone as well, it is left,
// and its company is forgiven.
func TestFailedBesideOthers(t *testing.T) {
	for _, alone := range []string{"well", "badly"} {
		m, l, b, beliefs := learner(t, node("n1", 1, 8))
		reg := prometheus.NewRegistry()
		b.Metrics = loop.NewMetrics(reg)
		v, n := victim(m)
		p, q := v.profil, n.profil
		tick(t, b, m, 5*time.Second)
		bothRun(t, v, n)
		untilEnded(t, b, m, v)
		l.record(m, v, n)
		tick(t, b, m, 10*time.Second)
		v.fails = alone == "badly"
		if len(l.kept) != 1 || l.kept[0].Suspect == "" || !l.kept[0].Again {
			t.Fatalf("%+v", l.kept)
		}
		must.Equal(t, counted(t, reg, "slurmbridge_jobs_harmed_total", "oom"), 1, "jobs that are counted as harmed")
		if v.State != job.Pending || v.Request.Count != 100 || v.ReqNodes != "" || len(v.Dependency.List) > 0 {
			t.Errorf("after it was requeued: %s, %d shares, node %q, depends on %q", v.State, v.Request.Count, v.ReqNodes,
				v.Dependency.Raw)
		}
		if !beliefs.Forbidden(nil, profiles(p, q)) {
			t.Error("the pair may meet again")
		}
		// A bridge that starts anew knows it all from what was kept.
		b, beliefs = learning(m, m.mem, l)
		for !n.ended {
			tick(t, b, m, 10*time.Second)
		}
		l.record(m, n, v)
		tick(t, b, m, 10*time.Second)
		if !beliefs.Forbidden(nil, profiles(p, q)) {
			t.Error("after a restart the pair may meet again")
		}
		untilEnded(t, b, m, v)
		l.record(m, v)
		tick(t, b, m, time.Minute)
		last := l.kept[len(l.kept)-1]
		if !v.ended || last.Again || last.Cleared != (alone == "badly") {
			t.Errorf("alone it ended %s: ended %v, %+v", alone, v.ended, last)
		}
		must.Equal(t, l.kept[0].Excused, alone == "badly", "sharing was not the reason")
		b, again := learning(m, m.mem, l)
		tick(t, b, m, time.Second)
		for _, beliefs := range []*interference.Model{beliefs, again} {
			if got := beliefs.Forbidden(nil, profiles(p, q)); got != (alone == "well") {
				t.Errorf("alone it ended %s; the pair is kept apart: %v", alone, got)
			}
		}
	}
}

// An application that fails at once at its first run, which is under MPS, runs again with all shares, without MPS.
// Where it ends well it stays so, after a restart of the bridge, too.
func TestWhatCantRunUnderMPSStaysAlone(t *testing.T) {
	m, l, b, _ := learner(t, node("n1", 1, 8))
	reader := func() *mjob {
		v := m.submit("ann", 5*time.Second, app("reader", 60, 0.3, 2000), true)
		v.Requeue, v.profil.Runs, v.profil.Owner = true, 1, "ann"
		return v
	}
	runs := func(v *mjob) int {
		t.Helper()
		shares := 0
		for !v.ended {
			tick(t, b, m, time.Second)
			if v.State == job.Running {
				shares = v.Request.Count
			}
		}
		l.record(m, v)
		for judged := len(l.kept); len(l.kept) == judged; {
			tick(t, b, m, time.Second)
		}
		return shares
	}
	m.unknown = "reader"
	v := reader()
	v.fails = true
	must.Equal(t, runs(v), 99, "shares of the first run")
	must.Equal(t, l.kept[0].Unserved && l.kept[0].Again, true, "%+v", l.kept[0])
	v.fails = false
	must.Equal(t, runs(v), 100, "shares of the second run")
	must.Equal(t, l.kept[1].NoMPS, true, "%+v", l.kept[1])
	m.unknown = ""
	for range 2 {
		must.Equal(t, runs(reader()), 100, "shares of a later job")
		b, _ = learning(m, m.mem, l)
	}
}

// What another user's jobs of the same name do alone says nothing of this one; and what has failed alone itself runs
// again where its owner asks for it, whatever the reason may be.
func TestFailuresOfOtherUsers(t *testing.T) {
	for owner, suspect := range map[string]bool{"bob": true, "ann": false} {
		m, l, b, _ := learner(t, node("n1", 1, 8))
		p := app("victim", 60, 0.3, 2000)
		p.Runs, p.Owner = 1, owner
		first := m.submit(owner, 20*time.Second, p, true)
		first.fails = true
		untilEnded(t, b, m, first)
		l.record(m, first)
		tick(t, b, m, 10*time.Second)
		v, n := victim(m)
		tick(t, b, m, 5*time.Second)
		untilEnded(t, b, m, v)
		l.record(m, v, n)
		tick(t, b, m, 10*time.Second)
		if last := l.kept[len(l.kept)-1]; last.Ref != v.Ref || (last.Suspect != "") != suspect || !last.Again {
			t.Errorf("after a failure of %s's: %+v", owner, last)
		}
	}
}

// A job that fails with a part of the GPU's memory runs again with all of it, and no other job of its application tries
// that part, also after a restart.
func TestTriedInVain(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	mem, l := newMemory(), &ledger{}
	limited := func() *loop.Bridge {
		b, _ := learning(m, mem, l)
		b.Card = func(string) (rlcore.GPUSpec, bool) {
			card := rlcore.TitanXp
			card.MemLimits = true
			return card, true
		}
		return b
	}
	b := limited()
	tick(t, b, m, time.Second)
	p := app("greedy", 60, 0.3, 12000)
	p.Runs, p.Owner = 1, "ann"
	submit := func() *mjob {
		j := m.submit("ann", 20*time.Second, p, true)
		j.Requeue, j.Comment = true, "share:try-memory=8G"
		return j
	}
	j := submit()
	j.fails = true
	tick(t, b, m, 5*time.Second)
	if j.State != job.Running || j.Request.Count != 99 {
		t.Fatalf("it doesn't try: %s with %d shares", j.State, j.Request.Count)
	}
	untilEnded(t, b, m, j)
	l.record(m, j)
	tick(t, b, m, 10*time.Second)
	if len(l.kept) != 1 || l.kept[0].TriedMiB != 8192 || !l.kept[0].Again {
		t.Fatalf("%+v", l.kept)
	}
	j.fails = false
	if j.ended || j.Request.Count != 100 {
		t.Errorf("requeued it is %s with %d shares", j.State, j.Request.Count)
	}
	untilEnded(t, b, m, j)
	l.record(m, j)
	b = limited()
	tick(t, b, m, time.Minute)
	next := submit()
	tick(t, b, m, 5*time.Second)
	if next.State != job.Running || next.Request.Count != 100 || !l.kept[1].Learned {
		t.Errorf("the next is %s with %d shares; the run before: %+v", next.State, next.Request.Count, l.kept[1])
	}
}

// From Volta on a fault of an MPS server is forgotten before a hook can see it. Jobs that shared a GPU and failed in
// the same moment were its clients: they run again, alone, in whichever order their records come.
func TestFailedInTheSameMoment(t *testing.T) {
	for name, c := range map[string]struct {
		run      time.Duration // the neighbour's
		well     bool          // it ends well
		restarts bool          // the bridge, between the records
		fault    bool
	}{
		"both":                          {run: 20 * time.Second, fault: true},
		"both, and the bridge restarts": {run: 20 * time.Second, restarts: true, fault: true},
		"the neighbour a second later":  {run: 21 * time.Second, fault: true},
		"the neighbour ends well":       {run: 20 * time.Second, well: true},
	} {
		m, l, b, beliefs := learner(t, node("n1", 1, 8))
		v, n := victim(m)
		v.Comment = ""
		n.Requeue, n.fails, n.run = true, !c.well, c.run
		tick(t, b, m, 5*time.Second)
		bothRun(t, v, n)
		untilEnded(t, b, m, v)
		l.record(m, v, n)
		for until := m.now.Add(6 * time.Second); m.now.Before(until) || !n.ended; {
			tick(t, b, m, time.Second)
		}
		if len(l.kept) != 1 || l.kept[0].Fault != c.fault || l.kept[0].Again != c.fault || l.kept[0].Suspect == "" {
			t.Fatalf("%s: %+v", name, l.kept)
		}
		if c.restarts {
			b, beliefs = learning(m, m.mem, l)
		}
		l.record(m, n, v)
		l.runs[1].End = n.over
		tick(t, b, m, 10*time.Second)
		if len(l.kept) != 2 || l.kept[1].Fault != c.fault || l.kept[1].Again != (c.fault && !c.restarts) {
			t.Errorf("%s: then %+v", name, l.kept)
		}
		for _, p := range []*rlcore.Profile{v.profil, n.profil} {
			if got := beliefs.Forbidden(nil, profiles(p, app("other", 60, 0.1, 100))); got != c.fault {
				t.Errorf("%s: %s stays alone: %v", name, p.App, got)
			}
		}
	}
}

// counted is the value of the one series of a counter that has the label value.
func counted(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	all := must.Get(reg.Gather())(t)
	for _, family := range all {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no series %s %s", name, label)
	return 0
}

// On a node with cards of two kinds a run teaches about the card that it was on, not about the node: each kind has its
// way of sharing, and its own law.
func TestLessonsAreOfTheCard(t *testing.T) {
	mixed := node("n1", 2, 8)
	mixed.GPUType, mixed.Cards = "", []job.Card{{Type: "titanxp", Units: 100}, {Type: "k80", Units: 100}}
	m := newModel(mixed)
	l := &ledger{}
	b, beliefs := learning(m, newMemory(), l)
	cards := map[string]rlcore.GPUSpec{
		"titanxp": {Model: "titan xp", MemMiB: 12196, MaxClients: 16},
		"k80":     {Model: "k80", MemMiB: 11441, MaxClients: 16, Sharing: contention.TimeSlice.Name},
	}
	b.Card = func(typ string) (rlcore.GPUSpec, bool) { spec, ok := cards[typ]; return spec, ok }
	tick(t, b, m, time.Second)
	p, q := app("victim", 60, 0.3, 2000), app("neighbour", 60, 0.3, 2000)
	believed := func(typ string) rlcore.Prediction {
		dst, spec := make([]rlcore.Prediction, 2), cards[typ]
		beliefs.Predict(dst, &spec, []*rlcore.Profile{p, q})
		return dst[0]
	}
	for _, c := range []struct {
		index        int
		taught, left string
	}{{1, "k80", "titanxp"}, {0, "titanxp", "k80"}} {
		taught, left, before := believed(c.taught), believed(c.left), len(l.runs)
		v, n := m.submit("ann", 90*time.Second, p, true), m.submit("ann", 90*time.Second, q, true)
		untilEnded(t, b, m, v, n)
		l.record(m, v, n)
		l.runs[before].Devices[0].Index = c.index
		tick(t, b, m, 3*time.Second)
		if o := l.kept[len(l.kept)-1]; o.Lesson == nil || o.Lesson.Card != cards[c.taught].Model ||
			o.Lesson.Sharing != cards[c.taught].Sharing {
			t.Fatalf("a run on GPU %d taught %+v", c.index, o.Lesson)
		}
		if now := believed(c.taught); now.Slowdown <= taught.Slowdown || believed(c.left) != left {
			t.Errorf("after a run on the %s, slower than predicted, %+v is believed of it, %+v before; of the %s %+v, %+v "+
				"before", c.taught, now, taught, c.left, believed(c.left), left)
		}
	}
}

// A user whose applications fail under ever new names is remembered for the last of them, nobody else is forgotten for
// that, and the metrics say how many failures were forgotten.
func TestFailuresUnderEverNewNames(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	l := &ledger{}
	failed := func(user, app string) {
		o := history.Outcome{
			Run: int64(len(l.kept) + 1), Ref: fmt.Sprint("9", len(l.kept)), User: user, App: app,
			State: "FAILED", End: m.now.Add(-time.Hour),
		}
		l.kept = append(l.kept, o)
	}
	failed("ann", "hers")
	for i := range 1000 {
		failed("eve", fmt.Sprint("name", i))
	}
	b, _ := learning(m, newMemory(), l)
	reg := prometheus.NewRegistry()
	b.Metrics = loop.NewMetrics(reg)
	tick(t, b, m, 2*time.Second)
	if got := total(t, reg, "slurmbridge_forgotten_total"); got != 1000-256 {
		t.Errorf("%v failures are said to be forgotten", got)
	}
}

// total is a metric's value, summed over its series.
func total(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	for _, family := range must.Get(reg.Gather())(t) {
		if family.GetName() == name {
			for _, series := range family.GetMetric() {
				sum += series.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// TestRecordBeforeLook: a record that is there before a look has seen its job end waits
// for the next one.
func TestRecordBeforeLook(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	l := &ledger{}
	b, _ := learning(m, newMemory(), l)
	late := &lagging{model: m}
	b.Slurm = late
	tick(t, b, m, time.Second)
	p := app("a", 60, 0.3, 2000)
	v, n := m.submit("ann", 20*time.Second, p, true), m.submit("ann", 5*time.Minute, p, true)
	v.Requeue, v.fails, v.Comment = true, true, "share:retry"
	tick(t, b, m, 5*time.Second)
	if late.snap, _ = m.Poll(t.Context()); v.State != job.Running {
		t.Fatal("it doesn't run")
	}
	for !v.ended {
		m.advance(time.Second)
	}
	l.record(m, v, n)
	if _, err := b.Tick(t.Context()); err != nil || len(l.kept) != 0 {
		t.Fatalf("judged by a look that sees it running: %+v, %v", l.kept, err)
	}
	late.snap = nil
	m.advance(5 * time.Second) // its neighbour did not end with it
	if _, err := b.Tick(t.Context()); err != nil || len(l.kept) != 1 || !l.kept[0].Again {
		t.Fatalf("%+v, %v", l.kept, err)
	}
}

// lagging is a Slurm whose look was taken some time ago.
type lagging struct {
	*model
	snap *job.Snapshot
}

func (l *lagging) Poll(ctx context.Context) (*job.Snapshot, error) {
	if l.snap != nil {
		return l.snap, nil
	}
	return l.model.Poll(ctx)
}

// A job that Slurm has killed while it computed may have broken its MPS server: nobody joins those that it has left
// there.
func TestNobodyJoinsWhereAJobWasKilled(t *testing.T) {
	for name, c := range map[string]struct {
		state string
		idle  bool // it has done nothing for an hour
		joins bool
	}{
		"ended by itself":        {state: "COMPLETED", joins: true},
		"failed by itself":       {state: "FAILED", joins: true},
		"cancelled":              {state: "CANCELLED"},
		"at its limit":           {state: "TIMEOUT"},
		"out of memory":          {state: "OUT_OF_MEMORY"},
		"preempted":              {state: "PREEMPTED"},
		"cancelled, it was idle": {state: "CANCELLED", idle: true, joins: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(node("n1", 1, 8))
			b, _ := learning(m, newMemory(), &ledger{})
			b.Planner.Room, b.Planner.RoomAnyway, b.IdleAfter = true, true, time.Hour
			tick(t, b, m, time.Second)
			p := app("a", 60, 0.2, 1000)
			killed, other := m.submit("ann", 2*time.Hour, p, true), m.submit("ann", 3*time.Hour, p, true)
			tick(t, b, m, 5*time.Second)
			must.Equal(t, killed.State == job.Running && other.State == job.Running, true, "both run")
			if c.idle {
				b.TakeIdle(told("n1", time.Hour, killed))
				tick(t, b, m, time.Second)
			}
			killed.ended, killed.State, killed.over = true, job.JobState(c.state), m.now
			third := m.submit("ann", time.Minute, p, true)
			tick(t, b, m, 5*time.Second)
			must.Equal(t, third.State == job.Running, c.joins, "the third job runs")
			must.Equal(t, len(b.Status().Faulted), map[bool]int{false: 1}[c.joins], "the GPUs that the status names")
			other.ended, other.State = true, "COMPLETED"
			tick(t, b, m, 5*time.Second)
			must.Equal(t, third.State, job.Running, "once the GPU is empty the third job")
		})
	}
}
