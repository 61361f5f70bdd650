package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// A task that its own array keeps back keeps no other job waiting.
func arrayLimit(h *habit) {
	both := h.atOnce(2, func(i int) string {
		if i == 0 {
			return h.untilEnd(ann, "--array=0-1%1", "--gres=gpu:shared", "--comment=app="+small)
		}
		return h.sub(1)
	})
	id, mate := both[0], both[1]
	h.reach("RUNNING", id+"_0")
	h.reach("RUNNING COMPLETED", mate)
	if f := h.job(id + "_1"); f["JobState"] != "PENDING" || strings.Contains(f["AdminComment"], "left to Slurm") {
		h.t.Errorf("the second task: %v", f)
	}
	h.end()
	h.reach("COMPLETED", id+"_1")
}

// Tasks that run one at a time, as chained runs with checkpoints do, run in their order.
func arrayInOrder(h *habit) {
	id := h.sub(1, "--array=0-3%1")
	var last time.Time
	for task := range 4 {
		ref := fmt.Sprintf("%s_%d", id, task)
		h.reach("COMPLETED", ref)
		if at := h.started(ref); at.Before(last) {
			h.t.Errorf("task %s started before the one ahead of it", ref)
		}
		last = h.span(ref)[1]
	}
}

// Of two idle nodes a job has the one with the feature that it prefers.
func preferredNode(h *habit) {
	h.scontrol("update", "NodeName="+h.node, "AvailableFeatures=fast"+h.node, "ActiveFeatures=fast"+h.node)
	id := h.sub(1, "--partition=also"+h.part[1:], "--prefer=fast"+h.node)
	h.reach("COMPLETED", id)
	must.Equal(h.t, h.job(id)["NodeList"], h.node, "its node")
}

func memberHeld(h *habit) {
	_, a, b := h.behind(ann)
	h.as(ann, "scontrol", "hold", a)
	h.asTheyCame(a)
	h.end()
	h.reach("COMPLETED", b)
	h.asTheyCame(a)
	h.as(ann, "scontrol", "release", a)
	h.reach("COMPLETED", a)
}

func memberRequeued(h *habit) {
	a, b := h.pair(15)
	h.reach("RUNNING", a)
	h.as(ann, "scontrol", "requeuehold", a)
	h.asTheyCame(a)
	h.reach("COMPLETED", b)
	h.as(ann, "scontrol", "release", a)
	h.as(ann, "scontrol", "update", "JobId="+a, "StartTime=now") // Slurm's own two minutes
	h.reach("COMPLETED", a)
}

// Others share with a job that is suspended, and it goes on when it is resumed.
func memberSuspended(h *habit) {
	a, b := h.pair(15) // on a busy machine it takes seconds to see that it runs
	h.reach("RUNNING", a)
	h.scontrol("suspend", a)
	h.reach("COMPLETED", b)
	c := h.sub(1)
	h.reach("COMPLETED", c)
	h.reach("SUSPENDED", a)
	h.scontrol("resume", a)
	h.reach("COMPLETED", a)
}

// Jobs that wait for a GPU start when the job there goes back into the queue for good.
func predecessorHeld(h *habit) {
	long, a, b := h.behind(ann)
	h.as(ann, "scontrol", "requeuehold", long)
	h.reach("COMPLETED", a, b)
	h.asTheyCame(long)
}

// A job whose owner replaces the gate by another dependency waits for that alone.
func memberEdited(h *habit) {
	other := h.any(ann, 1, "--partition="+h.part, "--begin=now+1hour")
	_, a, b := h.behind(ann)
	h.as(ann, "scontrol", "update", "JobId="+a, "Dependency=afterany:"+other)
	h.end()
	h.reach("COMPLETED", b)
	h.as(ann, "scontrol", "update", "JobId="+other, "StartTime=now")
	h.reach("COMPLETED", a)
	if h.started(a).Before(h.started(other)) {
		h.t.Errorf("job %s started before %s, which it waits for", a, other)
	}
}

func membersUpdated(h *habit) {
	_, a, b := h.behind(ann)
	for _, set := range []string{
		"TimeLimit=5", "Nice=100", "Comment=a|b\nJobId=1 Dependency=", "MinMemoryNode=5000", "Name=a\n'\"b", "ExcNodeList=n1",
		"StartTime=now+3",
	} {
		h.as(ann, "scontrol", "update", "JobId="+a, set)
	}
	h.scontrol("update", "JobId="+b, "Priority=5")
	h.end()
	h.reach("COMPLETED", a, b)
}

