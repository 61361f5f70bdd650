package loop_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// refusal is what Slurm says of a job that it didn't change.
type refusal struct{ ref, said string }

func (r refusal) Error() string { return r.said + " for job " + r.ref }

func (r refusal) Unwrap() error { return text.JobErrorOf(r.said).Kind }

func (r refusal) JobErrors() map[string]job.JobError {
	return map[string]job.JobError{r.ref: text.JobErrorOf(r.said)}
}

// refusing is a cluster of idle GPUs, a bridge that may delay a job for a minute, and a gate.
func refusing(t testing.TB, gpus int) (m *model, run func(d time.Duration)) {
	t.Helper()
	var nodes []job.Node
	for i := range gpus {
		nodes = append(nodes, node(fmt.Sprint("n", i+1), 1, 8))
	}
	m = newModel(nodes...)
	b := bridge(m, newMemory())
	b.Planner.Decider.Guard.MaxDelayS = 60
	m.status, m.planner = b.Status, b.Planner
	run = func(d time.Duration) { tick(t, b, m, d) }
	run(2 * time.Second)
	return m, run
}

// A plugin of the site's refuses what makes jobs share. After two tries they run as they are, each with a GPU of its
// own, and the status says what was refused.
func TestRefusedShares(t *testing.T) {
	m, run := refusing(t, 2)
	m.plugin = func(ref string, u *job.Update) error {
		if u.Gres != nil {
			return refusal{ref, "Unspecified error"}
		}
		return nil
	}
	p := app("alexnet", 600, 0.3, 2000)
	jobs := []*mjob{m.submit("ann", time.Hour, p, true), m.submit("ann", time.Hour, p, true)}
	run(6 * time.Second)
	for _, j := range jobs {
		if j.State != job.Running || j.Request.Count != job.Units {
			t.Errorf("job %s is %s with %d shares", j.Ref, j.State, j.Request.Count)
		}
	}
	got := m.status().Refused
	for i := range got {
		got[i].Last = time.Time{}
	}
	want := []job.RefusedChanges{{
		Step: job.StepPrepare, Code: "SLURM_ERROR", Text: "Unspecified error", Times: 4, GivenUp: 2, Example: jobs[1].Ref,
	}}
	must.Equal(t, got, want)
}

// Slurm doesn't answer what makes jobs share. The delay counts from the first try on, and ends the wait.
func TestDelayCountsWhileChangesFail(t *testing.T) {
	m, run := refusing(t, 2)
	m.planner.Decider.Guard.MaxDelayS = 5
	m.plugin = func(ref string, u *job.Update) error {
		if u.Gres != nil {
			return refusal{ref, "Unexpected message received"}
		}
		return nil
	}
	p := app("alexnet", 600, 0.3, 2000)
	jobs := []*mjob{m.submit("ann", time.Hour, p, true), m.submit("ann", time.Hour, p, true)}
	since := m.now
	run(10 * time.Second)
	for _, j := range jobs {
		if took := j.began.Sub(since); j.State != job.Running || took < 5*time.Second || took > 8*time.Second {
			t.Errorf("job %s is %s, after %v", j.Ref, j.State, took)
		}
	}
	if d := m.status().MaxDelayS; d < 5 || d > 8 {
		t.Errorf("the longest delay is %v s", d)
	}
}

// Slurm takes what makes jobs share, and a plugin of the site's makes something else of it: nobody says that the owner
// did.
func TestSharesThatAreRewritten(t *testing.T) {
	m, run := refusing(t, 1)
	m.plugin = func(_ string, u *job.Update) error {
		if instead := "mps:90"; u.Gres != nil {
			u.Gres = &instead
		}
		return nil
	}
	p := app("alexnet", 600, 0.3, 2000)
	jobs := []*mjob{m.submit("ann", time.Hour, p, true), m.submit("ann", time.Hour, p, true)}
	run(5 * time.Second)
	must.Equal(t, jobs[0].State, job.Running, "the first")
	if why := m.status().Unmanaged[jobs[1].Ref]; !strings.Contains(why, job.NotDone) {
		t.Errorf("job %s is left alone: %q", jobs[1].Ref, why)
	}
}

