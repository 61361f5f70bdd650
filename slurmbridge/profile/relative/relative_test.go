package relative

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

func known(duration, mib float64, sizes ...float64) Known {
	return Known{Sizes: sizes, Profile: &rlcore.Profile{
		App: "lmp-1", DurationS: duration, PeriodS: duration / 2, Runs: 1,
		Series: []rlcore.Use{{GPU: 0.3, MemMiB: mib / 2, Core: 0.2}, {GPU: 0.6, MemMiB: mib, PCIeMBps: 7}},
	}}
}

func TestProfileOfASizeThatNeverRan(t *testing.T) {
	two := []Known{known(100, 1000, 10), known(400, 2000, 20)} // exponents 2 and 1
	for name, c := range map[string]struct {
		known           []Known
		sizes           []float64
		best, late, mib float64
		noneOrFar       error
		says            string
		ownSeries       bool
	}{
		"nothing known": {nil, []float64{1}, 0, 0, 0, ErrNone, "", false},
		"other sizes":   {two, []float64{1, 2}, 0, 0, 0, ErrNone, "", false},
		"a known size":  {two, []float64{20}, 400, 400, 2000, nil, "of the same size", true},
		"between": {
			two, []float64{15}, 100 * math.Pow(1.5, 2), 100 * math.Pow(1.5, 2.2), 2000, nil, "2 sizes known", false,
		},
		"above":          {two, []float64{40}, 1600, 400 * math.Pow(2, 2.2), 4400, nil, "2 times its size", false},
		"below":          {two, []float64{5}, 25, 100 * math.Pow(0.5, 1.8), 1000, nil, "0.5 times", false},
		"one, above":     {two[:1], []float64{20}, 200, 100 * math.Pow(2, 1.5), 8800, nil, "one size known", false},
		"one, below":     {two[:1], []float64{5}, 50, 100 * math.Pow(0.5, 0.5), 1000, nil, "", false},
		"one, far above": {two[:1], []float64{50}, 0, 0, 0, ErrTooFar, "", false},
		"one, far below": {two[:1], []float64{2}, 0, 0, 0, ErrTooFar, "", false},
		"without sizes":  {[]Known{known(7, 70)}, nil, 7, 7, 70, nil, "same size", true},
		"a bad profile": {
			[]Known{{Profile: &rlcore.Profile{}, Sizes: []float64{1}}},
			[]float64{1},
			0, 0, 0,
			ErrNone, "", false,
		},
		"a size of 0": {two, []float64{0}, 0, 0, 0, ErrNone, "", false},
		"several at once": {
			[]Known{known(10, 100, 5, 5)},
			[]float64{10, 10},
			20, 10 * math.Pow(2, 1.5), 880, nil,
			"2 times", false,
		},
		"one grows, another less": {
			[]Known{known(10, 100, 5, 20)},
			[]float64{10, 10},
			20, 10 * math.Pow(2, 1.5), 880, nil,
			"2 times", false,
		},
		"both grow, not by as much": {
			[]Known{known(10, 100, 5, 8)},
			[]float64{10, 10},
			25, 10 * math.Pow(2.5, 1.5),
			100 * math.Pow(2.5, 3) * 1.1, nil, "2.5 times", false,
		},
		// What differs in steps says nothing of what atoms cost.
		"another line": {
			[]Known{known(10, 100, 10, 1), known(20, 100, 10, 2), known(5, 50, 5, 4)},
			[]float64{10, 4},
			40,
			20 * math.Pow(2, 1.2), 110, nil, "2 sizes known", false,
		},
	} {
		p, err := Of("lmp-2", c.sizes, c.known)
		if c.noneOrFar != nil {
			must.Is(t, err, c.noneOrFar, "%s: %+v", name, p)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*b }
		if !near(p.DurationS, c.late) || !near(p.DurationS-p.DurationSD, c.best) || !near(p.Peak().MemMiB, c.mib) {
			t.Errorf("%s: %g to %g s, %g MiB, want %g, %g, %g", name, p.DurationS-p.DurationSD, p.DurationS, p.Peak().MemMiB,
				c.best, c.late, c.mib)
		}
		if p.App != "lmp-2" || !strings.Contains(p.Source, "relative of lmp-1") || !strings.Contains(p.Source, c.says) ||
			p.Runs != 0 {
			t.Errorf("%s: %+v", name, p)
		}
		must.Equal(t, p.Series[0].MemMiB != p.Series[len(p.Series)-1].MemMiB, c.ownSeries, "%s: memory over time", name)
	}
}

