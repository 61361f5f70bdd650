package e2e

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	rlapps "github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// learned is what is known of an application by card. Until that is of so many cards and runs it runs jobs, one after
// the other: on a busy machine the agent may miss too much of a run.
func (r *world) learned(app string, cards, runs int, run func() string) map[string]*rlcore.Profile {
	r.t.Helper()
	for range 20 {
		var list []struct{ Profile *rlcore.Profile }
		r.command(&list, "profiles", "list")
		of, n := map[string]*rlcore.Profile{}, 0
		for _, e := range list {
			if e.Profile.App == app {
				of[e.Profile.Model] = e.Profile
				n += e.Profile.Runs
			}
		}
		if len(of) >= cards && n >= runs {
			return of
		}
		id := run()
		r.reach("COMPLETED", id)
		r.until("an outcome of job "+id, func() bool {
			var story journal.Story
			r.command(&story, "why", id)
			return len(story.Runs) > 0
		})
	}
	r.t.Fatalf("in vain: profiles of %s on %d cards, of %d runs", app, cards, runs)
	return nil
}

// comment waits until a job's AdminComment has a text.
func (r *world) comment(id, text string) {
	r.t.Helper()
	r.looks("said of: "+text, id, func(f map[string]string) bool { return strings.Contains(f["AdminComment"], text) })
}

// unhurried has jobs share on a busy machine, too: Slurm's pauses count twentyfold here, so that all are late there.
var unhurried = []string{"grace: 20"}

// An application that takes three quarters of the card at its start never shares, until one job of it has tried with
// less memory, alone: then two of its jobs share. A job that tries with too little fails, and runs again from its
// beginning with all of it.
func TestPreallocatingApplicationTriesWithLess(t *testing.T) {
	t.Parallel()
	r := newWorld(t, cluster.Setup{Cold: true, Models: []string{"v100"}, Settings: unhurried})
	const greedy = "gromacs --preallocate 0.75"
	runs := func(terms string) func() string { return func() string { return r.run("greedy", terms, greedy) } }
	if p := r.learned("greedy", 1, 1, runs("")); p["Tesla V100-SXM2-16GB"].Peak().MemMiB < 12000 {
		t.Fatalf("it took %v", p["Tesla V100-SXM2-16GB"])
	}
	// On a busy machine the hook may have no answer in time, and the job no limit: the next one tries again.
	failed := false
	for range 8 {
		id := r.run("greedy", ",share:try-memory=2G", greedy)
		r.reach("COMPLETED", id)
		if failed = r.job(id)["Restarts"] == "1"; failed { // it may have tried for a second only
			break
		}
	}
	if !failed {
		t.Error("no job failed for the memory that it tried with")
	}
	var known *rlcore.Profile
	for n := 2; known == nil || known.HeldMiB == 0 && n < 8; n++ {
		known = r.learned("greedy", 1, n, func() string {
			tries := r.run("greedy", ",share:try-memory=6G", greedy)
			r.reach("RUNNING", tries)
			late := r.run("small", "", "gromacs") // it doesn't join
			r.comment(tries, "alone, with 6144 MiB of its memory")
			r.reach("COMPLETED", late)
			return tries
		})["Tesla V100-SXM2-16GB"]
	}
	if known.HeldMiB != 6144 || known.Peak().MemMiB > 6144*.76 {
		t.Fatalf("it made do with %v MiB, held to %v", known.Peak().MemMiB, known.HeldMiB)
	}
	before := r.metric("slurmbridge_shared_failures_total")
	pair := r.atOnce(2, func(int) string { return r.run("greedy", "", greedy) })
	r.reach("COMPLETED", pair...)
	must.Equal(t, r.metric("slurmbridge_shared_failures_total"), before, "jobs that failed while sharing")
	if !r.together(pair...) {
		t.Error("two of its jobs don't share")
	}
	// Alone, without a limit, it takes three quarters again, and is no less known for that.
	if p := r.learned("greedy", 1, known.Runs+1, runs(",share:no"))["Tesla V100-SXM2-16GB"]; p.Peak().MemMiB > 6144*.76 {
		t.Errorf("after a run without a limit it needs %v MiB", p.Peak().MemMiB)
	}
}

