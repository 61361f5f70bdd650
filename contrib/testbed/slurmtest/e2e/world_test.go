package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// build is where make build put the programs, and ours where the job_submit script lies.
const build, ours = "../../../../build", "../../../job_submit.lua"

// world is the whole of slurmbridge on a private Slurm with simulated GPUs, on which jobs are as people write them.
type world struct {
	*cluster.Stack
	stage
}

// newWorld starts a world; 20 GPU seconds pass in one of its seconds, unless the setup says otherwise.
func newWorld(t *testing.T, setup cluster.Setup) *world {
	t.Helper()
	setup.Policy = cmp.Or(setup.Policy, "greedy")
	w := start(t, setup)
	must.OK(t, w.Bridge(t.Context()))
	return w
}

// start starts a world without a bridge. What it logged is shown where the test fails.
func start(t *testing.T, setup cluster.Setup) *world {
	t.Helper()
	setup.Build, setup.Lua, setup.Scale = build, ours, cmp.Or(setup.Scale, 20)
	cluster.Require(t, setup.Build)
	s := cluster.New(setup)
	slurmtest.New(t, s.Options())
	t.Cleanup(s.Stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Logs(40))
		}
	})
	return &world{s, stage{s.Cluster, t}}
}

// breaks plays a fault of the table, and returns what mends it.
func (r *world) breaks(fault string) (mend func()) {
	r.t.Helper()
	again := must.Get(r.Break(fault, 0))(r.t)
	return func() {
		r.t.Helper()
		must.OK(r.t, again())
	}
}

// unseen does something between two polls of the bridge.
func (r *world) unseen(f func()) {
	r.t.Helper()
	defer r.breaks("bridge stopped")()
	f()
}

// atOnce submits jobs that no poll of the bridge comes between: the first would have started before the last is there.
func (r *world) atOnce(n int, submit func(i int) string) (ids []string) {
	r.t.Helper()
	r.unseen(func() {
		for i := range n {
			ids = append(ids, submit(i))
		}
	})
	return ids
}

// gpusim is a script's line that runs an application with arguments on its node's GPUs.
func (r *world) gpusim(args string) string {
	return fmt.Sprintf("export GPUSIM_STATE=%s-$SLURMD_NODENAME\n[ -e $GPUSIM_STATE ] || export GPUSIM_STATE=%[1]s\n%s "+
		"run %s\n",
		r.State(), r.Bin("gpusim"), args)
}

// submit submits a job of ann's and returns its number.
func (r *world) submit(script string, args ...string) string {
	r.t.Helper()
	return must.Get(r.Submit(r.t.Context(), ann, script, args...))(r.t)
}

// run submits a job that may share, of an application that runs gpusim with arguments.
func (r *world) run(app, terms, gpusim string, args ...string) string {
	r.t.Helper()
	return r.submit(r.gpusim(gpusim), append(args, "--gres=gpu:shared", "--requeue", "--comment=app="+app+terms)...)
}

// pair submits two jobs of an application that no poll comes between.
func (r *world) pair(app string) []string {
	r.t.Helper()
	return r.atOnce(2, func(int) string { return r.run(app, "", app) })
}

// ask runs a command of slurmbridge's as a user, "" = root.
func (r *world) ask(as string, args ...string) (string, error) {
	return r.RunAs(r.t.Context(), as, r.Bin("slurmbridge"),
		slices.Concat(args, []string{"--config", r.Path("slurmbridge.yaml")})...)
}

// command runs one of slurmbridge's own, as SlurmUser, and reads the JSON that it prints.
func (r *world) command(into any, args ...string) {
	r.t.Helper()
	out, err := r.ask("slurm", append(args, "--json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	if err != nil {
		r.t.Fatal(err, out)
	}
}

// group is what the bridge tells of one.
type group struct {
	Members []struct {
		Ref       string  `json:"ref"`
		Predicted float64 `json:"predicted"`
	} `json:"members"`
	Complete bool    `json:"complete"`
	SkewS    float64 `json:"skew_s"`
}

func (g *group) refs() (out []string) {
	for _, m := range g.Members {
		out = append(out, m.Ref)
	}
	return out
}

func (r *world) groups() (all []group) {
	r.t.Helper()
	must.OK(r.t, r.Get("/v1/groups", &all))
	return all
}

// together reports whether jobs were in one group.
func (r *world) together(ids ...string) bool {
	r.t.Helper()
	return slices.ContainsFunc(r.groups(), func(g group) bool {
		return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(g.refs(), id) })
	})
}

// metric sums what the bridge's series of this name with these label values show, 0 where there are none.
func (r *world) metric(name string, values ...string) float64 {
	r.t.Helper()
	return must.Get(r.Metric(name, values...))(r.t)
}

// records waits until the bridge has so many.
func (r *world) records(n int) {
	r.t.Helper()
	r.until(fmt.Sprint(n, " records"), func() bool { return r.metric("slurmbridge_records_total", "new") >= float64(n) })
}

func (r *world) ready() bool {
	_, err := r.Text("/-/ready")
	return err == nil
}

// logged reports whether one line of a daemon's log holds all of the words.
func (r *world) logged(daemon string, words ...string) bool {
	r.t.Helper()
	body := must.Get(os.ReadFile(r.Path("log", daemon+".log")))(r.t)
	for line := range strings.Lines(string(body)) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}

func (r *world) signal(daemon string, sig syscall.Signal) {
	r.t.Helper()
	must.OK(r.t, r.Daemon(daemon).Process.Signal(sig))
}
