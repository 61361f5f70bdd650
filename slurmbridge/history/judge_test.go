package history

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
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
			Profile: &rlcore.Profile{App: "md", DurationS: 360},
			CoRunners: []CoRunner{
				{Ref: "2", App: "long", OverlapS: 500},
				{Ref: "3", App: "brief", OverlapS: 20},
				{Ref: "4", OverlapS: 500},
			},
		},
		How: job.Description{State: state},
		Ending: &Ending{
			Progress: job.Progress{At: at(9), RunS: 540, DoneS: 270, LeastS: 270, Slow: 2, Worst: 2}, Start: at(0), LimitS: 600,
			Deadline: at(10),
		},
	}
}

func TestRanOutOfTimeInCompany(t *testing.T) {
	for _, c := range []struct {
		name, state string
		change      func(j *Judgement)
		want        []Harm
	}{
		{"at its limit", "TIMEOUT", nil, []Harm{HarmTimeout}},
		{"at its deadline", "DEADLINE", nil, []Harm{HarmDeadline}},
		{
			"a limit that was raised, too late", "TIMEOUT", func(j *Judgement) { j.Ending.LimitS, j.Ending.LentS = 600, 200 },
			[]Harm{HarmTimeout},
		},
		{
			"it had done its own limit's work", "TIMEOUT", func(j *Judgement) { j.Ending.LimitS, j.Ending.LentS = 660, 360 },
			nil,
		},
		{"its application takes as long alone", "TIMEOUT", func(j *Judgement) { j.Run.Profile.DurationS = 600 }, nil},
		{
			"its application takes as long alone at times", "TIMEOUT", func(j *Judgement) { j.Run.Profile.DurationSD = 240 },
			nil,
		},
		{"its deadline was too early alone", "DEADLINE", func(j *Judgement) { j.Ending.Deadline = at(5) }, nil},
		{"unknown application", "TIMEOUT", func(j *Judgement) { j.Run.Profile = nil }, nil},
		{"no poll showed it", "TIMEOUT", func(j *Judgement) { j.Ending = nil }, nil},
		{"cancelled", "CANCELLED", nil, nil},
		{"out of the node's memory", "OUT_OF_MEMORY", nil, []Harm{HarmOOM}},
		{"alone", "TIMEOUT", func(j *Judgement) { j.Run.CoRunners = nil }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := ranOut(c.state)
			if c.change != nil {
				c.change(j)
			}
			o := j.Judge(nil)
			if got := o.Harm(); !slices.Equal(got, c.want) || (len(got) > 0) != (o.Suspect != "") {
				t.Errorf("harm %v for %q, want %v", got, o.Suspect, c.want)
			}
			if ranOutOfTime(c.state) && o.Suspect != "" && !slices.Equal(o.Blamed, []rlcore.Identity{{App: "long"}}) {
				t.Errorf("blamed are %v", o.Blamed)
			}
		})
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
		"no poll showed how far it came": {func(j *Judgement) { j.Ending = nil }, 0},
		"it failed":                      {func(j *Judgement) { j.How.State = "FAILED" }, 0},
		"without MPS":                    {func(j *Judgement) { j.Run.WithoutMPS = true }, 0},
	} {
		j := ranOut("COMPLETED")
		j.Ending.LentS = 200
		if c.change != nil {
			c.change(j)
		}
		o := j.Judge(nil)
		if math.Abs(o.LengthS-c.want) > 15 || j.Ending != nil && o.LimitS != 400 {
			t.Errorf("%s: %.0f s, want %.0f; limit %v", name, o.LengthS, c.want, o.LimitS)
		}
	}
}

