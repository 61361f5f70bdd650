package rlcore

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

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
	g := Guard{Predictor: pairwise(2)}
	a, b := flat("a", 100, 1), flat("b", 30, 1)
	got := g.ends(nil, &TitanXp, []*Profile{a, b, a}, []float64{100, 30, 100}, 1)
	// All at half speed until b has ended, then the two others; they end together.
	if want := []float64{200, 60, 200}; !slices.Equal(got, want) {
		t.Errorf("ends at %v, want %v", got, want)
	}
	got = g.ends(nil, &TitanXp, []*Profile{a, b}, []float64{100, 30}, 1)
	if want := []float64{130, 60}; !slices.Equal(got, want) { // 30 s done by then
		t.Errorf("ends at %v, want %v", got, want)
	}
}

// promised is a window of jobs whose plain ends follow from one GPU that runs the given
// jobs.
func promised(running []Running, jobs ...Job) *Window {
	p := NewPlain("0")
	for i := range running {
		p.Add(&running[i].Job, 0)
	}
	for i := range jobs {
		p.Add(&jobs[i], 0)
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
		{"no newcomer makes a member late", 1.2, promised([]Running{{Job: of("r", 100), Shares: 20}}, of("a", 100)), []Combo{0}},
		{"a newcomer that hurts nobody", 1.2, promised([]Running{{Job: of("r", 1000), Shares: 20}}, of("a", 100)), []Combo{0, 1}},
		{"no promise, no due", 3, window(card(), of("a", 100), of("b", 100)), []Combo{0, 1, 2, 3}},
	} {
		g := Guard{Predictor: c.slowdown}
		if got := g.Combos(nil, c.w); !slices.Equal(got, c.want) {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
	}
}

// A job that is late already goes first, alone if need be; and nothing makes it later.
func TestLateAlready(t *testing.T) {
	a := Job{ID: "a", User: "u", Profile: flat("a", 100, 100), PlainEndS: 10}
	b := Job{ID: "b", User: "u", Profile: flat("b", 100, 100), PlainEndS: 1000}
	g := Guard{Predictor: pairwise(1.2)}
	if got := g.Combos(nil, window(card(), a, b)); !slices.Equal(got, []Combo{1}) {
		t.Errorf("on an idle GPU: %b", got)
	}
	run := Running{Job: Job{ID: "r", User: "u", Profile: flat("r", 50, 100), PlainEndS: 1000}, Shares: 20}
	if got := g.Combos(nil, window(card(run), a, b)); slices.Contains(got, 2) {
		t.Errorf("b goes before a, which it delays: %b", got)
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
	g := Guard{Predictor: pairwise(1)}
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
		g := Guard{Predictor: c.slowdown}
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
	if in := (&Guard{}).timeFor(&other, 0, 0); !math.IsInf(in, 1) {
		t.Errorf("a job without a limit must have ended in %v s", in)
	}
}

// keepsSlowly is dues.keep step by step: each schedule is made from its beginning, and each
// GPU looked at for each job.
func keepsSlowly(g *Guard, w *Window, c Combo) bool {
	s := w.State
	ends := func(gpu int, c Combo) (endS []float64, jobs []*Job, freeS float64) {
		var members []*Profile
		var work []float64
		for i := range s.GPUs[gpu].Running {
			r := &s.GPUs[gpu].Running[i]
			jobs, members, work = append(jobs, &r.Job), append(members, r.Profile), append(work, r.Profile.DurationS-r.DoneS)
		}
		for i := range w.Jobs {
			if c.Has(i) {
				jobs, members, work = append(jobs, w.Job(i)), append(members, w.Job(i).Profile), append(work, w.Job(i).Profile.DurationS)
			}
		}
		endS = g.ends(nil, &s.GPUs[gpu].Spec, members, work, defaultTrust)
		for _, t := range endS {
			freeS = max(freeS, t)
		}
		return endS, jobs, freeS
	}
	goOn := func(c Combo) (starts, free []float64) {
		for k := range s.GPUs {
			of := Combo(0)
			if k == w.GPU {
				of = c
			}
			_, _, freeS := ends(k, of)
			_, _, without := ends(k, 0)
			free = append(free, freeS+max(0, s.GPUs[k].NextS-without))
		}
		for i := range min(len(s.Pending), farthest+moreByGPU*len(s.GPUs)) {
			if at := slices.Index(w.Jobs, i); at >= 0 && c.Has(at) {
				starts = append(starts, 0)
				continue
			}
			first, start := -1, math.Inf(1)
			for k, t := range free {
				if (t < start || t == start && k == w.GPU) && s.Pending[i].MayUse(k) {
					first, start = k, t
				}
			}
			if first >= 0 {
				free[first] += s.Pending[i].Profile.DurationS
			}
			starts = append(starts, start)
		}
		slices.Sort(free)
		return starts, free
	}
	before, _, _ := ends(w.GPU, 0)
	plainly, tail := goOn(0)
	endS, jobs, after := ends(w.GPU, c)
	if _, _, without := ends(w.GPU, 0); w.Card().NextS > 0 && after > max(w.Card().NextByS, without)+rounding {
		return false
	}
	for i, j := range jobs {
		most := g.dueS(j) - s.NowS
		if i < len(before) {
			most = max(most, before[i])
		} else {
			at := slices.IndexFunc(s.Pending, func(x Job) bool { return x.ID == j.ID })
			if end := plainly[at] + j.Profile.DurationS; end > most {
				most = end + g.grace()*j.Profile.DurationS
			}
		}
		if endS[i] > most+rounding {
			return false
		}
	}
	starts, free := goOn(c)
	for i, start := range starts {
		j := &s.Pending[i]
		if at := slices.Index(w.Jobs, i); at >= 0 && c.Has(at) {
			continue
		}
		if start > max(plainly[i], (g.dueS(j)-s.NowS-j.Profile.DurationS)/(1+reserve))+rounding {
			return false
		}
	}
	for k, t := range free {
		if len(starts) == len(s.Pending) && t > max(tail[k], (s.PlainFreeS[k]-s.NowS)/(1+reserve))+rounding {
			return false
		}
	}
	return true
}

// What isn't followed to the end is decided as if it were.
func TestDuesAreFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "GPUs")
		p := NewPlain(slices.Repeat([]string{"gpu"}, n)...)
		s := &State{NowS: 100}
		split := n > 1 && rapid.Bool().Draw(t, "split")
		var evens, odds []int
		for k := range n {
			if k%2 == 0 {
				evens = append(evens, k)
			} else {
				odds = append(odds, k)
			}
		}
		job := func(id string, atS float64) Job {
			j := Job{ID: id, Profile: flat(id, rapid.Float64Range(1, 300).Draw(t, "takes"), 100)}
			if split {
				j.GPUs = rapid.SampledFrom([][]int{evens, odds}).Draw(t, "part")
			} else if rapid.IntRange(0, 30).Draw(t, "choosy") == 0 {
				j.GPUs = rapid.SampledFrom([][]int{{0}, {n - 1}, {n / 2, n - 1}, {-1}}).Draw(t, "may use")
			}
			p.Add(&j, atS)
			return j
		}
		for k := range n {
			g := GPU{Spec: GPUSpec{MemMiB: 12000}, FreeCPUs: -1, FreeHostMemMiB: -1}
			for i := range rapid.IntRange(0, 2).Draw(t, "running") {
				r := Running{Job: job(fmt.Sprintf("r%d.%d", k, i), 0), Shares: 20, ElapsedS: 90}
				r.DoneS = r.Profile.DurationS * rapid.Float64Range(0, 1).Draw(t, "done")
				g.Running = append(g.Running, r)
			}
			g.NextS = rapid.SampledFrom([]float64{0, 0, 50, 400}).Draw(t, "others follow until")
			g.NextByS = rapid.SampledFrom([]float64{-10, 30, 300, math.Inf(1)}).Draw(t, "and start by")
			s.GPUs = append(s.GPUs, g)
		}
		jobs := rapid.SampledFrom([]int{1, 5, 20, 150}).Draw(t, "pending")
		for i := range jobs {
			s.Pending = append(s.Pending, job(fmt.Sprint(i), rapid.SampledFrom([]float64{0, 100}).Draw(t, "came")))
		}
		slices.SortStableFunc(s.Pending, func(a, b Job) int { return int(p.EndS(a.ID) - p.EndS(b.ID)) })
		luck := rapid.SampledFrom([]float64{0, 50, 500}).Draw(t, "ahead") // of the plain schedule
		for i := range s.Pending {
			s.Pending[i].PlainEndS = p.EndS(s.Pending[i].ID) + luck
		}
		for k := range s.GPUs {
			for i := range s.GPUs[k].Running {
				r := &s.GPUs[k].Running[i]
				r.PlainEndS = p.EndS(r.ID) + luck
			}
		}
		s.PlainFreeS = p.FreeS(nil, s.NowS)
		g := &Guard{Predictor: pairwise(rapid.SampledFrom([]float64{1, 1.05, 1.3, 2}).Draw(t, "slowdown"))}
		told := rapid.Bool().Draw(t, "changes are told")
		for gpu := range s.GPUs {
			if at := rapid.IntRange(-1, n-1).Draw(t, "changes"); told && at >= 0 {
				card := &s.GPUs[at]
				if len(card.Running) > 0 && rapid.Bool().Draw(t, "ends") {
					card.Running = card.Running[1:]
				} else if len(s.Pending) > 1 {
					card.Running = append(card.Running, Running{Job: s.Pending[0], Shares: 20})
					s.Pending = s.Pending[1:]
				}
				s.Changed(at)
			}
			w := NewWindow(nil, s, gpu, 6)
			if len(w.Jobs) == 0 {
				continue
			}
			g.dues.look(g, &w)
			for c := Combo(1); int(c) < 1<<len(w.Jobs); c++ {
				if got, want := g.dues.keep(g, &w, c), keepsSlowly(g, &w, c); got != want {
					t.Fatalf("GPU %d, %b: %v, want %v", gpu, c, got, want)
				}
			}
		}
	})
}
