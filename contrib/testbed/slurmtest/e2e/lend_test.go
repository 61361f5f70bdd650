package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// build is where make build put the programs.
const build = "../../../../build"

// stage starts the whole of slurmbridge on a private Slurm, of which change (nil = nothing) changes
// the options. What it logged is shown where the test fails.
func stage(t *testing.T, setup cluster.Setup, change func(*slurmtest.Options)) *cluster.Stack {
	t.Helper()
	cluster.Require(t, build)
	setup.Build, setup.Policy, setup.Lua = build, "greedy", filepath.Join("..", "..", "..", "job_submit.lua")
	s := cluster.New(setup)
	o := s.Options()
	if change != nil {
		change(&o)
	}
	slurmtest.New(t, o)
	t.Cleanup(s.Stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Logs(40))
		}
	})
	must.OK(t, s.Bridge(t.Context()))
	return s
}

// slowed is a stage on which a job of 18 s alone, with a limit of one minute, shares a GPU that slows it far
// more than predicted: it takes 110 s there, and 5 s when it is run once more. It returns the job.
func slowed(t *testing.T, settings string, args ...string) (s *cluster.Stack, id string) {
	t.Helper()
	s = stage(t, cluster.Setup{Scale: 4}, nil)
	bridge := s.Procs[0].Process
	signal := func(sig syscall.Signal) {
		must.OK(t, bridge.Signal(sig))
	}
	if settings != "" {
		conf := must.Get(os.OpenFile(s.Path("slurmbridge.yaml"), os.O_APPEND|os.O_WRONLY, 0))(t)
		defer conf.Close()
		must.Get(fmt.Fprintln(conf, settings))(t)
		signal(syscall.SIGHUP)
		time.Sleep(2 * time.Second) // until it is read
	}
	submit := func(script string, args ...string) string {
		id := must.Get(s.Submit(t.Context(), cluster.Owner, script, append([]string{"--gres=gpu:shared", "--requeue"}, args...)...))(t)
		return id
	}
	signal(syscall.SIGSTOP) // both are there before it decides
	id = submit("if [ -n \"$SLURM_RESTART_COUNT\" ]; then exec sleep 5; fi\nexec sleep 110\n", append(args, "--comment=app=alexnet", "--time=1")...)
	other := submit("exec sleep 115\n", "--comment=app=gromacs", "--time=10")
	signal(syscall.SIGCONT)
	for _, id := range []string{id, other} {
		if state, ok := s.WaitState(t.Context(), 30*time.Second, id, "RUNNING"); !ok {
			t.Fatalf("job %s is %s", id, state)
		}
	}
	return s, id
}

// metric is the value of a series of the bridge's, "" = there is none.
func metric(t *testing.T, s *cluster.Stack, series string) string {
	t.Helper()
	text := must.Get(s.Text("/metrics"))(t)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// A running job that sharing slows so much that it would miss its time limit gets more time: its limit is
// raised, and it comes to its end. An array task is named by its array.
func TestTimeIsLentBack(t *testing.T) {
	t.Parallel()
	s, id := slowed(t, "", "--array=3")
	task := id + "_3"
	if state, ok := s.WaitState(t.Context(), 3*time.Minute, task, "COMPLETED", "TIMEOUT", "FAILED", "PENDING"); !ok || state != "COMPLETED" {
		t.Errorf("it is %s", state)
	}
	f := must.Get(s.Job(t.Context(), task))(t)
	t.Logf("it ran %s, its limit was %s", f["RunTime"], f["TimeLimit"])
	if f["TimeLimit"] != "00:02:00" && f["TimeLimit"] != "00:03:00" {
		t.Errorf("its limit was %s", f["TimeLimit"])
	}
	var story struct {
		Changes  []struct{ Step, Result string }
		Outcomes []struct {
			LentS float64 `json:"lent_s"`
		}
	}
	if !slurmtest.Wait(t.Context(), 20*time.Second, func() bool { return s.Get("/v1/why/"+task, &story) == nil && len(story.Outcomes) > 0 }) {
		t.Fatal("the run was not judged")
	}
	if story.Outcomes[0].LentS < 60 {
		t.Errorf("%g s were lent", story.Outcomes[0].LentS)
	}
	extended := 0
	for _, c := range story.Changes {
		if c.Step == "extend" && c.Result == "ok" {
			extended++
		}
	}
	if n := metric(t, s, `slurmbridge_changes_total{result="ok",step="extend"}`); extended == 0 || n != fmt.Sprint(extended) {
		t.Errorf("%d extensions in the journal, the metric says %s", extended, n)
	}
	if n := metric(t, s, `slurmbridge_jobs_harmed_total{kind="timeout"}`); n != "0" {
		t.Errorf("%s jobs are said to have timed out", n)
	}
}

// Without that, Slurm ends it at its limit. That is harm, counted, and the job runs once more, alone.
func TestTimeIsNotLentBack(t *testing.T) {
	t.Parallel()
	s, id := slowed(t, "extend_limit: false")
	if state, ok := s.WaitState(t.Context(), 2*time.Minute, id, "TIMEOUT", "COMPLETED", "PENDING"); !ok || state == "COMPLETED" {
		t.Fatalf("it is %s", state)
	}
	if !slurmtest.Wait(t.Context(), 30*time.Second, func() bool { return metric(t, s, `slurmbridge_jobs_harmed_total{kind="timeout"}`) == "1" }) {
		t.Error("it is not counted as harm")
	}
	if state, ok := s.WaitState(t.Context(), 2*time.Minute, id, "COMPLETED"); !ok {
		f, _ := s.Job(t.Context(), id)
		t.Errorf("it did not run once more, it is %s: %v", state, f)
	}
}
