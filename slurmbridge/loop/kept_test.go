package loop_test

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// keptNodes gives a cluster nodes with one GPU idle each. All but the last are kept by Slurm for jobs of two GPUs.
func keptNodes(m *model, names ...string) {
	for _, name := range names {
		m.nodes = append(m.nodes, node(name, 2, 16))
	}
	for range names {
		wholeGPUs(m, 1, 3*time.Hour)
	}
	for i := range m.jobs { // one on each node
		j := m.jobs[i]
		j.ReqNodes = m.nodes[i].Name
	}
	m.nodes = append(m.nodes, node("last", 1, 16))
}

// A job that Slurm wouldn't start by its time limit isn't sent to a node that Slurm keeps for another job, however soon
// it should end: it goes where it starts at once, as a job of a whole GPU would.
func TestSentWhereSlurmStartsIt(t *testing.T) {
	m := newModel()
	keptNodes(m, "n1", "n2", "n3", "n4", "n5", "n6")
	b := bridge(m, m.mem)
	tick(t, b, m, 2*time.Second)
	for range 2 {
		wholeGPUs(m, 2, 2*time.Hour)
	}
	tick(t, b, m, 2*time.Second)
	long := m.submit("ann", time.Minute, light(), true)
	long.TimeLimit = 10 * time.Hour
	short := m.submit("bob", time.Minute, light(), true)
	short.TimeLimit = time.Hour
	tick(t, b, m, 5*time.Second)
	must.Equal(t, long.State, job.Running, "the one with the long limit")
	must.Equal(t, long.Nodes, "last")
	must.Equal(t, short.ReqNodes != "", true, "the one whose limit ends in time is sent to a kept node")
}

// A job that was sent to a node before Slurm said that it keeps the node for another job is soon taken back: one that
// Slurm starts there can go.
func TestTakenBackFromAKeptNode(t *testing.T) {
	m := newModel()
	m.nodes = append(m.nodes, node("n1", 2, 16))
	wholeGPUs(m, 1, 3*time.Hour)
	b := bridge(m, m.mem)
	tick(t, b, m, 2*time.Second)
	wholeGPUs(m, 2, 2*time.Hour)
	long := m.submit("ann", time.Minute, light(), true)
	long.TimeLimit = 10 * time.Hour
	tick(t, b, m, 2*time.Second)
	must.Equal(t, long.ReqNodes != "" || len(long.Dependency.List) == 0, true, "it is sent")
	m.nodes[0].Planned = true
	short := m.submit("bob", time.Minute, light(), true)
	short.TimeLimit = time.Hour
	for range 20 {
		tick(t, b, m, time.Second)
	}
	must.Equal(t, len(long.Dependency.List), 1, "the one that can't start is behind the gate")
	must.Equal(t, len(short.Dependency.List), 0, "the one that Slurm would start is sent")
}

// A job that is released and doesn't start, wherever it is sent, waits for no longer than max_delay in all: then it is
// Slurm's. The nodes are tried in turn.
func TestToAndFroIsBounded(t *testing.T) {
	m := newModel()
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"} {
		m.nodes = append(m.nodes, node(name, 1, 16))
	}
	b := bridge(m, m.mem)
	tick(t, b, m, 2*time.Second)
	j := m.submit("ann", time.Minute, light(), true)
	m.paused = true
	m.beside = func() { j.Reason = "Priority" }
	sent, before := map[string]int{}, ""
	for range 400 {
		tick(t, b, m, time.Second)
		if j.ReqNodes != before && j.ReqNodes != "" {
			sent[j.ReqNodes]++
		}
		before = j.ReqNodes
	}
	must.Equal(t, len(sent) >= 6, true, "it was sent to %v", sent)
	for name, times := range sent {
		must.Equal(t, times, 1, name)
	}
	must.Equal(t, j.ReqNodes == "" && len(j.Dependency.List) == 0 && j.Request.Count == job.Units, true,
		"it is left to Slurm after 300 s: %+v", j.Job)
}
