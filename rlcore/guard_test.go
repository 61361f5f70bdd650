package rlcore

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"

	"pgregory.net/rapid"
)

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

func TestWhomTheGuardRefuses(t *testing.T) {
	small, big := flat("small", 60, 1000), flat("big", 60, 7000)
	ann := func(p *Profile) Job { return Job{User: "ann", Profile: p} }
	bob := Job{User: "bob", Profile: small}
	with := func(f func(*Job)) Job { j := ann(small); f(&j); return j }
	alone, wide := with(func(j *Job) { j.NoShare = true }), with(func(j *Job) { j.MaxSlowdown = 1.5 })
	strict := with(func(j *Job) { j.MaxSlowdown = 1.2 })
	cores := with(func(j *Job) { j.CPUs = 2 })
	array := func(name string, only bool) Job {
		return with(func(j *Job) { j.Array, j.ArrayOnly = name, only })
	}
	running := func(j Job) GPU { return card(Running{Job: j, Shares: 50}) }
	volta := card()
	volta.Spec.SameUser = false
	held := volta
	held.Spec.MemLimits = true
	notebook := flat("session", 3600, 2000)
	notebook.Busy = flat("busy", 3600, 2000)
	session := func(contract float64) Job { return Job{User: "ann", Profile: notebook, MaxSlowdown: contract} }
	host := card()
	host.FreeCPUs = 3
	slow := func(by Predictor) Rules { return Rules{Predictor: by} }
	site := Rules{Predictor: pairwise(1.3), MaxSlowdown: 1.2}
	for _, c := range []struct {
		name  string
		rules Rules
		gpu   GPU
		jobs  []Job // all are to start
		want  Veto
	}{
		{"two that fit", Rules{}, card(), []Job{ann(small), ann(small)}, Allowed},
		{"too much memory", Rules{}, card(), []Job{ann(big), ann(big)}, VetoMemory},
		{"alone its memory doesn't matter", Rules{}, card(), []Job{ann(flat("x", 1, 99999))}, Allowed},
		{"two users on Pascal", Rules{}, card(), []Job{ann(small), bob}, VetoUser},
		{"two users on Volta", Rules{}, volta, []Job{ann(small), bob}, Allowed},
		{"unknown with another", Rules{}, card(), []Job{ann(nil), ann(small)}, VetoUnknown},
		{"unknown alone", Rules{}, card(), []Job{ann(nil)}, Allowed},
		{"unknown joins", Rules{}, running(ann(small)), []Job{ann(nil)}, VetoUnknown},
		{"joins", Rules{}, running(ann(small)), []Job{ann(small)}, Allowed},
		{"joins another user", Rules{}, running(ann(small)), []Job{bob}, VetoUser},
		{"next to a whole GPU's job", Rules{}, card(Running{Job: ann(small), Whole: true}), []Job{ann(small)}, VetoWhole},
		{"no shares left", Rules{}, card(Running{Job: ann(small), Shares: 100}), []Job{ann(small)}, VetoShares},
		{"asks not to share", Rules{}, card(), []Job{alone, ann(small)}, VetoNoShare},
		{"a first run", Rules{}, running(Job{User: "ann", Profile: small, NoShare: true, FirstRun: true}), []Job{ann(small)}, VetoFirstRun},
		{"no share, alone", Rules{}, card(), []Job{alone}, Allowed},
		{"the job's contract", slow(pairwise(1.3)), card(), []Job{strict, ann(small)}, VetoContract},
		{"the site's contract", site, card(), []Job{ann(small), ann(small)}, VetoContract},
		{"the job's contract is wider", site, card(), []Job{wide, ann(small)}, VetoContract},
		{"both jobs' contracts are wider", site, card(), []Job{wide, wide}, Allowed},
		{"the running job's contract", slow(pairwise(1.3)), running(strict), []Job{ann(small)}, VetoContract},
		{"with its array only", Rules{}, card(), []Job{array("1", true), array("1", false)}, Allowed},
		{"with another array", Rules{}, card(), []Job{array("1", true), array("2", false)}, VetoArray},
		{"with a job of no array", Rules{}, card(), []Job{array("1", true), ann(small)}, VetoArray},
		{"the restricted one comes last", Rules{}, card(), []Job{ann(small), array("1", false), array("1", true)}, VetoArray},
		{"two arrays that don't mind", Rules{}, card(), []Job{array("1", false), array("2", false), ann(small)}, Allowed},
		{"members", Rules{MaxMembers: 2}, card(), []Job{ann(small), ann(small), ann(small)}, VetoClients},
		{"cores", Rules{}, host, []Job{cores, cores}, VetoHost},
		{"a session where memory is limited", Rules{}, held, []Job{session(0), ann(small)}, Allowed},
		{"a session where it isn't", Rules{}, card(), []Job{session(0), ann(small)}, VetoUnheld},
		{"a session while it computes", slow(slowBusy{}), held, []Job{session(1.3), ann(small)}, VetoContract},
		{"a session with a wide contract", slow(slowBusy{}), held, []Job{session(2), ann(small)}, Allowed},
		{"a predictor that returns NaN", slow(pairwise(nan())), card(), []Job{wide, ann(small)}, VetoContract},
	} {
		g := NewGuard(c.rules)
		must.Equal(t, g.Check(window(c.gpu, c.jobs...), 1<<len(c.jobs)-1), c.want, c.name)
	}
}

