package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

// Whoever reads a status has it while the loop goes on: groups that start, run and end, and jobs that are given up,
// change no status that was published before.
func TestAPublishedStatusNeverChanges(t *testing.T) {
	type published struct {
		*job.Status
		was string
	}
	shown := func(st *job.Status) string {
		return string(must.Get(json.MarshalIndent([]any{
			st.Groups, st.Plan.Groups, st.Unmanaged, st.Explanations,
			st.Snap.Jobs, st.Apps,
		}, "", " "))(t))
	}
	for _, mode := range []job.Mode{job.Active, job.Shadow} {
		m := newModel(node("n1", 2, 8))
		b := bridge(m, m.mem)
		b.Mode = mode
		tick(t, b, m, time.Second)
		var all []published
		groups := 0
		for i := range 90 {
			if i%10 == 0 && i < 40 {
				m.submit("ann", 20*time.Second, light(), mode == job.Active)
				m.submit("ann", 30*time.Second, light(), mode == job.Active)
				m.submit("bob", 30*time.Second, nil, mode == job.Active)
			}
			tick(t, b, m, time.Second)
			st := b.Status()
			groups += len(st.Groups) + len(st.Plan.Groups)
			all = append(all, published{st, shown(st)})
		}
		must.Equal(t, groups > 0, true, "%s: groups are made", mode)
		must.Equal(t, mode == job.Shadow && m.updates+len(m.gates) > 0, false, "shadow changes Slurm")
		for i, one := range all {
			if diff := cmp.Diff(one.was, shown(one.Status)); diff != "" {
				t.Fatalf("%s: status %d has changed since it was published: %s", mode, i, diff)
			}
		}
	}
}

// A preview plans what the daemon would, and changes nothing. Where Slurm's words aren't
// understood it plans no group either.
func TestPreview(t *testing.T) {
	m, _ := started(t, node("n1", 1, 8))
	m.pair(time.Minute)
	for _, misread := range [][]job.Misread{nil, {{Field: "squeue's timelimit"}}} {
		m.misread = misread
		st := must.Get(bridge(m, m.mem).Preview(t.Context()))(t)
		must.Equal(t, len(st.Plan.Groups), 1-len(misread), "groups, where %v is misread", misread)
		must.Equal(t, m.updates, 0, "changes")
	}
}

// Jobs that wait for a decision have a position in the queue; jobs that run, were sent to a
// GPU or wait for something else have none.
func TestPositionInTheQueue(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	var jobs []*mjob
	for range 10 {
		j := m.submit("ann", time.Hour, nil, true)
		jobs, j.TimeLimit = append(jobs, j), 2*time.Hour
	}
	jobs[5].Priority = 0
	m.depend(jobs[6], jobs[6].Dependency.Raw+",afterok:"+jobs[0].Ref)
	tick(t, b, m, 3*time.Second)
	must.Equal(t, httpapi.PositionOf(b.Status(), jobs[0].Ref), nil, "the job that runs")
	gate := b.Status().Gate
	for i, c := range []struct {
		place  int
		holds  string
		starts bool
	}{
		{1, "", true},
		{2, "", true},
		{3, "", true},
		{4, "", true},
		{0, "it is held", false},
		{0, "its own dependency afterok:" + jobs[0].Ref, false},
		{5, "", true},
		{6, "", true},
		{7, "", true},
	} {
		p := httpapi.PositionOf(b.Status(), jobs[i+1].Ref)
		must.Equal(t, p.ExpectedStart.After(m.now), c.starts, "a start of job %d is expected", i+1)
		must.Equal(t, p.LeaseLeftS > 0, true, "%v s of the lease are left", p.LeaseLeftS)
		p.At, p.ExpectedStart, p.LeaseLeftS = time.Time{}, time.Time{}, 0
		must.Equal(t, *p, job.QueuePosition{Position: c.place, Of: 7, Window: 5, Holds: c.holds, Gate: gate}, "job %d", i+1)
	}
}

