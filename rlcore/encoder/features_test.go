package encoder

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// TestFeaturesAreFinite and of a size a network can live with, whatever the state.
func TestFeaturesAreFinite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &Features{Predictor: predictor(), Max: rapid.SampledFrom([]int{0, 4, 32}).Draw(t, "max")}
		for range 2 { // scratch of the first must not matter to the second
			w := window(t, state(t, false, false))
			combos := every(w)
			f.Encode(w, combos)
			n := len(combos)
			if f.Max > 0 {
				n = min(n, f.Max)
			}
			if len(f.Combos) != n || len(f.Context) != ContextLen || len(f.Rows) != n*ComboLen || len(f.Throughput) != n {
				t.Fatalf("%d combinations of %d, %d + %d figures, %d rates", len(f.Combos), n, len(f.Context), len(f.Rows),
					len(f.Throughput))
			}
			if f.Combos[0] != 0 || !slices.IsSorted(f.Combos) {
				t.Fatalf("waiting isn't described, or out of order: %v", f.Combos)
			}
			for i, v := range f.Context {
				if !(math.Abs(v) <= 16) {
					t.Fatalf("figure %d of the situation is %v", i, v)
				}
			}
			for i, v := range f.Rows {
				if !(math.Abs(v) <= 64) {
					t.Fatalf("figure %d of combination %b is %v", i%ComboLen, f.Combos[i/ComboLen], v)
				}
			}
			fresh := &Features{Predictor: predictor(), Max: f.Max}
			fresh.Encode(w, combos)
			if !slices.Equal(fresh.Rows, f.Rows) || !slices.Equal(fresh.Context, f.Context) {
				t.Fatal("the same window looks otherwise after another one")
			}
		}
	})
}

// TestFeaturesHaveNoUnit: where everything takes longer by one factor nothing
// changes. The factor is a power of 2, so that rounding moves no phase's end.
//
// Two things are in seconds: a job of unknown length without limit counts as an
// hour, and the unit of time is 1 s at least. Here all is known and longer.
func TestFeaturesHaveNoUnit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := state(t, true, true)
		w := window(t, s)
		long := *w
		long.State = slower(s, rapid.SampledFrom([]float64{2, 8, 1024}).Draw(t, "factor"))
		a, b := &Features{Predictor: predictor()}, &Features{Predictor: predictor()}
		a.Encode(w, every(w))
		b.Encode(&long, every(w))
		if a.ScaleS < 2 { // hardly anything left to do
			t.Skip("less than a second")
		}
		if !near(a.Context, b.Context, 1e-9) || !near(a.Rows, b.Rows, 1e-9) || !near(a.Throughput, b.Throughput, 1e-9) {
			t.Fatalf("%v\n%v\n%v\n%v", a.Context, b.Context, a.Rows, b.Rows)
		}
	})
}

// placed are a row's figures that tell where in the window the combination's jobs are: mean rank, first, passed over.
var placed = map[int]bool{rowMeanRank: true, rowFirst: true}