// draw makes known profiles of one size each whose duration and memory grow with it.
func draw(t *rapid.T) []Known {
	n := rapid.IntRange(1, 6).Draw(t, "n")
	var out []Known
	size, duration, mib := rapid.Float64Range(0.1, 100).Draw(t, "size"), rapid.Float64Range(1, 1000).Draw(t, "duration"),
		rapid.Float64Range(1, 1e4).Draw(t, "mib")
	for range n {
		out = append(out, known(duration, mib, size))
		size *= rapid.Float64Range(1.01, 4).Draw(t, "next size")
		duration *= rapid.Float64Range(1, 8).Draw(t, "next duration")
		mib *= rapid.Float64Range(1, 8).Draw(t, "next memory")
	}
	return rapid.Permutation(out).Draw(t, "order")
}

func TestExactMonotoneAndSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ks := draw(t)
		for _, k := range ks {
			p, err := Of("x", k.Sizes, ks)
			if err != nil || p.DurationS != k.Profile.DurationS || p.Peak() != k.Profile.Peak() || p.DurationSD != 0 {
				t.Fatalf("at %v: %+v %v, want %+v", k.Sizes, p, err, k.Profile)
			}
		}
		at := func(s float64) *rlcore.Profile {
			p, err := Of("x", []float64{s}, ks)
			if err != nil && !errors.Is(err, ErrTooFar) {
				t.Fatal(err)
			}
			return p
		}
		a := rapid.Float64Range(0.01, 1e4).Draw(t, "a")
		b := a * rapid.Float64Range(1, 10).Draw(t, "b")
		p, q := at(a), at(b)
		if p != nil && q != nil && (p.DurationS > q.DurationS*(1+1e-9) || p.Peak().MemMiB > q.Peak().MemMiB*(1+1e-9)) {
			t.Fatalf("%g: %g s %g MiB; %g: %g s %g MiB", a, p.DurationS, p.Peak().MemMiB, b, q.DurationS, q.Peak().MemMiB)
		}
		for _, r := range []*rlcore.Profile{p, q} {
			if r == nil {
				continue
			}
			if r.DurationSD < -1e-9*r.DurationS || r.DurationSD > r.DurationS*(1-1/tooFar)*(1+1e-9) {
				t.Fatalf("between %g and %g s", r.DurationS-r.DurationSD, r.DurationS)
			}
		}
	})
}

// However wild the figures: never below what a smaller problem was seen to hold, and nothing that isn't a profile.
func TestNeverBelowWhatWasSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dims := rapid.IntRange(1, 3).Draw(t, "dims")
		size := rapid.OneOf(rapid.Float64Range(1e-300, 1e300), rapid.SampledFrom([]float64{1, 2, 4, 8}))
		vec := rapid.SliceOfN(size, dims, dims)
		var ks []Known
		for range rapid.IntRange(0, 8).Draw(t, "n") {
			ks = append(ks, known(rapid.Float64Range(1e-3, 1e9).Draw(t, "s"), rapid.Float64Range(0, 1e7).Draw(t, "mib"),
				vec.Draw(t, "sizes")...))
		}
		want := vec.Draw(t, "want")
		p, err := Of("x", want, ks)
		if err != nil {
			return
		}
		must.OK(t, p.Validate())
		if strings.Contains(p.Source, "same size") || dims > 1 {
			return
		}
		for _, k := range ks {
			if positive(k.Sizes) && k.Sizes[0] <= want[0] && p.Peak().MemMiB < k.Profile.Peak().MemMiB {
				t.Fatalf("%g MiB at %v, %g at %v", p.Peak().MemMiB, want, k.Profile.Peak().MemMiB, k.Sizes)
			}
		}
	})
}