// A client that Slurm kills may break the other clients of its MPS server: a neighbour that fails then runs again, and
// no application is to blame.
func TestFailedWhenANeighbourWasKilled(t *testing.T) {
	for _, c := range []struct {
		state  string
		after  time.Duration
		change func(j *Judgement)
		want   bool
	}{
		{"CANCELLED", 0, nil, true},
		{"TIMEOUT", 31 * time.Second, nil, true},
		{"PREEMPTED", -time.Second, nil, true},
		{"OUT_OF_MEMORY", 0, nil, true},
		{"CANCELLED", time.Minute, nil, false},
		{"CANCELLED", -time.Minute, nil, false},
		{"COMPLETED", 0, nil, false},
		{"CANCELLED", 0, func(j *Judgement) { j.Run.WithoutMPS = true }, false},
	} {
		j := ranOut("FAILED")
		j.FailsAlone = true // so that nothing else is a reason
		j.How.End = at(10)
		for i := range j.Run.CoRunners {
			j.Run.CoRunners[i].AtEnd = true
		}
		j.Run.CoRunners[1].How = job.Description{State: c.state, End: at(10).Add(-c.after)}
		if c.change != nil {
			c.change(j)
		}
		o := j.Judge(nil)
		if o.Ours != c.want || strings.Contains(o.Suspect, "job 3") != c.want || c.want && (len(o.Blamed) > 0 || o.Fault) {
			t.Errorf("%s, %v before: %q, ours %v, blamed %v, fault %v", c.state, c.after, o.Suspect, o.Ours, o.Blamed, o.Fault)
		}
	}
}

// A run that fell with its MPS server runs again in any case. Its application is kept alone where its own process may
// have broken the server, and only who may have is blamed.
func TestFellWithItsServer(t *testing.T) {
	for name, c := range map[string]struct {
		own    bool
		by     []int // co-runners whose process faulted
		fault  bool
		blamed []rlcore.Identity
	}{
		"nobody knows whose fault it was": {fault: true, blamed: []rlcore.Identity{{App: "long"}, {App: "brief"}}},
		"its own":                         {own: true, fault: true},
		"a neighbour's":                   {by: []int{1}, blamed: []rlcore.Identity{{App: "brief"}}},
		"its own and a neighbour's":       {own: true, by: []int{0}, fault: true},
		"an unknown application's":        {by: []int{2}},
	} {
		for _, state := range []string{"FAILED", "TIMEOUT"} {
			j := ranOut(state)
			j.Run.MPSFault, j.Run.Faulted = true, c.own
			for i := range j.Run.CoRunners {
				j.Run.CoRunners[i].AtEnd = true
			}
			for _, i := range c.by {
				j.Run.CoRunners[i].Faulted = true
			}
			o := j.Judge(nil)
			if !o.Ours || o.Suspect == "" || o.Fault != c.fault {
				t.Errorf("%s, %s: %q, ours %v, fault %v", name, state, o.Suspect, o.Ours, o.Fault)
			}
			if state == "FAILED" { // what made it slow is another question
				must.Equal(t, o.Blamed, c.blamed, "%s", name)
			}
		}
	}
}

// What was suspected is cleared where the job runs out of time alone as well.
func TestRanOutOfTimeAloneAgain(t *testing.T) {
	j := ranOut("TIMEOUT")
	j.Run.CoRunners, j.Run.Complete, j.Alone = nil, true, true
	if o := j.Judge(nil); !o.Cleared || !o.Learned || o.Suspect != "" {
		t.Errorf("%+v", o)
	}
}

func TestHarm(t *testing.T) {
	late := Outcome{State: "COMPLETED", Start: at(0), End: at(12), SoloS: 600, With: []string{"2"}, PlainEnd: at(10)}
	for name, c := range map[string]struct {
		change func(o *Outcome)
		want   []Harm
	}{
		"two minutes late, of ten": {func(*Outcome) {}, []Harm{HarmLate}},
		"a minute late":            {func(o *Outcome) { o.PlainEnd = at(11) }, nil},
		"no plain end":             {func(o *Outcome) { o.PlainEnd = time.Time{} }, nil},
		"cancelled":                {func(o *Outcome) { o.State = "CANCELLED" }, nil},
		"alone, of unknown length": {func(o *Outcome) { o.SoloS, o.With = 0, nil }, []Harm{HarmLate}},
		"it failed":                {func(o *Outcome) { o.State, o.Suspect = "FAILED", "memory" }, []Harm{HarmOOM}},
		"it failed alone, too":     {func(o *Outcome) { o.State, o.Suspect, o.Excused = "FAILED", "memory", true }, nil},
		"held and slow": {
			func(o *Outcome) { o.HeldS, o.Broken = 5, true },
			[]Harm{HarmHeld, HarmLate, HarmContract},
		},
	} {
		o := late
		c.change(&o)
		must.Equal(t, o.Harm(), c.want, name)
	}
}

