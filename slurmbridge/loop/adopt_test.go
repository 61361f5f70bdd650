package loop_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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
	Percent: 100, Delay: time.Minute,
}

// adopting is a cluster of one GPU, and a bridge that adopts all jobs of partition gpu.
func adopting() (m *model, b *loop.Bridge) {
	m = newModel(node("n1", 1, 8))
	b = bridge(m, m.mem)
	p := *adoptAll
	b.Adopt = &p
	return m, b
}

// unchanged submits a job of one GPU whose application has run alone and uses so much of it.
func unchanged(m *model, use float64) *mjob {
	p := app(fmt.Sprint("uses ", use), 60, use, 2000)
	p.Runs = 1
	j := m.submit("ann", time.Minute, p, true)
	j.Request = wholeGPU
	return j
}

// The file of those who have opted out is gone after its first read: its last answer counts, and the log says so once.
func TestOptOutFileGone(t *testing.T) {
	m, b := adopting()
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
	must.Equal(t, strings.Count(log.String(), "adopt_opt_out"), 2, "lines of two losses")
	must.Equal(t, b.Adopt.OutAccounts, []string{"lab"}, "accounts that have opted out")
}

// A job that a plan ungates is the first that Slurm starts: no group of the same plan counts on its GPU.
func TestUngatedJobsComeFirst(t *testing.T) {
	m, b := adopting()
	tick(t, b, m, time.Second)
	m.paused = true
	first, one, two := unchanged(m, 0.95), unchanged(m, 0.3), unchanged(m, 0.3)
	tick(t, b, m, 2*time.Second)
	if len(first.Dependency.List) > 0 || len(b.Status().Groups) > 0 || one.Request != wholeGPU {
		t.Errorf("%s waits for %v; groups %v", first.Ref, first.Dependency.List, b.Status().Groups)
	}
	m.paused = false
	untilEnded(t, b, m, first, one, two)
	must.Equal(t, first.began.After(one.began), false, "others start before the ungated job")
	must.Equal(t, one.began, two.began, "the others share")
}
