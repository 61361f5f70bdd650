package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

func (r *rig) cancel(ids ...string) {
	r.t.Helper()
	must.Get(r.Run(context.Background(), "scancel", ids...))(r.t)
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	long := r.submit(ann, "m9000g90", 8)
	r.state(20*time.Second, long, "RUNNING")
	var waiting []string
	for range 4 {
		waiting = append(waiting, r.submit(ann, "m9000g90", 1))
	}
	r.cancel(waiting[0], waiting[3]) // one perhaps released to follow, one gated
	r.cancel(long)                   // and the one that runs
	for _, id := range waiting[1:3] {
		r.state(60*time.Second, id, "COMPLETED")
	}
}

// A member that fails at once, or is cancelled while it runs, takes no other member along.
func TestMemberFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	bad := must.Get(r.Submit(context.Background(), ann, "exit 3", "--gres=gpu:shared", "--comment=app="+small))(t)
	a := r.submit(ann, small, 4)
	b := r.submit(ann, small, 4)
	r.state(30*time.Second, bad, "FAILED")
	r.state(30*time.Second, a, "RUNNING", "COMPLETED")
	r.cancel(a)
	r.state(30*time.Second, b, "COMPLETED")
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	a := r.submit(ann, small, 5)
	b := r.submit(ann, small, 5)
	r.state(20*time.Second, a, "RUNNING")
	r.scontrol("requeue", a)
	// What was its share is taken back: it waits for the bridge with a whole GPU's.
	if !r.Wait(t.Context(), 20*time.Second, func() bool {
		f := r.job(a)
		return f["JobState"] == "PENDING" && strings.HasSuffix(f["TresPerNode"], "mps:100") && strings.Contains(f["Dependency"], "after:")
	}) {
		t.Errorf("the requeued job was not put back: %v", r.job(a))
	}
	r.state(60*time.Second, b, "COMPLETED")
	// Slurm itself keeps a requeued job for two minutes; its owner can't wait.
	r.scontrol("update", "JobId="+a, "StartTime=now")
	r.state(60*time.Second, a, "COMPLETED")
}

func TestGateCancelledByHand(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	long := r.submit(ann, "m9000g90", 5)
	r.state(20*time.Second, long, "RUNNING")
	ids := []string{r.submit(bob, "m9000g90", 1), r.submit(ann, "m9000g90", 1)}
	old := r.gate()
	r.cancel(old)
	if !slurmtest.Wait(t.Context(), 30*time.Second, func() bool { g := r.gate(); return g != "" && g != old }) {
		t.Error("no new gate")
	}
	ids = append(ids, r.submit(ann, small, 1))
	for _, id := range ids {
		r.state(60*time.Second, id, "COMPLETED")
	}
}

func TestControllerRestarted(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	long := r.submit(ann, "m9000g90", 12)
	r.state(20*time.Second, long, "RUNNING")
	ids := []string{long}
	for i := range 4 {
		ids = append(ids, r.submit([]string{ann, bob}[i%2], small, 1))
	}
	time.Sleep(time.Second)
	r.StopController()
	time.Sleep(3 * time.Second)
	must.OK(t, r.StartController(t.Context()))
	for _, id := range ids {
		r.state(90*time.Second, id, "COMPLETED")
	}
}

// Bridge killed at every step: within a lease all its jobs run without it.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"look", "gate", "plan", "repaired", "journaled", "prepare", "release"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			// How soon Slurm starts what is let go is a matter of its own settings.
			r := newRig(t, options{Options: slurmtest.Options{Scheduler: "bf_interval=1"}})
			r.kill()
			var ids []string
			for i := range 4 {
				ids = append(ids, r.submit([]string{ann, ann, bob, bob}[i], small, 0.2))
			}
			r.start("E2E_FAULT=" + step)
			if !slurmtest.Wait(t.Context(), 30*time.Second, func() bool { return !alive(r.bridge.Process.Pid) }) {
				t.Fatalf("the bridge never came to step %s", step)
			}
			r.bridge = nil
			killed := time.Now()
			for _, id := range ids {
				r.state(60*time.Second, id, "COMPLETED")
			}
			t.Logf("killed at %s: all four had run %v later, the lease is 20 s", step, time.Since(killed).Round(time.Second))
		})
	}
}

// A bridge that is killed half way and comes back takes up what it left.
func TestKilledAndBack(t *testing.T) {
	slurmtest.OfOneRelease(t)
	t.Parallel()
	for _, step := range []string{"journaled", "prepare", "release"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{})
			r.kill()
			ids := []string{r.submit(ann, small, 2), r.submit(ann, small, 2), r.submit(bob, small, 1)}
			r.start("E2E_FAULT=" + step)
			if !slurmtest.Wait(t.Context(), 30*time.Second, func() bool { return !alive(r.bridge.Process.Pid) }) {
				t.Fatalf("the bridge never came to step %s", step)
			}
			r.bridge = nil
			// Between preparing and releasing a member is cancelled.
			r.cancel(ids[1])
			r.start()
			r.state(40*time.Second, ids[0], "COMPLETED")
			r.state(60*time.Second, ids[2], "COMPLETED")
		})
	}
}

func TestShadowChangesNothingOfAnyJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{mode: job.Shadow})
	hold := r.any(ann, 30, "--gres=mps:100")
	r.state(20*time.Second, hold, "RUNNING")
	for i := range 6 {
		r.submit([]string{ann, bob}[i%2], small, 1)
	}
	time.Sleep(time.Second)
	fields := func() string {
		out := must.Get(r.Run(context.Background(), "scontrol", "-o", "show", "jobs"))(t)
		var keep []string
		for _, w := range strings.Fields(out) {
			// What passes by itself: Slurm's own clock and plans.
			if k, _, _ := strings.Cut(w, "="); k != "RunTime" && k != "LastSchedEval" && k != "Scheduler" && k != "StartTime" && k != "EndTime" && k != "SchedNodeList" &&
				k != "Reason" && k != "AccrueTime" && k != "PreemptTime" {
				keep = append(keep, w)
			}
		}
		return strings.Join(keep, "\n")
	}
	before := fields()
	must.Get(r.Run(context.Background(), "sh", "-c", "echo look >> "+r.WakeFile))(t)
	time.Sleep(12 * time.Second) // more than a poll
	was, is := strings.Split(before, "\n"), strings.Split(fields(), "\n")
	if len(was) != len(is) {
		t.Errorf("%d fields before, %d after", len(was), len(is))
	}
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] {
			t.Errorf("%s became %s", was[i], is[i])
		}
	}
	if r.gate() != "" {
		t.Error("shadow made a gate")
	}
}

func TestTwoNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{Options: slurmtest.Options{Nodes: 2}})
	var ids []string
	for i := range 8 {
		ids = append(ids, r.submit([]string{ann, bob}[i%2], small, 3))
	}
	r.noMixing(ids, 90*time.Second)
}

func TestSeveralGPUsANode(t *testing.T) {
	t.Parallel()
	for _, o := range []slurmtest.Options{{GPUs: 2, Sharing: "shard"}, {GPUs: 2, Sharing: "mps", AllSharing: true}} {
		t.Run(o.Sharing, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{Options: o})
			var ids []string
			for i := range 10 {
				ids = append(ids, r.submit([]string{ann, bob}[i%2], small, 2+float64(i%3)))
			}
			r.noMixing(ids, 120*time.Second)
		})
	}
}

// noMixing watches until all jobs have ended that no GPU ever has two users, and
// that some was shared.
func (r *rig) noMixing(ids []string, within time.Duration) {
	r.t.Helper()
	most := 0
	ok := r.Wait(context.Background(), within, func() bool {
		out, err := r.Run(context.Background(), "scontrol", "-d", "-o", "show", "jobs")
		if err != nil {
			return false
		}
		on := map[string]string{}
		count := map[string]int{}
		done := 0
		for line := range strings.SplitSeq(out, "\n") {
			f := map[string]string{}
			for _, w := range strings.Fields(line) {
				if k, v, ok := strings.Cut(w, "="); ok && f[k] == "" {
					f[k] = v
				}
			}
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
	if !ok {
		for _, id := range ids {
			if f := r.job(id); f["JobState"] != "COMPLETED" {
				r.t.Errorf("job %s: %v", id, f)
			}
		}
	}
	if most < 2 {
		r.t.Error("no GPU was ever shared")
	}
}

// A member that Slurm starts again before all others (from 25.11 on) has a GPU to itself then,
// on any node: its own is drained, since an epilog's failure is what such jobs are started
// again for.
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
	script := fmt.Sprintf("sleep 5; test -n \"$SLURM_RESTART_COUNT\" || { touch %s/fails.$SLURM_JOB_ID; exit 1; }; rm %s/fails.$SLURM_JOB_ID", r.Path("out"), r.Path("out"))
	var ids []string
	r.unseen(func() {
		id := must.Get(r.Submit(t.Context(), ann, script, "--gres=gpu:shared", "--comment=app="+small, "--requeue=expedite"))(t)
		ids = append(ids, id, r.submit(ann, small, 30))
	})
	for _, id := range ids {
		r.state(30*time.Second, id, "RUNNING")
	}
	var f map[string]string
	if !r.Wait(t.Context(), 30*time.Second, func() bool {
		f = r.job(ids[0])
		return f["JobState"] == "EXPEDITING" && strings.HasSuffix(f["TresPerNode"], "mps:100") && f["ReqNodeList"] == "(null)"
	}) {
		t.Fatalf("it isn't given back what it asked for: %v", f)
	}
	if f["Dependency"] != "(null)" {
		t.Errorf("it waits for %s", f["Dependency"])
	}
	r.scontrol("update", "NodeName=n2", "State=RESUME")
	r.state(30*time.Second, ids[0], "COMPLETED")
	if f := r.job(ids[0]); f["NodeList"] != "n2" || !strings.Contains(f["AdminComment"], "before all other jobs") {
		t.Errorf("it ran on %s: %s", f["NodeList"], f["AdminComment"])
	}
	r.state(40*time.Second, ids[1], "COMPLETED")
}