func TestHeldForLongerThanItMay(t *testing.T) {
	for _, c := range []struct{ delayed, pastLease, want float64 }{{299, 0, 0}, {310, 0, 10}, {0, 140, 140}} {
		j := ranOut("COMPLETED")
		j.Run.CoRunners = nil
		j.MaxDelayS, j.Ending.DelayedS, j.Ending.PastLeaseS = 300, c.delayed, c.pastLease
		if o := j.Judge(nil); o.HeldS != c.want {
			t.Errorf("delayed for %g s, %g s past the lease: held %g s", c.delayed, c.pastLease, o.HeldS)
		}
	}
}

// In shadow mode plain Slurm is what ended the job: nobody is late for the bridge.
func TestNobodyIsLateInShadow(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		j := ranOut("COMPLETED")
		j.Shadow, j.PlainEnd, j.Ending.Submit = shadow, at(1), at(-1)
		o := j.Judge(nil)
		_, known := o.Late()
		s, plain, timed := o.Turnaround()
		if known == shadow || timed == shadow || slices.Contains(o.Harm(), HarmLate) == shadow || timed &&
			(s != 660 || plain != 120) {
			t.Errorf("shadow %v: %v, turnaround %g and %g s", shadow, o.Harm(), s, plain)
		}
	}
}

// What was saved agrees with the ends, whatever is known of whom.
func TestTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var runs []*Outcome
		real, plain, timed, late := 0.0, 0.0, 0, 0
		for range rapid.IntRange(0, 8).Draw(t, "jobs") {
			start, took, before := rapid.IntRange(10, 50).Draw(t, "start"), rapid.IntRange(1, 40).Draw(t, "took"),
				rapid.IntRange(0, 9).Draw(t, "waited")
			later := rapid.IntRange(-9, 9).Draw(t, "later")
			o := &Outcome{
				Ref: "1", Start: at(float64(start)), End: at(float64(start + took)),
				PlainEnd: at(float64(start + took - later)),
			}
			known := rapid.Bool().Draw(t, "submission known")
			if known {
				o.Submit = at(float64(start - before))
			}
			if rapid.Bool().Draw(t, "cancelled") {
				o.State = "CANCELLED"
				known = false
			} else if 10*later > took {
				late++
			}
			if known {
				timed++
				real += float64(60 * (took + before))
				plain += float64(60 * (took + before - later))
			}
			runs = append(runs, o)
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

// A job that failed beside others runs again by itself only if the failure isn't its own doing; its neighbours are
// suspected anyhow.
func TestWhoseFaultAFailureIs(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(r *Run)
		ours bool
	}{
		"its own error, perhaps": {func(*Run) {}, false},
		"MPS":                    {func(r *Run) { r.MPSFault = true }, true},
		"memory":                 {func(r *Run) { r.PeakMemMiB = 12000 }, true},
		"more memory than known": {func(r *Run) { r.PeakMemMiB = 6000 }, true},
	} {
		j := ranOut("FAILED")
		known := &rlcore.Profile{DurationS: 360, Series: []rlcore.Use{{MemMiB: 2000}}}
		j.Run.Profile, j.Run.Devices = known, []gpuprof.GPU{{MemMiB: 12196}}
		j.Run.CoRunners = []CoRunner{{Ref: "2", App: "long", OverlapS: 500, AtEnd: true, Profile: known}}
		c.set(j.Run)
		if o := j.Judge(nil); o.Suspect == "" || o.Ours != c.ours ||
			!slices.Equal(o.Blamed, []rlcore.Identity{{App: "long"}}) {
			t.Errorf("%s: %q, ours %v, blamed %v", name, o.Suspect, o.Ours, o.Blamed)
		}
	}
}

