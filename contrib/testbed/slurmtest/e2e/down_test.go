package e2e

import (
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// While the controller doesn't answer a record waits in the node's spool, and a job's end doesn't wait for it.
func TestControllerUnreachableAtEpilog(t *testing.T) {
	t.Parallel()
	r := newWorld(t, cluster.Setup{Policy: "dqn"})
	spool := func() int { return len(must.Get(filepath.Glob(r.Path("spool-agent", "*")))(t)) }
	ids := r.pair("gromacs")
	r.reach("RUNNING", ids...)
	if n := spool(); n != 0 {
		t.Fatalf("%d records before any job has ended", n)
	}
	mend := r.breaks("bridge killed")
	if r.ready() {
		t.Fatal("somebody else answers in the controller's place")
	}
	r.reach("COMPLETED", ids...)
	r.until("records in the spool", func() bool { return spool() == len(ids) })
	r.until("a word of it in the agent's log",
		func() bool { return r.logged("gpuprof", "records wait for the controller") })
	mend()
	r.until("the bridge is back", r.ready)
	r.records(len(ids))
	r.until("an empty spool", func() bool { return spool() == 0 })
	// They reached the journal: both members' starts are known.
	if len(r.groups()) == 0 {
		t.Error("the journal lost the groups")
	}
	for _, g := range r.groups() {
		if !g.Complete {
			t.Errorf("of a group of %d not every start is known", len(g.Members))
		}
	}
}
