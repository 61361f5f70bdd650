package loop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A user at a limit blocks no GPU for others, keeps sharing, and runs as many jobs as the
// limit allows.
func TestUserAtALimit(t *testing.T) {
	m := newModel(node("n1", 1, 8), node("n2", 1, 8))
	m.most = map[string]int{"ann": 2}
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	var anns, bobs []*mjob
	for range 20 {
		anns = append(anns, m.submit("ann", 100*time.Second, app("a", 100, 0.3, 2000), true))
	}
	for range 6 {
		bobs = append(bobs, m.submit("bob", 100*time.Second, app("b", 100, 0.3, 2000), true))
	}
	begin := m.now
	tick(t, b, m, 8*time.Second)
	if n, k := m.runs("ann"), m.runs("bob"); n != 2 || k < 2 {
		t.Errorf("%d of ann's and %d of bob's run", n, k)
	}
	p := httpapi.PositionOf(b.Status(), anns[19].Ref)
	if p == nil || !strings.Contains(p.Holds, "QOSMaxJobsPerUserLimit") {
		t.Errorf("the last of ann's: %+v", p)
	}
	for !anns[19].ended && m.now.Sub(begin) < time.Hour {
		tick(t, b, m, 10*time.Second)
		for ref, why := range b.Status().Unmanaged {
			t.Fatalf("job %s is left to Slurm: %s", ref, why)
		}
	}
	if took := m.now.Sub(begin); took > 10*105*time.Second {
		t.Errorf("ann's take %v, ten times two of 100 s", took)
	}
	for _, j := range bobs {
		if !j.ended || j.began.Sub(begin) > 4*time.Minute {
			t.Errorf("bob's job %s began after %v", j.Ref, j.began.Sub(begin))
		}
	}
	shared := 0
	for _, j := range anns {
		if j.Request.Count < job.Units {
			shared++
		}
	}
	if shared < 16 {
		t.Errorf("%d of ann's shared a GPU", shared)
	}
}

// A user whose limit is the shares of one GPU has several jobs on it, not one after the
// other.
func TestLimitOnShares(t *testing.T) {
	m := newModel(node("n1", 1, 8), node("n2", 1, 8))
	m.mostShares = map[string]int{"ann": 100}
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	var jobs []*mjob
	for range 12 {
		jobs = append(jobs, m.submit("ann", 100*time.Second, app("a", 100, 0.3, 2000), true))
	}
	// The jobs of a pair end at different times.
	jobs[0].run = 30 * time.Second
	begin := m.now
	for m.now.Sub(begin) < time.Hour && !jobs[11].ended {
		tick(t, b, m, 10*time.Second)
	}
	together := 0
	for _, j := range jobs {
		if j.Request.Count < job.Units {
			together++
		}
	}
	if took := m.now.Sub(begin); took > 10*time.Minute || together < 10 || len(b.Status().Unmanaged) > 0 {
		t.Errorf("they take %v, %d shared a GPU, left alone: %v", took, together, b.Status().Unmanaged)
	}
}

// A lifted limit is noticed within a minute, although no job ends.
func TestLimitLifted(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	m.most = map[string]int{"ann": 1}
	mem := newMemory()
	b := bridge(m, mem)
	tick(t, b, m, time.Second)
	for range 3 {
		m.submit("ann", time.Hour, app("a", 3600, 0.3, 2000), true)
	}
	tick(t, b, m, 10*time.Second)
	updates := m.updates
	tick(t, b, m, 30*time.Second)
	if n := m.runs("ann"); n != 1 || m.updates != updates {
		t.Errorf("%d run; %d updates while nothing happened", n, m.updates-updates)
	}
	delete(m.most, "ann")
	tick(t, b, m, 50*time.Second)
	if n := m.runs("ann"); n != 3 {
		t.Errorf("%d run after the limit was lifted\n%s", n, strings.Join(mem.log, "\n"))
	}
}

// Jobs that a node is closed to go to other nodes at once, and to that node soon after it is
// open again; other jobs use it meanwhile.
func TestClosedNode(t *testing.T) {
	m := newModel(node("n1", 1, 8), node("n2", 1, 8))
	m.shut = map[string]string{"n1": "ann"}
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	a := m.submit("ann", 100*time.Second, app("a", 100, 0.9, 9000), true)
	tick(t, b, m, 15*time.Second)
	if a.State != job.Running || a.Nodes != "n2" {
		t.Fatalf("ann's job is %s on %q", a.State, a.Nodes)
	}
	next := m.submit("ann", 100*time.Second, app("b", 100, 0.9, 9000), true)
	bob := m.submit("bob", 5*time.Second, app("b", 5, 0.9, 9000), true)
	tick(t, b, m, 20*time.Second)
	if !bob.ended || bob.Nodes != "n1" {
		t.Errorf("bob's job is %s on %q", bob.State, bob.Nodes)
	}
	m.shut = nil
	tick(t, b, m, time.Minute)
	if next.State != job.Running && !next.ended {
		t.Errorf("it is %s with both nodes open", next.State)
	}
	for ref, why := range b.Status().Unmanaged {
		t.Errorf("job %s is left to Slurm: %s", ref, why)
	}
}

