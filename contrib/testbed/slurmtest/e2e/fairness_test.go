package e2e

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// A job of Slurm's own that wants a whole GPU, and came before the jobs that could
// join the running one, starts when that one has ended: no joining job keeps it waiting.
// The others get their turn after it. (None of several jobs on the GPU ends before it
// here: Slurm 22.05.8 would then start it next to the remaining ones, with or without a
// bridge; 24.11.5 doesn't.)
func TestWholeJobOfSlurmsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{leave: slurmtest.Partition})
	long := r.any(ann, 12, "--gres=mps:50", "--comment=app="+small, "--time=2")
	r.state(20*time.Second, long, "RUNNING")
	whole := r.any(bob, 3, "--gres=gpu:titanxp:1", "--time=2")
	var joiners []string
	for range 3 {
		joiners = append(joiners, r.submit(ann, small, 20, "--time=2"))
		time.Sleep(1500 * time.Millisecond)
	}
	r.state(30*time.Second, long, "COMPLETED")
	free, err := time.ParseInLocation("2006-01-02T15:04:05", r.job(long)["EndTime"], time.Local)
	must.OK(t, err)
	// Without anything to wake it Slurm looks at its queue once a minute at the latest.
	r.state(10*time.Second, whole, "RUNNING", "COMPLETED")
	var at time.Time
	slurmtest.Wait(t.Context(), 5*time.Second, func() bool { at = r.started(whole); return !at.IsZero() })
	if after := at.Sub(free); after < 0 {
		t.Errorf("the whole job starts %v before the GPU is free", -after)
	} else {
		t.Logf("it starts %v after the GPU is free", after.Round(10*time.Millisecond))
	}
	for _, id := range joiners {
		r.state(90*time.Second, id, "COMPLETED")
		if s := r.started(id); s.Before(at) {
			t.Errorf("job %s, which came later, starts %v before the whole job", id, at.Sub(s))
		}
	}
}