// A second call finds no job to ungate.
func TestUngatingAllTwice(t *testing.T) {
	m, b := started(t, node("n1", 1, 8), node("n2", 1, 8))
	// One runs, two are released as a group and don't start, one stays behind the gate.
	m.submit("ann", time.Hour, nil, true)
	tick(t, b, m, 3*time.Second)
	m.paused = true
	m.pair(time.Minute)
	m.submit("bob", time.Minute, nil, true)
	tick(t, b, m, 3*time.Second)
	for i, want := range []int{3, 0} {
		before := m.updates
		n := must.Get(loop.UngateAll(t.Context(), m, must.Get(m.mem.Load(t.Context()))(t), ""))(t)
		must.Equal(t, n, want, "jobs let go, time %d", i+1)
		must.Equal(t, m.updates > before, want > 0, "time %d: there are updates", i+1)
		m.advance(time.Second)
	}
	m.paused = false
	m.advance(2 * time.Hour)
	allRan(t, m.jobs)
}

// drawJob draws a job that takes so many seconds at the most.
func drawJob(t *rapid.T, m *model, longest int) *mjob {
	mib := rapid.SampledFrom([]float64{500, 2000, 4000, 9000}).Draw(t, "MiB")
	run := rapid.IntRange(1, longest).Draw(t, "run")
	user := rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "user")
	return m.submit(user, time.Duration(run)*time.Second, app(fmt.Sprint(mib), float64(run), 0.4, mib), true)
}

// drawCluster draws nodes, and what Slurm does with them.
func drawCluster(t *rapid.T) *model {
	oneOf := func(n int, what string) bool { return rapid.IntRange(1, n).Draw(t, what) == 1 }
	gpus := rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, "gpus a node")
	m := newModel()
	for i := range rapid.IntRange(1, 2).Draw(t, "nodes") {
		cpus := rapid.IntRange(2, 8*max(1, gpus/2)).Draw(t, "cpus")
		m.nodes = append(m.nodes, node(fmt.Sprintf("n%d", i+1), gpus, cpus))
	}
	if n := &m.nodes[0]; gpus > 1 && oneOf(4, "a GPU without shares") {
		n.ByIndex = slices.Repeat([]job.GPU{{Type: n.GPUType, Units: 100}}, n.GPUs)
		n.ByIndex[rapid.IntRange(0, n.GPUs-1).Draw(t, "which GPU")].Units = 0
		n.Units -= 100
	}
	m.leastLoaded, m.dull = gpus > 1 && oneOf(4, "least loaded"), oneOf(2, "dull")
	if oneOf(2, "limit") {
		m.most = map[string]int{"ann": rapid.IntRange(1, 3).Draw(t, "most")}
		m.mostShares = map[string]int{"bob": rapid.IntRange(100, 200).Draw(t, "most shares")}
	}
	if len(m.nodes) > 1 && oneOf(2, "closed") {
		m.shut = map[string]string{"n1": "bob"}
	}
	if oneOf(2, "busy") { // jobs start and end between two changes of one plan
		m.slip = func() time.Duration {
			return time.Duration(max(0, rapid.IntRange(-3, 2).Draw(t, "slip"))) * time.Second
		}
	}
	if oneOf(4, "slow") { // each change takes so long to arrive
		m.lag = func() time.Duration { return 4 * time.Second }
	}
	m.started = func(j *mjob) { // of one user, with memory enough
		on, sum := m.on(j.Nodes, j.gpu), 0.0
		for _, o := range on {
			if o.User != j.User || len(on) > 1 && o.profil == nil {
				t.Fatalf("%v: job %s of %s started beside %s of %s, profile %v, on %s gpu %d\n%v", m.now, j.Ref, j.User, o.Ref,
					o.User, o.profil, j.Nodes, j.gpu, m.mem.log)
			}
			if o.profil != nil {
				sum += o.profil.Peak().MemMiB
			}
		}
		if len(on) > 1 && sum > 12196*0.95 {
			t.Fatalf("%v MiB on %s gpu %d\n%v", sum, j.Nodes, j.gpu, m.mem.log)
		}
	}
	return m
}