// What is known of an application is known by card: a run on the one that is twice as fast says nothing of how long it
// takes on the other, where it runs alone first.
func TestTwoKindsOfCards(t *testing.T) {
	t.Parallel()
	r := newWorld(t, cluster.Setup{
		Cold: true, NodeGPUs: []int{1, 1}, Models: []string{"titanxp", "v100"}, Settings: unhurried,
	})
	const program = "gromacs --duration-scale $([ $SLURMD_NODENAME = n1 ] && echo 3 || echo 0.75)"
	on := func(node, app string) string { return r.run(app, "", program, "--nodelist="+node) }
	// pair submits jobs of two applications to the fast card at once, and reports whether they share it.
	pair := func(apps ...string) bool {
		t.Helper()
		ids := r.atOnce(2, func(i int) string { return on("n2", apps[i]) })
		r.reach("COMPLETED", ids...)
		return r.together(ids...)
	}
	r.learned("a", 1, 1, func() string { return on("n1", "a") })
	of := r.learned("a", 2, 2, func() string { return on("n2", "a") })
	slow, fast := of["TITAN Xp"], of["Tesla V100-SXM2-16GB"]
	if slow == nil || fast == nil || fast.DurationS > .8*slow.DurationS || fast.Peak().MemMiB < .9*slow.Peak().MemMiB {
		t.Fatalf("%+v, %+v", slow, fast)
	}
	r.learned("b", 1, 1, func() string { return on("n1", "b") })
	if pair("a", "b") {
		t.Error("an application that never ran on the card shares it")
	}
	r.learned("b", 2, 2, func() string { return on("n2", "b") }) // it ran alone there, or does once more
	if !pair("a", "b") {
		t.Error("an application that ran on the card doesn't share it")
	}
}

// crashing are applications that crash in every second of their runs, whatever runs next to them.
var crashing = []string{"crash1", "crash2"}