// Whole runs alone that ended well become part of a profile; of one that Slurm has forgotten its length says how it
// ended.
func TestWhatBecomesPartOfAProfile(t *testing.T) {
	for name, c := range map[string]struct {
		state  string
		change func(r *Run)
		want   bool
	}{
		"it ended well":                 {"COMPLETED", func(*Run) {}, true},
		"it failed":                     {"FAILED", func(*Run) {}, false},
		"its record is cut":             {"COMPLETED", func(r *Run) { r.Complete = false }, false},
		"it shared":                     {"COMPLETED", func(r *Run) { r.CoRunners = []CoRunner{{Ref: "2"}} }, false},
		"forgotten, nearly as long":     {"", func(r *Run) { r.End = at(5) }, true},
		"forgotten, and hardly half so": {"", func(r *Run) { r.End = at(2) }, false},
	} {
		j := ranOut(c.state)
		j.Run.Complete, j.Run.CoRunners = true, nil
		c.change(j.Run)
		must.Equal(t, j.Judge(nil).Learned, c.want, name)
	}
}

// A run that took 90 s in place of 60 is compared with the contract of its owner, otherwise of the site; without MPS it
// says nothing of sharing.
func TestContracts(t *testing.T) {
	for name, c := range map[string]struct {
		set      func(r *Run)
		contract float64
		broken   bool
		lesson   bool
	}{
		"its owner allows less": {func(r *Run) { r.Terms.MaxSlowdown = 1.2 }, 1.2, true, true},
		"the site's":            {func(*Run) {}, 3, false, true},
		"its application's runs alone differ as much": {
			func(r *Run) { r.Terms.MaxSlowdown, r.Profile.DurationSD = 1.2, 20 }, 1.2, false, true,
		},
		"without MPS": {func(r *Run) { r.Terms.MaxSlowdown, r.WithoutMPS = 1.2, true }, 1.2, true, false},
	} {
		app := func(name string) *rlcore.Profile {
			return &rlcore.Profile{
				App: name, DurationS: 60, PeriodS: 60,
				Series: []rlcore.Use{{GPU: 0.3, Core: 0.3, MemMiB: 2000}},
			}
		}
		r := &Run{Ref: "1", User: "ann", App: "md", Start: at(0), End: at(1.5), Profile: app("md"), Complete: true}
		r.CoRunners = []CoRunner{{Ref: "2", App: "other", Profile: app("other"), OverlapS: 90}}
		c.set(r)
		j := &Judgement{Run: r, How: job.Description{State: "COMPLETED"}, Limit: 3, Spec: &rlcore.TitanXp}
		o := j.Judge(interference.New(&contention.MPS))
		if o.Contract != c.contract || o.Broken != c.broken || o.Slowdown != 1.5 || (o.Lesson != nil) != c.lesson {
			t.Errorf("%s: contract %g, broken %v, slowdown %g, lesson %+v", name, o.Contract, o.Broken, o.Slowdown, o.Lesson)
		}
	}
}

// pupil is Beliefs that write down what they are told.
type pupil struct {
	Beliefs
	all []string
}

func (b *pupil) say(what string) { b.all = append(b.all, what) }

