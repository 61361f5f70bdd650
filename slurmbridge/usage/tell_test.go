package usage

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// A run is told in five lines, and what isn't known is said to be so.
func TestARunInFiveLines(t *testing.T) {
	start := time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)
	told := func(o history.Outcome, f history.Footprint) history.Told {
		o.Ref, o.Node, o.Start = "7", "n1", start
		if o.End.IsZero() {
			o.End = start.Add(time.Hour)
		}
		return history.Told{Outcome: o, Used: f}
	}
	for name, c := range map[string]struct {
		run  history.Told
		want []string
	}{
		"a sharer": {told(history.Outcome{
			State: "COMPLETED", With: []string{"8", "9"},
			Others:   []rlcore.Identity{{App: "train", Owner: "bob"}, {Owner: "eve"}},
			Slowdown: 1.2, Predicted: 1.1, Contract: 1.3, PlainEnd: start.Add(2 * time.Hour),
		}, history.Footprint{GPUs: 0.25, Timed: true, Use: &history.Use{
			KnownS: 3600, ComputedS: 1800, PeakMiB: 2048, CardMiB: 12288, IdleKnownS: 3600, IdleS: 900, SharedS: 3000,
		}}), []string{
			"job 7 completed after 1h0m0s on n1, with 25 % of a GPU",
			"  used    it computed 50 % of the time, 100 % of its part of the GPU, 2.0 of 12.0 GiB of GPU memory at most, it was idle for 15m0s",
			"  shared  with 8 (train of bob), 9 (of eve), for 50m0s",
			"  cost    10m0s: it took 1.20 times its time alone, 1.10 predicted; its contract of 1.30 was kept",
			"  saved   1h0m0s: plain Slurm would have ended it at 2026-01-02 14:00:00",
		}},
		"one that lost": {told(history.Outcome{
			State: "COMPLETED", With: []string{"other 1"}, Slowdown: 2, Contract: 1.5, Broken: true,
			PlainEnd: start.Add(30 * time.Minute),
		}, history.Footprint{GPUs: 0.5, Timed: true, Use: &history.Use{KnownS: 1800, ComputedS: 1800}}), []string{
			"job 7 completed after 1h0m0s on n1, with 50 % of a GPU",
			"  used    it computed 100 % of the time, 100 % of its part of the GPU (seen for 50 % of it)",
			"  shared  with other 1",
			"  cost    30m0s: it took 2.00 times its time alone; its contract of 1.50 was broken",
			"  saved   nothing: plain Slurm would have ended it 30m0s earlier, at 2026-01-02 12:30:00",
		}},
		"one that failed": {told(history.Outcome{State: "FAILED", With: []string{"8"}, PlainEnd: start.Add(2 * time.Hour)},
			history.Footprint{GPUs: 1, Use: &history.Use{}}), []string{
			"job 7 failed after 1h0m0s on n1, with a GPU",
			"  used    it isn't known how much it computed",
			"  shared  with 8",
			"  cost    it isn't known how long it would have taken alone",
			"  saved   it can't be compared: plain Slurm would have ended it at 2026-01-02 14:00:00",
		}},
		"one of whole GPUs": {told(history.Outcome{}, history.Footprint{GPUs: 2}), []string{
			"job 7 ended after 1h0m0s on n1, with 2 GPUs",
			"  used    unknown: no agent on its nodes saw it",
			"  shared  with nobody",
			"  cost    nothing",
			"  saved   it isn't known when plain Slurm would have ended it",
		}},
		"within a second": {told(history.Outcome{End: start.Add(420 * time.Millisecond)},
			history.Footprint{GPUs: 1, Use: &history.Use{KnownS: 0.4, IdleS: 0.01}}), []string{
			"job 7 ended after 400ms on n1, with a GPU",
			"  used    it computed 0 % of the time, it was idle for 100ms",
			"  shared  with nobody",
			"  cost    nothing",
			"  saved   it isn't known when plain Slurm would have ended it",
		}},
		"faster than alone": {told(history.Outcome{With: []string{"8"}, Slowdown: 0.98}, history.Footprint{}), []string{
			"job 7 ended after 1h0m0s on n1",
			"  used    unknown: no agent on its nodes saw it",
			"  shared  with 8",
			"  cost    nothing: it took 0.98 times its time alone",
			"  saved   it isn't known when plain Slurm would have ended it",
		}},
	} {
		if diff := cmp.Diff(c.want, Tell(&c.run)); diff != "" || strings.Contains(strings.Join(Tell(&c.run), ""), "\n") {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