// A world of jobs that crash, that take the card's memory, arrays, four processes at a time and jobs that submit
// others, on two kinds of cards: no neighbour runs out of memory, each crashing application kills one neighbour at
// most, which runs again to its end, and each job computes on its own GPU. SLURMBRIDGE_SLOW=1 plays four times as many.
func TestJobsAsTheyAre(t *testing.T) {
	t.Parallel()
	var known []*rlcore.Profile
	for _, name := range []string{"hoomd", "alexnet", "googlenet"} {
		p, _ := rlapps.ByName(name)
		known = append(known, p)
	}
	for _, name := range append(slices.Clone(crashing), "greedy", "four", "parent") {
		p := *known[0]
		p.App = name
		if name == "four" {
			p.Processes, p.ProcessMiB = 4, p.Peak().MemMiB
			p.Series = slices.Clone(p.Series)
			for i := range p.Series {
				p.Series[i].MemMiB *= 4
			}
		}
		known = append(known, &p)
	}
	r := newWorld(t, cluster.Setup{
		NodeGPUs: []int{2, 1}, Models: []string{"v100", "titanxp"}, Sharing: "shard", Profiles: known,
		Settings: append(unhurried, "max_group: 2"),
	})
	u := must.Get(user.Lookup(cluster.Owner))(t)
	must.OK(t, os.Chown(r.Path("out"), must.Get(strconv.Atoi(u.Uid))(t), -1))
	// Each run of a process leaves a line: its job, kind and exit status, the GPU that Slurm gave the job and the one that
	// it computed on, and whether that was through MPS.
	head := fmt.Sprintf(`s=%s; [ $SLURMD_NODENAME = n1 ] || s=$s-$SLURMD_NODENAME
export GPUSIM_STATE=$s
run() {
	kind=$1; shift
	report=$(%s run "$@")
	rc=$?
	set -- $(echo "$report" | sed 's/.*"index":\([0-9]*\).*"mps":\([a-z]*\).*/\1 \2/')
	echo $SLURM_JOB_ID $kind $rc $SLURM_JOB_GPUS $1 $2 >>%s
	return $rc
}
`, r.StateOf(0), r.Bin("gpusim"), r.Path("out", "runs"))
	submit := func(app, script string, args ...string) string {
		t.Helper()
		return r.submit(head+script, append(args, "--gres=gpu:shared", "--comment=app="+app, "--requeue", "--time=5")...)
	}
	kinds := []struct {
		app, script string
		args        []string
	}{
		{"hoomd", "run calm hoomd\n", nil},
		{"alexnet", "run calm alexnet\n", nil},
		{"googlenet", "run calm googlenet\n", []string{"--array=1-3"}},
		{
			"greedy", "more='--preallocate 0.75'\n[ \"$XLA_PYTHON_CLIENT_PREALLOCATE\" = false ] && more=\n" +
				"run calm hoomd $more\n", nil,
		},
		{"four", "p=\nfor i in 1 2 3 4; do run calm hoomd & p=\"$p $!\"; done\nfor i in $p; do wait $i || exit; done\n", nil},
		{
			"parent", "run calm hoomd || exit\nsbatch --gres=gpu:1 --job-name=child --output=/dev/null <<'END'\n" +
				"#!/bin/sh\n" + head + "run child alexnet --duration-scale 0.3\nEND\n", nil,
		},
	}
	rounds := 3
	if os.Getenv("SLURMBRIDGE_SLOW") != "" && !testing.Short() {
		rounds *= 4
	}
	var ids []string
	crashed := map[string]string{} // the last job of a crashing application
	for n := range rounds {
		for _, k := range kinds {
			ids = append(ids, submit(k.app, k.script, k.args...))
		}
		for _, app := range crashing {
			// Applications crash again when it is known that they have: the run before has been judged.
			if last := crashed[app]; last != "" {
				r.until("the outcome of "+last, func() bool {
					var story journal.Story
					return r.Get("/v1/why/"+last, &story) == nil && len(story.Runs) > 0
				})
			}
			fault := ""
			if n%2 == 0 {
				fault = " --fault-at 20"
			}
			crashed[app] = submit(app, "run "+app+" hoomd"+fault+"\n")
		}
	}
	r.until("all jobs have ended", func() bool {
		queue, err := r.Run(t.Context(), "squeue", "-h", "-u", cluster.Owner, "-o", "%i %T %r")
		return err == nil && strings.TrimSpace(queue) == ""
	})
	killed, sharing := map[string]bool{}, 0 // killed: jobs, of as many processes as they have
	for line := range strings.Lines(string(must.Get(os.ReadFile(r.Path("out", "runs")))(t))) {
		f := strings.Fields(line)
		if len(f) != 6 {
			t.Fatalf("%q", line)
		}
		id, kind, rc, given, used, mps := f[0], f[1], f[2], f[3], f[4], f[5]
		switch {
		case given != used:
			t.Errorf("a job computed on a GPU that isn't its own: %s", line)
		case kind == "child" && mps == "true":
			t.Errorf("a job of a whole GPU is a client of another's MPS server: %s", line)
		case rc == "2":
			t.Errorf("out of memory: %s", line)
		case (rc == "3" || rc == "4") && !slices.Contains(crashing, kind):
			killed[id] = true
		case rc != "0" && !slices.Contains(crashing, kind):
			t.Errorf("failed: %s", line)
		}
	}
	for _, id := range ids {
		if f, err := r.Job(t.Context(), id); err == nil && f["JobState"] != "COMPLETED" && f["JobState"] != "" {
			t.Errorf("job %s: %s %s", id, f["JobState"], f["ExitCode"])
		}
	}
	for _, g := range r.groups() {
		if len(g.Members) > 1 {
			sharing++
		}
	}
	t.Logf("%d jobs and more, %d groups of several, %d neighbours killed", len(ids), sharing, len(killed))
	if len(killed) > len(crashing) {
		t.Errorf("%d neighbours were killed by %d crashing applications", len(killed), len(crashing))
	}
	if sharing == 0 { // how many there are depends on how busy the machine is
		t.Error("nothing was shared")
	}
}
