package loop_test

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A held member goes back behind the gate at once, and the others start without it. When its
// owner releases it, it is planned with again.
func TestHeldMember(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	m.paused = true
	j, mate := m.pair(time.Minute)
	tick(t, b, m, time.Second)
	must.Equal(t, len(j.Dependency.List) == 0 && j.ReqNodes == "n1" && j.Request.Count < 100, true, "it is released")
	was := j.Priority
	j.Priority = 0
	tick(t, b, m, 2*time.Second)
	if j.Request.Count != 100 || j.ReqNodes != "" || !j.Dependency.Has("after", b.Gate.ID()) {
		t.Errorf("the held job asks for %d shares on %q and waits for %v", j.Request.Count, j.ReqNodes, j.Dependency.List)
	}
	m.paused = false
	tick(t, b, m, 3*time.Second)
	must.Equal(t, mate.State == job.Running && j.State == job.Pending, true, "the other starts without it")
	must.Equal(t, b.Status().Unmanaged[j.Ref], "", "the held job is left to Slurm")
	j.Priority = was
	tick(t, b, m, 4*time.Second)
	must.Equal(t, j.State, job.Running, "released, the job")
}

// A member that Slurm starts again before all others is given back what it asked for, and no gate holds it.
func TestExpeditedMember(t *testing.T) {
	m, b := started(t, node("n1", 1, 8))
	j, mate := m.pair(time.Minute)
	tick(t, b, m, 4*time.Second)
	bothRun(t, j, mate)
	j.requeued()
	j.Expedited = true
	tick(t, b, m, time.Second)
	if j.Request.Count != 100 || j.ReqNodes != "" || len(j.Dependency.List) > 0 {
		t.Errorf("it asks for %d shares on %q and waits for %v", j.Request.Count, j.ReqNodes, j.Dependency.List)
	}
	tick(t, b, m, time.Second)
	must.Equal(t, b.Status().Unmanaged[j.Ref], job.CauseExpedited.String())
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
			if o := l.judged(t, b, m, v, n); o.Suspect == "" || o.Again != (name == "nobody") {
				t.Errorf("%+v", o)
			}
		})
	}
}
