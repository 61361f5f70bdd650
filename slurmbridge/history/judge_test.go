package history

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// ranOut is a run of ten minutes that shared its GPU all along and did half as much as alone, of an
// application that takes six minutes, with a limit of ten.
func ranOut(state string) *Judgement {
	return &Judgement{
		Run: &Run{
			ID: 1, Ref: "1", User: "ann", App: "md", Start: at(0), End: at(10),
			Profile:   &rlcore.Profile{App: "md", DurationS: 360},
			CoRunners: []CoRunner{{Ref: "2", App: "long", ToS: 500}, {Ref: "3", App: "brief", ToS: 20}, {Ref: "4", ToS: 500}},
			Ending: Ending{
				RunState: RunState{
					Progress: job.Progress{At: at(9), RunS: 540, DoneS: 270, LeastS: 270, Slow: 2, Worst: 2},
					Start:    at(0), LimitS: 600, Deadline: at(10),
				},
				How: job.Description{State: state},
			},
		},
	}
}

// A run that was suspended took longer than its work does, whoever shared its GPU: nothing is learned from its length,
// and no harm follows from that.
func TestARunThatWasSuspended(t *testing.T) {
	for _, state := range []string{"COMPLETED", "TIMEOUT"} {
		for _, suspended := range []bool{false, true} {
			j := ranOut(state)
			j.Limit, j.Run.Ending.Suspended = 1.2, suspended
			beside := j.Judge(interference.New(&contention.MPS))
			j.Run.CoRunners, j.Run.Complete = nil, true
			alone := j.Judge(nil)
			tells := beside.Broken || beside.Slowdown > 0 || beside.LengthS > 0 || alone.Learned || alone.Slowdown > 0
			if tells == suspended {
				t.Errorf("%s, suspended %v: beside others %+v, alone %+v", state, suspended, beside, alone)
			}
		}
	}
}

// A run alone that was ended before its own end, whoever ended it, tells what its application uses once it has lasted for
// some minutes: services never end by themselves. Its length is known from below only.
func TestRunsThatAreCutShort(t *testing.T) {
	for name, c := range map[string]struct {
		state  string
		change func(j *Judgement)
		want   bool
	}{
		"cancelled":             {"CANCELLED", nil, true},
		"requeued":              {"REQUEUED", nil, true},
		"preempted":             {"PREEMPTED", nil, true},
		"failed":                {"FAILED", nil, true},
		"at its deadline":       {"DEADLINE", nil, true},
		"cancelled at once":     {"CANCELLED", func(j *Judgement) { j.Run.End = at(1) }, false},
		"cancelled beside some": {"CANCELLED", func(j *Judgement) { j.Run.CoRunners = []CoRunner{{Ref: "2", App: "x"}} }, false},
		"its record is cut":     {"CANCELLED", func(j *Judgement) { j.Run.Complete = false }, false},
		"it was suspended":      {"CANCELLED", func(j *Judgement) { j.Run.Ending.Suspended = true }, false},
		"it was tried":          {"FAILED", func(j *Judgement) { j.Run.Ending.Member = &job.Member{Tried: true, MemMiB: 9} }, false},
		"ended":                 {"COMPLETED", nil, false},
		"at its time limit":     {"TIMEOUT", nil, false},
	} {
		j := ranOut(c.state)
		j.Run.CoRunners, j.Run.Complete = nil, true
		if c.change != nil {
			c.change(j)
		}
		o := j.Judge(nil)
		must.Equal(t, o.Cut, c.want, name)
		must.Equal(t, o.Learned, c.want || c.state == "COMPLETED" || c.state == "TIMEOUT", "%s: learned", name)
	}
}

// How long a run takes alone that shared is a matter of what it did by its slowdown and of what its application takes,
// the less the more its runs differ.
func TestLengthOfARunThatShared(t *testing.T) {
	for name, c := range map[string]struct {
		change func(j *Judgement)
		want   float64
	}{
		"as long as others":              {nil, 360},
		"runs differ":                    {func(j *Judgement) { j.Run.Profile.DurationSD = 3600 }, 310},
		"alone":                          {func(j *Judgement) { j.Run.CoRunners = nil }, 0},
		"no poll showed how far it came": {func(j *Judgement) { j.Run.Ending.RunState = RunState{} }, 0},
		"it failed":                      {func(j *Judgement) { j.Run.Ending.How.State = "FAILED" }, 0},
		"without MPS":                    {func(j *Judgement) { j.Run.WithoutMPS = true }, 0},
	} {
		j := ranOut("COMPLETED")
		j.Run.Ending.LentS = 200
		if c.change != nil {
			c.change(j)
		}
		o := j.Judge(nil)
		must.Near(t, o.LengthS, c.want, 15, name)
	}
}

