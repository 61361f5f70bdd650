package rlcore

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

// guess predicts the same of all that aren't alone.
type guess Prediction

func (p guess) Predict(dst []Prediction, _ *GPUSpec, members []*Profile) {
	for i := range dst {
		if dst[i] = (Prediction{Slowdown: 1}); len(members) > 1 {
			dst[i] = Prediction(p)
		}
	}
}

// pairwise slows everybody who isn't alone by a factor.
func pairwise(by float64) guess { return guess{Slowdown: by} }

// promised is a window of jobs whose plain ends follow from one GPU that runs the given jobs.
func promised(running []Running, jobs ...Job) *Window {
	p := schedule.NewSlurmAlone("0")
	for i := range running {
		p.Add(running[i].ForSchedule(), 0)
	}
	for i := range jobs {
		p.Add(jobs[i].ForSchedule(), 0)
	}
	for i := range running {
		running[i].PlainEndS = p.EndS(running[i].ID)
	}
	for i := range jobs {
		jobs[i].PlainEndS = p.EndS(jobs[i].ID)
	}
	w := window(card(running...), jobs...)
	w.State.PlainFreeS = p.FreeS(nil, 0)
	return w
}

// lasting is a job of known length, plainly one that plain Slurm would have ended then.
func lasting(id string, takes float64) Job {
	return Job{ID: id, User: "u", Profile: flat(id, takes, 100)}
}

func plainly(j Job, endS float64) Job { j.PlainEndS = endS; return j }

// varied is a job of an application whose runs differ.
func varied(j Job, sd float64) Job {
	p := *j.Profile
	p.DurationSD = sd
	j.Profile = &p
	return j
}

// running is what runs on a GPU: a job that has come so far.
func running(j Job, done, elapsed float64) []Running {
	return []Running{{Job: j, Shares: 20, DoneS: done, ElapsedS: elapsed}}
}

// with changes the job that runs on a window's GPU.
func with(w *Window, change func(r *Running)) *Window {
	change(&w.Card().Running[0])
	return w
}

// allowed are the combinations that may start on a window's GPU, by their jobs: "wait" is none, "a+b" are both.
func allowed(by Predictor, w *Window) string {
	var out []string
	for _, c := range NewGuard(Rules{Predictor: by}).Combos(nil, w) {
		var jobs []string
		for i, k := range w.Jobs {
			if c.Has(i) {
				jobs = append(jobs, w.State.Pending[k].ID)
			}
		}
		out = append(out, cmp.Or(strings.Join(jobs, "+"), "wait"))
	}
	return strings.Join(out, " ")
}

