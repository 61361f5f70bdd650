package loop_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// refusal is what Slurm says of a job that it didn't change.
func refusal(ref, said string) error { return job.JobErrors{ref: text.JobErrorOf(said)} }

// refusing is a cluster of idle GPUs, and a bridge that may delay a job for a minute and has made its gate.
func refusing(t testing.TB, gpus int) (m *model, b *loop.Bridge) {
	t.Helper()
	var nodes []job.Node
	for i := range gpus {
		nodes = append(nodes, node(fmt.Sprint("n", i+1), 1, 8))
	}
	m, b = started(t, nodes...)
	b.Planner.Decider.Guard.MaxDelayS = 60
	tick(t, b, m, time.Second)
	return m, b
}

// Changes that make jobs share come to nothing. The jobs run in the end, and the status says what was refused.
func TestSharesThatComeToNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		said    string // by Slurm; "" = it takes the change, and a plugin makes another one of it
		gpus    int
		after   time.Duration // both, or where there is one GPU the first, start
		shares  int
		left    string // why the second is left alone
		refused []job.RefusedChanges
	}{
		{
			"a plugin refuses: after two tries they run as they are", "Unspecified error", 2, 0, job.Units,
			"Slurm refused twice to change it: Unspecified error",
			[]job.RefusedChanges{{
				Step: job.StepPrepare, Code: "SLURM_ERROR", Text: "Unspecified error", Times: 4, GivenUp: 2, Example: "103",
			}},
		},
		{
			"Slurm doesn't answer: the delay counts from the first try on", "Unexpected message received", 2, 5 * time.Second,
			job.Units, job.UngatedDelay.String(), nil,
		},
		{
			"a plugin makes others of them: that was not the owner", "", 1, 0, 90, job.NotDone,
			[]job.RefusedChanges{{Step: job.StepPrepare, Code: job.CodeNotDone, Text: job.NotDone, Times: 1, Example: "103"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, b := refusing(t, c.gpus)
			b.Planner.Decider.Guard.MaxDelayS = 5
			m.plugin = func(ref string, u *job.Update) error {
				if instead := "mps:90"; u.Gres != nil && c.said == "" {
					u.Gres = &instead
				} else if u.Gres != nil {
					return refusal(ref, c.said)
				}
				return nil
			}
			one, two := m.pair(time.Hour)
			since := m.now
			tick(t, b, m, 6*time.Second+c.after)
			for _, j := range []*mjob{one, two}[:c.gpus] {
				if took := j.began.Sub(since); j.State != job.Running || j.Request.Count != c.shares || took < c.after ||
					took > c.after+5*time.Second {
					t.Errorf("job %s is %s with %d shares, after %v", j.Ref, j.State, j.Request.Count, took)
				}
			}
			st := b.Status()
			must.Equal(t, st.Unmanaged[two.Ref], c.left)
			must.Equal(t, st.MaxDelayS >= c.after.Seconds() && st.MaxDelayS <= 8, true, "delay %v s", st.MaxDelayS)
			for i := range st.Refused {
				st.Refused[i].Last = time.Time{}
			}
			must.Equal(t, st.Refused, c.refused)
		})
	}
}

// A plugin of the site's lets no job go from the gate: the gate is opened for all; where that happens again within an
// hour no job waits for a gate.
func TestJobsThatMayNotGo(t *testing.T) {
	refuses := func(said string) func(ref string, u *job.Update) error {
		return func(ref string, u *job.Update) error {
			if u.Dependency == nil {
				return nil
			}
			return refusal(ref, said)
		}
	}
	for name, plugin := range map[string]func(ref string, u *job.Update) error{
		"refused":      refuses("Access/permission denied"),
		"not done":     func(_ string, u *job.Update) error { u.Dependency = nil; return nil },
		"not answered": refuses("Unexpected message received"),
	} {
		t.Run(name, func(t *testing.T) {
			m, b := refusing(t, 2)
			m.plugin = plugin
			for range 2 {
				one, two := m.pair(10 * time.Second)
				tick(t, b, m, time.Minute)
				for _, j := range []*mjob{one, two} { // with a GPU to itself: next to whom it starts nobody has checked
					if !j.ended || j.Request.Count != job.Units {
						t.Errorf("job %s is %s with %d shares", j.Ref, j.State, j.Request.Count)
					}
				}
			}
			must.Equal(t, b.Status().Gate, "", "the gate")
			m.plugin = nil
			tick(t, b, m, time.Hour)
			must.Equal(t, b.Status().Gate != "", true, "there is a gate an hour later")
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
		return refusal(ref, d.said)
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
		m, b := refusing(tt, gpus)
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
			tick(tt, b, m, time.Duration(rapid.IntRange(0, 20).Draw(t, "pause"))*time.Second)
		}
		tick(tt, b, m, 100*time.Second)
		for _, j := range jobs {
			must.Equal(t, j.State, job.Running, "job %s is %+v, %s", j.Ref, j.Job, b.Status().Unmanaged[j.Ref])
			if n := seen[j.Ref]; n > 60 {
				t.Errorf("job %s was changed %d times", j.Ref, n)
			}
		}
		unanswered := func(d meddler) bool {
			return d.instead != "" || !errors.Is(text.JobErrorOf(d.said).Kind, job.ErrRefused)
		}
		if refused && len(b.Status().Refused) == 0 && !slices.ContainsFunc(all, unanswered) {
			t.Error("the status says nothing of refusals")
		}
	})
}
