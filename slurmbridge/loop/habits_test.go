package loop_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// released makes a group of n jobs that Slurm doesn't start until it is no longer paused.
func released(t *testing.T, n int) (b *loop.Bridge, m *model, members []*mjob) {
	t.Helper()
	m = newModel(node("n1", 1, 8))
	b = bridge(m, newMemory())
	tick(t, b, m, time.Second)
	m.paused = true
	for range n {
		members = append(members, m.submit("ann", 60*time.Second, app("alexnet", 60, 0.3, 3000), true))
	}
	tick(t, b, m, time.Second)
	for _, j := range members {
		if len(j.Dependency.List) > 0 || j.ReqNodes != "n1" || j.Request.Count == 100 {
			t.Fatalf("job %s was not released: %+v", j.Ref, j.Job)
		}
	}
	return b, m, members
}

// An unmanaged job keeps no shares and no node of the bridge's: what its owner did not edit
// is restored.
func TestOwnerEditsOneValue(t *testing.T) {
	for name, edit := range map[string]func(m *model, j, mate *mjob){
		"dependency": func(m *model, j, mate *mjob) { m.depend(j, "afterany:"+mate.Ref) },
		"nodes":      func(_ *model, j, _ *mjob) { j.ReqNodes = "n2" },
		"shares":     func(_ *model, j, _ *mjob) { j.Request.Count = 30 },
	} {
		t.Run(name, func(t *testing.T) {
			b, m, members := released(t, 2)
			j, mate := members[0], members[1]
			edit(m, j, mate)
			nodes, shares := "", 100
			switch name {
			case "nodes":
				nodes = "n2"
			case "shares":
				shares = 30
			}
			for range 3 {
				tick(t, b, m, time.Second)
			}
			if j.ReqNodes != nodes || j.Request.Count != shares {
				t.Errorf("it asks for %d shares on %q", j.Request.Count, j.ReqNodes)
			}
			if b.Status().Unmanaged[j.Ref] == "" {
				t.Error("it is not left to its owner")
			}
			m.paused = false
			tick(t, b, m, 70*time.Second)
			tick(t, b, m, 5*time.Second)
			if mate.State != job.Running && !mate.ended {
				t.Errorf("the other is %s", mate.State)
			}
		})
	}
}

// A held member goes back behind the gate at once, and the others start without it. When its
// owner releases it, it is planned with again.
func TestHeldMember(t *testing.T) {
	b, m, members := released(t, 2)
	j, mate := members[0], members[1]
	was := j.Priority
	j.Priority = 0
	for range 2 {
		tick(t, b, m, time.Second)
	}
	if j.Request.Count != 100 || j.ReqNodes != "" || !j.Dependency.Has("after", b.Gate.ID()) {
		t.Errorf("the held job asks for %d shares on %q and waits for %v", j.Request.Count, j.ReqNodes, j.Dependency.List)
	}
	m.paused = false
	tick(t, b, m, 3*time.Second)
	if mate.State != job.Running || j.State != job.Pending {
		t.Errorf("held: %s, the other: %s", j.State, mate.State)
	}
	must.Equal(t, b.Status().Unmanaged[j.Ref], "", "the held job is left to Slurm")
	j.Priority = was
	tick(t, b, m, time.Second)
	tick(t, b, m, 3*time.Second)
	if j.State != job.Running {
		t.Errorf("released, it is %s: %+v", j.State, j.Job)
	}
}

// A member that Slurm starts again before all others is given back what it asked for, and no
// gate holds it.
func TestExpeditedMember(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	p := app("alexnet", 60, 0.3, 3000)
	j, mate := m.submit("ann", 60*time.Second, p, true), m.submit("ann", 60*time.Second, p, true)
	tick(t, b, m, 3*time.Second)
	tick(t, b, m, time.Second)
	if j.State != job.Running || mate.State != job.Running || j.Request.Count == 100 {
		t.Fatalf("%+v, %+v", j.Job, mate.Job)
	}
	j.State, j.Expedited, j.Nodes, j.GPUs, j.Start = job.Pending, true, "", nil, time.Time{}
	tick(t, b, m, time.Second)
	if j.Request.Count != 100 || j.ReqNodes != "" || len(j.Dependency.List) > 0 {
		t.Errorf("it asks for %d shares on %q and waits for %v", j.Request.Count, j.ReqNodes, j.Dependency.List)
	}
	tick(t, b, m, time.Second)
	if why := b.Status().Unmanaged[j.Ref]; !strings.Contains(why, "before all other jobs") {
		t.Errorf("unmanaged: %q", why)
	}
}

