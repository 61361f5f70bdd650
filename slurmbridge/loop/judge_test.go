package loop_test

import (
	"context"
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
	runs      []history.Run // of which records have come
	kept      []history.Run // that were judged
	standings map[rlcore.Identity]interference.Standing
	lessons   []interference.Lesson
	mem       *memory // what polls showed of their ends
}

func (l *ledger) Unjudged(context.Context) ([]history.Run, error) {
	last := int64(0)
	for i := range l.kept {
		last = max(last, l.kept[i].ID)
	}
	var out []history.Run
	for _, r := range l.runs {
		if r.Ending = l.mem.ending(r.Ref, r.Start); r.ID > last {
			out = append(out, r)
		}
	}
	return out, nil
}

func (l *ledger) Last(_ context.Context, ref string, before int64) (*history.Run, error) {
	for _, r := range slices.Backward(l.kept) {
		if r.Ref == ref && r.ID < before {
			own := *r.Outcome
			r.Outcome = &own
			return &r, nil
		}
	}
	return nil, nil
}

func (l *ledger) Store(ctx context.Context, r *history.Run, s *interference.Standing, before *history.Run) error {
	if l.standings == nil {
		l.standings = map[rlcore.Identity]interference.Standing{}
	}
	l.standings[r.Identity()] = *s
	l.lessons = append(l.lessons, r.Outcome.Lessons...)
	if before != nil {
		_ = l.Amend(ctx, before)
	}
	return l.Amend(ctx, r)
}

func (l *ledger) Amend(_ context.Context, r *history.Run) error {
	own := *r.Outcome
	kept := *r
	kept.Outcome = &own
	if i := slices.IndexFunc(l.kept, func(k history.Run) bool { return k.ID == r.ID }); i >= 0 {
		l.kept[i] = kept
		return nil
	}
	l.kept = append(l.kept, kept)
	return nil
}

func (l *ledger) Recall(_ context.Context, m *interference.Model, _ time.Time) error {
	for of, s := range l.standings {
		m.SetStanding(of, s)
	}
	for i := range l.lessons {
		m.Take(&l.lessons[i])
	}
	return nil
}

func (l *ledger) Runs(_ context.Context, f history.Filter) iter.Seq2[history.Run, error] {
	return func(yield func(history.Run, error) bool) {
		for _, r := range l.kept {
			if !r.End.Before(f.From) && !yield(r, nil) {
				return
			}
		}
	}
}

// record is what a node would tell of a run that has ended, with who was there.
func (l *ledger) record(m *model, j *mjob, others ...*mjob) *history.Run {
	r := history.Run{
		ID: int64(len(l.runs) + 1), Ref: j.Ref, User: j.User, App: j.profil.App, Node: j.Nodes, Start: j.began, End: m.now,
		Submit: j.Submit, Mode: job.Active, Terms: job.ParseTerms(j.Comment), Profile: j.profil, Complete: true,
		Devices: []gpuprof.GPU{{MemMiB: 12196}},
	}
	for _, o := range others {
		r.CoRunners = append(r.CoRunners, history.CoRunner{
			Ref: o.Ref, App: o.profil.App, Owner: o.User, Profile: o.profil, ToS: r.DurationS(), AtEnd: true,
		})
	}
	l.runs = append(l.runs, r)
	return &l.runs[len(l.runs)-1]
}

// last is the run that was judged last.
func (l *ledger) last() *history.Run { return &l.kept[len(l.kept)-1] }

// learning is a bridge that learns by a model of its own.
func learning(m *model, l *ledger) (*loop.Bridge, *interference.Model) {
	b := bridge(m, m.mem)
	beliefs := interference.New(&contention.MPS)
	b.Runs, b.Beliefs, b.RetryAlone = l, beliefs, true
	b.Planner.Decider.Guard.Predictor = beliefs
	return b, beliefs
}

// learner is a cluster, what is kept of its runs, and a learning bridge that has made its gate there.
func learner(t testing.TB, nodes ...job.Node) (m *model, l *ledger, b *loop.Bridge, beliefs *interference.Model) {
	t.Helper()
	m = newModel(nodes...)
	l = &ledger{mem: m.mem}
	b, beliefs = learning(m, l)
	tick(t, b, m, time.Second)
	return m, l, b, beliefs
}

// judged runs the bridge until a job has ended, and its run, recorded with who was there, is judged.
func (l *ledger) judged(t testing.TB, b *loop.Bridge, m *model, j *mjob, others ...*mjob) *history.Outcome {
	t.Helper()
	untilEnded(t, b, m, j)
	l.record(m, j, others...)
	tick(t, b, m, 10*time.Second)
	must.Equal(t, len(l.kept), len(l.runs), "runs judged")
	return l.last().Outcome
}