// Where all nodes are closed to a job they are tried ever less often, and the job's position
// says why it waits.
func TestAllNodesClosed(t *testing.T) {
	m := newModel(node("n1", 1, 8), node("n2", 1, 8))
	m.shut = map[string]string{"n1": "ann", "n2": "ann"}
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	j := m.submit("ann", 100*time.Second, app("a", 100, 0.9, 9000), true)
	tick(t, b, m, 15*time.Second)
	p := httpapi.PositionOf(b.Status(), j.Ref)
	if p == nil || !strings.Contains(p.Holds, "reserved") || !strings.Contains(p.Holds, "on n") {
		t.Errorf("it says %+v", p)
	}
	var updates []int
	for range 3 {
		before := m.updates
		tick(t, b, m, 20*time.Minute)
		updates = append(updates, m.updates-before)
	}
	// In the end each node is tried every ten minutes, for three updates a try.
	if updates[0] > 45 || updates[2] < 6 || updates[2] > 15 {
		t.Errorf("updates in 20 minutes each: %v", updates)
	}
	if why := b.Status().Unmanaged[j.Ref]; why != "" || j.State != job.Pending {
		t.Errorf("it is %s, left to Slurm: %q", j.State, why)
	}
	m.shut = nil
	tick(t, b, m, 11*time.Minute)
	if !j.ended {
		t.Errorf("it is %s after the node was opened", j.State)
	}
}

// Slurm keeps the idle GPUs of a node for a job of four GPUs, and says Priority of the sharers
// behind it. None of them is let go, none is held up by the bridge, and all share once the job has
// run.
func TestSharersBehindALargeJob(t *testing.T) {
	m := newModel(node("n1", 4, 32))
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	first := m.submit("bob", 10*time.Minute, nil, false)
	large := m.submit("bob", time.Minute, nil, false)
	first.Request = job.GPURequest{Kind: job.WholeGPU, Count: 1, Raw: "gres:gpu:1"}
	large.Request = job.GPURequest{Kind: job.WholeGPU, Count: 4, Raw: "gres:gpu:4"}
	tick(t, b, m, 2*time.Second)
	var sharers []*mjob
	for range 6 {
		sharers = append(sharers, m.submit("ann", 100*time.Second, app("a", 100, 0.3, 2000), true))
	}
	begin, updates := m.now, m.updates
	for !large.ended && m.now.Sub(begin) < time.Hour {
		tick(t, b, m, 10*time.Second)
		for _, j := range sharers {
			if j.State != job.Pending && !large.ended {
				t.Fatalf("job %s is %s before the large one has run", j.Ref, j.State)
			}
		}
	}
	if tries := m.updates - updates; tries > 6*3*8 {
		t.Errorf("%d updates while Slurm kept the node", tries)
	}
	if d := b.Status().MaxDelayS; d > 30 {
		t.Errorf("the bridge counts %v s of delay as its own", d)
	}
	tick(t, b, m, 12*time.Minute)
	for _, j := range sharers {
		if !j.ended || j.Request.Count == job.Units {
			t.Errorf("job %s is %s with %d shares", j.Ref, j.State, j.Request.Count)
		}
	}
	for ref, why := range b.Status().Unmanaged {
		t.Errorf("job %s is left to Slurm: %s", ref, why)
	}
}

// A job that a limit will never let start is left to Slurm, and the next one runs.
func TestJobBeyondALimitOfItsOwn(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	m.most = map[string]int{"ann": 0}
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	big := m.submit("ann", time.Minute, app("a", 60, 0.3, 2000), true)
	next := m.submit("bob", time.Minute, app("b", 60, 0.3, 2000), true)
	m.reason = "QOSMaxWallDurationPerJobLimit"
	tick(t, b, m, 10*time.Second)
	if b.Status().Unmanaged[big.Ref] == "" || big.Request.Count != job.Units || len(big.Dependency.List) != 0 {
		t.Errorf("it asks for %d, waits for %q, left alone: %q", big.Request.Count, big.Dependency.Raw, b.Status().Unmanaged[big.Ref])
	}
	if next.State != job.Running {
		t.Errorf("the next is %s", next.State)
	}
	delete(m.most, "ann")
	tick(t, b, m, 2*time.Minute)
	if !big.ended && big.State != job.Running {
		t.Errorf("it is %s when its limit is gone", big.State)
	}
}

// Slurm allocates whole cores, and memory for each of their threads. No more jobs are sent to a
// node than have room there: none of a group waits while the others run.
func TestWholeCoresAndTheirMemory(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*job.Node)
		ask    func(*mjob)
		run    int
	}{
		{"cores", func(n *job.Node) { n.CPUs = 8 }, func(*mjob) {}, 4},
		{"memory by the CPU", func(n *job.Node) { n.MemMiB = 1500 }, func(j *mjob) { j.HostMemMiB, j.MemPerCPU = 300, true }, 2},
		{"memory by the node", func(n *job.Node) { n.MemMiB = 1500 }, func(j *mjob) { j.HostMemMiB = 300 }, 5},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := node("n1", 1, 16)
			n.CPUsPerAlloc = 2
			c.change(&n)
			other := node("n2", 1, 16) // of another kind in another partition
			other.CPUsPerAlloc, other.Partitions = 8, []string{"big"}
			m := newModel(n, other)
			b := bridge(m, newMemory())
			tick(t, b, m, time.Second)
			for range 5 {
				c.ask(m.submit("ann", time.Hour, app("a", 3600, 0.1, 500), true))
			}
			tick(t, b, m, 10*time.Second)
			if got := m.runs("ann"); got != c.run {
				t.Errorf("%d run, want %d", got, c.run)
			}
			for _, g := range b.Status().Groups {
				for i := range g.Members {
					if g.Members[i].State == job.MemberWaiting && g.Kind != job.Next {
						t.Errorf("job %s waits for room in a group of %d", g.Members[i].Ref, len(g.Members))
					}
				}
			}
		})
	}
}
