package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// A bridge is killed at a step: within a lease all its jobs run without it. One that comes back takes up what it left,
// though a member was cancelled meanwhile.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"look", "gate", "plan", "repaired", "journaled", "prepare", "release"} {
		for _, back := range []bool{false, true} {
			if back && !slices.Contains([]string{"journaled", "prepare", "release"}, step) {
				continue // it has left nothing
			}
			t.Run(fmt.Sprintf("%s, back: %v", step, back), func(t *testing.T) {
				if back {
					slurmtest.OfOneRelease(t)
				}
				t.Parallel()
				r := newRig(t, options{Options: slurmtest.Options{Scheduler: slurms + ",bf_interval=1"}})
				r.kill()
				var ids []string
				for i := range 4 {
					ids = append(ids, r.submit([]string{ann, ann, bob, bob}[i], small, 0.2))
				}
				r.diesAt(step)
				if back {
					r.cancel(ids[1])
					ids = slices.Delete(ids, 1, 2)
					r.start()
				}
				killed := time.Now()
				r.reach("COMPLETED", ids...)
				t.Logf("killed at %s: all had run %v later, the lease is 20 s", step, time.Since(killed).Round(time.Second))
			})
		}
	}
}

func TestShadowChangesNothingOfAnyJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{settings: settings{Mode: job.Shadow}})
	hold := r.any(ann, 600, "--gres=mps:100")
	r.reach("RUNNING", hold)
	for i := range 6 {
		r.submit([]string{ann, bob}[i%2], small, 1)
	}
	time.Sleep(time.Second)
	// What passes by itself: Slurm's own clock and plans.
	passes := func(field, _ string) bool {
		return slices.Contains([]string{
			"RunTime", "LastSchedEval", "Scheduler", "StartTime", "EndTime", "SchedNodeList", "Reason", "AccrueTime", "PreemptTime",
		}, field)
	}
	fields := func() []map[string]string {
		all := must.Get(r.Jobs(t.Context()))(t)
		for _, f := range all {
			maps.DeleteFunc(f, passes)
		}
		return all
	}
	before := fields()
	r.as("", "sh", "-c", "echo look >> "+r.WakeFile)
	time.Sleep(12 * time.Second) // more than a poll
	must.Equal(t, fields(), before, "all fields of all jobs")
	must.Equal(t, r.gate(), "", "shadow's gate")
}

// noMixing watches until all jobs have ended that no GPU ever has two users, and that some was shared.
func (r *rig) noMixing(ids []string) {
	r.t.Helper()
	most := 0
	r.until("all jobs have ended", func() bool {
		all, err := r.Jobs(r.t.Context())
		if err != nil {
			return false
		}
		on, count, done := map[string]string{}, map[string]int{}, 0
		for _, f := range all {
			switch f["JobState"] {
			case "COMPLETED":
				done++
			case "RUNNING":
				_, idx, _ := strings.Cut(f["GRES"], "(")
				key := fmt.Sprint(f["NodeList"], idx)
				user := f["UserId"]
				if on[key] != "" && on[key] != user {
					r.t.Errorf("%s has jobs of %s and %s", key, on[key], user)
				}
				on[key] = user
				count[key]++
				most = max(most, count[key])
			}
		}
		return done >= len(ids)
	})
	if most < 2 {
		r.t.Error("no GPU was ever shared")
	}
}

// A member that Slurm starts again before all others (from 25.11 on) has a GPU to itself then, on any node: its own is
// drained, since an epilog's failure is what such jobs are started again for.
func TestExpeditedRequeue(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{Options: slurmtest.Options{
		Nodes: 2, Extra: []string{"SlurmctldParameters=enable_expedited_requeue"},
		Prepare: func(c *slurmtest.Cluster) error {
			c.Options.Epilog = c.Path("epilog")
			return os.WriteFile(c.Options.Epilog, []byte("#!/bin/sh\n! test -e "+c.Path("out")+"/fails.$SLURM_JOB_ID\n"), 0o755)
		},
	}})
	if text.ParseRelease(r.Release).Before(text.Release{25, 11, 0}) {
		t.Skip("Slurm 25.11 or later has it: make test-compat")
	}
	r.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=test")
	script := fmt.Sprintf("sleep 5; test -n \"$SLURM_RESTART_COUNT\" || { touch %s/fails.$SLURM_JOB_ID; exit 1; }; rm "+
		"%s/fails.$SLURM_JOB_ID", r.Path("out"), r.Path("out"))
	var ids []string
	r.unseen(func() {
		id := must.Get(r.Submit(t.Context(), ann, script, "--gres=gpu:shared", "--comment=app="+small,
			"--requeue=expedite"))(t)
		ids = append(ids, id, r.submit(ann, small, 30))
	})
	r.reach("RUNNING", ids...)
	r.looks("given back what it asked for, and waits for no job", ids[0], func(f map[string]string) bool {
		return f["JobState"] == "EXPEDITING" && strings.HasSuffix(f["TresPerNode"], "mps:100") &&
			f["ReqNodeList"] == "(null)" && f["Dependency"] == "(null)"
	})
	r.scontrol("update", "NodeName=n2", "State=RESUME")
	r.reach("COMPLETED", ids[0])
	if f := r.job(ids[0]); f["NodeList"] != "n2" || !strings.Contains(f["AdminComment"], "before all other jobs") {
		t.Errorf("it ran on %s: %s", f["NodeList"], f["AdminComment"])
	}
	r.reach("COMPLETED", ids[1])
}
