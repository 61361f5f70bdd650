package receipt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(min float64) time.Time { return began.Add(time.Duration(min * float64(time.Minute))) }

// light is an application that leaves most of a GPU to others.
var light = &rlcore.Profile{
	App: "light", DurationS: 3600, PeriodS: 3600,
	Series: []rlcore.Use{{GPU: 0.3, Core: 0.2, MemMiB: 2000}}, Runs: 3,
}

// ran is a job of an application of an hour that ran from one minute to another.
func ran(ref, user string, ready, from, to float64, with ...string) history.Run {
	j := history.Run{
		Ref: ref, User: user, Account: "lab", Partition: "gpu", App: "light", Mode: job.Active,
		Ready: at(ready), Start: at(from), End: at(to), Node: "n1", GPUs: []int{0}, Profile: light,
	}
	j.Ending.How.State, j.Ending.Member = "COMPLETED", &job.Member{}
	for _, other := range with {
		j.CoRunners, j.Ending.Member.Predicted = append(j.CoRunners, history.CoRunner{Ref: other}), 1.1
	}
	j.Outcome = &history.Outcome{SoloS: 3600, Slowdown: (to - from) / 60}
	return j
}

// world is one GPU that all jobs may share, decided by greedy.
func world() *World {
	return &World{
		Nodes: []job.Node{{Name: "n1", GPUs: 1, GPUType: "x", Partitions: []string{"gpu"}, Up: true}},
		Card:  func(string) (rlcore.GPUSpec, bool) { return rlcore.GPUSpec{Model: "x", MemMiB: 10_000}, true },
		Decider: func() *rlcore.Decider {
			m := interference.New(&contention.MPS)
			return &rlcore.Decider{
				Policy: baseline.NewThroughput("greedy", m, 0),
				Guard:  rlcore.NewGuard(rlcore.Rules{Predictor: m}), M: 5,
			}
		},
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	must.Near(t, got, want, 1e-6, what)
}

// Two jobs of an hour that share for 75 minutes, one alone for an hour: 3 hours of work in 2.25.
func TestWhatWasDone(t *testing.T) {
	a, b, c := ran("1", "ann", 0, 0, 75, "2"), ran("2", "bob", 0, 0, 72, "1"), ran("3", "ann", 0, 75, 135)
	a.Outcome.Contract, b.Outcome.Contract = 1.2, 1.5
	a.Outcome.Broken = true
	a.Decided = history.Decision{Group: 1, Policy: "dqn", Predicted: 1.1, Beside: true}
	b.Decided = history.Decision{Group: 1, Policy: "dqn", Predicted: 1.3, Beside: true}
	c.Decided = history.Decision{Group: 2, Policy: "dqn", Predicted: 1}
	in := &Input{From: at(-10), To: at(200), Jobs: []history.Run{a, b, c}}
	r := Make(in)
	must.Equal(t, [5]int{r.Jobs, r.Users, r.Shared, r.Grouped, r.Groups}, [5]int{3, 2, 2, 2, 1})
	near(t, "used", r.Hours.Used, 2.25)
	near(t, "one by one", r.Hours.OneByOne, 3)
	near(t, "saved", r.Hours.Saved, 0.75)
	near(t, "measured", r.Hours.Measured, 1)
	near(t, "by profile", r.Hours.ByProfile, 2)
	near(t, "mean predicted", r.Predicted.Mean, 1.2)
	near(t, "worst predicted", r.Predicted.Worst, 1.3)
	near(t, "mean seen", r.Seen.Mean, 1.225)
	if r.Seen.Of != "1" || r.Predicted.Of != "2" || r.Contracts.Kept != 1 || r.Contracts.Broken != 1 ||
		r.Contracts.List[0].Ref != "1" {
		t.Errorf("%+v %+v", r.Seen, r.Contracts)
	}
}

// Two jobs that Slurm puts on one GPU before either is seen to run share it without a group.
func TestJobsShareWithoutAGroup(t *testing.T) {
	a, b := ran("1", "ann", 0, 0, 75, "2"), ran("2", "bob", 0, 0, 72, "1")
	a.Decided, b.Decided = history.Decision{Group: 1, Policy: "dqn"}, history.Decision{Group: 2, Policy: "dqn"}
	a.Mode, b.Mode = job.Active, job.Active
	var text strings.Builder
	Make(&Input{Jobs: []history.Run{a, b}}).Text(&text, 10)
	must.Contain(t, text.String(), "Grouped: none; 2 jobs shared a GPU.")
}

// What a run is worth that did not come to its end is a guess; one that failed for having shared is worth nothing.
func TestRunsThatFailed(t *testing.T) {
	cut, bad, again := ran("1", "ann", 0, 0, 30, "2"), ran("2", "bob", 0, 0, 30, "1"), ran("2", "bob", 0, 30, 40)
	cut.Ending.How.State, cut.Outcome.Slowdown, cut.Ending.Member.Predicted = "CANCELLED", 0, 1.5
	bad.Ending.How.State, bad.Outcome.Slowdown, bad.Outcome.Suspect, bad.Outcome.Again = "FAILED", 0,
		"GPU memory was nearly full", true
	again.Ending.How.State, again.Outcome.Slowdown, again.Outcome.Cleared, bad.Outcome.Excused = "FAILED", 0, true, true
	r := Make(&Input{Jobs: []history.Run{cut, bad, again}})
	near(t, "by guess", r.Hours.ByGuess, 20./60)
	near(t, "lost", r.Hours.Lost, 0.5)
	near(t, "measured", r.Hours.Measured, 10./60)
	near(t, "used", r.Hours.Used, 40./60)
	var text strings.Builder
	if r.Text(&text, 10); len(r.Failures) != 1 || !strings.Contains(text.String(),
		"next to 1: GPU memory was nearly full; run again alone it failed, too") {
		t.Errorf("%+v: %s", r.Failures, text.String())
	}
	unpredicted := cut
	unpredicted.Ending.Member = nil
	near(t, "nothing was predicted", Make(&Input{Jobs: []history.Run{unpredicted}}).Hours.ByGuess, 0.25)
}

func TestHarmIsTold(t *testing.T) {
	slow, dead, lent := ran("1", "ann", 0, 0, 30, "2"), ran("2", "bob", 0, 0, 30, "1"), ran("3", "bob", 0, 0, 90, "1")
	slow.Outcome.Broken, slow.Outcome.HeldS = true, 20
	dead.Ending.How.State, dead.Outcome.Suspect = "TIMEOUT", "it ran out of its time limit"
	lent.Ending.LentS = 1800
	slow.Ending.PlainEnd, slow.Outcome.SoloS = slow.End.Add(-10*time.Minute), 1200
	lent.Ending.PlainEnd = lent.End.Add(time.Minute)
	// 70 min that would have been 71.
	lent.Submit = lent.End.Add(-70 * time.Minute)
	lent.Start = lent.Submit
	r := Make(&Input{Jobs: []history.Run{slow, dead, lent}})
	for _, want := range []string{
		"Harm: 2 jobs (1 timeout, 1 held, 1 late, 1 contract).",
		"Turnaround: 70 min from submission to end on average, about 71 min on plain Slurm, 1 % saved; 1 of 2 jobs ended " +
			"later than on plain Slurm by more than a tenth of their time alone, at worst by 0.50 times it (job 1).",
		"the limits of 1 job were raised because of sharing, by 30 min",
	} {
		must.Contain(t, strings.Join(r.Lines(), "\n"), want)
	}
}

// Adopted jobs, jobs that asked and untouched ones are told apart.
func TestAdoptedJobsAreToldFromThoseThatAsked(t *testing.T) {
	one := func(ref, rule string, whole int, waitH, slowdown, savedH float64) history.Run {
		r := ran(ref, "ann", 0, 60*waitH, 60*waitH+60, []string{"x"}[:1-whole]...)
		r.WholeGPUs, r.Ending.Member.Rule, r.Outcome.Slowdown = whole, rule, slowdown
		r.Submit = at(0)
		r.Ending.PlainEnd = r.End.Add(time.Duration(savedH * float64(time.Hour)))
		return r
	}
	const rule = "partition gpu"
	runs := []history.Run{
		one("a", rule, 0, 1, 1.25, 1), one("b", rule, 0, 2, 1.75, 2), one("asked", "", 0, 3, 1.5, -1), one("w", "", 1, 4, 1, 0),
		one("unjudged", "", 0, 1.5, 0, 0),
	}
	runs[0].Outcome.Broken, runs[3].Decided.Beside = true, true
	runs[4].Outcome, runs[4].Decided.Rule = nil, rule
	r := Make(&Input{Jobs: runs})
	must.Equal(t, r.Kinds, []Kind{
		{Name: "adopted", Jobs: 3, Waited: Mean{3, 1.5}, Slowdown: Mean{2, 1.5}, Saved: Mean{2, 1.5}, Harmed: 1},
		{Name: "asked", Jobs: 1, Waited: Mean{1, 3}, Slowdown: Mean{1, 1.5}, Saved: Mean{1, -1}, Harmed: 1}, // it was late
		{Name: "untouched", Jobs: 1, Would: 1, Waited: Mean{1, 4}, Saved: Mean{1, 0}},
	})
	var text bytes.Buffer
	r.Text(&text, 10)
	must.Contain(t, text.String(), "│ adopted   │    3 │")
}

func TestReceiptOfShadow(t *testing.T) {
	var jobs []history.Run
	for i := range 4 {
		j := ran(fmt.Sprint(i), fmt.Sprint("user", i%2), 0, float64(60*i), float64(60*i+60))
		j.Mode = job.Shadow
		if j.Decided = (history.Decision{Policy: "dqn", Predicted: 1.1, Beside: true}); i == 3 {
			j.Decided.Beside = false
		}
		jobs = append(jobs, j)
	}
	r := Make(&Input{Jobs: jobs, Replay: world()})
	must.Equal(t, [4]int{r.Intended, r.Grouped, r.Predicted.Jobs, r.Modes["shadow"]}, [4]int{3, 0, 3, 4})
	x := r.Replay
	if x == nil {
		t.Fatal(r.NoReplay)
	}
	near(t, "alone", x.Base.GPUHours, 4)
	near(t, "wait alone", x.Base.Wait, 1.5)
	near(t, "recorded wait", x.RecordedWait, 1.5)
	if x.Shared.GPUHours >= 3 || x.All.Shorter != 3 || x.All.Longer != 0 || x.Shared.Wait >= 0.5 || x.Worst <= 1 ||
		len(x.Users) != 2 {
		t.Errorf("%+v", x)
	}
	var b bytes.Buffer
	r.Text(&b, 10)
	for _, want := range []string{
		"Shadow changed nothing. It would have made 3 jobs share",
		"Replayed (estimate), 4 jobs:", "GPU-minutes: 240.0 one by one", "How these figures were computed", "user0",
	} {
		must.Contain(t, b.String(), want)
	}
}

// Of jobs that ended while the daemon was off the receipt says neither a mode nor that they weren't put together.
func TestWhileTheDaemonWasOff(t *testing.T) {
	j := ran("1", "ann", 0, 0, 60)
	j.Mode = ""
	r := Make(&Input{Jobs: []history.Run{j}})
	lines := strings.Join(r.Lines(), "\n")
	if !strings.Contains(lines, "1 job of 1 user ended, 1 that the daemon didn't see.") ||
		strings.Contains(lines, "put together") || strings.Contains(strings.Join(r.Method, " "), "shadow") {
		t.Errorf("%s\n%q", lines, r.Method)
	}
}

// Of the jobs of a whole GPU that a rule in shadow matches, those that left room are eligible.
func TestRulesInShadowCountWhoIsEligible(t *testing.T) {
	matched, other, full := ran("1", "ann", 0, 0, 60), ran("2", "bob", 0, 0, 60), ran("3", "ann", 0, 60, 120)
	for _, j := range []*history.Run{&matched, &other, &full} {
		j.WholeGPUs = 1
	}
	full.Profile = &rlcore.Profile{App: "full", DurationS: 3600, PeriodS: 3600, Series: []rlcore.Use{{GPU: 0.9}}}
	in := &Input{Jobs: []history.Run{matched, other, full}}
	in.Rule = func(j *history.Run) *adopt.Rule { return map[string]*adopt.Rule{"ann": {}}[j.User] }
	r := Make(in)
	must.Equal(t, [3]int{r.Eligible, r.Intended, r.Kinds[0].Would}, [3]int{1, 0, 1})
	must.Contain(t, strings.Join(r.Lines(), "\n"), "They match 1 job that used less than half of a GPU")
}

// Jobs keep to their partition's GPUs, to their terms and to whole GPUs.
func TestReplayKeepsRules(t *testing.T) {
	w := world()
	w.Nodes = append(w.Nodes, job.Node{Name: "n2", GPUs: 1, GPUType: "x", Partitions: []string{"other"}})
	never := ran("1", "ann", 0, 0, 60)
	never.Terms.NoShare = true
	whole := ran("2", "bob", 0, 60, 120)
	whole.WholeGPUs = 1
	two := ran("3", "bob", 0, 60, 120)
	two.WholeGPUs = 2
	uneven := ran("6", "bob", 0, 60, 120)
	uneven.Nodes, uneven.GPUs, uneven.WholeGPUs = []string{"n1", "n2"}, []int{0, 1, 0}, 2
	unseen := ran("4", "bob", 0, 60, 120)
	unseen.Ready = time.Time{}
	unknown := ran("5", "bob", 0, 120, 180)
	unknown.Profile = nil
	r, err := w.Replay([]history.Run{never, whole, two, uneven, unseen, unknown})
	if err != nil {
		t.Fatal(err)
	}
	if r.Jobs != 3 || r.GPUs != 2 || r.LeftOut["more GPUs than its partition has"] != 1 ||
		r.LeftOut["several GPUs, not as many on each node"] != 1 || r.LeftOut["its wait was not seen"] != 1 {
		t.Errorf("%+v", r)
	}
	// All three need n1, one after the other, in both worlds.
	near(t, "alone", r.Base.Span, 3)
	near(t, "shared", r.Shared.Span, 3)
	near(t, "hours", r.Shared.GPUHours, 3)
	must.Equal(t, r.All.Shorter+r.All.Longer, 0, r.All)
	w.Limit = 1
	if r, err = w.Replay([]history.Run{never, whole}); err != nil || r.Jobs != 1 {
		t.Errorf("%+v %v", r, err)
	}
	must.Fail(t, must.Err((&World{Card: w.Card, Decider: w.Decider}).Replay([]history.Run{never})), "", "without a GPU")
}

// The replay says for which of the guard's reasons jobs waited: bob's job doesn't fit beside ann's for an hour.
func TestReplaySaysWhatRefusalsCost(t *testing.T) {
	large := *light
	large.Series = []rlcore.Use{{GPU: 0.3, Core: 0.2, MemMiB: 6000}}
	a, b := ran("1", "ann", 0, 0, 60), ran("2", "bob", 0, 60, 120)
	a.Profile, b.Profile = &large, &large
	r := must.Get(world().Replay([]history.Run{a, b}))(t)
	if len(r.VetoCounts) != 1 || r.VetoCounts[0].Reason != rlcore.VetoMemory.String() || r.VetoCounts[0].Jobs != 1 {
		t.Fatalf("%+v", r.VetoCounts)
	}
	near(t, "hours", r.VetoCounts[0].WaitH, 1)
	var text strings.Builder
	(&Receipt{Jobs: 2, Replay: r}).Text(&text, 10)
	must.Contain(t, text.String(), "GPU memory would not suffice")
}

// A job of two GPUs holds both of them, and what comes behind it waits.
func TestReplayOfSeveralGPUs(t *testing.T) {
	w := world()
	w.Nodes[0].GPUs = 2
	one, two, last := ran("1", "ann", 0, 0, 60), ran("2", "bob", 1, 60, 90), ran("3", "ann", 2, 90, 120)
	two.WholeGPUs, two.GPUs, two.Profile = 2, []int{0, 1}, nil
	r, err := w.Replay([]history.Run{one, two, last})
	if err != nil || r.Jobs != 3 || len(r.LeftOut) > 0 {
		t.Fatalf("%+v %v", r, err)
	}
	// 60 min on one GPU, 30 on both, 30 on one, half as long as its application takes: 2.5 GPU-hours. The last one waits
	// for 88 min, bob's for 59.
	near(t, "hours", r.Base.GPUHours, 2.5)
	near(t, "wait", r.Base.Wait, (59+88)/60./3)
	near(t, "span", r.Base.Span, 2)
	if r.Worst > 1+1e-9 && r.Shared.Span > 2 {
		t.Errorf("%+v", r.Shared)
	}
}

// For any jobs: sums agree, the used time is no more than the runs' and no less than
// the longest, and the same input gives the same receipt.
func TestSumsOfAReceiptAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 12).Draw(t, "n")
		var jobs []history.Run
		sum, longest := 0.0, 0.0
		for i := range n {
			from := rapid.Float64Range(0, 500).Draw(t, "from")
			length := rapid.Float64Range(0.1, 300).Draw(t, "length")
			var with []string
			if rapid.Bool().Draw(t, "shared") {
				with = []string{"x"}
			}
			j := ran(fmt.Sprint(i), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "user"),
				from-rapid.Float64Range(0, 60).Draw(t, "wait"), from, from+length, with...)
			j.GPUs = []int{rapid.IntRange(0, 1).Draw(t, "gpu")}
			jobs = append(jobs, j)
			sum += length / 60
			longest = max(longest, length/60)
		}
		r := Make(&Input{Jobs: jobs, Replay: world()})
		h := r.Hours
		if h.Used > sum+1e-6 || h.Used < longest-1e-6 || math.Abs(h.Saved-(h.OneByOne-h.Used)) > 1e-9 ||
			math.Abs(h.OneByOne-h.Measured-h.ByProfile-h.ByGuess) > 1e-9 {
			t.Fatalf("%+v of %v", h, sum)
		}
		if n > 0 {
			if r.Replay == nil {
				t.Fatal(r.NoReplay)
			}
			users := 0
			for _, u := range r.Replay.Users {
				users += u.Jobs
			}
			if users != n || r.Replay.All.Jobs != n || r.Replay.Base.GPUHours < 0 {
				t.Fatalf("%+v", r.Replay)
			}
		}
		again, _ := json.Marshal(Make(&Input{Jobs: jobs, Replay: world()}))
		first, err := json.Marshal(r)
		if err != nil || !bytes.Equal(first, again) {
			t.Fatalf("two receipts of the same: %v", err)
		}
	})
}