// A job that can't be grouped is ungated at once, with what it asks for.
func TestUnmanageableJobsAreUngated(t *testing.T) {
	for name, c := range map[string]struct {
		ask  func(j *mjob)
		says string
	}{
		"reservation": {func(j *mjob) { j.Reservation = "class" }, "reservation"},
		"exclusive":   {func(j *mjob) { j.Exclusive = true }, "exclusive nodes"},
		"many tasks":  {func(j *mjob) { j.CPUs = 9 }, "large enough"},
		"much memory": {func(j *mjob) { j.HostMemMiB = 64001 }, "large enough"},
		"partition":   {func(j *mjob) { j.Partition = "other,cpu" }, "large enough"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node("n1", 1, 8)
			big := node("n2", 1, 64)
			big.Partitions = []string{"elsewhere"}
			m := newModel(n, big)
			mem := newMemory()
			b := bridge(m, mem)
			tick(t, b, m, time.Second)
			m.nodes[0].Up, m.nodes[1].Up = false, false // nothing can start
			p := app("alexnet", 60, 0.3, 3000)
			plain, odd := m.submit("ann", 60*time.Second, p, true), m.submit("ann", 60*time.Second, p, true)
			c.ask(odd)
			tick(t, b, m, time.Second)
			if len(odd.Dependency.List) != 0 || odd.Request.Count != 100 || odd.ReqNodes != "" {
				t.Errorf("it asks for %d shares on %q and waits for %v", odd.Request.Count, odd.ReqNodes, odd.Dependency.List)
			}
			if !slices.ContainsFunc(mem.log, func(l string) bool { return strings.Contains(l, c.says) }) {
				t.Errorf("nothing says %q: %q", c.says, mem.log)
			}
			if !plain.Dependency.Has("after", b.Gate.ID()) {
				t.Errorf("an ordinary one waits for %v", plain.Dependency.List)
			}
		})
	}
}

// A job that failed while sharing isn't run again where other jobs waited for its end: they
// have seen it fail. Jobs that the bridge sends after it don't count.
func TestAwaitedJobIsNotRunAgain(t *testing.T) {
	for name, wait := range map[string]func(m *model, v *mjob){
		"nobody":           func(*model, *mjob) {},
		"job without GPU":  func(m *model, v *mjob) { m.awaited = map[string]bool{v.Ref: true} },
		"array as a whole": func(m *model, v *mjob) { v.ArrayID = 7; m.awaited = map[string]bool{"7": true} },
		"shared job": func(m *model, v *mjob) {
			m.depend(m.submit("ann", time.Minute, v.profil, true), "afterok:"+v.Ref+",after:"+m.gates[0].id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(node("n1", 1, 8))
			l := &ledger{}
			b, _ := learning(m, newMemory(), l)
			tick(t, b, m, time.Second)
			v, n := victim(m)
			tick(t, b, m, 3*time.Second)
			wait(m, v)
			m.submit("ann", time.Minute, app("vgg16", 60, 0.9, 9000), true) // is to follow both
			tick(t, b, m, 3*time.Second)
			if v.State != job.Running || n.State != job.Running {
				t.Fatalf("%s, %s", v.State, n.State)
			}
			for !v.ended {
				tick(t, b, m, time.Second)
			}
			m.awaited = nil
			l.record(m, v, n)
			tick(t, b, m, 6*time.Second)
			if len(l.kept) != 1 || l.kept[0].Suspect == "" || l.kept[0].Again != (name == "nobody") {
				t.Errorf("%+v", l.kept)
			}
		})
	}
}

// A sleeping node is woken only when the others are full.
func TestSleepingNodeIsUsedLast(t *testing.T) {
	asleep := node("n1", 1, 8)
	asleep.Asleep = true
	m := newModel(asleep, node("n2", 1, 8))
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	p := app("vgg16", 60, 0.9, 9000)
	first := m.submit("ann", time.Minute, p, true)
	tick(t, b, m, 3*time.Second)
	second := m.submit("ann", time.Minute, p, true)
	tick(t, b, m, 3*time.Second)
	if first.Nodes != "n2" || second.Nodes != "n1" {
		t.Errorf("the first runs on %q, the second on %q", first.Nodes, second.Nodes)
	}
}

// A job whose node goes down again and again before it starts is restored each time, and it
// is no mark against the job.
func TestFailingNodeIsNoMarkAgainstTheJob(t *testing.T) {
	b := tracker.New()
	down := node("n1", 1, 8)
	down.Up = false
	s := &job.Snapshot{At: time.Unix(1e9, 0), Nodes: []job.Node{down}, Jobs: []job.Job{{
		Ref: "1", State: job.Pending, Priority: 1, ReqNodes: "n1",
		Request: job.GPURequest{Kind: job.Shares, Sharing: job.MPS, Count: 50},
	}}}
	for id := range int64(3) {
		b.Groups[id] = &job.Group{
			ID: id, Kind: job.StartNow, State: job.Released, Node: "n1", Pinned: true,
			Members: []job.Member{{Ref: "1", State: job.MemberWaiting, Shares: 50, WasGres: "mps:100"}},
		}
		if repairs, _ := b.Observe(s, "7"); len(repairs) != 1 || *repairs[0].Update.Dependency != "after:7" {
			t.Errorf("%+v", repairs)
		}
		delete(b.Groups, id)
	}
	if why := b.Unmanaged["1"]; why != "" {
		t.Error(why)
	}
}
