package rlcore

import (
	"testing"

	"pgregory.net/rapid"
)

type constant float64

func (c constant) Predict(dst []Prediction, _ *GPUSpec, _ []*Profile) {
	for i := range dst {
		dst[i].Slowdown = float64(c)
	}
}

// slowBusy slows an application named busy, and no other.
type slowBusy struct{}

func (slowBusy) Predict(dst []Prediction, _ *GPUSpec, members []*Profile) {
	for i, p := range members {
		dst[i].Slowdown = 1
		if p.App == "busy" {
			dst[i].Slowdown = 1.5
		}
	}
}

func flat(app string, dur, mem float64) *Profile {
	return &Profile{App: app, DurationS: dur, PeriodS: dur, Series: []Use{{GPU: 0.3, MemMiB: mem}}}
}

// late needs its memory only in the second half.
func late(app string, dur, mem float64) *Profile {
	return &Profile{
		App: app, DurationS: dur, PeriodS: dur / 2,
		Series: []Use{{GPU: 0.3, MemMiB: 100}, {GPU: 0.3, MemMiB: mem}},
	}
}

func card(running ...Running) GPU {
	return GPU{ID: "g", Spec: TitanXp, Running: running, FreeCPUs: -1, FreeHostMemMiB: -1}
}

func window(g GPU, jobs ...Job) *Window {
	s := &State{GPUs: []GPU{g}, Pending: jobs}
	w := NewWindow(nil, s, 0, 5)
	return &w
}

