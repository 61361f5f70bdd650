package rlcore

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"

	"pgregory.net/rapid"
)

func holds(mib ...float64) *Profile {
	p := &Profile{App: "x", DurationS: float64(len(mib)), PeriodS: 1}
	for _, m := range mib {
		p.Series = append(p.Series, Use{MemMiB: m})
	}
	return p
}

// A need is never under what any moment of the profile held, nor under its margin.
func TestNeedIsNeverBelowThePeak(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		series := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 20).Draw(t, "MiB")
		margin := rapid.OneOf(rapid.Float64Range(-1, 2), rapid.Just(math.Inf(-1))).Draw(t, "margin")
		mib := holds(series...).NeedMiB(margin)
		for _, m := range series {
			if mib < m*1.05 || mib < m*(1+margin) {
				t.Fatalf("%v of %v MiB with %v", mib, m, margin)
			}
		}
	})
	for _, p := range []*Profile{{}, holds(0), holds(-5), holds(math.Inf(1)), holds(1e300), holds(math.NaN())} {
		must.Equal(t, p.NeedMiB(.05), 0, p.Series)
	}
	must.Equal(t, holds(5).NeedMiB(math.NaN()), 0, "a margin of NaN")
}

// A moment that no int holds is beyond the run: its memory is that of the run's end, not of its start.
func TestUseBeyondARun(t *testing.T) {
	p := holds(1, 2)
	for at, want := range map[float64]int{-1: 0, 1.5: 1, 2: 1, 1e300: 1, math.Inf(1): 1, math.Inf(-1): 0, math.NaN(): 0} {
		must.Equal(t, p.Index(at), want, "after %v s: point", at)
	}
}

// Whatever joins whatever in whatever order: all of them may take what they are held to at
// once and the card has it, and none is held to less than it needs.
func TestMemoryLimitsFitTheCard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewGuard(Rules{
			Predictor: pairwise(1), MaxMembers: 4,
			MemMargin: rapid.SampledFrom([]float64{0, .05, .2}).Draw(t, "margin"),
		})
		margin := g.MemMargin
		if margin == 0 {
			margin = defaultMemMargin
		}
		card := GPU{
			Spec: GPUSpec{MemMiB: 16000, MemLimits: rapid.Float64().Draw(t, "limits") < .8}, FreeCPUs: -1,
			FreeHostMemMiB: -1,
		}
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			s := State{GPUs: []GPU{card}}
			n := rapid.IntRange(1, 2).Draw(t, "jobs")
			profiles := make([]*Profile, n)
			for i := range n {
				profiles[i] = holds(rapid.Float64Range(1, 12000).Draw(t, "MiB"))
				profiles[i].DurationS = 1e4
				profiles[i].PeriodS = 1e4
				s.Pending = append(s.Pending, Job{ID: string(rune('a' + i)), Profile: profiles[i]})
			}
			w := NewWindow(nil, &s, 0, n)
			if g.Check(&w, 1<<n-1) != Allowed {
				continue
			}
			limits := g.MemoryLimits(&card, profiles)
			for i, p := range profiles {
				if l := limits[i]; card.Spec.MemLimits && l < p.NeedMiB(margin) || !card.Spec.MemLimits && l != 0 {
					t.Fatalf("held to %v, needs %v", l, p.NeedMiB(margin))
				}
				card.Running = append(card.Running, Running{Job: s.Pending[i], Shares: 10, MemLimitMiB: limits[i]})
			}
			sum := 0.0
			for i := range card.Running {
				sum += card.Running[i].MemLimitMiB
			}
			if sum > card.Spec.MemMiB && len(card.Running) > 1 {
				t.Fatalf("%v MiB of %v", sum, card.Spec.MemMiB)
			}
		}
	})
}

func TestPreallocating(t *testing.T) {
	for _, c := range []struct {
		name    string
		mib     []float64 // a point each 30 s
		cardMiB float64
		want    bool
	}{
		{"most of the card from its first minute on", []float64{500, 11000, 11000, 11000, 300}, 12196, true},
		{"it grows", []float64{500, 2000, 9000, 11000, 11000}, 12196, false},
		{"half of the card", []float64{500, 6000, 6000, 6000, 6000}, 12196, false},
		{"unknown card", []float64{500, 11000, 11000, 11000, 300}, 0, false},
		{"a short run", []float64{11000}, 12196, true},
	} {
		p := &Profile{DurationS: 30 * float64(len(c.mib)), PeriodS: 30}
		for _, m := range c.mib {
			p.Series = append(p.Series, Use{MemMiB: m})
		}
		must.Equal(t, p.Preallocating(c.cardMiB), c.want, c.name)
	}
}

// MPS limits each process by itself: together they may take what the job was given, unless one needs more than its
// part.
func TestProcessLimit(t *testing.T) {
	for _, c := range []struct {
		processes int
		largest   float64
		want      float64
	}{{0, 0, 8000}, {1, 6000, 8000}, {4, 1000, 2000}, {4, 5000, 5250}, {4, 7900, 8000}} {
		p := &Profile{Processes: c.processes, ProcessMiB: c.largest}
		must.Equal(t, p.ProcessLimit(8000, 0), c.want, "%d processes of up to %v MiB", c.processes, c.largest)
	}
}

// The clients of an MPS server are processes, not jobs.
func TestProcessesAreClients(t *testing.T) {
	g := NewGuard(Rules{Predictor: pairwise(1)})
	spec := &GPUSpec{MemMiB: 16000, MaxClients: 16}
	for processes, want := range map[int]Veto{0: Allowed, 8: Allowed, 9: VetoClients} {
		var jobs []Running
		for _, id := range []string{"a", "b"} {
			p := holds(1000)
			p.App, p.DurationS, p.PeriodS, p.Processes = id, 100, 100, processes
			jobs = append(jobs, Running{Job: Job{ID: id, Profile: p}, Shares: 50})
		}
		must.Equal(t, g.Together(spec, jobs, 0), want, "two jobs of %d processes", processes)
	}
}

// The window of a member's progress grows and moves on, and its most memory stays the window's largest.
func TestMostOfAWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Profile{PeriodS: rapid.Float64Range(0.5, 3).Draw(t, "period")}
		for _, mib := range rapid.SliceOfN(rapid.Float64Range(0, 9), 1, 40).Draw(t, "memory") {
			p.Series = append(p.Series, Use{MemMiB: mib})
		}
		p.DurationS = float64(len(p.Series)) * p.PeriodS
		m := newMember(&Job{Profile: p}, rapid.Float64Range(0, p.DurationS).Draw(t, "done"), 0)
		step, slowest := rapid.Float64Range(0.1, 4).Draw(t, "step"), rapid.Float64Range(1, 3).Draw(t, "slowest")
		for ; m.lo < p.LongestS(); m.lo, m.hi = m.lo+step/slowest, m.hi+step {
			want := 0.0
			for _, u := range p.Series[p.Index(m.lo) : p.Index(m.hi+step)+1] {
				want = max(want, u.MemMiB)
			}
			if got := m.most(step); got != want {
				t.Fatalf("%g of %g to %g s: %g MiB, want %g", step, m.lo, m.hi, got, want)
			}
		}
	})
}