// TestFeaturesDoNotDependOnOrder but for those that tell it: the situation and
// what a set of jobs brings are the same whichever stands first.
func TestFeaturesDoNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := state(t, false, false)
		g := rapid.IntRange(0, len(s.GPUs)-1).Draw(t, "card")
		s.Pending = s.Pending[:min(6, len(s.Pending))]
		for i := range s.Pending {
			s.Pending[i].GPUs = nil
		}
		w := rlcore.NewWindow(nil, s, g, 6)
		order := rapid.Permutation(indexes(len(s.Pending))).Draw(t, "order")
		p := &rlcore.State{GPUs: s.GPUs}
		for _, i := range order {
			p.Pending = append(p.Pending, s.Pending[i])
		}
		v := rlcore.NewWindow(nil, p, g, 6)
		// The members' order decides which phases the model lets meet: only the
		// features are tested, with a predictor that has no such sample.
		a, b := &Features{Predictor: fair{}}, &Features{Predictor: fair{}}
		a.Encode(&w, every(&w))
		b.Encode(&v, every(&v))
		if !near(a.Context, b.Context, 1e-9) {
			t.Fatalf("the situation: %v, %v", a.Context, b.Context)
		}
		for c := range rlcore.Combo(len(a.Combos)) {
			var d rlcore.Combo // the same jobs in the other order
			for to, from := range order {
				if c.Has(from) {
					d |= 1 << to
				}
			}
			x, y := a.Rows[int(c)*ComboLen:][:ComboLen], b.Rows[int(d)*ComboLen:][:ComboLen]
			for i := range x {
				if !placed[i] && math.Abs(x[i]-y[i]) > 1e-9*max(1, math.Abs(x[i])) {
					t.Fatalf("figure %d of %b is %v, of %b %v", i, c, x[i], d, y[i])
				}
			}
		}
	})
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// fair predicts that every member slows by the sum of the mean demands.
type fair struct{}

func (fair) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, members []*rlcore.Profile) {
	sum := 0.0
	for _, p := range members {
		sum += p.Mean().GPU
	}
	for i := range dst {
		dst[i] = rlcore.Prediction{Slowdown: max(1, sum), SD: sum / 10}
	}
}

// fixed is a decision that doesn't change.
func fixed() (*rlcore.Window, []rlcore.Combo) {
	p := func(dur, step, gpu, mem float64) *rlcore.Profile {
		return &rlcore.Profile{App: "a", DurationS: dur, PeriodS: dur / 2, StepS: step, Series: []rlcore.Use{
			{GPU: gpu, MemMiB: mem, Core: gpu / 2, PCIeMBps: 1000},
			{GPU: gpu / 3, MemMiB: mem / 2, Core: gpu / 4, PCIeMBps: 8000},
		}}
	}
	s := &rlcore.State{GPUs: []rlcore.GPU{{Spec: rlcore.TitanXp}, {Spec: rlcore.TitanXp}}}
	s.GPUs[0].Running = []rlcore.Running{{Job: rlcore.Job{Profile: p(300, 0.5, 0.7, 3000)}, DoneS: 100, ElapsedS: 130}}
	s.Pending = []rlcore.Job{
		{Profile: p(200, 0.1, 0.9, 5000)},
		{Profile: p(50, 0, 0.2, 800)},
		{Profile: nil, LimitS: 600},
		{Profile: p(900, 3, 0.5, 2000)},
	}
	w := rlcore.NewWindow(nil, s, 0, 4)
	return &w, []rlcore.Combo{0, 1, 2, 3, 9, 11}
}

// TestVersion holds a decision's figures against those of this Version, kept in testdata. Where they are to change,
// raise Version and write the file again (WRITE=1 go test), so that old checkpoints are refused.
func TestVersion(t *testing.T) {
	type kept struct {
		Version       int
		Context, Rows []float64
		Pixels        []int32
	}
	w, combos := fixed()
	f := &Features{Predictor: fair{}}
	f.Encode(w, combos)
	im := &Images{M: 4, Virtual: true}
	im.Encode(w)
	got := kept{Version, f.Context, f.Rows, im.Pixels}
	const file = "testdata/version.json"
	if os.Getenv("WRITE") != "" {
		text, err := json.Marshal(got)
		if err == nil {
			err = os.WriteFile(file, append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text := must.Get(os.ReadFile(file))(t)
	var want kept
	must.OK(t, json.Unmarshal(text, &want))
	if want.Version != Version {
		t.Fatalf("%s is of version %d, not %d: write it again", file, want.Version, Version)
	}
	if !near(want.Context, got.Context, 1e-9) || !near(want.Rows, got.Rows, 1e-9) ||
		!slices.Equal(want.Pixels, got.Pixels) {
		t.Errorf("what a network sees has changed, but Version hasn't")
	}
}
