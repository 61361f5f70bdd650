package loop_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

var wholeGPU = job.GPURequest{Kind: job.WholeGPU, Count: 1, PerNode: true, Raw: "gres/gpu:1"}

var adoptAll = &adopt.Policy{
	Rules: []adopt.Rule{{Partitions: []string{"gpu"}, MaxSlowdown: 1.3}}, Active: true,
	Percent: 100, Delay: time.Minute, Charge: true,
}

// adopting is a bridge that adopts all jobs of partition gpu.
func adopting(m *model, active bool) *loop.Bridge {
	b := bridge(m, newMemory())
	p := *adoptAll
	p.Rules, p.Active = slices.Clone(p.Rules), active
	b.Adopt = &p
	return b
}

// unchanged submits a job of one GPU whose application has run alone and leaves room.
func unchanged(m *model, user string, gated bool) *mjob {
	p := app("md", 60, 0.3, 2000)
	p.Runs = 1
	j := m.submit(user, time.Minute, p, gated)
	j.Request = wholeGPU
	return j
}

// The file of those who have opted out is gone after its first read: its last answer counts, and the log says so once.
func TestOptOutFileGone(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := adopting(m, true)
	file, log := filepath.Join(t.TempDir(), "opt-out"), strings.Builder{}
	must.OK(t, os.WriteFile(file, []byte("account:lab\n"), 0o600))
	b.Adopt.OutFile, b.Log = file, slog.New(slog.NewTextHandler(&log, nil))
	tick(t, b, m, 2*time.Second)
	for range 2 { // gone, there again, gone
		must.OK(t, os.Rename(file, file+".away"))
		tick(t, b, m, 5*time.Second)
		must.OK(t, os.Rename(file+".away", file))
		tick(t, b, m, 2*time.Second)
	}
	if n := strings.Count(log.String(), "adopt_opt_out"); n != 2 {
		t.Errorf("%d lines of two losses:\n%s", n, log.String())
	}
	if !slices.Equal(b.Adopt.OutAccounts, []string{"lab"}) {
		t.Errorf("accounts that have opted out: %v", b.Adopt.OutAccounts)
	}
}

// A job that a plan ungates is the first that Slurm starts: no group of the same plan counts on its GPU.
func TestUngatedJobsComeFirst(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := adopting(m, true)
	tick(t, b, m, time.Second)
	m.paused = true
	full := app("full", 60, 0.95, 2000)
	full.Runs = 1
	first := m.submit("ann", time.Minute, full, true)
	first.Request = wholeGPU
	jobs := []*mjob{unchanged(m, "ann", true), unchanged(m, "ann", true)}
	tick(t, b, m, 2*time.Second)
	if len(first.Dependency.List) > 0 || len(b.Status().Groups) > 0 || jobs[0].Request != wholeGPU {
		t.Errorf("%s waits for %v; groups %v", first.Ref, first.Dependency.List, b.Status().Groups)
	}
	m.paused = false
	tick(t, b, m, 5*time.Minute)
	must.Equal(t, first.State == job.Pending || jobs[0].began.Before(first.began), false, "the ungated job starts first")
	must.Equal(t, jobs[0].ended && jobs[1].ended && jobs[0].began.Equal(jobs[1].began), true, "the others share: %v, %v",
		jobs[0].began, jobs[1].began)
}
