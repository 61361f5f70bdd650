package compare

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

func seconds(t *testing.T, app string) float64 {
	t.Helper()
	p, ok := apps.ByName(app)
	if !ok {
		t.Fatal(app)
	}
	return p.DurationS
}

// repeated is the makespan of repeat.
func repeated(runs []run) (float64, error) {
	r, err := repeat(runs, false)
	if err != nil {
		return 0, err
	}
	return lastEnd(r), nil
}

// Jobs one after the other: the pauses are gone, the order stays.
func TestRepeatAlone(t *testing.T) {
	a, b := seconds(t, "vgg16"), seconds(t, "gromacs")
	runs := []run{
		{app: "vgg16", startS: 10, endS: 10 + a, finished: true},
		{app: "gromacs", startS: 30 + a, endS: 30 + a + b, finished: true},
	}
	got, err := repeated(runs)
	if err != nil || math.Abs(got-a-b) > 1e-6 {
		t.Errorf("%v, %v; want %v", got, err, a+b)
	}
	got, err = repeatStarts(runs)
	if err != nil || math.Abs(got-30-a-b) > 1e-6 {
		t.Errorf("with its starts %v, %v; want %v", got, err, 30+a+b)
	}
}

// Two that start a moment apart are one decision; the third waited for both, the
// fourth joined it as the third's partner ended.
func TestRepeatGroups(t *testing.T) {
	const pause = 7
	starts := func(delay float64) []run {
		// By hand: alexnet and gromacs stay below what the card can do together, and
		// below it the law slows next to nothing.
		a, g := seconds(t, "alexnet"), seconds(t, "gromacs")
		return []run{
			{app: "alexnet", startS: delay, endS: a + delay + 1},
			{app: "gromacs", startS: delay + 0.1, endS: g + delay + 1},
			{app: "alexnet", startS: g + 2*delay + 1, endS: g + a + 2*delay + 2},
			{app: "gromacs", startS: g + 2*delay + 1.1, endS: 2*g + 2*delay + 2},
			{app: "alexnet", startS: g + a + 3*delay + 2, endS: g + 2*a + 3*delay + 3},
		}
	}
	paused := must.Get(repeated(starts(pause)))(t)
	swift, err := repeated(starts(0))
	if err != nil || paused != swift {
		t.Errorf("pauses count: %v, without %v (%v)", paused, swift, err)
	}
	g, a := seconds(t, "gromacs"), seconds(t, "alexnet")
	if least := g + 2*a; paused < least || paused > 1.1*least {
		t.Errorf("%v s, alone the longest chain takes %v s", paused, least)
	}
}

// What can't run is reported, not made up.
func TestRepeatFails(t *testing.T) {
	if _, err := repeat([]run{{app: "none"}}, false); err == nil {
		t.Error("an application that isn't there")
	}
	// Two that don't fit together: with memory to spare the decision can be repeated,
	// the starts can't.
	f := figures{runs: []run{{app: "vgg16", endS: 50}, {app: "vgg16", endS: 50}}, MakespanS: 100}
	f.addSim()
	if alone := seconds(t, "vgg16"); f.SimNote == "" || f.SimMakespanS < 1.5*alone || f.SimMakespanS > 2*alone || f.SimRatio != 100/f.SimMakespanS || f.SimStartsS != 0 {
		t.Errorf("two that don't fit together: %+v", f)
	}
	f = figures{runs: []run{{app: "gromacs", endS: 83}}, JobsFailed: 1}
	if f.addSim(); f.SimMakespanS != 0 || f.SimNote != "" {
		t.Errorf("failed jobs are no decisions to repeat: %+v", f)
	}
}

// A pair that was put together as its second job came: the first one waited for it, with and
// without pauses.
func TestRepeatPartnerThatCame(t *testing.T) {
	g := seconds(t, "gromacs")
	runs := []run{
		{app: "gromacs", startS: 41, endS: 41 + g},
		{app: "gromacs", submitS: 40, startS: 41.1, endS: 41.1 + g},
	}
	r, err := repeat(runs, false)
	if err != nil || r.Jobs[0].StartS != 40 || r.Jobs[1].StartS != 40 {
		t.Errorf("%+v, %v; want both to start at 40", r, err)
	}
}

// A job that finds no memory at its start is no reason to go on for ever.
func TestRepeatStartsWithoutMemory(t *testing.T) {
	var runs []run
	for range 40 {
		runs = append(runs, run{app: "vgg16", endS: 100})
	}
	if _, err := repeatStarts(runs); !errors.Is(err, errMemory) {
		t.Error(err)
	}
}

