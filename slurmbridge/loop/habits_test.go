package loop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
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
	must.Equal(t, j.State, job.Running, "released, the job")
}

// A member that Slurm starts again before all others is given back what it asked for, and no
// gate holds it.
func TestExpeditedMember(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
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

// A job that failed while sharing isn't run again where other jobs waited for its end: they
// have seen it fail. Jobs that the bridge sends after it don't count.
func TestAwaitedJobIsNotRunAgain(t *testing.T) {
	for name, wait := range map[string]func(m *model, v *mjob){
		"nobody":           func(*model, *mjob) {},
		"job without GPU":  func(m *model, v *mjob) { m.awaited = map[string]bool{v.Ref: true} },
		"array as a whole": func(m *model, v *mjob) { v.ArrayID = 7; m.awaited = map[string]bool{"7": true} },
		"shared job": func(m *model, v *mjob) {
			m.depend(m.submit("ann", time.Minute, v.profil, true), "afterok:"+v.Ref+",after:"+m.gates[0].ID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, l, b, _ := learner(t, node("n1", 1, 8))
			v, n := victim(m)
			tick(t, b, m, 3*time.Second)
			wait(m, v)
			m.submit("ann", time.Minute, app("vgg16", 60, 0.9, 9000), true) // is to follow both
			tick(t, b, m, 3*time.Second)
			bothRun(t, v, n)
			untilEnded(t, b, m, v)
			m.awaited = nil
			l.record(m, v, n)
			tick(t, b, m, 6*time.Second)
			if len(l.kept) != 1 || l.kept[0].Suspect == "" || l.kept[0].Again != (name == "nobody") {
				t.Errorf("%+v", l.kept)
			}
		})
	}
}