// draw draws a cluster, a load and a history of faults, runs it to its end, and checks the invariants.
func draw(t *rapid.T) {
	m := drawCluster(t)
	besides := rapid.Bool().Draw(t, "renews beside its rounds")
	adopts := rapid.Bool().Draw(t, "adopts")
	reborn := func() *loop.Bridge {
		b := bridge(m, m.mem)
		if adopts {
			b.Adopt = adoptAll
		}
		if besides {
			m.beside = func() { _ = b.Gate.Renew(context.Background()) }
		}
		return b
	}
	b := reborn()
	total := rapid.IntRange(1, 20+5*m.nodes[0].GPUs).Draw(t, "jobs")
	submit := func() {
		j := drawJob(t, m, 90)
		switch kind := rapid.IntRange(0, 11).Draw(t, "kind"); {
		case kind == 0 && m.nodes[0].GPUs > 1: // another's job, which the bridge leaves alone
			j.profil, j.Dependency = nil, job.Dependencies{}
			j.Request = job.GPURequest{Kind: job.WholeGPU, Count: 1, Raw: "gpu:1"}
		case kind < 3: // of an unknown application
			j.profil = nil
		case kind < 8 && adopts:
			j.profil.Runs, j.Request = 1, wholeGPU
		}
	}
	ctx := context.Background()
	for step := 0; step < 400; step++ {
		if total > 0 && rapid.IntRange(0, 2).Draw(t, "arrive") == 0 {
			submit()
			total--
		}
		switch rapid.IntRange(0, 40).Draw(t, "misfortune") {
		case 0: // the bridge is killed and started again
			b = reborn()
		case 1:
			m.fail = 2
		case 2: // a job is cancelled
			if len(m.jobs) > 0 {
				j := m.jobs[rapid.IntRange(0, len(m.jobs)-1).Draw(t, "which")]
				j.ended = true
			}
		case 3: // slurmctld is away for a moment
			m.down = true
			_, _ = b.Tick(ctx)
			m.down = false
		case 4: // a running job is requeued
			for _, j := range m.jobs {
				if j.State == job.Running && !j.ended {
					j.requeued()
					j.Eligible = m.now.Add(2 * time.Minute)
					j.Expedited = rapid.Bool().Draw(t, "expedited")
					break
				}
			}
		case 5: // an operator holds the gate
			for _, g := range m.gates {
				g.Priority = 0
			}
		}
		if rapid.IntRange(0, 20).Draw(t, "dies") == 0 { // at some step, and is started again, perhaps late
			steps := []string{"look", "gate", "plan", "repaired", "journaled", "prepare", "release", "line"}
			at := rapid.SampledFrom(steps).Draw(t, "at")
			b.Fault = func(step string) {
				if step == at {
					panic(death{})
				}
			}
			lines := rapid.IntRange(1, 4).Draw(t, "lines")
			m.between = func() {
				if lines--; lines == 0 {
					b.Fault("line")
				}
			}
		}
		if !lives(t, b) {
			away := time.Duration(rapid.SampledFrom([]int{0, 5, 40, 90, 200}).Draw(t, "away")) * time.Second
			for _, j := range m.jobs {
				// What was requeued starts again with its shares unless the bridge is there in
				// time, and it isn't: nothing could be done about that.
				if j.State == job.Pending && j.Eligible.After(m.now) {
					j.Eligible = j.Eligible.Add(away)
				}
			}
			m.beside, m.between = nil, nil
			m.advance(away)
			if rapid.IntRange(0, 3).Draw(t, "journal lost") == 0 {
				clear(m.mem.groups)
			}
			b = reborn()
		}
		b.Fault, m.between = nil, nil
		m.advance(time.Duration(rapid.IntRange(1, 5).Draw(t, "seconds")) * time.Second)
	}
	// Then all is quiet; every job must come to its end.
	for i := 0; i < 4000 && !m.allEnded(); i++ {
		must.Get(b.Tick(ctx))(t)
		m.advance(2 * time.Second)
	}
	if allRan(t, m.jobs); !m.allEnded() {
		t.Fatal(m.mem.log)
	}
}

