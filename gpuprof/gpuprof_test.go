package gpuprof

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

func TestMerge(t *testing.T) {
	start := time.Unix(1000, 0)
	rec := func(s, mem float64) *Record {
		return &Record{
			JobID: 1, Node: "n", Start: start, End: start.Add(time.Duration(s * 1e9)), PeriodS: s / 2,
			Series: []rlcore.Use{{GPU: 0.2, MemMiB: 100}, {GPU: 0.4, MemMiB: mem}},
		}
	}
	var p *rlcore.Profile
	for _, d := range []float64{90, 100, 110} {
		run := must.Get(ProfileOf("a", rec(d, d*10)))(t)
		run.Past = []rlcore.Past{{SoloS: d, LimitS: 600}}
		p = Merge(p, run, 0)
	}
	if p.Runs != 3 || math.Abs(p.DurationS-100) > 1e-9 || math.Abs(p.DurationSD-10) > 1e-9 {
		t.Errorf("%d runs, %v ± %v s; want 3, 100 ± 10", p.Runs, p.DurationS, p.DurationSD)
	}
	must.Equal(t, p.Past, []rlcore.Past{{SoloS: 90, LimitS: 600}, {SoloS: 100, LimitS: 600}, {SoloS: 110, LimitS: 600}},
		"past runs")
	many := p
	for range rlcore.MostPast {
		run := must.Get(ProfileOf("a", rec(120, 50)))(t)
		run.Past = []rlcore.Past{{SoloS: 120}}
		many = Merge(many, run, 0)
	}
	if len(many.Past) != rlcore.MostPast || many.Past[0].SoloS != 120 || many.Validate() != nil {
		t.Errorf("after many runs the past is %v, %v", many.Past, many.Validate())
	}
	if p.Peak().MemMiB != 1100 || p.Validate() != nil {
		t.Errorf("peak %v, %v", p.Peak().MemMiB, p.Validate())
	}
	must.Fail(t, must.Err(ProfileOf("a", &Record{})), "", "a record without a series")
	for want, spoil := range map[error]func(*Record){
		ErrPartial: func(r *Record) { r.NoEpilog = true }, ErrFaulted: func(r *Record) { r.MPSFault = start },
		ErrWithoutMPS: func(r *Record) { r.WithoutMPS = true },
	} {
		r := rec(100, 1000)
		spoil(r)
		must.Is(t, must.Err(ProfileOf("a", r)), want)
	}
}

