package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// habit is one thing that people do with jobs, on a node and a partition of its own of
// a cluster that all of them share.
type habit struct {
	*rig
	node, part string
}

// TestHabits: what people have always done with sbatch, scontrol and scancel they do with shared jobs too, and get what
// they always got. No job is lost or kept for ever, and no job waits for another user's habit.
func TestHabits(t *testing.T) {
	t.Parallel()
	habits := []struct {
		name string
		do   func(h *habit)
	}{
		{"array with a limit", arrayLimit},
		{"member held", memberHeld},
		{"running member requeued and held", memberRequeued},
		{"running member suspended", memberSuspended},
		{"predecessor requeued and held", predecessorHeld},
		{"member edited", memberEdited},
		{"members updated", membersUpdated},
		{"reservation", reservation},
		{"maintenance ahead", maintenance},
		{"partition down", partitionDown},
		{"node drained", nodeDrained},
		{"node asleep", nodeAsleep},
		{"after an array", afterArray},
		{"singleton", singleton},
		{"licence", licence},
		{"larger than a node", largerThanNode},
		{"own jobs cancelled", ownCancelled},
		{"sbatch options", sbatchOptions},
		{"maintenance of one node ahead", maintenanceOfOne},
		{"member fails", memberFails},
		{"begin", begin},
		{"a later begin", laterBegin},
		{"node list", nodeList},
		{"array in its order", arrayInOrder},
		{"preferred node", preferredNode},
	}
	extra := []string{
		"Licenses=lic:1", "SuspendProgram=/bin/true", "ResumeProgram=/bin/true", "SuspendTime=100000",
		"SuspendTimeout=1", "ResumeTimeout=60",
	}
	n := len(habits) + 1
	for i := range habits {
		node := slurmtest.NodeName(i)
		extra = append(extra, fmt.Sprintf("PartitionName=p%d Nodes=%s", i+1, node))
		switch habits[i].name {
		case "larger than a node", "maintenance of one node ahead", "node list", "preferred node":
			extra = append(extra, fmt.Sprintf("PartitionName=also%d Nodes=%s,%s", i+1, node, slurmtest.NodeName(n-1)))
		}
	}
	r := newRig(t, options{Options: slurmtest.Options{Nodes: n, Extra: extra}})
	var all sync.WaitGroup
	for i, x := range habits {
		all.Go(func() {
			t.Run(x.name, func(t *testing.T) {
				x.do(&habit{r.in(t), slurmtest.NodeName(i), fmt.Sprintf("p%d", i+1)})
			})
		})
	}
	all.Wait()
	// It may cut short what others ask at that moment.
	t.Run("reconfigured", func(t *testing.T) {
		reconfigured(&habit{r.in(t), slurmtest.NodeName(13), "p14"}) // of the singletons, where nothing was to end
	})
}

func (h *habit) sub(sleep float64, args ...string) string {
	h.t.Helper()
	return h.submit(ann, small, sleep, append([]string{"--partition=" + h.part}, args...)...)
}

// pair submits two jobs at once: the tasks of an array.
func (h *habit) pair(sleep float64, args ...string) (a, b string) {
	h.t.Helper()
	id := h.sub(sleep, append([]string{"--array=0-1"}, args...)...)
	return id + "_0", id + "_1"
}

// behind starts a job that fills the GPU until end is called, and lets two others wait behind the gate.
func (h *habit) behind(user string) (long, a, b string) {
	h.t.Helper()
	long = h.untilEnd(user, "--gres=gpu:shared", "--comment=app=m9000g90")
	h.reach("RUNNING", long)
	a, b = h.submit(user, small, 2, "--partition="+h.part), h.submit(user, small, 2, "--partition="+h.part)
	h.asTheyCame(a, b)
	return long, a, b
}

// untilEnd submits a job that runs until end is called.
func (h *habit) untilEnd(user string, args ...string) string {
	h.t.Helper()
	script := fmt.Sprintf("until test -e %s; do sleep 0.5; done", h.Path("out", "end."+h.part))
	id := must.Get(h.Submit(context.Background(), user, script, append(args, "--partition="+h.part)...))(h.t)
	return id
}

// end ends the jobs that untilEnd has submitted.
func (h *habit) end() {
	h.t.Helper()
	must.OK(h.t, os.WriteFile(h.Path("out", "end."+h.part), nil, 0o644))
}

// asItCame: the job asks for what it did at first, and waits for the bridge.
func asItCame(f map[string]string) bool {
	return f["JobState"] == "PENDING" && strings.HasSuffix(f["TresPerNode"], "mps:100") && f["ReqNodeList"] == "(null)" &&
		strings.Contains(f["Dependency"], "after:") && !strings.Contains(f["AdminComment"], "left to Slurm")
}

func (h *habit) asTheyCame(ids ...string) {
	h.t.Helper()
	for _, id := range ids {
		h.looks("as it came", id, asItCame)
	}
}

// nodeIs waits until the habit's node is in a state.
func (h *habit) nodeIs(state string) {
	h.t.Helper()
	h.until("the node is "+state,
		func() bool { return strings.Contains(h.says("scontrol", "-o", "show", "node", h.node), state) })
}

// letGo: the job asks for what it did at first, and for nothing of the bridge's.
func letGo(f map[string]string) bool {
	return strings.HasSuffix(f["TresPerNode"], "mps:100") && f["ReqNodeList"] == "(null)" &&
		!strings.Contains(f["Dependency"], "after:")
}