// A plugin of the site's lets no job go from the gate: the gate is opened for all; where that happens again within an
// hour no job waits for a gate.
func TestJobsThatMayNotGo(t *testing.T) {
	for name, plugin := range map[string]func(ref string, u *job.Update) error{
		"refused": func(ref string, u *job.Update) error {
			if u.Dependency != nil {
				return refusal{ref, "Access/permission denied"}
			}
			return nil
		},
		"not done": func(_ string, u *job.Update) error { u.Dependency = nil; return nil },
		"not answered": func(ref string, u *job.Update) error {
			if u.Dependency != nil {
				return refusal{ref, "Unexpected message received"}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, run := refusing(t, 2)
			m.plugin = plugin
			for range 2 {
				p := app("alexnet", 600, 0.3, 2000)
				jobs := []*mjob{m.submit("ann", 10*time.Second, p, true), m.submit("ann", 10*time.Second, p, true)}
				run(60 * time.Second)
				for _, j := range jobs { // with a GPU to itself: next to whom it starts nobody has checked
					if !j.ended || j.Request.Count != job.Units {
						t.Errorf("job %s is %s with %d shares", j.Ref, j.State, j.Request.Count)
					}
				}
			}
			if gate := m.status().Gate; gate != "" {
				t.Errorf("there is a gate: %s", gate)
			}
			m.plugin = nil
			run(time.Hour)
			if gate := m.status().Gate; gate == "" {
				t.Error("there is no gate an hour later")
			}
		})
	}
}

// meddler is what a plugin of the site's does to changes of some fields of some jobs.
type meddler struct {
	gres, nodes, dependency, comment, gate bool // the fields
	of                                     int  // every how-manieth job
	until                                  int  // its how-manieth change; 0 = always
	said                                   string
	instead                                string // of "": refused, dropped, or another request
}

func (d meddler) do(n int, ref string, u *job.Update) error {
	hit := d.gres && u.Gres != nil || d.nodes && u.ReqNodes != nil || d.dependency && u.Dependency != nil ||
		d.comment && u.AdminComment != nil || d.gate && ref == ""
	if !hit || d.until > 0 && n > d.until || ref != "" && len(ref)%d.of != 0 && int(ref[len(ref)-1])%d.of != 0 {
		return nil
	}
	switch d.instead {
	case "":
		return refusal{ref, d.said}
	case "dropped":
		if d.gres {
			u.Gres = nil
		}
		if d.nodes {
			u.ReqNodes = nil
		}
		if d.dependency {
			u.Dependency = nil
		}
	default:
		if u.Gres != nil {
			u.Gres = &d.instead
		}
	}
	return nil
}

// Whatever changes a site's plugin refuses, drops or makes others of: every job starts within the longest delay that
// the bridge may cause, no job's changes are tried for ever, and what was refused is said.
func TestWhateverIsRefused(tt *testing.T) {
	property.Check(tt, func(t *rapid.T) {
		gpus := rapid.IntRange(1, 4).Draw(t, "gpus")
		m, run := refusing(tt, gpus)
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) meddler {
			yes := rapid.Bool()
			return meddler{
				yes.Draw(t, "gres"), yes.Draw(t, "nodes"), yes.Draw(t, "dependency"), yes.Draw(t, "comment"), yes.Draw(t, "gate"),
				rapid.IntRange(1, 3).Draw(t, "of"), rapid.IntRange(0, 5).Draw(t, "until"),
				rapid.OneOf(rapid.SampledFrom([]string{
					"Unspecified error", "Access/permission denied", "Invalid generic resource (gres) specification (not here)",
					"Job dependency problem", "Unexpected message received", "Unable to contact slurm controller (connect failure)",
					"Job update not available right now, the DB index is being set, try again in a bit",
				}), rapid.String()).Draw(t, "said"),
				rapid.SampledFrom([]string{"", "", "dropped", "mps:100", "mps:10", "gpu:1"}).Draw(t, "instead"),
			}
		}), 1, 3).Draw(t, "plugin")
		seen, refused := map[string]int{}, false
		m.plugin = func(ref string, u *job.Update) error {
			seen[ref]++
			for _, d := range all {
				if err := d.do(seen[ref], ref, u); err != nil {
					refused = refused || ref != ""
					return err
				}
			}
			return nil
		}
		var jobs []*mjob
		for range gpus { // each could run alone at once
			p := app(fmt.Sprint("app", rapid.IntRange(1, 2).Draw(t, "app")), 600, 0.3, 2000)
			if rapid.Bool().Draw(t, "unknown") {
				p = nil
			}
			jobs = append(jobs, m.submit(rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "user"), time.Hour, p, true))
			run(time.Duration(rapid.IntRange(0, 20).Draw(t, "pause")) * time.Second)
		}
		run(100 * time.Second)
		for _, j := range jobs {
			if j.State != job.Running {
				t.Errorf("job %s is %s: %+v, %s", j.Ref, j.State, j.Job, m.status().Unmanaged[j.Ref])
			}
			if n := seen[j.Ref]; n > 60 {
				t.Errorf("job %s was changed %d times", j.Ref, n)
			}
		}
		unanswered := func(d meddler) bool {
			return d.instead != "" || !errors.Is(text.JobErrorOf(d.said).Kind, job.ErrRefused)
		}
		if refused && len(m.status().Refused) == 0 && !slices.ContainsFunc(all, unanswered) {
			t.Error("the status says nothing of refusals")
		}
	})
}