// What may be decided for a GPU: r runs there, where it isn't idle, and a and b wait.
func TestWhatThePromiseAllows(t *testing.T) {
	of, a, b := lasting, lasting("a", 100), lasting("b", 100)
	early := func(j Job) Job { j.EarlyS = 1000; return j }
	unshared := plainly(of("a", 1000), 980)
	unshared.NoShare = true
	whole := Job{ID: "w", LimitS: 3600, Foreign: true}
	unknown := promised(running(of("r", 200), 190, 190), Job{ID: "new", User: "u", LimitS: 1000}, a)
	unknown.State.Pending[0].PlainEndS = 10 + 1000
	idle := func(jobs ...Job) *Window { return window(card(), jobs...) }
	beside := func(r []Running, jobs ...Job) *Window { return window(card(r...), jobs...) }
	pair := func() *Window { return promised(nil, of("a", 100), of("b", 100)) }
	// after is r, which takes so long and isn't to be late.
	after := func(takes float64, jobs ...Job) *Window { return promised(running(of("r", takes), 0, 0), jobs...) }
	short := func() *Window { return after(1000, of("a", 50)) }
	// before is r, which may take so much longer than a grace of 100 s.
	before := func(room float64, j Job) *Window {
		return with(after(1000, j), func(r *Running) { r.PlainEndS += room })
	}
	// ending is r, which has 60 s left, and unshared must start within 80 s.
	ending := func(j Job) *Window {
		return beside(running(plainly(of("r", 1000), 9000), 940, 940.0*940/900), unshared, j)
	}
	// lead is r, which ends after 56 s next to b instead of 50, and the first job's lead on plain Slurm.
	lead := func(s float64, foreign bool) *Window {
		first := Job{ID: "a", User: "u", LimitS: 3600, PlainEndS: 50 + s + 3600, Foreign: foreign}
		return beside(running(plainly(of("r", 50), 1000), 0, 0), first, plainly(of("b", 30), 9000))
	}
	// slow is r, which has done a quarter of what it would have alone.
	slow := func(elapsed float64) *Window {
		return beside(running(plainly(of("r", 100), 81-elapsed), elapsed/4, elapsed), plainly(of("b", 30), 9000))
	}
	limited := varied(plainly(of("r", 1000), 300), 1000)
	limited.LimitS, limited.MaxSlowdown = 500, 9
	atLimit := append(running(limited, 500, 500), running(plainly(of("s", 5000), 90_000), 0, 0)...)
	for _, c := range []struct {
		name string
		by   guess
		w    *Window
		want string
	}{
		{"nobody slows; b alone would make a wait", pairwise(1), pair(), "a a+b"},
		{"within the grace", pairwise(1.09), pair(), "a a+b"},
		{"the first would be late", pairwise(1.2), pair(), "a"},
		{"no newcomer makes a member late", pairwise(1.2), after(100, a), "wait"},
		{"a newcomer that hurts nobody", pairwise(1.2), after(1000, a), "wait a"},
		{"no promise, no due", pairwise(3), idle(a, b), "wait a b a+b"},

		// A job has no company that might take so much longer than expected that the job ends late.
		{"company of known length", pairwise(1.5), before(0, a), "wait a"},
		{"company of unknown length", pairwise(1.5), before(0, varied(a, 300)), "wait"},
		{"company of unknown length, and much room", pairwise(1.5), before(5000, varied(a, 300)), "wait a"},
		// What it has run next to before isn't counted against a newcomer, even if it is at its limit.
		{"company that a run at its limit has already", pairwise(1.5), beside(atLimit, plainly(of("a", 50), 9000)), "wait a"},
		// A run that has used its grace up gets no second one from each newcomer.
		{"its grace is left", pairwise(1.5), before(0, varied(of("a", 10), 30)), "wait a"},
		{"its grace is nearly used up", pairwise(1.5), before(-80, varied(of("a", 10), 30)), "wait"},

		// A lead that only mean run times promise puts no due off: neither do two jobs share on it, nor does the second one
		// go before the first.
		{"a lead", pairwise(1.5), idle(plainly(a, 1100), plainly(b, 1100)), "a b a+b"},
		{"a lead of means", pairwise(1.5), idle(early(plainly(a, 1100)), early(plainly(b, 1100))), "a"},
		// A decision may use two fifths of a job's lead on plain Slurm, also a foreign job's.
		{"no lead", pairwise(1.2), lead(0, false), "wait"},
		{"too short a lead", pairwise(1.2), lead(14, false), "wait"},
		{"lead enough", pairwise(1.2), lead(16, false), "wait b"},
		{"too short a lead of a foreign job", pairwise(1.2), lead(14, true), "wait"},
		{"lead enough of a foreign job", pairwise(1.2), lead(16, true), "wait b"},

		// A newcomer must leave the next job the start that is expected.
		{"beside a short job", pairwise(1), ending(plainly(of("b", 50), 9000)), "wait b"},
		{"beside a longer job", pairwise(1), ending(plainly(of("b", 95), 9000)), "wait"},

		// A job that is late already goes first, alone if need be; and nothing goes before it that makes it later.
		{"late already", pairwise(1.2), idle(plainly(a, 10), plainly(b, 1000)), "a"},
		{
			"late already, next to another one", pairwise(1.2),
			beside(running(plainly(of("r", 50), 1000), 0, 0), plainly(a, 10), plainly(b, 1000)), "wait a a+b",
		},
		// A job that started after its latest start has the grace of its run, as one that waits has; one that its co-runners
		// made late has none left.
		{"it started too late", pairwise(1.2), slow(0), "wait b"},
		{"its co-runners made it late", pairwise(1.2), slow(80), "wait"},

		// Of a job of unknown length the start is promised: beside r, a would end after r.
		{"an unknown job keeps its start", pairwise(1), unknown, "wait"},
		// A foreign job keeps its start: no sharer of lower priority joins, or starts, where it would wait longer.
		{"a long job would keep it waiting", pairwise(1), after(3600, whole, of("long", 9*3600)), "wait"},
		{"a short one doesn't", pairwise(1), after(3600, whole, of("short", 600)), "wait short"},
		{"its turn is now", pairwise(1), promised(nil, whole, of("short", 600)), "wait"},
		{"it comes behind", pairwise(1), promised(nil, of("short", 600), whole), "short"},

		// A first meeting counts as no slower than members that take turns.
		{"known", guess{1.5, 0.3, false}, short(), "wait a"},
		{"known to vary", guess{1.5, 2, false}, short(), "wait"},
		{"never seen, with slack for turns", guess{1.5, 2, true}, short(), "wait a"},
		{"never seen, and slower than turns is expected", guess{4, 0, true}, short(), "wait"},
		{"on an idle GPU, known", guess{1.02, 0.05, false}, pair(), "a a+b"},
		{"on an idle GPU, never seen", guess{1.02, 0.05, true}, pair(), "a a+b"},
		{"on an idle GPU, without slack for the error", guess{1.02, 0.2, true}, pair(), "a"},
	} {
		must.Equal(t, allowed(c.by, c.w), c.want, c.name)
	}
}

