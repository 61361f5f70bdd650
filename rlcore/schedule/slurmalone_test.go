package schedule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func job(id string, priority, submit, takes float64) Entry {
	return Entry{ID: id, Priority: priority, SubmitS: submit, TakesS: takes}
}

func TestPlain(t *testing.T) {
	p := NewSlurmAlone("0")
	ends := func(want map[string]float64) {
		t.Helper()
		for id, end := range want {
			must.Equal(t, p.EndS(id), end, "the end of %s", id)
		}
	}
	p.Add(job("a", 10, 0, 100), 0)
	p.Add(job("b", 10, 5, 100), 5)
	ends(map[string]float64{"a": 100, "b": 200, "nobody": 0})
	p.Add(job("first", 20, 10, 50), 10) // goes before b, but a has its GPU
	ends(map[string]float64{"a": 100, "first": 150, "b": 250})
	p.Ended(30, End{"a", 60}) // sooner than expected
	ends(map[string]float64{"a": 60, "first": 110, "b": 210})
	p.Add(job("unknown", 15, 0, 1000), 70)
	ends(map[string]float64{"unknown": 1110, "b": 1210})
	p.Ended(80, End{"unknown", 5}) // it ran at once in reality
	ends(map[string]float64{"first": 110, "b": 215})
	p.Remove(90, "first") // cancelled
	ends(map[string]float64{"first": 0, "b": 195})
	must.Equal(t, p.FreeS(nil, 90)[0], 195, "when the GPU is free")
}

// A job that goes on longer than its application's runs do on average would do so on plain Slurm, and those behind it
// would wait.
func TestPlainOverrun(t *testing.T) {
	p := NewSlurmAlone("0", "1")
	done := 0.0
	p.DoneS = func(string) float64 { return done }
	a := job("a", 2, 0, 100)
	a.LengthS = func(doneS, _ float64) (float64, float64) { return max(100, doneS+10), 0 }
	for _, j := range []Entry{a, job("b", 2, 0, 50), job("c", 1, 0, 100), job("d", 0, 0, 10)} {
		p.Add(j, 0)
	}
	p.Runs(a, []int{0}, 0, 0) // c has b's GPU from 50 s on, d a's from 100 s on
	for done < 140 {
		done += 5
		p.Wait(nil, done)
		free := max(100, done+10)
		must.Equal(t, p.EndS("a"), free, "the end of a after %v s", done)
		must.Equal(t, p.EndS("c"), 150, "the end of c after %v s", done)
		must.Equal(t, p.EndS("d"), free+10, "the end of d after %v s: a still has its GPU", done)
	}
	must.Equal(t, p.Ended(145, End{"a", 145})[0], 145, "a's plain end")
	must.Equal(t, p.EndS("d"), 155, "the end of d")
}

// Where two GPUs are free at the same time but for rounding, no job changes its GPU: one that is confined to the other
// would find less than it was promised.
func TestPlainIgnoresRounding(t *testing.T) {
	const off = 1e-11
	for first, other := range map[string]string{"a": "b", "b": "a"} {
		p := NewSlurmAlone("0", "1")
		done := map[string]float64{}
		p.DoneS = func(id string) float64 { return done[id] }
		for i, id := range []string{"a", "b"} {
			j := job(id, 2, 0, 100)
			p.Add(j, 0)
			p.Runs(j, []int{i}, 0, 0)
		}
		p.Add(job("c", 1, 0, 10), 0)
		p.Add(job("d", 1, 0, 10), 0)
		done[other] = 100
		for k, id := range []string{first, other} {
			at := 100 + float64(k+1)*off
			must.Equal(t, p.Ended(at, End{id, at})[0], 100, "when %s would have ended", id)
			for i, id := range []string{"c", "d"} {
				if on := p.Slot(id); !slices.Equal(on.On, []int{i}) || on.StartS != 100 {
					t.Errorf("%s starts on %v at %v, want GPU %d at 100", id, on.On, on.StartS, i)
				}
			}
		}
	}
}

