package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

const build = "../../../build"

// rig is a stack whose daemons a test can end and start again.
type rig struct {
	*cluster.Stack
	t *testing.T
}

// newRig starts Slurm with hooks, agent and bridge, every application known. All
// of it ends with the test.
func newRig(t *testing.T) *rig {
	t.Helper()
	cluster.Require(t, build)
	// Gromacs takes 4 s: time to end a daemon while it runs.
	s := cluster.New(cluster.Setup{Scale: 20, Build: build, Lua: "../../job_submit.lua", Policy: "dqn"})
	slurmtest.New(t, s.Options())
	t.Cleanup(s.Stop)
	must.OK(t, s.Bridge(t.Context()))
	return &rig{s, t}
}

// daemon is the latest process of this name.
func (r *rig) daemon(name string) *cluster.Daemon {
	r.t.Helper()
	p := r.Daemon(name)
	if p == nil {
		r.t.Fatalf("%s was never started", name)
	}
	return p
}

// breaks plays a fault of the table, and returns what mends it.
func (r *rig) breaks(fault string) (mend func()) {
	r.t.Helper()
	again := must.Get(r.Break(fault, 0))(r.t)
	return func() {
		r.t.Helper()
		must.OK(r.t, again())
	}
}

// pair submits two shared jobs that run an application each. The bridge is stopped
// meanwhile, so that no look comes between them.
func (r *rig) pair(app string) (ids []string) {
	r.t.Helper()
	defer r.breaks("bridge stopped")()
	script := fmt.Sprintf("export GPUSIM_STATE=%s\nexec %s run %s\n", r.State(), r.Bin("gpusim"), app)
	for range 2 {
		id := must.Get(r.Submit(r.t.Context(), cluster.Owner, script, "--gres=gpu:shared", "--comment=app="+app))(r.t)
		ids = append(ids, id)
	}
	return ids
}

// reach fails the test unless each job gets into one of the states.
func (r *rig) reach(ids []string, states ...string) {
	r.t.Helper()
	for _, id := range ids {
		if last, ok := r.WaitState(r.t.Context(), 40*time.Second, id, states...); !ok {
			r.t.Fatalf("job %s is %s, not %v", id, last, states)
		}
	}
}

// until fails the test unless ok comes true; what is it that was waited for.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	if !slurmtest.Wait(r.t.Context(), 20*time.Second, ok) {
		r.t.Fatalf("in vain: %s", what)
	}
}

func (r *rig) ready() bool {
	_, err := r.Text("/-/ready")
	return err == nil
}

// metric sums what the bridge's series of this name with these label values show,
// 0 where there are none.
func (r *rig) metric(name string, values ...string) float64 {
	r.t.Helper()
	sum := must.Get(r.Metric(name, values...))(r.t)
	return sum
}

// files lists a folder's files that end so; a folder that isn't there has none.
func (r *rig) files(dir, suffix string) (names []string) {
	r.t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) {
			names = append(names, e.Name())
		}
	}
	return names
}

// logged reports whether one line of a daemon's log holds all of the words.
func (r *rig) logged(name string, words ...string) bool {
	r.t.Helper()
	body := must.Get(os.ReadFile(r.Path("log", name+".log")))(r.t)
	for line := range strings.Lines(string(body)) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}

// alive reports whether a daemon runs; one that has ended is a zombie until it is
// waited for.
func (r *rig) alive(name string) bool {
	r.t.Helper()
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.daemon(name).Process.Pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(body), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func (r *rig) signal(name string, sig syscall.Signal) {
	r.t.Helper()
	must.OK(r.t, r.daemon(name).Process.Signal(sig))
}
