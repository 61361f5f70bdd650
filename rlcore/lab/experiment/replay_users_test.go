package experiment

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/lab/trace"
)

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
	r, err := Replay(t.Context(), tr, ReplayOptions{Policies: []string{"fifo", "greedy"}, Seeds: 2, Tries: 1})
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
	if x := r.Users["ann"]["fifo"]; x.Jobs != 9 || x.MaxPassedOver != 0 || x.MaxDelayS != 0 || x.WaitVsFifoS != 0 || x.Later != 0 {
		t.Errorf("ann under fifo: %+v", x)
	}
	// The last short one joins when the long one has less than its time left: until then
	// each goes past bob's, but not more often than the guard lets them.
	g := r.Users["bob"]["greedy"]
	if g.MaxPassedOver == 0 || g.MaxPassedOver > 5 || g.PassedOver != float64(g.MaxPassedOver) || g.MaxDelayS != 0 {
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