func reconfigured(h *habit) {
	_, a, b := h.behind(ann)
	h.scontrol("reconfigure")
	h.end()
	h.reach("COMPLETED", a, b)
}

// reserve makes a reservation of the habit's node.
func (h *habit) reserve(name string, args ...string) {
	h.t.Helper()
	h.scontrol(append([]string{"create", "reservation", "ReservationName=" + name, "Duration=10", "Nodes=" + h.node},
		args...)...)
}

// Jobs run in their reservation, and others wait as they came.
func reservation(h *habit) {
	h.reserve("class", "StartTime=now", "Users="+ann)
	h.nodeIs("RESERVED")
	in := h.sub(2, "--reservation=class")
	out := h.sub(1)
	h.reach("COMPLETED", in)
	h.asTheyCame(out)
	h.cancel(out)
}

// Before a maintenance those start that end before it. The others stay as they came.
func maintenance(h *habit) {
	h.reserve("maint", "StartTime=now+200", "Users=root", "Flags=maint")
	long := h.sub(1, "--time=30")
	time.Sleep(2 * time.Second)
	short := h.sub(1, "--time=1")
	h.reach("COMPLETED", short)
	h.asTheyCame(long)
	h.cancel(long)
}

// A job that would run into one node's maintenance gets another node.
func maintenanceOfOne(h *habit) {
	h.reserve("one", "StartTime=now+200", "Users=root", "Flags=maint")
	long := h.sub(1, "--time=30", "--partition=also"+h.part[1:])
	h.reach("COMPLETED", long)
	h.none([]string{long})
}

func partitionDown(h *habit) {
	long, a, b := h.behind(ann)
	h.scontrol("update", "PartitionName="+h.part, "State=DOWN")
	h.end()
	h.reach("COMPLETED", long)
	time.Sleep(time.Second) // Slurm may look at them
	h.asTheyCame(a, b)
	h.scontrol("update", "PartitionName="+h.part, "State=UP")
	// Another user's jobs are not what Slurm has said it of, and start at once.
	c := h.submit(bob, small, 1, "--partition="+h.part)
	h.reach("COMPLETED", c)
	h.cancel(a, b)
}

func nodeDrained(h *habit) {
	_, a, b := h.behind(ann)
	h.scontrol("update", "NodeName="+h.node, "State=DRAIN", "Reason=test")
	h.asTheyCame(a, b)
	h.end()
	h.scontrol("update", "NodeName="+h.node, "State=RESUME")
	h.reach("COMPLETED", a, b)
}

// A node that power saving has put to sleep is woken by a shared job.
func nodeAsleep(h *habit) {
	h.scontrol("update", "NodeName="+h.node, "State=POWER_DOWN_FORCE")
	h.nodeIs("POWERED_DOWN")
	id := h.sub(1)
	h.reach("CONFIGURING RUNNING COMPLETED", id)
	h.cancel(id)
}

// What is let go keeps its owner's dependency on all of an array.
func afterArray(h *habit) {
	array := h.untilEnd(ann, "--array=0-1")
	next := h.sub(1, "--dependency=afterok:"+array)
	alone := h.sub(1, "--dependency=afterok:"+array, "--exclusive=user")
	h.looks("let go", alone, func(f map[string]string) bool {
		return letGo(f) && strings.Contains(f["Dependency"], "afterok:"+array+"_*")
	})
	h.end()
	h.reach("COMPLETED", next, alone)
}

func singleton(h *habit) {
	args := []string{"--job-name=one at a time", "--dependency=singleton"}
	a, b := h.sub(3, args...), h.sub(1, args...)
	h.reach("COMPLETED", b)
	if d := h.started(b).Sub(h.started(a)); d < 2*time.Second {
		h.t.Errorf("the second started %v after the first", d)
	}
}

func licence(h *habit) {
	a, b := h.pair(4, "--licenses=lic:1")
	h.reach("COMPLETED", a, b)
	if d := h.started(b).Sub(h.started(a)).Abs(); d < 3*time.Second {
		h.t.Errorf("two jobs with the only licence started %v apart", d)
	}
}

// A job with more tasks than a node has cores gets two nodes, as it always did.
func largerThanNode(h *habit) {
	id := h.sub(1, "--partition=also"+h.part[1:], "--ntasks=17")
	h.reach("COMPLETED", id)
	must.Equal(h.t, h.job(id)["NumNodes"], "2", "nodes")
}

