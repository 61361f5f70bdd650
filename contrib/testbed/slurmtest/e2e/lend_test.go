package e2e

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// soonAgain has jobs that are put back start again soon.
func soonAgain(o *slurmtest.Options) { o.Extra = append(o.Extra, slurmtest.SoonAgain) }

// slowed is a world on which a job of 18 s alone, with a limit of one minute, shares a GPU that slows it far
// more than predicted: it takes 110 s there, and 5 s when it is run once more. It returns the job.
func slowed(t *testing.T, settings string, args ...string) (r *world, id string) {
	t.Helper()
	r = newWorld(t, cluster.Setup{Scale: 4, Settings: []string{settings}, Adjust: soonAgain})
	request := []string{"--gres=gpu:shared", "--requeue", "--comment=app=alexnet", "--time=1"}
	var other string
	r.unseen(func() {
		id = r.submit("if [ -n \"$SLURM_RESTART_COUNT\" ]; then exec sleep 5; fi\nexec sleep 110\n",
			append(args, request...)...)
		other = r.submit("exec sleep 115\n", "--gres=gpu:shared", "--comment=app=gromacs", "--time=10")
	})
	r.reach("RUNNING", id, other)
	return r, id
}

// A running job that sharing slows so much that it would miss its time limit gets more time: its limit is
// raised, and it comes to its end. An array task is named by its array. The gate stays meanwhile, though releases from
// 24.05 on end whatever is past its deadline once a minute.
func TestTimeIsLentBack(t *testing.T) {
	t.Parallel()
	r, id := slowed(t, "", "--array=3")
	task, gate := id+"_3", r.Gate()
	r.reach("COMPLETED", task)
	must.Equal(t, r.Gate(), gate, "the gate")
	f := r.job(task)
	t.Logf("it ran %s, its limit was %s", f["RunTime"], f["TimeLimit"])
	if f["TimeLimit"] != "00:02:00" && f["TimeLimit"] != "00:03:00" {
		t.Errorf("its limit was %s", f["TimeLimit"])
	}
	var story journal.Story
	r.until("the run's outcome", func() bool { return r.Get("/v1/why/"+task, &story) == nil && len(story.Runs) > 0 })
	if story.Runs[0].Ending.LentS < 60 {
		t.Errorf("%g s were lent", story.Runs[0].Ending.LentS)
	}
	extended := 0
	for _, c := range story.Changes {
		if c.Step == "extend" && c.Result == "ok" {
			extended++
		}
	}
	if n := r.metric("slurmbridge_changes_total", "ok", "extend"); extended == 0 || n != float64(extended) {
		t.Errorf("%d extensions in the journal, the metric says %g", extended, n)
	}
	must.Equal(t, r.metric("slurmbridge_jobs_harmed_total", "timeout"), 0, "jobs that are said to have timed out")
}

// Without that, Slurm ends it at its limit. That is harm, counted, and the job runs once more, alone.
func TestTimeIsNotLentBack(t *testing.T) {
	t.Parallel()
	r, id := slowed(t, "extend_limit: false")
	r.until("harm", func() bool { return r.metric("slurmbridge_jobs_harmed_total", "timeout") == 1 })
	r.reach("COMPLETED", id)
	must.Equal(t, r.job(id)["Restarts"], "1", "restarts")
}
