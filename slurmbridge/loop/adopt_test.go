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
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

var wholeGPU = job.GPURequest{Kind: job.WholeGPU, Count: 1, PerNode: true, Raw: "gres/gpu:1"}

var adoptAll = &adopt.Policy{Rules: []adopt.Rule{{Partitions: []string{"gpu"}, MaxSlowdown: 1.3}}, Active: true, Percent: 100, Delay: time.Minute, Charge: true}

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

// Rules in shadow next to an active bridge change nothing. Which jobs they match, and which they leave alone, is said.
func TestAdoptInShadow(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	m.perGPU = map[string]job.PerGPU{"other": {CPUs: 4}}
	b := adopting(m, false)
	b.Adopt.Rules[0].Partitions = nil
	tick(t, b, m, time.Second)
	m.paused = true
	jobs := []*mjob{unchanged(m, "ann", false), unchanged(m, "ann", false), unchanged(m, "ann", false), unchanged(m, "ann", false)}
	jobs[2].Partition, jobs[3].Deadline = "other", m.now.Add(time.Hour)
	sharers := []*mjob{m.submit("bob", time.Minute, app("x", 60, .3, 2000), true)}
	before := m.updates
	tick(t, b, m, 2*time.Second)
	st := b.Status()
	if m.updates != before || len(st.Groups) > 0 || jobs[0].Request != wholeGPU || sharers[0].Request.Count != job.Units {
		t.Errorf("%d changes, groups %v", m.updates-before, st.Groups)
	}
	for i, want := range []string{job.UngatedRuleInShadow.String(), job.UngatedRuleInShadow.String(), job.UngatedPerGPU.String(), job.UngatedPromised.String()} {
		got := ""
		if p := httpapi.PositionOf(st, jobs[i].Ref); p != nil {
			got = p.NotAdopted
		}
		must.Equal(t, got, want, "job %d", i)
	}
}

// A job with a deadline is not adopted: it would only be slower. It goes at once as it is, and so does one of a partition
// that would charge it nothing.
func TestNotAdopted(t *testing.T) {
	bare := node("n2", 1, 8)
	bare.Units, bare.Sharing, bare.Partitions = 0, "", []string{"also"}
	for name, change := range map[string]func(j *mjob){
		"a GPU without shares": func(j *mjob) { j.Partition = "gpu,also" },
		"deadline":             func(j *mjob) { j.Deadline = j.Submit.Add(2 * time.Hour) }, "unbilled": func(j *mjob) { j.Partition = "gpu,free" },
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(node("n1", 1, 8), bare)
			m.unbilled = []string{"free"}
			b := adopting(m, true)
			b.Adopt.Rules[0].Partitions = nil
			tick(t, b, m, time.Second)
			jobs := []*mjob{unchanged(m, "ann", true), unchanged(m, "ann", true)}
			for _, j := range jobs {
				change(j)
			}
			tick(t, b, m, 2*time.Second)
			for _, j := range jobs {
				if len(j.Dependency.List) > 0 || j.Request != wholeGPU || j.ReqNodes != "" {
					t.Errorf("%s: %+v", j.Ref, j.Job)
				}
			}
		})
	}
}

// Adopted jobs hold no GPU by Slurm's count while they have shares: the bridge keeps them within their limit, and waits no
// longer than plain Slurm would.
func TestGPULimitOfAdoptedJobs(t *testing.T) {
	m := newModel(node("n1", 2, 16))
	m.gpuLimits = []job.GPULimit{{Of: "GrpTRES of user ann", User: "ann", Most: 2}}
	b := adopting(m, true)
	tick(t, b, m, time.Second)
	var jobs []*mjob
	for range 6 {
		jobs = append(jobs, unchanged(m, "ann", true))
	}
	most, shared := 0, 0
	for range 230 {
		tick(t, b, m, time.Second)
		runs := 0
		for _, j := range jobs {
			if j.State == job.Running && !j.ended {
				runs++
			}
		}
		most = max(most, runs)
	}
	for _, j := range jobs {
		if !j.ended {
			t.Errorf("job %s is %s; plain Slurm ends all within 180 s", j.Ref, j.State)
		}
		if j.Request.Kind == job.Shares {
			shared++
		}
	}
	if most != 2 || shared < 4 {
		t.Errorf("%d at a time under a limit of 2, %d shared", most, shared)
	}
}

// Behind adopted jobs one waits that doesn't share: it would take the next free GPU. The first of them keeps its turn with
// shares if the second may join it, and goes as it is otherwise.
func TestAdoptedJobsInFrontOfAnother(t *testing.T) {
	for _, c := range []struct{ share, typed, others bool }{{share: true}, {share: true, typed: true}, {typed: true, others: true}, {}} {
		share := c.share
		m := newModel(node("n1", 1, 8))
		if c.others { // shares of which it could be given
			m.nodes = append(m.nodes, node("n2", 1, 8))
			m.nodes[1].GPUType = "v100"
		}
		b := adopting(m, true)
		b.Planner.Room, b.Planner.RoomAnyway = true, true
		tick(t, b, m, time.Second)
		for range m.nodes {
			wholeGPUs(m, 1, 10*time.Minute)
		}
		tick(t, b, m, 2*time.Second)
		jobs := []*mjob{unchanged(m, "ann", true), unchanged(m, "ann", true)}
		if !share && !c.others {
			jobs[1].Comment = "share:no"
		}
		if c.typed {
			jobs[0].Request.Raw = "gres/gpu:titanxp:1"
		}
		last := wholeGPUs(m, 1, 10*time.Minute)
		tick(t, b, m, 15*time.Minute)
		first := jobs[0].Request.Kind == job.Shares
		if first != share || share && jobs[1].began.Sub(jobs[0].began) > 10*time.Second {
			t.Errorf("%+v: they have %v and %v, from %v and %v on", c, jobs[0].Request, jobs[1].Request, jobs[0].began, jobs[1].began)
		}
		if !jobs[0].ended || !jobs[1].ended || last.began.IsZero() || last.began.Before(jobs[0].began) {
			t.Errorf("%+v: %s, %s, the last from %v on", c, jobs[0].State, jobs[1].State, last.began)
		}
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
	must.Equal(t, jobs[0].ended && jobs[1].ended && jobs[0].began.Equal(jobs[1].began), true, "the others share: %v, %v", jobs[0].began, jobs[1].began)
}