// victim submits a job that is going to fail, of an application that ended well alone, and one that starts beside it.
func victim(m *model) (v, n *mjob) {
	p, q := app("victim", 60, 0.3, 2000), app("neighbour", 600, 0.3, 2000)
	p.Runs, p.Owner, q.Owner = 1, "ann", "ann"
	v, n = m.submit("ann", 20*time.Second, p, true), m.submit("ann", 5*time.Minute, q, true)
	v.Requeue, v.fails, v.Comment = true, true, "share:retry"
	return v, n
}

// TestFailedBesideOthers: a job that fails among others runs once more with a GPU of its own, and its pair is kept
// apart; when it fails alone as well, it is left, and its company is forgiven.
func TestFailedBesideOthers(t *testing.T) {
	for _, alone := range []string{"well", "badly"} {
		m, l, b, beliefs := learner(t, node("n1", 1, 8))
		reg := prometheus.NewRegistry()
		b.Metrics = loop.NewMetrics(reg)
		v, n := victim(m)
		pair := []*rlcore.Profile{v.profil, n.profil}
		tick(t, b, m, 5*time.Second)
		bothRun(t, v, n)
		o := l.judged(t, b, m, v, n)
		v.fails = alone == "badly"
		must.Equal(t, o.Suspect != "" && o.Again, true, "%+v", o)
		must.Equal(t, counted(t, reg, "slurmbridge_jobs_harmed_total", "oom"), 1, "jobs that are counted as harmed")
		if v.State != job.Pending || v.Request.Count != 100 || v.ReqNodes != "" || len(v.Dependency.List) > 0 {
			t.Errorf("after it was requeued: %s, %d shares, node %q, depends on %q", v.State, v.Request.Count, v.ReqNodes,
				v.Dependency.Raw)
		}
		must.Equal(t, beliefs.Forbidden(nil, pair), true, "the pair is kept apart")
		// A bridge that starts anew knows it all from what was kept.
		b, beliefs = learning(m, l)
		l.judged(t, b, m, n, v)
		must.Equal(t, beliefs.Forbidden(nil, pair), true, "after a restart the pair is kept apart")
		o = l.judged(t, b, m, v)
		if o.Again || o.Cleared != (alone == "badly") {
			t.Errorf("alone it ended %s: %+v", alone, o)
		}
		must.Equal(t, l.kept[0].Outcome.Excused, alone == "badly", "sharing was not the reason")
		b, again := learning(m, l)
		tick(t, b, m, time.Second)
		for _, beliefs := range []*interference.Model{beliefs, again} {
			must.Equal(t, beliefs.Forbidden(nil, pair), alone == "well", "alone it ended %s; the pair is kept apart", alone)
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
	runs := func(v *mjob, shares int) *history.Outcome {
		t.Helper()
		for v.State != job.Running {
			tick(t, b, m, time.Second)
		}
		must.Equal(t, v.Request.Count, shares, "shares of run %d", len(l.runs))
		untilEnded(t, b, m, v)
		l.record(m, v)
		for len(l.kept) < len(l.runs) {
			tick(t, b, m, time.Second)
		}
		return l.last().Outcome
	}
	m.unknown = "reader"
	v := reader()
	v.fails = true
	o := runs(v, 99)
	must.Equal(t, o.Unserved && o.Again, true, "%+v", o)
	v.fails = false
	o = runs(v, 100)
	must.Equal(t, o.NoMPS, true, "%+v", o)
	m.unknown = ""
	for range 2 {
		runs(reader(), 100)
		b, _ = learning(m, l)
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
		l.judged(t, b, m, first)
		v, n := victim(m)
		tick(t, b, m, 5*time.Second)
		if o := l.judged(t, b, m, v, n); l.last().Ref != v.Ref || (o.Suspect != "") != suspect || !o.Again {
			t.Errorf("after a failure of %s's: %+v", owner, o)
		}
	}
}

// A job that fails with a part of the GPU's memory runs again with all of it, and no other job of its application tries
// that part, also after a restart.
func TestTriedInVain(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	l := &ledger{mem: m.mem}
	limited := func() *loop.Bridge {
		b, _ := learning(m, l)
		b.Specs = func(string) (rlcore.GPUSpec, bool) {
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
	runsWith := func(j *mjob, shares int) {
		t.Helper()
		tick(t, b, m, 5*time.Second)
		must.Equal(t, j.State, job.Running)
		must.Equal(t, j.Request.Count, shares, "shares")
	}
	submit := func() *mjob {
		j := m.submit("ann", 20*time.Second, p, true)
		j.Requeue, j.Comment = true, "share:try-memory=8G"
		return j
	}
	j := submit()
	j.fails = true
	runsWith(j, 99)
	o := l.judged(t, b, m, j)
	must.Equal(t, o.TriedMiB == 8192 && o.Again, true, "%+v", o)
	j.fails = false
	runsWith(j, 100)
	must.Equal(t, l.judged(t, b, m, j).Learned, true, "the run with all of it teaches")
	b = limited()
	runsWith(submit(), 50)
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
		if o := l.last().Outcome; o.Fault != c.fault || o.Again != c.fault || o.Suspect == "" {
			t.Fatalf("%s: %+v", name, o)
		}
		if c.restarts {
			b, beliefs = learning(m, l)
		}
		l.record(m, n, v).End = n.over
		tick(t, b, m, 10*time.Second)
		if o := l.last().Outcome; len(l.kept) != 2 || o.Fault != c.fault || o.Again != c.fault {
			t.Errorf("%s: then %+v", name, l.kept)
		}
		for _, p := range []*rlcore.Profile{v.profil, n.profil} {
			other := []*rlcore.Profile{p, app("other", 60, 0.1, 100)}
			must.Equal(t, beliefs.Forbidden(nil, other), c.fault, "%s: %s stays alone", name, p.App)
		}
	}
}

// counted is the value of the series of a counter that has the label value, "" = of all its series.
func counted(t *testing.T, reg *prometheus.Registry, name, label string) (sum float64) {
	t.Helper()
	for _, family := range must.Get(reg.Gather())(t) {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// On a node with cards of two kinds a run teaches about the card that it was on, not about the node: each kind has its
// way of sharing, and its own law.
func TestLessonsAreOfTheCard(t *testing.T) {
	mixed := node("n1", 2, 8)
	mixed.GPUType, mixed.ByIndex = "", []job.GPU{{Type: "titanxp", Units: 100}, {Type: "k80", Units: 100}}
	m, l, b, _ := learner(t, mixed)
	cards := map[string]rlcore.GPUSpec{
		"titanxp": {Model: "titan xp", MemMiB: 12196, MaxClients: 16},
		"k80":     {Model: "k80", MemMiB: 11441, MaxClients: 16, Sharing: contention.TimeSlice.Name},
	}
	b.Specs = func(typ string) (rlcore.GPUSpec, bool) { spec, ok := cards[typ]; return spec, ok }
	for index, typ := range []string{"titanxp", "k80"} {
		v, n := m.pair(90 * time.Second)
		untilEnded(t, b, m, v, n)
		l.record(m, v, n).Devices[0].Index = index
		tick(t, b, m, 3*time.Second)
		x := l.last().Outcome.Lessons
		if len(x) != 1 || x[0].Card != cards[typ].Model || x[0].Sharing != cards[typ].Sharing {
			t.Errorf("a run on GPU %d taught %+v", index, x)
		}
	}
}

// TestRecordBeforeLook: a record that is there before a look has seen its job end waits for the next one.
func TestRecordBeforeLook(t *testing.T) {
	m, l, b, _ := learner(t, node("n1", 1, 8))
	v, n := victim(m)
	tick(t, b, m, 5*time.Second)
	bothRun(t, v, n)
	m.frozen = must.Get(m.Poll(t.Context()))(t)
	m.advance(20 * time.Second)
	l.record(m, v, n)
	must.Get(b.Tick(t.Context()))(t)
	must.Equal(t, len(l.kept), 0, "runs judged by a look that sees them running")
	m.frozen = nil
	m.advance(5 * time.Second) // its neighbour did not end with it
	must.Get(b.Tick(t.Context()))(t)
	must.Equal(t, len(l.kept) == 1 && l.last().Outcome.Again, true, "%+v", l.kept)
}

// A record may come after the job has run again, to its end. That is no end of the run before, which Slurm requeued, and
// how far the job came says nothing of it.
func TestARecordThatComesAfterALaterRun(t *testing.T) {
	m, l, b, _ := learner(t, node("n1", 1, 8))
	v, _ := victim(m)
	v.fails = false
	untilEnded(t, b, m, v)
	earlier := l.record(m, v)
	earlier.Start, earlier.End = v.began.Add(-time.Hour), v.began.Add(-time.Minute)
	l.record(m, v)
	tick(t, b, m, 10*time.Second)
	must.Equal(t, len(l.kept), 2, "runs judged")
	first, last := l.kept[0], l.kept[1]
	if first.State() != "REQUEUED" || !first.Outcome.Cut || !first.Ending.Start.IsZero() {
		t.Errorf("the run before: %+v", first)
	}
	if last.State() != "COMPLETED" || !last.Outcome.Learned || !last.Ending.Start.Equal(v.began) {
		t.Errorf("the last run: %+v", last)
	}
}

// A node's clock that was hours ahead as a job ended, and is right again, doesn't hold up what is learned of other runs.
func TestAnEndInTheFuture(t *testing.T) {
	m, l, b, _ := learner(t, node("n1", 1, 8))
	v, n := victim(m)
	tick(t, b, m, 5*time.Second)
	bothRun(t, v, n)
	v.State = job.Completing
	l.record(m, v, n).End = m.now.Add(5 * time.Hour)
	tick(t, b, m, time.Second)
	must.Equal(t, len(l.kept), 1, "runs judged")
}

// Whoever starts on a GPU after a job was killed there has an MPS server of its own, also where one poll shows both.
func TestAJobThatStartsAfterAKilledOneIsNotBesideIt(t *testing.T) {
	m, _, b, _ := learner(t, node("n1", 1, 8))
	p := app("a", 60, 0.2, 1000)
	killed := m.submit("ann", 2*time.Hour, p, true)
	tick(t, b, m, 5*time.Second)
	next := m.submit("ann", time.Hour, p, false)
	tick(t, b, m, 5*time.Second)
	must.Equal(t, []job.JobState{killed.State, next.State}, []job.JobState{job.Running, job.Pending}, "states")
	killed.ended, killed.State, killed.over = true, "CANCELLED", m.now
	m.advance(time.Second)
	must.Equal(t, next.State, job.Running, "the next job")
	tick(t, b, m, time.Second)
	must.Equal(t, len(b.Status().Faulted), 0, "GPUs that no job joins")
}

// A job that Slurm has killed while it computed may have broken its MPS server: nobody joins those that it has left
// there.
func TestNobodyJoinsWhereAJobWasKilled(t *testing.T) {
	for name, c := range map[string]struct {
		state  string
		idle   bool // it has done nothing for an hour
		byHand bool // it has requested its shares itself
		joins  bool
	}{
		"ended by itself":        {state: "COMPLETED", joins: true},
		"failed by itself":       {state: "FAILED", joins: true},
		"cancelled":              {state: "CANCELLED"},
		"at its limit":           {state: "TIMEOUT"},
		"out of memory":          {state: "OUT_OF_MEMORY"},
		"preempted":              {state: "PREEMPTED"},
		"cancelled, it was idle": {state: "CANCELLED", idle: true, joins: true},
		"requeued":               {state: "PENDING"},
		"requeued, it was idle":  {state: "PENDING", idle: true, joins: true},
		"with shares by hand":    {state: "CANCELLED", byHand: true},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, b, _ := learner(t, node("n1", 1, 8))
			b.IdleAfter = time.Hour
			p := app("a", 60, 0.2, 1000)
			killed, other := m.submit("ann", 2*time.Hour, p, true), m.submit("ann", 3*time.Hour, p, true)
			tick(t, b, m, 5*time.Second)
			if c.byHand {
				killed = m.submit("ann", 2*time.Hour, p, false)
				killed.Request.Count, killed.Request.Raw = 1, "gres:mps:1"
				tick(t, b, m, 5*time.Second)
			}
			bothRun(t, killed, other)
			if c.idle {
				b.TakeIdle(told("n1", time.Hour, killed))
				tick(t, b, m, time.Second)
			}
			if killed.ended, killed.State, killed.over = true, job.JobState(c.state), m.now; c.state == "PENDING" {
				killed.ended = false
				killed.requeued()
				killed.Eligible = m.now.Add(time.Hour)
			}
			third := m.submit("ann", time.Minute, p, true)
			tick(t, b, m, 5*time.Second)
			must.Equal(t, third.State == job.Running, c.joins, "the third job runs")
			must.Equal(t, len(b.Status().Faulted), map[bool]int{false: 1}[c.joins], "the GPUs that the status names")
			for _, j := range m.jobs {
				if j.State == job.Running && j != third {
					j.ended, j.State = true, "COMPLETED"
				}
			}
			tick(t, b, m, 5*time.Second)
			must.Equal(t, third.State, job.Running, "once the GPU is empty the third job")
		})
	}
}