func TestCheck(t *testing.T) {
	small := flat("small", 60, 1000)
	big := flat("big", 60, 7000)
	ann := func(id string, p *Profile) Job { return Job{ID: id, User: "ann", Profile: p} }
	with := func(j Job, f func(*Job)) Job { f(&j); return j }
	volta := card()
	volta.Spec.SameUser = false
	busy := card(Running{Job: ann("r", small), Shares: 50})
	held := volta
	held.Spec.MemLimits = true
	notebook := flat("session", 3600, 2000)
	notebook.Busy = flat("busy", 3600, 2000)
	session := func(contract float64) Job { return Job{ID: "s", User: "ann", Profile: notebook, MaxSlowdown: contract} }
	host := card()
	host.FreeCPUs = 3
	for _, c := range []struct {
		name string
		g    Guard
		w    *Window
		c    Combo
		want Refusal
	}{
		{"two that fit", Guard{}, window(card(), ann("1", small), ann("2", small)), 3, Allowed},
		{"too much memory", Guard{}, window(card(), ann("1", big), ann("2", big)), 3, RefusedMemory},
		{"alone its memory doesn't matter", Guard{}, window(card(), ann("1", flat("x", 1, 99999))), 1, Allowed},
		{
			"two users on Pascal",
			Guard{},
			window(card(), ann("1", small), Job{ID: "2", User: "bob", Profile: small}), 3,
			RefusedUser,
		},
		{
			"two users on Volta",
			Guard{},
			window(volta, ann("1", small), Job{ID: "2", User: "bob", Profile: small}), 3,
			Allowed,
		},
		{"unknown with another", Guard{}, window(card(), ann("1", nil), ann("2", small)), 3, RefusedUnknown},
		{"unknown alone", Guard{}, window(card(), ann("1", nil)), 1, Allowed},
		{"unknown joins", Guard{}, window(busy, ann("1", nil)), 1, RefusedUnknown},
		{"joins", Guard{}, window(busy, ann("1", small)), 1, Allowed},
		{"joins another user", Guard{}, window(busy, Job{ID: "1", User: "bob", Profile: small}), 1, RefusedUser},
		{
			"next to a whole GPU's job",
			Guard{},
			window(card(Running{Job: ann("r", small), Whole: true}), ann("1", small)), 1,
			RefusedWhole,
		},
		{
			"no shares left",
			Guard{},
			window(card(Running{Job: ann("r", small), Shares: 100}), ann("1", small)), 1,
			RefusedShares,
		},
		{"asks not to share", Guard{}, window(card(), with(ann("1", small), func(j *Job) { j.NoShare = true }),
			ann("2", small)), 3, RefusedNoShare},
		{"no share, alone", Guard{}, window(card(), with(ann("1", small), func(j *Job) { j.NoShare = true })), 1, Allowed},
		{
			"the job's contract",
			Guard{Rules: Rules{Predictor: constant(1.3)}},
			window(card(), with(ann("1", small), func(j *Job) { j.MaxSlowdown = 1.2 }), ann("2", small)), 3, RefusedContract,
		},
		{
			"the site's contract",
			Guard{Rules: Rules{Predictor: constant(1.3), MaxSlowdown: 1.2}},
			window(card(), ann("1", small), ann("2", small)), 3, RefusedContract,
		},
		{
			"the job's contract is wider",
			Guard{Rules: Rules{Predictor: constant(1.3), MaxSlowdown: 1.2}},
			window(card(), with(ann("1", small), func(j *Job) { j.MaxSlowdown = 1.5 }), ann("2", small)), 3, RefusedContract,
		},
		{
			"the running job's contract",
			Guard{Rules: Rules{Predictor: constant(1.3)}},
			window(card(Running{Job: with(ann("r", small), func(j *Job) { j.MaxSlowdown = 1.1 }), Shares: 50}), ann("1", small)),
			1, RefusedContract,
		},
		{
			"members",
			Guard{Rules: Rules{MaxMembers: 2}},
			window(card(), ann("1", small), ann("2", small), ann("3", small)), 7,
			RefusedClients,
		},
		{"cores", Guard{}, window(host, with(ann("1", small), func(j *Job) { j.CPUs = 2 }),
			with(ann("2", small), func(j *Job) { j.CPUs = 2 })), 3, RefusedHost},
		{"a session where memory is limited", Guard{}, window(held, session(0), ann("1", small)), 3, Allowed},
		{"a session where it isn't", Guard{}, window(card(), session(0), ann("1", small)), 3, RefusedUnheld},
		{
			"a session while it computes",
			Guard{Rules: Rules{Predictor: slowBusy{}}},
			window(held, session(1.3), ann("1", small)), 3, RefusedContract,
		},
		{
			"a session with a wide contract",
			Guard{Rules: Rules{Predictor: slowBusy{}}},
			window(held, session(2), ann("1", small)), 3, Allowed,
		},
		{
			"a predictor that returns NaN admits nothing",
			Guard{Rules: Rules{Predictor: constant(nan()), MaxSlowdown: 1.5}},
			window(card(), ann("1", small), ann("2", small)), 3, RefusedContract,
		},
	} {
		if got := c.g.Check(c.w, c.c); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func nan() float64 { z := 0.0; return z / z }

// A job whose memory is needed when the other one has ended may share with it,
// but not where the other might be so slow that both meet.
func TestMemoryOverTime(t *testing.T) {
	first := flat("first", 50, 9000)
	second := late("second", 400, 9000)
	w := window(card(), Job{ID: "1", User: "a", Profile: first}, Job{ID: "2", User: "a", Profile: second})
	g := Guard{Rules: Rules{Predictor: constant(1.5)}}
	if why := g.Check(w, 3); why != Allowed {
		t.Errorf("75 s of the first against the second's 200 s: %s", why)
	}
	g = Guard{Rules: Rules{Predictor: constant(4)}}
	if why := g.Check(w, 3); why != RefusedMemory {
		t.Errorf("at worst the first runs for 200 s: %s", why)
	}
}

// Whatever the true slowdowns are within the predicted bounds, an allowed group never
// exceeds the card.
func TestMemoryHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(t, "members")
		worst := rapid.Float64Range(1, 4).Draw(t, "worst")
		g := Guard{Rules: Rules{Predictor: constant(worst)}}
		var jobs []Job
		for range n {
			period := rapid.Float64Range(0.5, 10).Draw(t, "period")
			points := rapid.IntRange(1, 12).Draw(t, "points")
			p := &Profile{App: "x", PeriodS: period, DurationS: period * float64(points)}
			for range points {
				p.Series = append(p.Series, Use{MemMiB: rapid.SampledFrom([]float64{100, 3000, 6000, 9000}).Draw(t, "MiB")})
			}
			jobs = append(jobs, Job{ID: "j", User: "a", Profile: p})
		}
		w := window(card(), jobs...)
		all := Combo(1)<<n - 1
		if g.Check(w, all) != Allowed {
			return
		}
		slow := make([]float64, n)
		for i := range slow {
			slow[i] = rapid.Float64Range(1, worst).Draw(t, "slowdown")
		}
		for x := 0.0; x < 12*10*worst; x += 0.13 {
			sum := 0.0
			for i := range jobs {
				if done := x / slow[i]; done < jobs[i].Profile.DurationS {
					sum += jobs[i].Profile.At(done).MemMiB
				}
			}
			if sum > TitanXp.MemMiB {
				t.Fatalf("%v MiB after %v s with slowdowns %v", sum, x, slow)
			}
		}
	})
}