func TestKindsOfHarm(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *Run)
		want   []Harm
	}{
		"two minutes late, of ten": {func(*Run) {}, []Harm{HarmLate}},
		"a minute late":            {func(r *Run) { r.Ending.PlainEnd = at(11) }, nil},
		"no plain end":             {func(r *Run) { r.Ending.PlainEnd = time.Time{} }, nil},
		"cancelled":                {func(r *Run) { r.Ending.How.State = "CANCELLED" }, nil},
		"alone, of unknown length": {func(r *Run) { r.Outcome.SoloS, r.CoRunners = 0, nil }, []Harm{HarmLate}},
		"it failed":                {func(r *Run) { r.Ending.How.State, r.Outcome.Suspect = "FAILED", "memory" }, []Harm{HarmOOM}},
		"it failed alone, too": {
			func(r *Run) { r.Ending.How.State, r.Outcome.Suspect, r.Outcome.Excused = "FAILED", "memory", true }, nil,
		},
		"held and slow": {
			func(r *Run) { r.Outcome.HeldS, r.Outcome.Broken = 5, true }, []Harm{HarmHeld, HarmLate, HarmContract},
		},
		"not judged": {func(r *Run) { r.Outcome = nil }, nil},
	} {
		late := Run{Start: at(0), End: at(12), CoRunners: []CoRunner{{Ref: "2"}}, Outcome: &Outcome{SoloS: 600}}
		late.Ending.How.State, late.Ending.PlainEnd = "COMPLETED", at(10)
		c.change(&late)
		must.Equal(t, late.Harm(), c.want, name)
	}
}

// What was saved agrees with the ends, whatever is known of whom.
func TestWhatWasSavedAgreesWithTheEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var runs []Run
		real, plain, timed, late := 0.0, 0.0, 0, 0
		for range rapid.IntRange(0, 8).Draw(t, "jobs") {
			start, took, before := rapid.IntRange(10, 50).Draw(t, "start"), rapid.IntRange(1, 40).Draw(t, "took"),
				rapid.IntRange(0, 9).Draw(t, "waited")
			later := rapid.IntRange(-9, 9).Draw(t, "later")
			r := Run{Ref: "1", Start: at(float64(start)), End: at(float64(start + took)), Outcome: &Outcome{}}
			r.Ending.PlainEnd = at(float64(start + took - later))
			known := rapid.Bool().Draw(t, "submission known")
			if known {
				r.Submit = at(float64(start - before))
			}
			if rapid.Bool().Draw(t, "cancelled") {
				r.Ending.How.State = "CANCELLED"
				known = false
			} else if 10*later > took {
				late++
			}
			if known {
				timed++
				real += float64(60 * (took + before))
				plain += float64(60 * (took + before - later))
			}
			runs = append(runs, r)
		}
		got := CountTurn(runs)
		if got.Timed != timed || got.Late != late {
			t.Fatalf("%+v, want %d timed, %d late", got, timed, late)
		}
		if n := float64(timed); n > 0 && (math.Abs(got.MeanS*n-real) > 1e-6 || math.Abs(got.PlainS*n-plain) > 1e-6) {
			t.Fatalf("%+v of %d jobs, want %g and %g s in all", got, timed, real, plain)
		}
		if saved := strings.Contains(got.String(), "saved"); timed > 0 && saved != (got.Saved() >= 0) {
			t.Fatalf("%q: %g", got, got.Saved())
		}
	})
}

// A run that took 90 s in place of 60 is compared with the contract of its owner, otherwise of the site; without MPS it
// says nothing of sharing, and where the application's runs differ in length it says at most that the contract was
// broken even if it was a long run.
func TestWhoseContractARunKept(t *testing.T) {
	for name, c := range map[string]struct {
		set      func(r *Run)
		contract float64
		broken   bool
		lesson   bool
		slowdown float64
	}{
		"its owner allows less": {func(r *Run) { r.Terms.MaxSlowdown = 1.2 }, 1.2, true, true, 1.5},
		"the site's":            {func(*Run) {}, 3, false, true, 1.5},
		"its application's runs alone differ as much": {
			func(r *Run) { r.Terms.MaxSlowdown, r.Profile.DurationSD = 1.2, 20 }, 1.2, false, false, 0,
		},
		"a long run would have kept it, too": {
			func(r *Run) { r.Terms.MaxSlowdown, r.Profile.DurationSD = 1.2, 7 }, 1.2, false, true, 1.5,
		},
		"even a long run would have broken it": {
			func(r *Run) { r.Terms.MaxSlowdown, r.Profile.DurationSD = 1.01, 12 }, 1.01, true, false, 1.029,
		},
		"without MPS": {func(r *Run) { r.Terms.MaxSlowdown, r.WithoutMPS = 1.2, true }, 1.2, true, false, 1.5},
	} {
		app := func(name string) *rlcore.Profile {
			return &rlcore.Profile{
				App: name, DurationS: 60, PeriodS: 60,
				Series: []rlcore.Use{{GPU: 0.3, Core: 0.3, MemMiB: 2000}},
			}
		}
		r := &Run{Ref: "1", User: "ann", App: "md", Start: at(0), End: at(1.5), Profile: app("md"), Complete: true}
		r.CoRunners = []CoRunner{{Ref: "2", App: "other", Profile: app("other"), ToS: 90}}
		c.set(r)
		r.Ending.How.State = "COMPLETED"
		j := &Judgement{Run: r, Limit: 3, Spec: &rlcore.TitanXp}
		o := j.Judge(interference.New(&contention.MPS))
		if o.Contract != c.contract || o.Broken != c.broken || math.Abs(o.Slowdown-c.slowdown) > .001 ||
			(len(o.Lessons) > 0) != c.lesson {
			t.Errorf("%s: contract %g, broken %v, slowdown %g, lessons %+v", name, o.Contract, o.Broken, o.Slowdown, o.Lessons)
		}
	}
}

