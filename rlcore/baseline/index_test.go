package baseline

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// thirds slows each member by a third for each other one.
type thirds struct{}

func (thirds) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, members []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{Slowdown: 1 + float64(len(members)-1)/3}
	}
}

func long(s float64) *rlcore.Profile {
	return &rlcore.Profile{App: fmt.Sprint(s), DurationS: s, PeriodS: s, Series: []rlcore.Use{{GPU: .5}}}
}

func indexOf(s *rlcore.State, combos ...rlcore.Combo) []float64 {
	w := rlcore.NewWindow(nil, s, 0, rlcore.MaxWindow)
	out := make([]float64, len(combos))
	(&Index{Predictor: thirds{}}).Score(out, &w, combos)
	return out
}

// One of 100 s and one of 400 s: what each second on the one or the other is worth.
func TestIndex(t *testing.T) {
	queue := func(works ...float64) *rlcore.State {
		s := &rlcore.State{GPUs: make([]rlcore.GPU, 1)}
		for i, x := range works {
			s.Pending = append(s.Pending, rlcore.Job{ID: fmt.Sprint(i), Profile: long(x)})
		}
		return s
	}
	s := queue(400, 100)
	got := indexOf(s, 0, 0b01, 0b10, 0b11)
	// Together they do 2/(4/3) = 1.5; alone the shorter one has the other wait behind it.
	want := []float64{0, 1, 1 + 1/1.5, 1.5}
	for i := range want {
		must.Near(t, got[i], want[i], 1e-12, "combination %b", i)
	}
	// Jobs that may use more GPUs wait less for this one, others not at all.
	s.GPUs = make([]rlcore.GPU, 2)
	must.Near(t, indexOf(s, 0b10, 0b11)[0], 1+1/1.5/2, 1e-12, "of two GPUs")
	s.Pending[0].GPUs = rlcore.NewGPUSet(1)
	w := rlcore.Window{State: s, Jobs: []int{1}}
	alone := make([]float64, 1)
	(&Index{Predictor: thirds{}}).Score(alone, &w, []rlcore.Combo{1})
	must.Equal(t, alone[0], 1, "one that waits for another GPU doesn't count")
	// One that is running and about to end isn't held up where many wait for its end; one
	// that has as much left as they take is.
	s = queue(900, 900, 900, 900, 900, 900)
	for left, joins := range map[float64]bool{10: false, 900: true} {
		s.GPUs[0].Running = []rlcore.Running{{Job: rlcore.Job{ID: "r", Profile: long(900)}, DoneS: 900 - left}}
		if got := indexOf(s, 0, 1); (got[1] > got[0]) != joins {
			t.Errorf("%v s left: waiting is worth %v, joining %v", left, got[0], got[1])
		}
	}
}

// Where nobody waits the index is the rate of work; it never falls with the queue, and is finite whatever the jobs.
func TestIndexProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &rlcore.State{GPUs: make([]rlcore.GPU, rapid.IntRange(1, 3).Draw(t, "GPUs"))}
		job := func(i int) rlcore.Job {
			j := rlcore.Job{ID: fmt.Sprint(i), LimitS: rapid.SampledFrom([]float64{0, 60, 1e6}).Draw(t, "limit")}
			if rapid.Bool().Draw(t, "known") {
				j.Profile = long(rapid.Float64Range(1, 1e6).Draw(t, "work"))
			}
			return j
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "running") {
			s.GPUs[0].Running = append(s.GPUs[0].Running, rlcore.Running{
				Job:      job(100 + i),
				ElapsedS: rapid.Float64Range(0, 1e6).Draw(t, "elapsed"),
			})
		}
		for i := range rapid.IntRange(1, 6).Draw(t, "jobs") {
			s.Pending = append(s.Pending, job(i))
		}
		all := rlcore.Combo(1)<<len(s.Pending) - 1
		w := rlcore.NewWindow(nil, s, 0, rlcore.MaxWindow)
		g := Group{Predictor: thirds{}}
		g.Consider(&w, all)
		if got := indexOf(s, all)[0]; math.Abs(got-g.Rate()) > 1e-9 {
			t.Fatalf("nobody waits: %v, rate %v", got, g.Rate())
		}
		c := rlcore.Combo(rapid.IntRange(0, int(all)).Draw(t, "combo"))
		before := indexOf(s, c)[0]
		s.Pending = append(s.Pending, job(50))
		after := indexOf(s, c)[0]
		if math.IsNaN(after) || math.IsInf(after, 0) || after < before-1e-9 {
			t.Fatalf("%v, and with one more that waits %v", before, after)
		}
	})
}

// The queue's front stands for all of it.
func TestIndexOfALongQueue(t *testing.T) {
	s := &rlcore.State{GPUs: make([]rlcore.GPU, 1)}
	for i := range 10 * sampled {
		s.Pending = append(s.Pending, rlcore.Job{ID: fmt.Sprint(i), Profile: long(float64(100 + i%2))})
	}
	must.Near(t, indexOf(s, 1)[0], 1+5*float64(sampled), 1e-9)
}
