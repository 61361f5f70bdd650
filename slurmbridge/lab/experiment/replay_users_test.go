package experiment

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

// Bob's second job is too long for its limit on any schedule; two jobs can't meet their
// deadlines any more when they come.
func TestReplayCountsEnds(t *testing.T) {
	tr := &Trace{
		GPUs:     []rlcore.GPUSpec{{MemMiB: 8000}, {MemMiB: 8000}},
		Profiles: []*rlcore.Profile{flat("busy", 100, 1, 1000), flat("whole", 100, 1, 7500)},
		Jobs: []trace.Job{
			{ID: "1", SubmitS: 50, App: "busy", User: "ann", LimitS: 101},
			{ID: "2", SubmitS: 50, App: "busy", User: "bob", DeadlineS: 152},
			{ID: "3", SubmitS: 50, App: "whole", User: "bob", LimitS: 40},
			{ID: "4", SubmitS: 60, App: "busy", User: "ann", LimitS: 100, DeadlineS: 155},
			{ID: "5", SubmitS: 60, App: "whole", User: "cy", LimitS: 100, DeadlineS: 155},
		},
		Pairs: []trace.Pair{{Victim: "busy", Aggressor: "busy", Slowdown: 2}},
	}
	ready, err := tr.Ready(5)
	if err != nil {
		t.Fatal(err)
	}
	if j := &ready.Config.Jobs[3]; j.SubmitS != 10 || j.LimitS != 100 || j.DeadlineS != 105 {
		t.Errorf("job 4 is simulated as %+v", j.Job)
	}
	if limits, deadlines := ready.limited(); limits != 4 || deadlines != 3 {
		t.Errorf("%d limits and %d deadlines, want 4 and 3", limits, deadlines)
	}
	scenario, _, err := tr.Training(5)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobSet(t, scenario, 1).Jobs {
		if j.LimitS != 0 || j.DeadlineS != 0 {
			t.Fatalf("training is rewarded for ending %+v early", j.Job)
		}
	}

	r, err := Replay(t.Context(), tr, ReplayOptions{Policies: []string{"fifo", "greedy"}, Seeds: 2, Tries: 50})
	if err != nil {
		t.Fatal(err)
	}
	if r.Limits != 4 || r.Deadlines != 3 {
		t.Errorf("%d limits and %d deadlines, want 4 and 3", r.Limits, r.Deadlines)
	}
	for name, x := range r.Policies {
		if x.TimedOut < 1 || x.PastDeadline < 2 || name != "greedy" && x.HarmedTimeout > 0 {
			t.Errorf("%s: %+v", name, x.Ends)
		}
	}
	if got := r.Users["bob"]["fifo"].Ends; got != (Ends{TimedOut: 1}) {
		t.Errorf("bob under fifo: %+v", got)
	}
	cy := r.Users["cy"]["fifo"]
	if cy.Ends != (Ends{PastDeadline: 1}) || cy.TurnaroundS != 0 || cy.VsFifo != 1 || cy.MeanSlowdown != 0 {
		t.Errorf("cy's job, cancelled when it came: %+v", cy)
	}
	var ends Ends
	for _, o := range []sim.Outcome{{Ended: sim.AtLimit, Harmed: true}, {Ended: sim.AtLimit}, {Ended: sim.AtDeadline}, {}} {
		ends.add(&o, 0.5)
	}
	if ends != (Ends{TimedOut: 1, HarmedTimeout: 0.5, PastDeadline: 0.5}) {
		t.Errorf("of two seeds: %+v", ends)
	}
	if ann := r.Users["ann"]["fifo"]; ann.Ends != (Ends{PastDeadline: 1}) || ann.MeanSlowdown != 1 {
		t.Errorf("ann under fifo: %+v", ann)
	}
}

// One GPU: ann's long job runs, bob's needs the card alone and waits, ann's short ones
// join the long one as long as they may.
func TestReplayUsers(t *testing.T) {
	tr := &Trace{
		GPUs:     []rlcore.GPUSpec{{MemMiB: 8000}},
		Profiles: []*rlcore.Profile{flat("long", 1000, 0.2, 1000), flat("short", 100, 0.2, 1000), flat("large", 50, 0.2, 7900)},
		Jobs: []trace.Job{
			{ID: "long", SubmitS: 0, App: "long", User: "ann"},
			{ID: "large", SubmitS: 10, App: "large", User: "bob"},
		},
	}
	for i := range 8 {
		tr.Jobs = append(tr.Jobs, trace.Job{ID: string(rune('a' + i)), SubmitS: float64(20 + 130*i), App: "short", User: "ann"})
	}
	tr.Jobs = append(tr.Jobs, trace.Job{ID: "nobody's", SubmitS: 30, App: "short"})
	r, err := Replay(t.Context(), tr, ReplayOptions{Policies: []string{"fifo", "greedy"}, Seeds: 2, Tries: 1, Grace: 100})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Users) != 3 {
		t.Fatalf("users %v", r.Users)
	}
	// One after the other in the order of arrival: bob's waits for the long one.
	fifo := r.Users["bob"]["fifo"]
	if *fifo != (UserOutcome{Jobs: 1, WaitS: 990, TurnaroundS: 1040, VsFifo: 1, MeanSlowdown: 1, MaxSlowdown: 1}) {
		t.Errorf("bob under fifo: %+v", fifo)
	}
	if x := r.Users["ann"]["fifo"]; x.Jobs != 9 || x.MaxDelayS != 0 || x.WaitVsFifoS != 0 || x.Later != 0 {
		t.Errorf("ann under fifo: %+v", x)
	}
	g := r.Users["bob"]["greedy"]
	if g.MaxDelayS != 0 {
		t.Errorf("bob under greedy: %+v", g)
	}
	if math.Abs(g.WaitVsFifoS-(g.WaitS-990)) > 1e-9 || math.Abs(g.VsFifo-g.TurnaroundS/1040) > 1e-9 || (g.Later == 1) != (g.TurnaroundS > 1040) {
		t.Errorf("bob under greedy against fifo: %+v", g)
	}
	if x := r.Users["ann"]["greedy"]; x.WaitVsFifoS >= 0 || x.VsFifo >= 1 || !(x.MaxSlowdown >= x.MeanSlowdown && x.MeanSlowdown > 1) || !(x.Later > 0 && x.Later < 1) {
		t.Errorf("ann under greedy: %+v", x)
	}
	if x := r.Users[""]["greedy"]; x == nil || x.Jobs != 1 {
		t.Errorf("nobody's: %+v", x)
	}
	if r.Users["bob"]["clairvoyant"] != nil {
		t.Error("the clairvoyant decides nothing")
	}
}