// scancel of all that waits leaves what runs, and others.
func ownCancelled(h *habit) {
	long, a, b := h.behind(bob)
	other := h.sub(1)
	h.as(bob, "scancel", "--user="+bob, "--state=pending", "--partition="+h.part)
	h.end()
	h.reach("COMPLETED", other, long)
	h.reach("CANCELLED", a, b)
}

func sbatchOptions(h *habit) {
	args := []string{"--gres=gpu:shared", "--partition=" + h.part, "--output=/dev/null"}
	must.Contain(h.t, h.as(ann, "sbatch", append(args, "--test-only", "--wrap=true")...), "to start at", "--test-only")
	// Shared GPUs, and each refusal is Slurm's own and comes at once.
	for _, bad := range []string{
		"--constraint=nothing", "--reservation=nothing", "--mem=1000000",
		"--gres=gpu:shared,tea:1", "--gres=gpu:Shared",
	} {
		if out, err := h.RunAs(context.Background(), ann, "sbatch", append(args, bad, "--wrap=true")...); err == nil ||
			!strings.Contains(out, "error") {
			h.t.Errorf("%s: %s", bad, out)
		}
	}
	script := "#!/bin/sh\n#SBATCH --gpus=shared:1\n#SBATCH --signal=B:USR1@10 --export=NONE --nice=10 " +
		"--no-requeue\n#SBATCH --job-name=\"it's\"\nexit 3\n"
	id := must.Get(h.Submit(h.t.Context(), ann, script, "--partition="+h.part, "--deadline=now+300", "--time=1",
		"--comment=app="+small))(h.t)
	h.reach("FAILED", id)
	if out, err := h.RunAs(context.Background(), ann, "sbatch",
		append(args, "--wait", "--parsable", "--wrap=exit 3")...); err == nil ||
		!strings.Contains(err.Error(), "exit status 3") {
		h.t.Errorf("--wait: %s, %v", out, err)
	}
}

// A member that fails at once, or is cancelled while it runs, takes no other member along.
func memberFails(h *habit) {
	script := fmt.Sprintf("[ $SLURM_ARRAY_TASK_ID = 0 ] && exit 3\nuntil test -e %s; do sleep 0.5; done",
		h.Path("out", "end."+h.part))
	id := must.Get(h.Submit(h.t.Context(), ann, script, "--partition="+h.part, "--gres=gpu:shared",
		"--comment=app="+small, "--array=0-2"))(h.t)
	h.reach("FAILED", id+"_0")
	h.reach("RUNNING", id+"_1", id+"_2")
	h.cancel(id + "_1")
	h.reach("CANCELLED", id+"_1")
	h.end()
	h.reach("COMPLETED", id+"_2")
}

func begin(h *habit) {
	later := time.Now().Add(9 * time.Second)
	a, b := h.sub(1, "--begin=now+9"), h.sub(1)
	h.reach("COMPLETED", b, a)
	if s := h.started(a); s.Before(later.Add(-time.Second)) {
		h.t.Errorf("job %s started %v early", a, later.Sub(s))
	}
}

// A job that can't share and has a begin time of its own is let go, and keeps that time.
func laterBegin(h *habit) {
	later := h.sub(1, "--begin=now+1hour", "--exclusive=user")
	begins := h.job(later)["StartTime"]
	h.looks("let go", later, letGo)
	if f := h.job(later); f["JobState"] != "PENDING" || f["StartTime"] != begins {
		h.t.Errorf("%s, begins %s, was to begin %s", f["JobState"], f["StartTime"], begins)
	}
	h.cancel(later)
}

// Jobs run on the nodes that their owner names, or not on those, and a held job waits.
func nodeList(h *habit) {
	partition := "--partition=also" + h.part[1:]
	held := h.sub(1, partition, "--hold")
	a, b, c := h.sub(3, partition, "--nodelist="+h.node), h.sub(3, partition, "--nodelist="+h.node),
		h.sub(3, partition, "--exclude="+h.node)
	for _, id := range []string{a, b, c} {
		h.reach("RUNNING COMPLETED", id)
		if on := h.job(id)["NodeList"]; (on == h.node) == (id == c) {
			h.t.Errorf("job %s ran on %s", id, on)
		}
	}
	h.reach("PENDING", held)
	h.as(ann, "scontrol", "release", held)
	h.reach("COMPLETED", held)
}