func (b *pupil) Take(*interference.Lesson)                   { b.say("lesson") }
func (b *pupil) Doubt(rlcore.Identity, []rlcore.Identity)    { b.say("doubt") }
func (b *pupil) Reassure(rlcore.Identity, []rlcore.Identity) { b.say("reassure") }
func (b *pupil) Forbid(_, other rlcore.Identity)             { b.say("forbid " + other.App) }
func (b *pupil) KeepAlone(of rlcore.Identity, _ time.Time)   { b.say(of.App + " stays alone") }
func (b *pupil) LetShare(of rlcore.Identity, _ time.Time)    { b.say(of.App + " may share") }

func TestWhatAnOutcomeTeaches(t *testing.T) {
	beside := Outcome{
		App: "md", User: "ann", State: "FAILED", With: []string{"2"}, Others: []rlcore.Identity{{App: "other", Owner: "ann"}},
	}
	for name, c := range map[string]struct {
		set  func(o *Outcome)
		want []string
	}{
		"it kept its contract": {
			func(o *Outcome) { o.Lesson, o.Contract = &interference.Lesson{}, 2 },
			[]string{"lesson", "reassure"},
		},
		"it broke its contract":         {func(o *Outcome) { o.Broken = true }, []string{"doubt"}},
		"it broke it without MPS":       {func(o *Outcome) { o.Broken, o.WithoutMPS = true, true }, nil},
		"it failed":                     {func(o *Outcome) { o.Blamed = o.Others }, []string{"forbid other"}},
		"it failed, and again alone":    {func(o *Outcome) { o.Blamed, o.Excused = o.Others, true }, nil},
		"it failed with the MPS server": {func(o *Outcome) { o.Fault = true }, []string{"md stays alone"}},
		"so it did, and failed again alone": {
			func(o *Outcome) { o.Fault, o.Excused = true, true },
			[]string{"md stays alone"},
		},
		"it ended well beside the other": {func(o *Outcome) { o.State = "COMPLETED" }, nil},
		"it ended well alone, perhaps at last": {
			func(o *Outcome) { o.State, o.With = "COMPLETED", nil },
			[]string{"md may share"},
		},
	} {
		o, b := beside, &pupil{}
		c.set(&o)
		o.Teach(b)
		must.Equal(t, b.all, c.want, name)
	}
}

// Jobs that shared a GPU and failed in the same moment were clients of an MPS server that broke; those of one
// application that started together fail together by themselves.
func TestFailedInTheSameMoment(t *testing.T) {
	for name, c := range map[string]struct {
		change func(j *Judgement, c *CoRunner)
		want   bool
	}{
		"both":                       {func(*Judgement, *CoRunner) {}, true},
		"the neighbour soon after":   {func(_ *Judgement, c *CoRunner) { c.How.End = at(10).Add(SameMoment) }, true},
		"the neighbour later":        {func(_ *Judgement, c *CoRunner) { c.How.End = at(10).Add(10 * time.Second) }, false},
		"the neighbour ended well":   {func(_ *Judgement, c *CoRunner) { c.How.State = "COMPLETED" }, false},
		"tasks that began together":  {func(_ *Judgement, c *CoRunner) { c.App = "md" }, false},
		"tasks that began apart":     {func(_ *Judgement, c *CoRunner) { c.App, c.How.Start = "md", at(5) }, true},
		"where there was no MPS":     {func(j *Judgement, _ *CoRunner) { j.Run.WithoutMPS = true }, false},
		"nobody knows when it ended": {func(_ *Judgement, c *CoRunner) { c.How.End = time.Time{} }, false},
	} {
		j := ranOut("FAILED")
		j.FailsAlone = true // so that nothing else is a reason
		j.How.Start, j.How.End = at(0), at(10)
		j.Run.CoRunners = []CoRunner{{Ref: "2", App: "long", OverlapS: 600, AtEnd: true, How: j.How}}
		c.change(j, &j.Run.CoRunners[0])
		if o := j.Judge(nil); o.Fault != c.want || o.Ours != c.want || strings.Contains(o.Suspect, "job 2") != c.want {
			t.Errorf("%s: %q, ours %v, fault %v", name, o.Suspect, o.Ours, o.Fault)
		}
	}
}
