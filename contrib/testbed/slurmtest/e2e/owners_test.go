package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// What a user wrote stays: dependencies, begin times, arrays, priorities, node
// lists, edits.
func TestOwnDependency(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	first := r.any(ann, 6) // no GPU
	a := r.submit(ann, small, 2, "--dependency=afterany:"+first)
	b := r.submit(ann, small, 2)
	r.state(20*time.Second, b, "RUNNING", "COMPLETED")
	if s := r.job(first)["JobState"]; s == "RUNNING" && r.job(a)["JobState"] != "PENDING" {
		t.Errorf("job %s started before %s had ended", a, first)
	}
	r.state(40*time.Second, a, "COMPLETED")
	if r.started(a).Before(r.started(first).Add(6 * time.Second)) {
		t.Errorf("job %s started %v after %s", a, r.started(a).Sub(r.started(first)), first)
	}
	// A dependency that can never be met keeps the job waiting, as it does in Slurm.
	c := r.submit(ann, small, 1, "--dependency=afternotok:"+b)
	time.Sleep(4 * time.Second)
	if s := r.job(c)["JobState"]; s == "RUNNING" || s == "COMPLETED" {
		t.Errorf("job %s ran although %s succeeded", c, b)
	}
}

func TestArray(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	id := r.submit(ann, small, 2, "--array=1-5")
	var tasks []string
	for n := 1; n <= 5; n++ {
		task := fmt.Sprintf("%s_%d", id, n)
		r.state(90*time.Second, task, "COMPLETED")
		tasks = append(tasks, task)
	}
	if shared := r.none(tasks); shared < 2 {
		t.Errorf("%d of five tasks shared the GPU", shared)
	}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	begin := time.Now().Add(9 * time.Second)
	a := r.submit(ann, small, 1, "--begin=now+9")
	b := r.submit(ann, small, 1)
	r.state(20*time.Second, b, "COMPLETED")
	if s := r.job(a)["JobState"]; s != "PENDING" {
		t.Errorf("job %s is %s before its time", a, s)
	}
	r.state(60*time.Second, a, "COMPLETED")
	if s := r.started(a); s.Before(begin.Add(-time.Second)) {
		t.Errorf("job %s started %v early", a, begin.Sub(s))
	}
}

func TestOwnerEdits(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	long := r.submit(ann, "m9000g90", 6)
	r.state(20*time.Second, long, "RUNNING")
	next := r.submit(ann, "m9000g90", 1)
	// It waits behind the gate; its owner asks for a part of the GPU, which job_submit.lua
	// makes a whole one: it is the bridge that decides who shares.
	if !r.Wait(t.Context(), 15*time.Second, func() bool {
		return strings.Contains(r.job(next)["Dependency"], "after:")
	}) {
		t.Fatalf("job %s is not behind the gate: %v", next, r.job(next)["Dependency"])
	}
	if _, err := r.RunAs(context.Background(), ann, "scontrol", "update", "JobId="+next, "Gres=mps:30"); err != nil {
		t.Fatal(err)
	}
	r.state(40*time.Second, next, "COMPLETED")
	if got := r.job(next)["TresPerNode"]; !strings.HasSuffix(got, "mps:100") {
		t.Errorf("its owner's mps:30 became %s", got)
	}
}

func TestNodeListAndPriority(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{Options: slurmtest.Options{Nodes: 2}})
	a := r.submit(ann, small, 3, "--nodelist=n2")
	b := r.submit(ann, small, 3, "--nodelist=n2")
	c := r.submit(ann, small, 3, "--exclude=n2")
	for _, id := range []string{a, b, c} {
		r.state(40*time.Second, id, "RUNNING", "COMPLETED")
	}
	for id, want := range map[string]string{a: "n2", b: "n2", c: "n1"} {
		if got := r.job(id)["NodeList"]; got != want {
			t.Errorf("job %s ran on %s, its owner wants %s", id, got, want)
		}
	}
	// A job that Slurm won't start, held by its owner, is left so.
	d := r.submit(ann, small, 1, "--hold")
	time.Sleep(3 * time.Second)
	if s := r.job(d)["JobState"]; s != "PENDING" {
		t.Errorf("a held job is %s", s)
	}
	if _, err := r.RunAs(context.Background(), ann, "scontrol", "release", d); err != nil {
		t.Fatal(err)
	}
	r.state(60*time.Second, d, "COMPLETED")
}

func TestHostileComment(t *testing.T) {
	slurmtest.OfOneRelease(t)
	t.Parallel()
	r := newRig(t, options{})
	a := r.submit(bob, "", 1, "--comment=app="+small+" \n99|RUNNING|root|JobId=1 Dependency=(null)", "--job-name=slurmbridge-gate")
	b := r.submit(bob, "", 1, "--comment=$(touch /tmp/x);`id`|;|", "--job-name=a|b c\td")
	r.state(60*time.Second, a, "COMPLETED")
	r.state(60*time.Second, b, "COMPLETED")
}