// A job whose runs differ in length may be joined while it goes on: plain Slurm would not have ended it either. Its
// grace is a part of its median length, since most runs are shorter than the mean.
func TestARunThatGoesOnIsJoined(t *testing.T) {
	varied := *flat("r", 1000, 100)
	varied.DurationSD = 2000 // median 447 s
	r := Running{Job: Job{ID: "r", User: "u", Profile: &varied, LimitS: 50_000}, Shares: 20, DoneS: 600, ElapsedS: 600}
	p := schedule.NewSlurmAlone("0")
	p.DoneS = func(string) float64 { return r.DoneS }
	p.Add(r.ForSchedule(), 0)
	p.Runs(r.ForSchedule(), []int{0}, 0, 0)
	for _, c := range []struct {
		takes float64 // of the other job; r loses a tenth of it
		want  []Combo
	}{{400, []Combo{0, 1}}, {500, []Combo{0}}} {
		a := Job{ID: fmt.Sprint("a", c.takes), User: "u", SubmitS: 600, Profile: flat("a", c.takes, 100)}
		p.Add(a.ForSchedule(), 600)
		a.PlainEndS, r.PlainEndS = p.EndS(a.ID), p.EndS("r")
		w := window(card(r), a)
		w.State.NowS, w.State.PlainFreeS = 600, p.FreeS(nil, 600)
		p.Remove(600, a.ID)
		g := Guard{Rules: Rules{Predictor: pairwise(10.0 / 9)}}
		must.Equal(t, g.Combos(nil, w), c.want, "a job of %v s", c.takes)
	}
}

// A promise that would be broken says whose: a due's, or the turn of a job of whole GPUs. The decision names the job
// that it kept waiting.
func TestWhyAPromiseWouldBeBroken(t *testing.T) {
	of := func(id string, takes float64) Job { return Job{ID: id, User: "u", Profile: flat(id, takes, 100)} }
	foreign := of("whole", 100)
	foreign.Foreign = true
	long := func() []Running { return []Running{{Job: of("r", 1000), Shares: 20}} }
	strict := func(j Job) Job { j.MaxSlowdown = 1.1; return j }
	for _, c := range []struct {
		name  string
		guess guess
		w     *Window
		job   string
		want  Veto
	}{
		{"late by a known slowdown", guess{4, 0, false}, promised(long(), of("a", 50)), "a", VetoDue},
		{
			"in time, but a job of whole GPUs starts later",
			guess{1.2, 0, false},
			promised(long(), foreign, of("a", 50)), "a",
			VetoTurn,
		},
		{"in time", guess{1.2, 0, false}, promised(long(), of("a", 50)), "", Allowed},
		{
			"its contract alone",
			guess{1.2, 0, false},
			promised(long(), strict(of("a", 50)), strict(of("b", 50))), "a", VetoContract,
		},
		{"its contract, and it would be late", guess{4, 0, false}, promised(long(), strict(of("a", 50))), "", Allowed},
		{
			"the job behind one that would be late without its contract, too",
			guess{4, 0, false},
			promised(long(), strict(of("a", 50)), of("b", 50)), "b", VetoDue,
		},
	} {
		d := &Decider{Policy: byLength{}, Guard: NewGuard(Rules{Predictor: c.guess}), M: 5}
		dec := d.Decide(c.w.State, 0)
		i, why := dec.SoleVeto()
		if why != c.want || why != Allowed && dec.Window.Job(i).ID != c.job {
			t.Errorf("%s: %q, %v; want %q", c.name, why, dec.Jobs(), c.want)
		}
	}
}