func TestWhatAnOutcomeTeaches(t *testing.T) {
	other := rlcore.Identity{App: "other", Owner: "ann"}
	others := []rlcore.Identity{other}
	day := func(d int) time.Time { return at(0).AddDate(0, 0, d) }
	doubtful := interference.Standing{
		Others: []interference.Other{{Identity: other, Doubt: 2}}, Alone: day(0), FailsAlone: true,
	}
	accused := doubtful
	accused.Accuse(other, day(2))
	moreDoubtful := doubtful
	moreDoubtful.Doubt(others, day(2))
	with := func(f func(s *interference.Standing)) interference.Standing {
		s := doubtful
		f(&s)
		return s
	}
	for name, c := range map[string]struct {
		set  func(r *Run, o *Outcome)
		want interference.Standing
	}{
		"it kept its contract": {
			func(_ *Run, o *Outcome) { o.Lessons, o.Contract = make([]interference.Lesson, 1), 2 },
			with(func(s *interference.Standing) { s.Others = []interference.Other{} }),
		},
		"it broke its contract":      {func(_ *Run, o *Outcome) { o.Broken = true }, moreDoubtful},
		"it broke it without MPS":    {func(r *Run, o *Outcome) { o.Broken, r.WithoutMPS = true, true }, doubtful},
		"it failed":                  {func(_ *Run, o *Outcome) { o.Blamed = others }, accused},
		"it failed with a server":    {func(_ *Run, o *Outcome) { o.Fault = true }, with(func(s *interference.Standing) { s.Alone = day(2) })},
		"it ended well beside one":   {func(r *Run, _ *Outcome) { r.Ending.How.State = "COMPLETED" }, doubtful},
		"it failed alone":            {func(r *Run, _ *Outcome) { r.CoRunners = nil }, doubtful},
		"it failed, tried with less": {func(_ *Run, o *Outcome) { o.TriedMiB = 9 }, with(func(s *interference.Standing) { s.TriedMiB = 9 })},
		"it can't run under MPS":     {func(_ *Run, o *Outcome) { o.NoMPS = true }, with(func(s *interference.Standing) { s.NoMPS = true })},
		"it ended well under MPS": {
			func(r *Run, o *Outcome) { r.Ending.How.State, o.MPS = "COMPLETED", true },
			with(func(s *interference.Standing) { s.Served = true }),
		},
		"it ended well alone, at last": {
			func(r *Run, _ *Outcome) { r.Ending.How.State, r.CoRunners = "COMPLETED", nil },
			with(func(s *interference.Standing) { s.Alone, s.FailsAlone = time.Time{}, false }),
		},
		"adopted, it broke its contract": {
			func(r *Run, o *Outcome) {
				o.Broken, r.WithoutMPS, r.Ending.Member = true, true, &job.Member{Rule: "all"}
			},
			with(func(s *interference.Standing) { s.Slower = day(2) }),
		},
	} {
		r := Run{
			App: "md", User: "ann", End: day(2), CoRunners: []CoRunner{{Ref: "2", App: "other", Owner: "ann"}}, Outcome: &Outcome{},
		}
		r.Ending.How.State = "FAILED"
		s := doubtful
		c.set(&r, r.Outcome)
		r.Teach(&s)
		must.Equal(t, s, c.want, name)
	}
	before := Run{End: day(2), Outcome: &Outcome{Suspicion: Suspicion{Blamed: others}}}
	before.Excuse(&accused)
	doubtful.Others = []interference.Other{{Identity: other, Doubt: 2, At: day(2)}}
	must.Equal(t, accused, doubtful, "after it failed again, alone")
	must.Equal(t, before.Outcome.Excused, true, "the run before is excused")
}