// A job that was delayed for long enough is in every combination of an idle GPU, and of no other.
func TestDelayedJobStarts(t *testing.T) {
	small := flat("small", 60, 1000)
	jobs := []Job{
		{ID: "1", User: "a", Profile: small},
		{ID: "2", User: "b", Profile: small},
		{ID: "3", User: "a", Profile: small, DelayedS: 300},
	}
	g := Guard{}
	for _, c := range g.Combos(nil, window(card(), jobs...)) {
		if !c.Has(2) {
			t.Errorf("combination %b leaves out the job that waited long enough", c)
		}
	}
	if c := g.Combos(nil, window(card(Running{Job: jobs[1], Shares: 50}), jobs...)); len(c) == 0 || c[0] != 0 {
		t.Errorf("next to another user's job: %v", c)
	}
}

type scores map[Combo]float64

func (scores) Name() string { return "scores" }
func (s scores) Score(dst []float64, _ *Window, combos []Combo) {
	for i, c := range combos {
		dst[i] = s[c]
	}
}

func TestDecide(t *testing.T) {
	small := flat("small", 60, 1000)
	s := &State{GPUs: []GPU{card()}, Pending: []Job{
		{ID: "1", User: "a", Profile: small}, {ID: "2", User: "a", Profile: small}, {ID: "3", User: "a", Profile: small},
	}}
	for _, c := range []struct {
		name   string
		p      scores
		want   Combo
		broken bool
	}{
		{"the best", scores{0b011: 2, 0b101: 3}, 0b101, false},
		{"of equals the higher priority", scores{0b110: 3, 0b011: 3}, 0b011, false},
		{"waiting wins", scores{0: 1}, 0, false},
		{"waiting wins a tie", scores{}, 0, false},
		{"not a number", scores{0b111: nan(), 0b001: 1}, 0b001, true},
	} {
		d := Decider{Policy: c.p, Guard: NewGuard(Rules{})}
		got := d.Decide(s, 0)
		if got.Combo != c.want || got.Broken != c.broken {
			t.Errorf("%s: %b broken %v, want %b %v", c.name, got.Combo, got.Broken, c.want, c.broken)
		}
	}
}

func TestNoAllocationInSteadyState(t *testing.T) {
	small := flat("small", 60, 1000)
	s := &State{GPUs: []GPU{card()}}
	for range 8 {
		s.Pending = append(s.Pending, Job{ID: "1", User: "a", Profile: small})
	}
	d := Decider{Policy: scores{3: 1}, Guard: NewGuard(Rules{Predictor: constant(1.2)})}
	d.Decide(s, 0)
	if n := testing.AllocsPerRun(100, func() { d.Decide(s, 0) }); n > 0 {
		t.Errorf("%v allocations a decision", n)
	}
}

func TestProfileValidate(t *testing.T) {
	if err := flat("x", 10, 100).Validate(); err != nil {
		t.Error(err)
	}
	for name, breakIt := range map[string]func(*Profile){
		"duration 0":      func(p *Profile) { p.DurationS = 0 },
		"duration NaN":    func(p *Profile) { p.DurationS = nan() },
		"period negative": func(p *Profile) { p.PeriodS = -1 },
		"no points":       func(p *Profile) { p.Series = nil },
		"gpu over 1":      func(p *Profile) { p.Series[0].GPU = 1.1 },
		"core NaN":        func(p *Profile) { p.Series[0].Core = nan() },
		"memory negative": func(p *Profile) { p.Series[0].MemMiB = -1 },
		"PCIe NaN":        func(p *Profile) { p.Series[0].PCIeMBps = nan() },
		"step negative":   func(p *Profile) { p.StepS = -1 },
	} {
		p := flat("x", 10, 100)
		breakIt(p)
		if p.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func BenchmarkCheckAllCombos(b *testing.B) {
	p := late("x", 60, 2000)
	var jobs []Job
	for range 5 {
		jobs = append(jobs, Job{ID: "j", User: "a", Profile: p})
	}
	w := window(card(), jobs...)
	g := Guard{Rules: Rules{Predictor: constant(1.2)}}
	var dst []Combo
	for b.Loop() {
		dst = g.Combos(dst[:0], w)
	}
}

// Stored data names a reason: no two may share a name, and each has a sentence.
func TestRefusalsHaveNamesAndSentences(t *testing.T) {
	seen := map[string]bool{}
	for r := Allowed; int(r) < len(refusals); r++ {
		if r.Name() == "" || r.String() == "" || seen[r.Name()] {
			t.Errorf("%d: name %q, sentence %q", r, r.Name(), r)
		}
		seen[r.Name()] = true
	}
}

func TestStretchedProfileKeepsItsPhases(t *testing.T) {
	p := late("x", 100, 2000)
	q := p.Stretched(300)
	if q.DurationS != 300 || q.At(149).MemMiB != 100 || q.At(151).MemMiB != 2000 || q.StepS != p.StepS {
		t.Errorf("%+v", q)
	}
	if p.DurationS != 100 || p.PeriodS != 50 {
		t.Errorf("the original changed: %+v", p)
	}
}