// A run that shared and ended later than expected was longer, or slowed more than predicted.
func TestPlainTakesSlowdownsIntoAccount(t *testing.T) {
	for _, c := range []struct {
		name                    string
		spread, done, ran, want float64
	}{
		{"alone", 0, 150, 150, 150},
		{"alone, shorter", 0, 70, 70, 70},
		{"all runs are as long", 0, 150, 180, 100},
		{"all runs are as long, it was slowed less", 0, 70, 84, 100},
		{"runs vary as much as slowdowns", math.Log(1.2), 150, 180, math.Sqrt(150 * 100)},
		{"runs vary far more", 10, 150, 180, 150},
		{"another run altogether", 0, 1000, 1200, 500},
		{"hardly a run", 0, 10, 12, 20},
	} {
		p := NewSlurmAlone("0")
		a := job("a", 1, 0, 100)
		a.Spread = c.spread
		p.Add(a, 0)
		p.Add(job("b", 0, 0, 10), 0)
		p.Runs(a, []int{0}, 0, 0)
		must.Near(t, p.Ended(c.ran, End{"a", c.done})[0], c.want, 0.02*c.want, "when it would have ended: %s", c.name)
	}
}

// What a run is taken to have taken lies between what was expected and what it did as predicted, or is within a factor
// of 2 of that, and comes through a restart.
func TestPlainTookIsBetween(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		takes, done := rapid.Float64Range(1, 1e5).Draw(t, "takes"), rapid.Float64Range(1, 1e5).Draw(t, "done")
		start := rapid.Float64Range(0, 1e5).Draw(t, "start")
		end := start + done*rapid.Float64Range(1, 5).Draw(t, "slowdown")
		a := job("a", 1, 0, takes)
		a.Spread = rapid.Float64Range(0, 3).Draw(t, "spread")
		p := NewSlurmAlone("0")
		p.Add(a, 0)
		p.Runs(a, []int{0}, start, start)
		var again SlurmAlone
		if b, err := p.MarshalJSON(); err != nil || again.UnmarshalJSON(b) != nil {
			t.Fatalf("%s, %v", b, err)
		}
		x := p.jobs["a"]
		took := x.took(done, end)
		least, most := min(takes, done), max(takes, done)
		if took < least*(1-1e-9) || took > most*(1+1e-9) || took < done/2*(1-1e-9) || took > 2*done*(1+1e-9) {
			t.Fatalf("it took %v; %v were expected, %v done", took, takes, done)
		}
		if got := again.jobs["a"].took(done, end); got != took {
			t.Fatalf("%v after a restart, %v before", got, took)
		}
	})
}

func TestTookOfARunOfWhichNothingIsKnown(t *testing.T) {
	must.Equal(t, Took(0, 100, 50, 1), 0)
}

// Jobs that run in reality keep their place while those that wait grow older.
func TestPlainAges(t *testing.T) {
	p := NewSlurmAlone("0")
	for i, id := range []string{"now", "ran", "waits", "too"} {
		p.Add(job(id, float64(100-i), 0, 10), 0)
	}
	was := p.EndS("ran")
	// "ran" has been started early, beside "now"; the others age by 50.
	p.Wait([]Entry{job("waits", 148, 0, 10), job("too", 147, 0, 10)}, 1)
	must.Equal(t, p.EndS("ran"), was, "when it would have ended, before and now")
	// Its owner's priority rises above everybody's.
	p.Wait([]Entry{job("waits", 150, 0, 10), job("too", 1e6, 0, 10)}, 2)
	if p.EndS("too") >= p.EndS("ran") {
		t.Errorf("the job of the highest priority would end at %v, after %v", p.EndS("too"), p.EndS("ran"))
	}
}

// The schedule is the one that whole GPUs in order of priority give, event by event, whatever comes when.
func TestPlainIsListScheduling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "GPUs")
		var jobs []Entry
		at := 0.0
		for i := range rapid.IntRange(1, 25).Draw(t, "jobs") {
			at += rapid.SampledFrom([]float64{0, 1, 7, 60}).Draw(t, "gap")
			j := job(fmt.Sprint(i), float64(rapid.IntRange(0, 2).Draw(t, "priority")), at,
				float64(rapid.IntRange(1, 90).Draw(t, "takes")))
			if rapid.IntRange(0, 3).Draw(t, "choosy") == 0 {
				j.GPUs = NewGPUSet(rapid.IntRange(0, n-1).Draw(t, "GPU"))
			}
			jobs = append(jobs, j)
		}
		p := NewSlurmAlone(slices.Repeat([]string{"gpu"}, n)...)
		for _, j := range jobs {
			p.Add(j, j.SubmitS)
		}
		want := wholeGPUs(jobs, n)
		for i, j := range jobs {
			if got := p.EndS(j.ID); math.Abs(got-want[i]) > 1e-9 {
				t.Fatalf("job %d ends at %v, want %v", i, got, want[i])
			}
		}
	})
}