// drawComing draws jobs that come over time, without starts.
func drawComing(t *rapid.T) []run {
	small := apps.Workloads["mem_light"]
	at := 0.0
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) run {
		at += rapid.SampledFrom([]float64{0, 1, 30, 200}).Draw(t, "gap")
		return run{app: rapid.SampledFrom(small).Draw(t, "app"), submitS: at, finished: true}
	}), 1, 10).Draw(t, "jobs")
}

// Whatever the times of a real run: in its repeat no job starts before it is submitted, nor next
// to one that had ended before.
func TestRepeatNeverBeforeSubmission(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := drawComing(t)
		for i := range runs {
			runs[i].startS = runs[i].submitS + rapid.Float64Range(0, 300).Draw(t, "waits")
			runs[i].endS = runs[i].startS + rapid.Float64Range(1, 300).Draw(t, "runs")
		}
		r := must.Get(repeat(runs, true))(t)
		for i := range r.Jobs {
			if r.Jobs[i].StartS < runs[i].submitS {
				t.Errorf("job %d starts at %v, submitted at %v", i, r.Jobs[i].StartS, runs[i].submitS)
			}
			for k := range r.Jobs {
				if runs[k].endS <= runs[i].startS && r.Jobs[k].EndS > r.Jobs[i].StartS {
					t.Errorf("job %d starts at %v, and %d that had ended before goes on until %v", i, r.Jobs[i].StartS, k, r.Jobs[k].EndS)
				}
			}
		}
	})
}

// Pauses add up while jobs come on time; without them plain Slurm starts each as soon as the one
// before it has ended.
func TestRepeatDrift(t *testing.T) {
	const pause = 20
	g := seconds(t, "gromacs")
	var runs []run
	for i := range 10 {
		at := float64(i) * g / 1.2
		start := at + pause
		if i > 0 {
			start = max(at, runs[i-1].endS) + pause
		}
		runs = append(runs, run{app: "gromacs", submitS: at, startS: start, endS: start + g, finished: true})
	}
	if got, err := repeated(runs); err != nil || math.Abs(got-10*g) > 1e-6 {
		t.Errorf("%v, %v; want %v", got, err, 10*g)
	}
}

// What the simulator made it repeats, but for rounding: whatever starts as jobs end, and with those
// that come.
func TestRepeatOfSimulation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := drawComing(t)
		s, err := replica(runs, rlcore.TitanXp, func(r run) float64 { return r.submitS })
		if err != nil {
			t.Fatal(err)
		}
		var before map[string]bool // the jobs that ran after the last decision
		lastS := -1.0              // when something started
		made, err := play(s, func(st *rlcore.State) (start []int) {
			caused := lastS == s.NowS() // by an end, or a start at the same time
			running := map[string]bool{}
			for i := range st.GPUs[0].Running {
				running[st.GPUs[0].Running[i].Job.ID] = true
			}
			for id := range before {
				caused = caused || !running[id]
			}
			defer func() {
				for _, i := range start {
					running[st.Pending[i].ID] = true
					lastS = s.NowS()
				}
				before = running
			}()
			least := 0
			if len(st.GPUs[0].Running) == 0 {
				least = 1 // a GPU that is left idle is looked at again, which nothing in the run shows
			}
			n := rapid.IntRange(least, min(2, len(st.Pending))).Draw(t, "started")
			waiting := make([]int, len(st.Pending))
			for i := range waiting {
				waiting[i] = i
			}
			start = rapid.Permutation(waiting).Draw(t, "order")[:n]
			if n > 0 && !caused && !slices.ContainsFunc(start, func(i int) bool { return st.Pending[i].SubmitS == s.NowS() }) {
				start = waiting[len(waiting)-1:] // the one that has just come
			}
			return start
		})
		if errors.Is(err, errMemory) {
			t.Skip("they didn't fit")
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range runs {
			runs[i].startS, runs[i].endS = made.Jobs[i].StartS, made.Jobs[i].EndS
		}
		f := figures{runs: runs, MakespanS: lastEnd(made)}
		f.addSim()
		if f.SimNote == errMemory.Error() {
			t.Skip("rounded, a job starts before the one ends that makes room for it")
		}
		if math.Abs(f.SimRatio-1) > 1e-9 || math.Abs(f.StartsRatio-1) > 1e-9 || f.SimNote != "" {
			t.Errorf("÷ sim %v, ÷ starts %v, %s", f.SimRatio, f.StartsRatio, f.SimNote)
		}
	})
}