func nan() float64 { z := 0.0; return z / z }

// A job whose memory is needed when the other one has ended may share with it,
// but not where the other might be so slow that both meet.
func TestMemoryOverTime(t *testing.T) {
	first := flat("first", 50, 9000)
	second := late("second", 400, 9000)
	w := window(card(), Job{ID: "1", User: "a", Profile: first}, Job{ID: "2", User: "a", Profile: second})
	g := Guard{Rules: Rules{Predictor: pairwise(1.5)}}
	must.Equal(t, g.Check(w, 3), Allowed, "75 s of the first against the second's 200 s")
	g = Guard{Rules: Rules{Predictor: pairwise(4)}}
	must.Equal(t, g.Check(w, 3), VetoMemory, "at worst the first runs for 200 s")
}

// Whatever the true slowdowns are within the predicted bounds, an allowed group never exceeds the card.
func TestMemoryHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(t, "members")
		worst := rapid.Float64Range(1, 4).Draw(t, "worst")
		g := Guard{Rules: Rules{Predictor: pairwise(worst)}}
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

func TestTheBestAllowedCombinationIsChosen(t *testing.T) {
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
		must.Equal(t, got.Combo, c.want, c.name)
		must.Equal(t, got.Broken, c.broken, c.name)
	}
}

func TestProfileValidate(t *testing.T) {
	must.OK(t, flat("x", 10, 100).Validate())
	for name, x := range map[string]func(p *Profile, v float64){
		"duration_s":    func(p *Profile, v float64) { p.DurationS = v },
		"period_s":      func(p *Profile, v float64) { p.PeriodS = v },
		"step_s":        func(p *Profile, v float64) { p.StepS = v },
		"process_mib":   func(p *Profile, v float64) { p.ProcessMiB = v },
		"held_mib":      func(p *Profile, v float64) { p.HeldMiB = v },
		"duration_sd_s": func(p *Profile, v float64) { p.DurationSD = v },
		"runs":          func(p *Profile, v float64) { p.Runs = -1 },
		"past":          func(p *Profile, v float64) { p.Past = []Past{{SoloS: 1, LimitS: v}} },
		"gpu":           func(p *Profile, v float64) { p.Series[0].GPU = v },
		"core":          func(p *Profile, v float64) { p.Series[0].Core = v },
		"mem_mib":       func(p *Profile, v float64) { p.Series[0].MemMiB = v },
		"pcie_mbps":     func(p *Profile, v float64) { p.Series[0].PCIeMBps = v },
		"series":        func(p *Profile, v float64) { p.Series = nil },
	} {
		for _, v := range []float64{-1, nan(), 1e300, math.Inf(1)} {
			p := flat("x", 10, 100)
			x(p, v)
			if err := p.Validate(); !errors.Is(err, ErrBadProfile) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s of %v: %v", name, v, err)
			}
		}
	}
}

// Stored data names a reason: no two may share a name, and each has a sentence.
func TestRefusalsHaveNamesAndSentences(t *testing.T) {
	seen := map[string]bool{}
	for r := Allowed; int(r) < len(vetoes); r++ {
		if r.Name() == "" || r.String() == "" || seen[r.Name()] {
			t.Errorf("%d: name %q, sentence %q", r, r.Name(), r)
		}
		seen[r.Name()] = true
	}
}