// wholeGPUs simulates plain Slurm: at every event the waiting jobs in order of priority take
// the idle GPUs that they may use.
func wholeGPUs(jobs []Entry, n int) []float64 {
	ends := make([]float64, len(jobs))
	busy := make([]float64, n)
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(jobs[b].Priority, jobs[a].Priority), cmp.Compare(jobs[a].SubmitS, jobs[b].SubmitS))
	})
	for now, left := 0.0, len(jobs); left > 0; {
		for _, i := range order {
			if ends[i] > 0 || jobs[i].SubmitS > now {
				continue
			}
			for g := range busy {
				if busy[g] <= now && jobs[i].GPUs.Has(g) {
					ends[i] = now + jobs[i].TakesS
					busy[g] = ends[i]
					left--
					break
				}
			}
		}
		next := math.Inf(1)
		for _, b := range busy {
			if b > now {
				next = min(next, b)
			}
		}
		for _, j := range jobs {
			if j.SubmitS > now {
				next = min(next, j.SubmitS)
			}
		}
		now = next
	}
	return ends
}

// Jobs that end between two polls are told their ends at once, and the rest of the queue is as if they had been told
// one after the other.
func TestPlainEndsTogether(t *testing.T) {
	schedule := func() *SlurmAlone {
		p := NewSlurmAlone("n1:0", "n1:1")
		for i, takes := range []float64{100, 200, 50, 70} {
			p.Add(job(fmt.Sprint(i), float64(10-i), 0, takes), 0)
		}
		for i := range 2 {
			p.Runs(job(fmt.Sprint(i), 0, 0, 0), []int{i}, 0, 1)
		}
		return p
	}
	together := schedule()
	must.Equal(t, together.Ended(80, End{"0", 80}, End{"unknown", 3}, End{"1", 80}), []float64{80, 0, 80},
		"when they would have ended")
	must.Equal(t, together.Ended(80, End{"0", 80})[0], 0, "told a second time")
	one := schedule()
	one.Ended(80, End{"1", 80})
	one.Ended(80, End{"0", 80})
	for _, id := range []string{"2", "3"} {
		must.Equal(t, together.EndS(id), one.EndS(id), "the end of job %s, told together and one after the other", id)
	}
}

// Of ten runs that differ the first one ends long before their mean, and so the next job starts; where all runs take
// equally long it starts no sooner. Half of a run doesn't count twice.
func TestPlainStartsBeforeTheMeanRunEnds(t *testing.T) {
	const gpus, mean = 10, 1000.0
	for _, c := range []struct {
		name        string
		differ      bool
		doneS       float64
		least, most float64 // of the start
	}{
		{"alike", false, 0, mean, mean},
		{"exponential", true, 0, 60, 160},
		{"exponential, and half done", true, 500, 60, 160},
	} {
		p := NewSlurmAlone(slices.Repeat([]string{"gpu"}, gpus)...)
		p.DoneS = func(string) float64 { return c.doneS }
		of := func(id string) Entry {
			j := job(id, 0, 0, mean)
			if c.differ {
				j.LengthS = func(doneS, part float64) (float64, float64) { return doneS + mean, doneS - mean*math.Log1p(-part) }
			}
			return j
		}
		for g := range gpus {
			p.Runs(of(fmt.Sprint(g)), []int{g}, 0, c.doneS)
		}
		p.Add(of("next"), c.doneS)
		if start := p.EndS("next") - mean - p.EarlyS("next") - c.doneS; start < c.least-1e-6 || start > c.most && c.differ {
			t.Errorf("%s: it starts in %v s, want %v to %v", c.name, start, c.least, c.most)
		}
		must.Equal(t, p.EarlyS("0"), 0, "%s: how much earlier a job begins that has begun", c.name)
	}
}