// Whatever may share a GPU keeps all dues even if first meetings slow everyone by a standard deviation more than
// predicted, or by turns.
func TestFirstMeetingsKeepDues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Float64Range(10, 1000)
		var jobs []Job
		for i := range rapid.IntRange(2, 5).Draw(t, "jobs") {
			id := fmt.Sprint(i)
			jobs = append(jobs, Job{ID: id, User: "u", Profile: flat(id, length.Draw(t, "length"), 100)})
		}
		p := guess{rapid.Float64Range(1, 2).Draw(t, "slowdown"), rapid.Float64Range(0, 0.5).Draw(t, "SD"), true}
		slowed := max(p.Slowdown, min(p.Slowdown+p.SD, 2))
		var running []Running
		if rapid.Bool().Draw(t, "busy") {
			r := Running{Job: Job{ID: "r", User: "u", Profile: flat("r", length.Draw(t, "length"), 100)}, Shares: 20}
			r.DoneS = r.Profile.DurationS * rapid.Float64Range(0, 0.95).Draw(t, "done")
			r.ElapsedS = r.DoneS
			running = append(running, r)
		}
		w := promised(running, jobs...)
		g := Guard{Rules: Rules{Predictor: p}}
		for _, c := range g.Combos(nil, w) {
			var really company
			var due []float64
			for i := range running {
				r := &w.Card().Running[i]
				really.members = append(really.members, member{Job: &r.Job, leftS: r.Profile.DurationS - r.DoneS})
				due = append(due, g.dueS(&r.Job))
			}
			for i := range w.Jobs {
				if j := w.Job(i); c.Has(i) {
					really.members, due = append(really.members, member{Job: j, leftS: j.Profile.DurationS}), append(due, g.dueS(j))
				}
			}
			really.ends(&Rules{Predictor: pairwise(slowed)}, &w.Card().Spec)
			for k := range due {
				if end := really.members[k].endS; end > due[k]+1e-6 {
					t.Fatalf("%b: member %d ends at %v, due at %v", c, k, end, due[k])
				}
			}
		}
	})
}

func TestNobodyMeetsTheLimitForSharing(t *testing.T) {
	j := func(f func(*Job)) Job {
		j := Job{ID: "a", User: "u", Profile: flat("a", 100, 100), LimitS: 160}
		f(&j)
		return j
	}
	other := Job{ID: "b", User: "u", Profile: flat("b", 100, 100)}
	for _, c := range []struct {
		name     string
		slowdown float64
		job      Job
		want     Veto
	}{
		{"it ends in time", 1.2, j(func(*Job) {}), Allowed},
		{"it would not", 1.4, j(func(*Job) {}), VetoLimit},
		{"no limit", 1.4, j(func(j *Job) { j.LimitS = 0 }), Allowed},
		{"its runs vary", 1.2, j(func(j *Job) { p := *j.Profile; p.DurationSD = 25; j.Profile = &p }), VetoLimit},
		{"it always runs to its limit", 1.01, j(func(j *Job) { j.LimitS = 100 }), VetoLimit},
		{"and its owner allows the difference", 1.01, j(func(j *Job) { j.LimitS, j.MaxSlowdown = 100, 1.5 }), Allowed},
		{"its deadline", 1.4, j(func(j *Job) { j.LimitS, j.DeadlineS = 0, 160 }), VetoLimit},
	} {
		g := Guard{Rules: Rules{Predictor: pairwise(c.slowdown)}}
		must.Equal(t, g.Check(window(card(), c.job, other), 3), c.want, c.name)
		must.Equal(t, g.Check(window(card(), c.job, other), 1), Allowed, "%s, alone", c.name)
		// It runs, and the other would join.
		run := Running{Job: c.job, Shares: 20}
		must.Equal(t, g.Check(window(card(run), other), 1), c.want, "%s, joined by the other", c.name)
	}
	// Where the time is given back, the limit is no reason, but a limit that can't be raised is, and a deadline.
	extends := Guard{Rules: Rules{Predictor: pairwise(1.4), ExtendLimit: true}}
	for name, c := range map[string]struct {
		job  Job
		want Veto
	}{
		"time is given back":      {j(func(*Job) {}), Allowed},
		"it always runs to it":    {j(func(j *Job) { j.LimitS = 100 }), Allowed},
		"the limit can't be more": {j(func(j *Job) { j.LimitFixed = true }), VetoLimit},
		"its deadline":            {j(func(j *Job) { j.DeadlineS = 120 }), VetoLimit},
	} {
		must.Equal(t, extends.Check(window(card(), c.job, other), 3), c.want, name)
	}
	if in := new(Rules).mustEndS(&other, 0, 0); !math.IsInf(in, 1) {
		t.Errorf("a job without a limit must have ended in %v s", in)
	}
}
