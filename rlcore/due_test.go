package rlcore

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

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
type pairwise float64

func (p pairwise) Predict(dst []Prediction, _ *GPUSpec, members []*Profile) {
	for i := range dst {
		dst[i].Slowdown = 1
		if len(members) > 1 {
			dst[i].Slowdown = float64(p)
		}
	}
}

func TestEnds(t *testing.T) {
	var f forecast
	r := &Rules{Predictor: pairwise(2)}
	a, b := flat("a", 100, 1), flat("b", 30, 1)
	got := f.ends(r, nil, &TitanXp, []*Profile{a, b, a}, []float64{100, 30, 100})
	// All at half speed until b has ended, then the two others; they end together.
	if want := []float64{200, 60, 200}; !slices.Equal(got, want) {
		t.Errorf("ends at %v, want %v", got, want)
	}
	got = f.ends(r, nil, &TitanXp, []*Profile{a, b}, []float64{100, 30})
	if want := []float64{130, 60}; !slices.Equal(got, want) { // 30 s done by then
		t.Errorf("ends at %v, want %v", got, want)
	}
}

// promised is a window of jobs whose plain ends follow from one GPU that runs the given
// jobs.
func promised(running []Running, jobs ...Job) *Window {
	p := schedule.NewPlain("0")
	for i := range running {
		p.Add(running[i].Plainly(), 0)
	}
	for i := range jobs {
		p.Add(jobs[i].Plainly(), 0)
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

func TestDues(t *testing.T) {
	of := func(id string, takes float64) Job { return Job{ID: id, User: "u", Profile: flat(id, takes, 100)} }
	for _, c := range []struct {
		name     string
		slowdown pairwise
		w        *Window
		want     []Combo
	}{
		{"nobody slows; b alone would make a wait", 1, promised(nil, of("a", 100), of("b", 100)), []Combo{1, 3}},
		{"within the grace", 1.09, promised(nil, of("a", 100), of("b", 100)), []Combo{1, 3}},
		{"the first would be late", 1.2, promised(nil, of("a", 100), of("b", 100)), []Combo{1}},
		{
			"no newcomer makes a member late", 1.2, promised([]Running{{Job: of("r", 100), Shares: 20}}, of("a", 100)),
			[]Combo{0},
		},
		{
			"a newcomer that hurts nobody", 1.2, promised([]Running{{Job: of("r", 1000), Shares: 20}}, of("a", 100)),
			[]Combo{0, 1},
		},
		{"no promise, no due", 3, window(card(), of("a", 100), of("b", 100)), []Combo{0, 1, 2, 3}},
	} {
		g := Guard{Rules: Rules{Predictor: c.slowdown}}
		if got := g.Combos(nil, c.w); !slices.Equal(got, c.want) {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
	}
}

// A job whose runs differ in length may be joined while it goes on: plain Slurm would not have ended it either. Its
// grace is a part of its median length, since most runs are shorter than the mean.
func TestARunThatGoesOnIsJoined(t *testing.T) {
	varied := *flat("r", 1000, 100)
	varied.DurationSD = 2000 // median 447 s
	r := Running{Job: Job{ID: "r", User: "u", Profile: &varied, LimitS: 50_000}, Shares: 20, DoneS: 600, ElapsedS: 600}
	p := schedule.NewPlain("0")
	p.DoneS = func(string) float64 { return r.DoneS }
	p.Add(r.Plainly(), 0)
	p.Runs(r.Plainly(), []int{0}, 0, 0)
	for _, c := range []struct {
		takes float64 // of the other job; r loses a tenth of it
		want  []Combo
	}{{400, []Combo{0, 1}}, {500, []Combo{0}}} {
		a := Job{ID: fmt.Sprint("a", c.takes), User: "u", SubmitS: 600, Profile: flat("a", c.takes, 100)}
		p.Add(a.Plainly(), 600)
		a.PlainEndS, r.PlainEndS = p.EndS(a.ID), p.EndS("r")
		w := window(card(r), a)
		w.State.NowS, w.State.PlainFreeS = 600, p.FreeS(nil, 600)
		p.Remove(600, a.ID)
		g := Guard{Rules: Rules{Predictor: pairwise(10.0 / 9)}}
		if got := g.Combos(nil, w); !slices.Equal(got, c.want) {
			t.Errorf("a job of %v s: %b, want %b", c.takes, got, c.want)
		}
	}
}

// A job has no company that might take so much longer than expected that the job ends late.
func TestCompanyOfUnknownLength(t *testing.T) {
	for _, c := range []struct {
		sd   float64 // of the newcomer, which is expected to take 100 s and is slowed by half
		room float64 // that the running job has
		want []Combo
	}{{0, 0, []Combo{0, 1}}, {300, 0, []Combo{0}}, {300, 5000, []Combo{0, 1}}} {
		a := Job{ID: "a", User: "u", Profile: flat("a", 100, 100)}
		if c.sd > 0 {
			varied := *a.Profile
			varied.DurationSD = c.sd
			a.Profile = &varied
		}
		w := promised([]Running{{Job: Job{ID: "r", User: "u", Profile: flat("r", 1000, 100)}, Shares: 20}}, a)
		w.State.GPUs[0].Running[0].PlainEndS += c.room
		g := Guard{Rules: Rules{Predictor: pairwise(1.5)}}
		if got := g.Combos(nil, w); !slices.Equal(got, c.want) {
			t.Errorf("100 ± %v s with %v s of room: %b, want %b", c.sd, c.room, got, c.want)
		}
	}
}

// A run that has used its grace up gets no second one from each newcomer: what it has left until its due is all the
// room for a newcomer that takes longer than expected.
func TestRoomIsWhatIsLeftUntilTheDue(t *testing.T) {
	varied := *flat("a", 10, 100)
	varied.DurationSD = 30
	for ahead, want := range map[float64][]Combo{0: {0, 1}, -80: {0}} { // of plain Slurm, s; and a grace of 100
		a := Job{ID: "a", User: "u", Profile: &varied}
		w := promised([]Running{{Job: Job{ID: "r", User: "u", Profile: flat("r", 1000, 100)}, Shares: 20}}, a)
		w.State.GPUs[0].Running[0].PlainEndS += ahead
		g := Guard{Rules: Rules{Predictor: pairwise(1.5)}}
		if got := g.Combos(nil, w); !slices.Equal(got, want) {
			t.Errorf("%v s ahead of plain Slurm: %b, want %b", ahead, got, want)
		}
	}
}

// A lead that only mean run times promise puts no due off: neither do two jobs share on it, nor does the second one go
// before the first.
func TestLeadOfMeansIsNoDue(t *testing.T) {
	for early, want := range map[float64][]Combo{0: {1, 2, 3}, 1000: {1}} {
		of := func(id string) Job {
			return Job{ID: id, User: "u", Profile: flat(id, 100, 100), PlainEndS: 1100, EarlyS: early}
		}
		g := Guard{Rules: Rules{Predictor: pairwise(1.5)}}
		if got := g.Combos(nil, window(card(), of("a"), of("b"))); !slices.Equal(got, want) {
			t.Errorf("%v s earlier than by mean run times: %b, want %b", early, got, want)
		}
	}
}

// That a sharer may have come less far than expected doesn't make the due of a job behind it look lost: a newcomer must
// leave that job the start that is expected.
func TestDoubtLosesNoDue(t *testing.T) {
	r := Running{Job: Job{ID: "r", User: "u", Profile: flat("r", 1000, 100), PlainEndS: 9000}, Shares: 20}
	// it has 60 s left, 100 at the most
	r.DoneS, r.ElapsedS = 940, 940.0*940/900
	a := Job{ID: "a", User: "u", Profile: flat("a", 1000, 100), PlainEndS: 980, NoShare: true} // it must start within 80 s
	for takes, want := range map[float64][]Combo{50: {0, 2}, 95: {0}} {
		b := Job{ID: "b", User: "u", Profile: flat("b", takes, 100), PlainEndS: 9000}
		g := Guard{Rules: Rules{Predictor: pairwise(1)}}
		if got := g.Combos(nil, window(card(r), a, b)); !slices.Equal(got, want) {
			t.Errorf("beside a job of %v s: %b, want %b", takes, got, want)
		}
	}
}

// At a first meeting one more standard deviation counts, and no more than members that take turns. On an idle GPU one
// at a time needs no more slack than a known company.
func TestFirstMeetings(t *testing.T) {
	of := func(id string, takes float64) Job { return Job{ID: id, User: "u", Profile: flat(id, takes, 100)} }
	// A short run next to a long one, which needs a part of its grace of 100 s.
	short := promised([]Running{{Job: of("r", 1000), Shares: 20}}, of("a", 50))
	for _, c := range []struct {
		name  string
		guess guess
		want  []Combo
	}{
		{"known", guess{1.5, 0.3, false}, []Combo{0, 1}},
		{"known to vary", guess{1.5, 2, false}, []Combo{0}},
		{"never seen, with slack for turns", guess{1.5, 2, true}, []Combo{0, 1}},
		{"never seen, and slower than turns is expected", guess{4, 0, true}, []Combo{0}},
	} {
		g := Guard{Rules: Rules{Predictor: c.guess}}
		if got := g.Combos(nil, short); !slices.Equal(got, c.want) {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name  string
		guess guess
		other bool // a first meeting is under way on another GPU
		want  []Combo
	}{
		{"known", guess{1.02, 0.05, false}, false, []Combo{1, 3}},
		{"never seen, the only one", guess{1.02, 0.05, true}, false, []Combo{1, 3}},
		{"never seen, a second one", guess{1.02, 0.05, true}, true, []Combo{1}},
		{"never seen, a second one with slack for two standard deviations", guess{1.02, 0.03, true}, true, []Combo{1, 3}},
	} {
		w := promised(nil, of("a", 100), of("b", 100))
		if c.other {
			s := w.State
			s.GPUs = append(s.GPUs, card(Running{Job: of("x", 1e6), Shares: 20}, Running{Job: of("y", 1e6), Shares: 20}))
			s.PlainFreeS = append(s.PlainFreeS, 1e7)
		}
		g := Guard{Rules: Rules{Predictor: c.guess}}
		if got := g.Combos(nil, w); !slices.Equal(got, c.want) {
			t.Errorf("on an idle GPU, %s: %b, want %b", c.name, got, c.want)
		}
	}
}

// A promise that would be broken says whose: a due's, a due's because applications meet for the first time, or the turn
// of a job of whole GPUs. The decision names the job that it kept waiting.
func TestWhyAPromiseWouldBeBroken(t *testing.T) {
	of := func(id string, takes float64) Job { return Job{ID: id, User: "u", Profile: flat(id, takes, 100)} }
	foreign := of("whole", 100)
	foreign.Foreign = true
	long := func() []Running { return []Running{{Job: of("r", 1000), Shares: 20}} }
	for _, c := range []struct {
		name  string
		guess guess
		w     *Window
		job   string
		want  Refusal
	}{
		{"late by a known slowdown", guess{4, 0, false}, promised(long(), of("a", 50)), "a", RefusedDue},
		{"late by a slowdown that nobody saw", guess{4, 0, true}, promised(long(), of("a", 50)), "a", RefusedFirst},
		{
			"in time, but a job of whole GPUs starts later",
			guess{1.2, 0, false},
			promised(long(), foreign, of("a", 50)), "a",
			RefusedTurn,
		},
		{"in time", guess{1.2, 0, false}, promised(long(), of("a", 50)), "", Allowed},
	} {
		d := &Decider{Policy: byLength{}, Guard: NewGuard(Rules{Predictor: c.guess}), M: 5}
		dec := d.Decide(c.w.State, 0)
		i, why := dec.KeptOut()
		if why != c.want || why != Allowed && dec.Window.Job(i).ID != c.job {
			t.Errorf("%s: %q, %v; want %q", c.name, why, dec.Jobs(), c.want)
		}
	}
}

// Whatever may join a running job keeps all dues even if first meetings slow everyone by two standard deviations more
// than predicted, or by turns; of what starts together, by one.
func TestFirstMeetingsKeepDues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Float64Range(10, 1000)
		var jobs []Job
		for i := range rapid.IntRange(2, 5).Draw(t, "jobs") {
			id := fmt.Sprint(i)
			jobs = append(jobs, Job{ID: id, User: "u", Profile: flat(id, length.Draw(t, "length"), 100)})
		}
		p := guess{rapid.Float64Range(1, 2).Draw(t, "slowdown"), rapid.Float64Range(0, 0.5).Draw(t, "SD"), true}
		slowed := max(p.Slowdown, min(p.Slowdown+2*p.SD, 2))
		var running []Running
		if rapid.Bool().Draw(t, "busy") {
			r := Running{Job: Job{ID: "r", User: "u", Profile: flat("r", length.Draw(t, "length"), 100)}, Shares: 20}
			r.DoneS = r.Profile.DurationS * rapid.Float64Range(0, 0.95).Draw(t, "done")
			r.ElapsedS = r.DoneS
			running = append(running, r)
		} else {
			slowed = min(slowed, p.Slowdown+p.SD)
		}
		w := promised(running, jobs...)
		g := Guard{Rules: Rules{Predictor: p}}
		for _, c := range g.Combos(nil, w) {
			var members []*Profile
			var work, due []float64
			for i := range running {
				r := &w.Card().Running[i]
				members, work = append(members, r.Profile), append(work, r.Profile.DurationS-r.DoneS)
				due = append(due, g.dueS(&r.Job))
			}
			for i := range w.Jobs {
				if j := w.Job(i); c.Has(i) {
					members, work, due = append(members, j.Profile), append(work, j.Profile.DurationS), append(due, g.dueS(j))
				}
			}
			var really forecast
			for k, end := range really.ends(&Rules{Predictor: pairwise(slowed)}, nil, &w.Card().Spec, members, work) {
				if end > due[k]+1e-6 {
					t.Fatalf("%b: member %d ends at %v, due at %v", c, k, end, due[k])
				}
			}
		}
	})
}

// How far a sharer has come is as uncertain as how much it was slowed.
func TestProgressIsUncertain(t *testing.T) {
	of := func(id string, takes float64) Job { return Job{ID: id, User: "u", Profile: flat(id, takes, 100)} }
	at := func(elapsedS float64) *Window {
		w := promised([]Running{{Job: of("r", 1000), DoneS: 800, ElapsedS: elapsedS, Shares: 20}}, of("a", 1000))
		w.State.NowS, w.State.GPUs[0].Running[0].PlainEndS = 0, 150 // and a grace of 100
		return w
	}
	g := Guard{Rules: Rules{Predictor: pairwise(1.2)}}
	if got := g.Combos(nil, at(800)); !slices.Contains(got, 1) {
		t.Errorf("next to a job that ran alone: %b", got)
	}
	if got := g.Combos(nil, at(1000)); slices.Contains(got, 1) {
		t.Errorf("next to a job that may have done 640 s: %b", got)
	}
	if got := new(Rules).mostLeftS(&at(1000).Card().Running[0]); math.Abs(got-360) > 1e-9 {
		t.Errorf("%v s are left at the most, want 360", got)
	}
}

// A job that is late already goes first, alone if need be; and nothing makes it later.
func TestLateAlready(t *testing.T) {
	a := Job{ID: "a", User: "u", Profile: flat("a", 100, 100), PlainEndS: 10}
	b := Job{ID: "b", User: "u", Profile: flat("b", 100, 100), PlainEndS: 1000}
	g := Guard{Rules: Rules{Predictor: pairwise(1.2)}}
	if got := g.Combos(nil, window(card(), a, b)); !slices.Equal(got, []Combo{1}) {
		t.Errorf("on an idle GPU: %b", got)
	}
	run := Running{Job: Job{ID: "r", User: "u", Profile: flat("r", 50, 100), PlainEndS: 1000}, Shares: 20}
	if got := g.Combos(nil, window(card(run), a, b)); slices.Contains(got, 2) {
		t.Errorf("b goes before a, which it delays: %b", got)
	}
}

// A job that started after its latest start has the grace of its run, as one that waits has; one that its co-runners
// made late has none left.
func TestLostAtTheStart(t *testing.T) {
	for elapsed, want := range map[float64][]Combo{0: {0, 1}, 80: {0}} {
		run := Running{
			Job: Job{ID: "r", User: "u", Profile: flat("r", 100, 100), PlainEndS: 81 - elapsed}, Shares: 20,
			ElapsedS: elapsed, DoneS: elapsed / 4,
		}
		b := Job{ID: "b", User: "u", Profile: flat("b", 30, 100), PlainEndS: 9000}
		g := Guard{Rules: Rules{Predictor: pairwise(1.2)}}
		if got := g.Combos(nil, window(card(run), b)); !slices.Equal(got, want) {
			t.Errorf("after %v s: %b, want %b", elapsed, got, want)
		}
	}
}

// A decision may use two fifths of a job's lead on plain Slurm, also a foreign job's.
func TestPartOfALead(t *testing.T) {
	for _, foreign := range []bool{true, false} {
		for lead, want := range map[float64][]Combo{0: {0}, 14: {0}, 16: {0, 2}} {
			// Next to b, r ends after 56 s instead of 50.
			run := Running{Job: Job{ID: "r", User: "u", Profile: flat("r", 50, 100), PlainEndS: 1000}, Shares: 20}
			next := Job{ID: "a", User: "u", LimitS: 3600, PlainEndS: 50 + lead + 3600, Foreign: foreign}
			b := Job{ID: "b", User: "u", Profile: flat("b", 30, 100), PlainEndS: 9000}
			w := window(card(run), next, b)
			if foreign {
				w.Jobs, want = []int{1}, slices.Clone(want)
				for i := range want {
					want[i] /= 2
				}
			}
			g := Guard{Rules: Rules{Predictor: pairwise(1.2)}}
			if got := g.Combos(nil, w); !slices.Equal(got, want) {
				t.Errorf("foreign %v, lead %v: %b, want %b", foreign, lead, got, want)
			}
		}
	}
}

// Of a job of unknown length the start is promised.
func TestUnknownIsPromisedItsStart(t *testing.T) {
	unknown := Job{ID: "new", User: "u", LimitS: 1000}
	known := Job{ID: "a", User: "u", Profile: flat("a", 100, 100)}
	w := promised([]Running{{Job: Job{ID: "r", User: "u", Profile: flat("r", 200, 100)}, Shares: 20}}, unknown, known)
	// Beside r, a would end after r, and the unknown job would start later than promised.
	w.State.GPUs[0].Running[0].DoneS = 190
	w.State.Pending[0].PlainEndS = 10 + 1000
	g := Guard{Rules: Rules{Predictor: pairwise(1)}}
	if got := g.Combos(nil, w); !slices.Equal(got, []Combo{0}) {
		t.Errorf("got %b", got)
	}
}

func TestLimits(t *testing.T) {
	j := func(f func(*Job)) Job {
		j := Job{ID: "a", User: "u", Profile: flat("a", 100, 100), LimitS: 160}
		f(&j)
		return j
	}
	other := Job{ID: "b", User: "u", Profile: flat("b", 100, 100)}
	for _, c := range []struct {
		name     string
		slowdown pairwise
		job      Job
		want     Refusal
	}{
		{"it ends in time", 1.2, j(func(*Job) {}), Allowed},
		{"it would not", 1.4, j(func(*Job) {}), RefusedLimit},
		{"no limit", 1.4, j(func(j *Job) { j.LimitS = 0 }), Allowed},
		{"its runs vary", 1.2, j(func(j *Job) { p := *j.Profile; p.DurationSD = 25; j.Profile = &p }), RefusedLimit},
		{"it always runs to its limit", 1.01, j(func(j *Job) { j.LimitS = 100 }), RefusedLimit},
		{"and its owner allows the difference", 1.01, j(func(j *Job) { j.LimitS, j.MaxSlowdown = 100, 1.5 }), Allowed},
		{"its deadline", 1.4, j(func(j *Job) { j.LimitS, j.DeadlineS = 0, 160 }), RefusedLimit},
	} {
		g := Guard{Rules: Rules{Predictor: c.slowdown}}
		if got := g.Check(window(card(), c.job, other), 3); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if got := g.Check(window(card(), c.job, other), 1); got != Allowed {
			t.Errorf("%s, alone: %s", c.name, got)
		}
		// It runs, and the other would join.
		run := Running{Job: c.job, Shares: 20}
		if got := g.Check(window(card(run), other), 1); got != c.want {
			t.Errorf("%s, joined by the other: %s, want %s", c.name, got, c.want)
		}
	}
	// Where the time is given back, the limit is no reason, but a limit that can't be raised is, and a deadline.
	extends := Guard{Rules: Rules{Predictor: pairwise(1.4), ExtendLimit: true}}
	for name, c := range map[string]struct {
		job  Job
		want Refusal
	}{
		"time is given back":      {j(func(*Job) {}), Allowed},
		"it always runs to it":    {j(func(j *Job) { j.LimitS = 100 }), Allowed},
		"the limit can't be more": {j(func(j *Job) { j.LimitFixed = true }), RefusedLimit},
		"its deadline":            {j(func(j *Job) { j.DeadlineS = 120 }), RefusedLimit},
	} {
		if got := extends.Check(window(card(), c.job, other), 3); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if in := new(Rules).mustEndS(&other, 0, 0); !math.IsInf(in, 1) {
		t.Errorf("a job without a limit must have ended in %v s", in)
	}
}

// A job that isn't the bridge's keeps its start: no sharer of lower priority joins, or starts, where it would wait
// longer.
func TestForeignJobKeepsItsStart(t *testing.T) {
	of := func(id string, takes float64) Job { return Job{ID: id, User: "u", Profile: flat(id, takes, 100)} }
	running := Running{Job: of("a", 3600), Shares: 20}
	whole := Job{ID: "w", LimitS: 3600, Foreign: true}
	for _, c := range []struct {
		name string
		w    *Window
		want []Combo
	}{
		{"a long job would keep it waiting", promised([]Running{running}, whole, of("long", 9*3600)), []Combo{0}},
		{"a short one doesn't", promised([]Running{running}, whole, of("short", 600)), []Combo{0, 1}},
		{"its turn is now", promised(nil, whole, of("short", 600)), []Combo{0}},
		{"it comes behind", promised(nil, of("short", 600), whole), []Combo{1}},
	} {
		for i := range c.w.State.Pending {
			if c.w.State.Pending[i].Foreign {
				c.w.Jobs = slices.DeleteFunc(c.w.Jobs, func(at int) bool { return at == i })
			}
		}
		g := Guard{Rules: Rules{Predictor: pairwise(1)}}
		if got := g.Combos(nil, c.w); !slices.Equal(got, c.want) {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
	}
}
