package usage

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A run is told in five lines, and what isn't known is said to be so.
func TestARunInFiveLines(t *testing.T) {
	start := time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)
	const hour = time.Hour
	// run is one of a job with shares that plain Slurm would have ended so long after its start, 0 = it isn't known when.
	run := func(state string, took, plain time.Duration, shares int, use *history.Use, o history.Outcome,
		with ...history.CoRunner,
	) history.Run {
		r := history.Run{
			Ref: "7", Node: "n1", Mode: job.Active, Start: start, End: start.Add(took), Shares: shares, Use: use,
			CoRunners: with, Outcome: &o, Ending: history.Ending{How: job.Description{State: state}},
		}
		if plain > 0 {
			r.Ending.PlainEnd = start.Add(plain)
		}
		return r
	}
	predicted, whole := run("COMPLETED", hour, 2*hour, 25, &history.Use{
		KnownS: 3600, ComputedS: 1800, PeakMiB: 2048, CardMiB: 12288, IdleKnownS: 3600, IdleS: 900, SharedS: 3000,
	}, history.Outcome{SoloS: 3000, Slowdown: 1.2, Contract: 1.3},
		history.CoRunner{Ref: "8", App: "train", Owner: "bob"}, history.CoRunner{Ref: "9", Owner: "eve"}),
		run("", hour, 0, 0, nil, history.Outcome{})
	predicted.Ending.Member = &job.Member{Predicted: 1.1}
	whole.WholeGPUs = 2
	one, other := history.CoRunner{Ref: "8"}, history.CoRunner{Ref: "other 1"}
	for name, c := range map[string]struct {
		run  history.Run
		want []string
	}{
		"a sharer": {predicted, []string{
			"job 7 completed after 1h0m0s on n1, with 25 % of a GPU",
			"  used    it computed 50 % of the time, 100 % of its part of the GPU, 2.0 of 12.0 GiB of GPU memory at most, it was idle for 15m0s",
			"  shared  with 8 (train of bob), 9 (of eve), for 50m0s",
			"  cost    10m0s: it took 1.20 times its time alone, 1.10 predicted; its contract of 1.30 was kept",
			"  saved   1h0m0s: plain Slurm would have ended it at 2026-01-02 14:00:00",
		}},
		"one that lost": {run("COMPLETED", hour, hour/2, 50, &history.Use{KnownS: 1800, ComputedS: 1800},
			history.Outcome{SoloS: 1800, Slowdown: 2, Contract: 1.5, Broken: true}, other), []string{
			"job 7 completed after 1h0m0s on n1, with 50 % of a GPU",
			"  used    it computed 100 % of the time, 100 % of its part of the GPU (seen for 50 % of it)",
			"  shared  with other 1",
			"  cost    30m0s: it took 2.00 times its time alone; its contract of 1.50 was broken",
			"  saved   nothing: plain Slurm would have ended it 30m0s earlier, at 2026-01-02 12:30:00",
		}},
		"one that failed": {run("FAILED", hour, 2*hour, 100, &history.Use{}, history.Outcome{}, one), []string{
			"job 7 failed after 1h0m0s on n1, with a GPU",
			"  used    it isn't known how much it computed",
			"  shared  with 8",
			"  cost    it isn't known how long it would have taken alone",
			"  saved   it can't be compared: plain Slurm would have ended it at 2026-01-02 14:00:00",
		}},
		"one of whole GPUs": {whole, []string{
			"job 7 ended after 1h0m0s on n1, with 2 GPUs",
			"  used    unknown: no agent on its nodes saw it",
			"  shared  with nobody",
			"  cost    nothing",
			"  saved   it isn't known when plain Slurm would have ended it",
		}},
		"within a second": {run("", 420*time.Millisecond, 0, 100, &history.Use{KnownS: 0.4, IdleS: 0.01},
			history.Outcome{}), []string{
			"job 7 ended after 400ms on n1, with a GPU",
			"  used    it computed 0 % of the time, it was idle for 100ms",
			"  shared  with nobody",
			"  cost    nothing",
			"  saved   it isn't known when plain Slurm would have ended it",
		}},
		"faster than alone": {run("", hour, 0, 0, nil, history.Outcome{Slowdown: 0.98}, one), []string{
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