// death is how a bridge of these tests ends at a step.
type death struct{}

// lives runs one tick and reports whether the bridge survived it.
func lives(t must.T, b *loop.Bridge) (alive bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, dead := r.(death); !dead {
				panic(r)
			}
			alive = false
		}
	}()
	must.Get(b.Tick(context.Background()))(t)
	return true
}

func TestWhateverHappens(t *testing.T) { property.Check(t, draw) }

// While nothing happens, nothing is sent to Slurm: with every kind of group, with a GPU that
// no job may use, and with one whose node has no free cores.
func TestQuietQueueIsLeftAlone(t *testing.T) {
	for gpus := 1; gpus <= 2; gpus++ {
		other, full := node("n3", 1, 16), node("n4", 1, 0)
		other.Partitions = []string{"other"}
		m, b := started(t, node("n1", gpus, 16), node("n2", gpus, 16), other, full)
		for i := range 40 {
			p := app("a", 4000, 0.4, []float64{1000, 5000, 9000}[i%3])
			if i%7 == 0 {
				p = nil
			}
			m.submit([]string{"ann", "bob"}[i/2%2], time.Duration(1000+500*i)*time.Second, p, true)
		}
		tick(t, b, m, 20*time.Second)
		before, logged := m.updates, len(m.mem.log)
		tick(t, b, m, 60*time.Second)
		if m.updates != before {
			t.Errorf("%d GPUs a node: %d updates in a minute in which nothing happened", gpus, m.updates-before)
			t.Log(m.mem.log[logged:])
		}
	}
}

// A job that was cancelled while it waited for its GPU is not lost; one that Slurm, whose state was lost, doesn't know
// is.
func TestACancelledJobIsNotLost(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	m.remembers = 5 * time.Minute
	reg := prometheus.NewRegistry()
	b := bridge(m, m.mem)
	b.Metrics = loop.NewMetrics(reg)
	tick(t, b, m, time.Second)
	m.paused = true
	cancelled, gone := m.pair(time.Minute)
	tick(t, b, m, 5*time.Second)
	must.Equal(t, cancelled.Request.Count < 100 && gone.Request.Count < 100, true, "a group waits")
	cancelled.ended, cancelled.State = true, "CANCELLED"
	tick(t, b, m, 2*time.Second)
	must.Equal(t, counted(t, reg, "slurmbridge_jobs_harmed_total", "lost"), 0, "jobs lost")
	m.jobs = slices.DeleteFunc(m.jobs, func(j *mjob) bool { return j == gone })
	tick(t, b, m, 2*time.Second)
	must.Equal(t, counted(t, reg, "slurmbridge_jobs_harmed_total", "lost"), 1, "jobs lost")
}

// A bridge that comes back and finds jobs behind a gate whose lease is long over says how long.
func TestHeldPastTheLease(t *testing.T) {
	m, l, b, _ := learner(t, node("n1", 1, 8))
	m.gates[0].Begin = m.now.Add(-3 * time.Minute) // in a partition that is down, say
	j := m.submit("ann", 20*time.Second, nil, true)
	must.Get(b.Tick(t.Context()))(t)
	untilEnded(t, b, m, j)
	l.runs = append(l.runs, history.Run{ID: 1, Ref: j.Ref, User: j.User, Start: j.began, End: m.now})
	tick(t, b, m, 3*time.Second)
	if len(l.kept) != 1 || l.kept[0].Outcome.HeldS < 180 || !slices.Contains(l.kept[0].Harm(), history.HarmHeld) {
		t.Errorf("%+v", l.kept)
	}
}