// However many jobs there are, lists have as many lines as are asked for.
func TestListsAreShort(t *testing.T) {
	j := &history.Run{Ref: "1", Outcome: &history.Outcome{Slowdown: 2, Contract: 1.2}}
	x := &Replay{Users: make([]Change, 3), Apps: make([]Change, 2), All: Change{Shorter: 1}}
	r := &Receipt{Jobs: 4, Replay: x, Failures: []*history.Run{j, j, j}}
	r.Contracts.List = []*history.Run{j, j, j, j}
	var text strings.Builder
	r.Text(&text, 1)
	must.Equal(t, regexp.MustCompile(`and \d+ more`).FindAllString(text.String(), -1),
		[]string{"and 2 more", "and 3 more", "and 2 more", "and 1 more"}, "failures, contracts, users, applications")
}

// wholly is a job that asked for a whole GPU and took an hour.
func wholly(ref, user string, ready, from float64, p *rlcore.Profile) history.Run {
	j := ran(ref, user, ready, from, from+60)
	j.WholeGPUs, j.Profile, j.Devices = 1, p, []gpuprof.GPU{{MemMiB: 10_000}}
	return j
}

// Eight jobs of an hour wait for one GPU of which each uses a third.
func TestWhatSharingWouldBring(t *testing.T) {
	heavy := &rlcore.Profile{
		App: "heavy", DurationS: 3600, PeriodS: 3600,
		Series: []rlcore.Use{{GPU: 0.95, Core: 0.9, MemMiB: 9000}}, Runs: 3,
	}
	var jobs []history.Run
	for i := range 8 {
		jobs = append(jobs, wholly(fmt.Sprint(i), []string{"ann", "bob"}[i%2], 0, float64(60*i), light))
	}
	jobs = append(jobs, wholly("h", "eve", 0, 480, heavy), wholly("u", "eve", 0, 540, nil))
	never := wholly("n", "ann", 0, 600, light)
	never.Terms.NoShare = true
	jobs = append(jobs, never)
	before := fmt.Sprintf("%+v", jobs)
	w := world()
	w.WhatIf = true
	x := must.Get(w.Replay(jobs))(t)
	theirs := x.Would.Change
	if theirs.Jobs != 8 || x.Would.Unknown != 1 || x.Jobs != 11 || len(x.Users) != 2 || len(x.Apps) != 2 ||
		x.Users[0].Jobs != 4 {
		t.Errorf("%+v", x)
	}
	if freed := x.Base.GPUHours - x.Shared.GPUHours; !(freed > 2) || !(theirs.Shared < theirs.Base) ||
		!(x.All.Shared < x.All.Base) || x.Worst < 1 || x.Late != 0 {
		t.Errorf("freed %v, theirs %+v, all %+v, slowed %d by %v, late %d", freed, theirs, x.All, x.Slowed, x.Worst, x.Late)
	}
	near(t, "use", x.Users[0].Use, 0.3)
	must.Equal(t, fmt.Sprintf("%+v", jobs), before, "the runs")
	var text strings.Builder
	x.Text(&text, 10)
	for _, want := range []string{
		"What if 8 of 11 jobs", "light of ann", "--gres=gpu:shared",
		"left as they were: 1 job with a whole GPU",
	} {
		must.Contain(t, text.String(), want)
	}
	if _, err := w.Replay(jobs[8:]); !errors.Is(err, ErrReplay) || strings.Contains(err.Error(), "\n") {
		t.Errorf("nobody would gain: %v", err)
	}
}