func TestValidate(t *testing.T) {
	good := func() *Record {
		return &Record{
			JobID: 7, Node: "n1", Start: time.Unix(1, 0), End: time.Unix(9, 0), PeriodS: 1,
			Series: []rlcore.Use{{GPU: 1}},
		}
	}
	must.OK(t, good().Validate())
	for name, breakIt := range map[string]func(*Record){
		"no job":     func(r *Record) { r.JobID = 0 },
		"no node":    func(r *Record) { r.Node = "" },
		"backwards":  func(r *Record) { r.End = time.Unix(0, 0) },
		"NaN":        func(r *Record) { r.Series[0].GPU = math.NaN() },
		"over 1":     func(r *Record) { r.Series[0].Core = 1.5 },
		"too long":   func(r *Record) { r.Series = make([]rlcore.Use, MaxPoints+1) },
		"no period":  func(r *Record) { r.PeriodS = 0 },
		"infinity":   func(r *Record) { r.Peak.MemMiB = math.Inf(1) },
		"long words": func(r *Record) { r.Comment = string(make([]byte, 1025)) },
		"long app":   func(r *Record) { r.App = string(make([]byte, 256)) },
		"params":     func(r *Record) { r.Params = string(make([]byte, 4097)) },
		"missed":     func(r *Record) { r.MissedS = -1 },
		"clock":      func(r *Record) { r.ClockBehindS = math.NaN() },
		"unknown":    func(r *Record) { r.Unknown = []string{"<script>"} },
		"mixed":      func(r *Record) { r.Mixed = make([]string, 9) },
		"power":      func(r *Record) { r.Power = &Power{EnergyJ: math.Inf(1)} },
		"SMs":        func(r *Record) { r.GPUs = []GPU{{SMs: -1}} },
		"a GPU":      func(r *Record) { r.GPUs = []GPU{{Index: -1}} },
	} {
		r := good()
		breakIt(r)
		if r.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	must.Equal(t, (&Record{JobID: 130, ArrayJobID: 120, ArrayTaskID: 4}).Ref(), "120_4", "ref")
}

// TestMergeKeepsPeaks: however two runs' points fall, the most that either took is
// kept, at no part of the run less than either took there.
func TestMergeKeepsPeaks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) *rlcore.Profile {
			n := rapid.IntRange(1, 20).Draw(t, name+" points")
			p := &rlcore.Profile{App: "a", Runs: 1, PeriodS: rapid.Float64Range(0.1, 10).Draw(t, name+" period")}
			for range n {
				p.Series = append(p.Series, rlcore.Use{MemMiB: float64(rapid.IntRange(0, 9000).Draw(t, "MiB"))})
			}
			// The last point may be shorter.
			p.DurationS = p.PeriodS * (float64(n) - rapid.Float64Range(0, 0.9).Draw(t, name+" cut"))
			return p
		}
		a, b := draw("a"), draw("b")
		m := Merge(a, b, 0)
		if got, want := m.Peak().MemMiB, max(a.Peak().MemMiB, b.Peak().MemMiB); got != want {
			t.Fatalf("peak %v of %v and %v", got, a.Peak().MemMiB, b.Peak().MemMiB)
		}
		part := rapid.Float64Range(0, 0.999).Draw(t, "part")
		if got, want := m.At(part*m.DurationS).MemMiB, max(a.At(part*a.DurationS).MemMiB,
			b.At(part*b.DurationS).MemMiB); got < want {
			t.Fatalf("at %v of the run %v MiB, want at least %v", part, got, want)
		}
	})
}

// Of runs with a memory limit and runs that took the card's memory at their start, the first say what is needed.
func TestMergeOfHeldRuns(t *testing.T) {
	start := time.Unix(1000, 0)
	run := func(mem, limit float64) *rlcore.Profile {
		r := &Record{
			JobID: 1, Node: "n", Start: start, End: start.Add(100 * time.Second), PeriodS: 100,
			Series: []rlcore.Use{{GPU: 0.2, MemMiB: mem}}, MemLimitMiB: limit, ProcessMiB: mem,
		}
		return must.Get(ProfileOf("a", r))(t)
	}
	for name, c := range map[string]struct {
		runs       []*rlcore.Profile
		peak, held float64
	}{
		"taken all, then held": {[]*rlcore.Profile{run(15000, 0), run(6000, 8000)}, 6000, 8000},
		"held, then taken all": {[]*rlcore.Profile{run(6000, 8000), run(15000, 0)}, 6000, 8000},
		"held again": {
			[]*rlcore.Profile{run(15000, 0), run(6000, 8000), run(7000, 9000), run(15000, 0)},
			7000, 8000,
		},
		"held, and it needs more":         {[]*rlcore.Profile{run(6000, 8000), run(9000, 0)}, 9000, 0},
		"its limit was far":               {[]*rlcore.Profile{run(3000, 8000)}, 3000, 0},
		"it takes little; held to little": {[]*rlcore.Profile{run(3000, 0), run(2900, 3200)}, 3000, 0},
		"imported as all, then held": {[]*rlcore.Profile{{
			App: "a", DurationS: 100, PeriodS: 100,
			Series: []rlcore.Use{{MemMiB: 15000}},
		}, run(6000, 8000)}, 6000, 8000},
	} {
		var p *rlcore.Profile
		for _, r := range c.runs {
			p = Merge(p, r, 16000)
		}
		if p.Peak().MemMiB != c.peak || p.HeldMiB != c.held || p.Runs > 1 && p.ProcessMiB != c.peak {
			t.Errorf("%s: %v MiB, held to %v, a process %v; want %v, %v", name, p.Peak().MemMiB, p.HeldMiB, p.ProcessMiB, c.peak,
				c.held)
		}
	}
}