// Where an application's runs differ, one that goes on is one of the long ones, on plain Slurm as well: its plain end,
// and with it its due, is what is expected of runs that got as far.
func TestPlainEndOfARunThatGoesOn(t *testing.T) {
	p := NewSlurmAlone("0")
	done := 0.0
	p.DoneS = func(string) float64 { return done }
	a := job("a", 0, 0, 1000)
	a.LengthS = func(doneS, _ float64) (float64, float64) { return 1000 + 2*doneS, 0 }
	p.Add(a, 0)
	p.Runs(a, []int{0}, 0, 0)
	for _, s := range []float64{200, 1000, 5000} {
		done = s
		p.Add(job(fmt.Sprint(s), -s, s, 10), s)
		must.Equal(t, p.EndS("a"), 1000+2*s, "the end, after %v s", s)
	}
	// A bridge that has started anew knows its length as soon as it sees the job run.
	b := must.Get(json.Marshal(p))(t)
	var again SlurmAlone
	must.OK(t, json.Unmarshal(b, &again))
	again.DoneS, done = p.DoneS, 8000
	again.Runs(a, []int{0}, 0, 8000)
	again.Add(job("late", -9000, 8000, 10), 8000)
	must.Equal(t, again.EndS("a"), 17_000, "the end, after a restart")
	must.Equal(t, p.Ended(9000, End{"a", 9000})[0], 9000, "the plain end of a job that ended alone at 9000")
}

// A job that waits in reality and has begun on plain Slurm ends there by what is expected of its length now: otherwise a
// job that is expected to be a short one at last has a due far too late. The jobs behind it don't move.
func TestPlainEndOfAWaitingJobThatHasBegun(t *testing.T) {
	p := NewSlurmAlone("0")
	a, b := job("a", 10, 0, 10_000), job("b", 5, 0, 10)
	p.Wait([]Entry{a, b}, 0)
	p.Wait([]Entry{a, b}, 1)
	for _, takes := range []float64{500, 20_000} {
		a.TakesS = takes
		p.Wait([]Entry{a, b}, 100)
		must.Equal(t, p.EndS("a"), takes, "the end of a, which takes %v s", takes)
		must.Equal(t, p.EndS("b"), 10_010, "the end of b beside a, which takes %v s", takes)
	}
}

// A restart moves no plain end: jobs that waited while nobody looked are where they would have been.
func TestPlainAfterARestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := NewSlurmAlone("0", "1")
		two := NewSlurmAlone("0", "1")
		var waits []Entry
		now := 0.0
		for i := range rapid.IntRange(5, 40).Draw(t, "steps") {
			now += rapid.Float64Range(1, 30).Draw(t, "s")
			waits = append(waits, job(fmt.Sprint(i), float64(rapid.IntRange(0, 5).Draw(t, "priority")), now,
				rapid.Float64Range(1, 100).Draw(t, "takes")))
			k := rapid.IntRange(0, len(waits)-1).Draw(t, "which")
			runs, ends := rapid.Bool().Draw(t, "runs"), rapid.Bool().Draw(t, "ends")
			if rapid.Bool().Draw(t, "restart") {
				b := must.Get(json.Marshal(two))(t)
				two = &SlurmAlone{}
				must.OK(t, json.Unmarshal(b, two))
			}
			now += rapid.Float64Range(0, 5).Draw(t, "gap")
			for _, p := range []*SlurmAlone{one, two} {
				p.Wait(waits, now)
				if runs {
					p.Runs(waits[k], []int{0}, now, now)
					if ends {
						p.Ended(now, End{waits[k].ID, waits[k].TakesS})
					}
				}
			}
			if runs {
				waits = slices.Delete(slices.Clone(waits), k, k+1)
			}
			for _, j := range waits {
				if a, b := one.EndS(j.ID), two.EndS(j.ID); math.Abs(a-b) > 1e-6 {
					t.Fatalf("job %s ends at %v after restarts, else at %v", j.ID, b, a)
				}
			}
		}
	})
}

// Where more jobs get through than plain Slurm could run, its schedule falls behind by a day and no more: it stays small,
// and a new job's plain end says something.
func TestPlainFallsBehindByADay(t *testing.T) {
	p := NewSlurmAlone("0", "1", "2", "3")
	const takes, day = 1000, 24 * 3600.0
	now, n := 0.0, 0
	for ; now < 20*day; now += takes / 4 / 1.3 { // a load of 1.3
		id := fmt.Sprint(n)
		p.Add(job(id, 0, now, takes), now)
		p.Runs(job(id, 0, now, takes), []int{n % 4}, now, now)
		if n >= 5 {
			p.Ended(now, End{fmt.Sprint(n - 5), takes})
		}
		n++
	}
	p.Add(job("new", 0, now, takes), now)
	if behind := p.EndS("new") - now; behind > 1.5*day || behind < .5*day {
		t.Errorf("a new job's plain end is %v days off", behind/day)
	}
	if kept := len(p.jobs); float64(kept) > 2*4*day/takes {
		t.Errorf("%d jobs of %d are kept", kept, n)
	}
}
