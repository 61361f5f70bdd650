package experiment

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

// weeks replays n weeks and returns their reports. shared: the card serves several
// users at a time.
func weeks(t testing.TB, n int, shared bool) []*ReplayReport {
	t.Helper()
	cp, err := pretrained.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	var out []*ReplayReport
	for seed := range n {
		tr := Week(uint64(seed + 1))
		for g := range tr.GPUs {
			tr.GPUs[g].SameUser = !shared
		}
		net, err := cp.Network(interference.New(nil))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Replay(t.Context(), tr, ReplayOptions{
			Policies: []string{"fifo", "greedy", "dqn"}, Seeds: 1, Seed: uint64(seed + 1), Tries: 1,
			Effort: Effort{Tune: 1}, Trained: net,
		})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// overWeeks is a mean with its standard deviation over the weeks.
func overWeeks(format string, x []float64) string {
	mean, sq := 0.0, 0.0
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		sq += (v - mean) * (v - mean) / float64(len(x))
	}
	return fmt.Sprintf(format+" ± "+format, mean, math.Sqrt(sq))
}

// A seed draws one week: all of its jobs end before their limits alone.
func TestWeekIsDrawnAgain(t *testing.T) {
	w := Week(1)
	if !reflect.DeepEqual(w, Week(1)) || reflect.DeepEqual(w.Jobs, Week(2).Jobs) {
		t.Error("a seed draws two weeks, or two seeds the same one")
	}
	if len(w.Jobs) != 924 {
		t.Errorf("%d jobs, not the 924 of earlier releases", len(w.Jobs))
	}
	for _, j := range w.Jobs {
		if x := j.LimitS / j.DurationS; !(x >= 1.1 && x <= 3) {
			t.Errorf("job %s: a limit of %v times its solo time", j.ID, x)
		}
	}
}

// A week of six users on four Titan Xp: what sharing does for each of them. With
// SLURMBRIDGE_WEEKS=10 the figures of LEARNING.md are printed.
func TestWeek(t *testing.T) {
	n := 1
	if s := os.Getenv("SLURMBRIDGE_WEEKS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			t.Fatalf("SLURMBRIDGE_WEEKS is %q", s)
		}
	}
	for _, shared := range []bool{false, true} {
		rs := weeks(t, n, shared)
		var b strings.Builder
		fmt.Fprintf(&b, "%d weeks, %d GPUs, several users a card: %v\n", n, rs[0].GPUs, shared)
		fmt.Fprintln(&b, "| user | jobs | policy | wait, min | turnaround ÷ fifo's | later than fifo, % | worst slowdown | passed over, mean | at most | delay at most, s | timed out | harmed |")
		fmt.Fprintln(&b, "|---|---|---|---|---|---|---|---|---|---|---|---|")
		for _, h := range append(habits(), habit{user: "all"}) {
			for _, policy := range []string{"fifo", "greedy", "dqn"} {
				var jobs, wait, ratio, later, slow, passed, most, delay, timedOut, harmed []float64
				for _, r := range rs {
					x := r.Users[h.user][policy]
					if h.user == "all" {
						x = everybody(r, policy)
					}
					if x.MaxPassedOver > 5 || x.MaxDelayS > 300+1e-6 {
						t.Errorf("%s under %s: passed over %d times, delayed by %v s", h.user, policy, x.MaxPassedOver, x.MaxDelayS)
					}
					jobs, wait, ratio, later = append(jobs, float64(x.Jobs)), append(wait, x.WaitS/60), append(ratio, x.VsFifo), append(later, 100*x.Later)
					slow, passed = append(slow, x.MaxSlowdown), append(passed, x.PassedOver)
					most, delay = append(most, float64(x.MaxPassedOver)), append(delay, x.MaxDelayS)
					timedOut, harmed = append(timedOut, x.TimedOut), append(harmed, x.HarmedTimeout)
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %.2f | %s | %.0f | %.0f | %s | %s |\n", h.user, overWeeks("%.0f", jobs), policy, overWeeks("%.0f", wait),
					overWeeks("%.2f", ratio), overWeeks("%.0f", later), slices.Max(slow), overWeeks("%.2f", passed), slices.Max(most), slices.Max(delay), overWeeks("%.0f", timedOut), overWeeks("%.0f", harmed))
			}
		}
		t.Log(b.String())
	}
}

// everybody is how all users' jobs fared under a policy, taken together.
func everybody(r *ReplayReport, policy string) *UserOutcome {
	all := &UserOutcome{}
	fifo := 0.0
	for _, policies := range r.Users {
		x, n := policies[policy], float64(policies[policy].Jobs)
		all.Jobs += x.Jobs
		all.WaitS += x.WaitS * n
		all.TurnaroundS += x.TurnaroundS * n
		fifo += policies["fifo"].TurnaroundS * n
		all.Later += x.Later * n
		all.PassedOver += x.PassedOver * n
		all.MaxSlowdown = max(all.MaxSlowdown, x.MaxSlowdown)
		all.MaxPassedOver = max(all.MaxPassedOver, x.MaxPassedOver)
		all.MaxDelayS = max(all.MaxDelayS, x.MaxDelayS)
		all.TimedOut += x.TimedOut
		all.HarmedTimeout += x.HarmedTimeout
	}
	all.VsFifo = all.TurnaroundS / fifo
	n := float64(all.Jobs)
	all.WaitS, all.Later, all.PassedOver = all.WaitS/n, all.Later/n, all.PassedOver/n
	return all
}