// What was learned of an application that isn't seen again was learned for nothing: the receipt counts such jobs.
func TestApplicationsSeenOnce(t *testing.T) {
	var jobs []history.Run
	for i := range 20 {
		r := ran(fmt.Sprint(i), "ann", 0, 0, 60)
		if r.App = "md"; i < 6 {
			r.App = fmt.Sprint("worker-", i)
		}
		jobs = append(jobs, r)
	}
	jobs[19].User = "bob" // whose md is another one
	unnamed := ran("20", "ann", 0, 0, 60)
	unnamed.App = ""
	jobs = append(jobs, unnamed)
	r := Make(&Input{From: at(-10), To: at(200), Jobs: jobs})
	if want := (history.OneTimers{Jobs: 20, Once: 7}); r.Apps != want ||
		!strings.Contains(strings.Join(r.Lines(), "\n"), "Applications: 7 jobs of 20 ran an application that was seen no second time") {
		t.Errorf("%+v: %q", r.Apps, r.Lines())
	}
	if said := strings.Join(Make(&Input{From: at(-10), To: at(200), Jobs: jobs[:7]}).Lines(), "\n"); strings.Contains(said,
		"Applications") {
		t.Errorf("of seven jobs: %q", said)
	}
}

// The receipt of a first minute says what there is: small sums in small units, no row of zeros, nothing red for want of
// history, and of no job nothing but that.
func TestFirstMinute(t *testing.T) {
	page := func(r *Receipt) string {
		var text bytes.Buffer
		r.Text(&text, 10)
		return text.String()
	}
	a, b := ran("1", "ann", 0, 0, 0.5), ran("2", "ann", 0.5, 0.5, 1)
	in := &Input{From: at(-10), To: at(200), Jobs: []history.Run{a, b}}
	w := world()
	in.Replay = w
	said := page(Make(in))
	for _, want := range []string{
		"No jobs were put together.", "GPU-seconds: 60.0 used, one by one.",
		"sharing changes no job's wait",
	} {
		must.Contain(t, said, want)
	}
	bad := regexp.MustCompile(`0 jobs, 0 s|[^\d]0\.0[^\d]|0 kept|[>( ]-0|by 0\.00|no second time|WAIT ALONE`)
	must.Equal(t, bad.FindString(said), "", said)
	none := Make(&Input{From: at(-10), To: at(200), Replay: world()})
	if said := page(none); !strings.Contains(said, "No job with a GPU is known to have ended") ||
		strings.Contains(said, "computed") || none.NoReplay == "" ||
		strings.Contains(string(must.Get(json.Marshal(none))(t)), "null") {
		t.Errorf("of no job: %s", said)
	}
}
