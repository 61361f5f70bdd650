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

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

// weeks replays n weeks and returns their reports. shared: the card serves several
// users at a time.
func weeks(t testing.TB, n int, shared bool, o ReplayOptions) []*ReplayReport {
	t.Helper()
	cp, err := pretrained.Checkpoint(policy.Turnaround)
	if err != nil {
		t.Fatal(err)
	}
	o.Policies, o.Tries, o.Effort = []string{"fifo", "greedy", "dqn"}, 1, Effort{Tune: 1}
	var out []*ReplayReport
	for seed := range n {
		tr := Week(uint64(seed + 1))
		for g := range tr.GPUs {
			tr.GPUs[g].SameUser = !shared
		}
		if o.Trained, err = cp.Network(interference.New(nil)); err != nil {
			t.Fatal(err)
		}
		o.Seed = uint64(seed + 1)
		r, err := Replay(t.Context(), tr, o)
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
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	n, text := 1, os.Getenv("SLURMBRIDGE_WEEKS")
	if text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			t.Fatalf("SLURMBRIDGE_WEEKS is %q", text)
		}
	}
	exactly, roughly := 0.0, 0.2
	known := ReplayOptions{MaxSlowdown: rlcore.DefaultMaxSlowdown, DurationError: &exactly}
	for _, shared := range []bool{false, true} {
		var b strings.Builder
		fmt.Fprintf(&b, "%d weeks, several users a card: %v\n", n, shared)
		fmt.Fprintln(&b, "| user | jobs | policy | wait, min | turnaround ÷ fifo's | later than fifo, % | late, % | worst late | worst slowdown | harmed |")
		fmt.Fprintln(&b, "|---|---|---|---|---|---|---|---|---|---|")
		rs := weeks(t, n, shared, known)
		for _, h := range habits() {
			weekRows(t, &b, rs, h.user)
		}
		weekRows(t, &b, rs, "all")
		if text != "" {
			for _, c := range []struct {
				name   string
				change func(*ReplayOptions)
			}{
				{"durations ± 20 %", func(o *ReplayOptions) { o.DurationError = &roughly }},
				{"durations of profiles", func(o *ReplayOptions) { o.DurationError = nil }},
				{"no contract", func(o *ReplayOptions) { o.MaxSlowdown = 0 }},
				{"grace 100", func(o *ReplayOptions) { o.Grace = 100 }},
				{"neither", func(o *ReplayOptions) { o.MaxSlowdown, o.Grace = 0, 100 }},
			} {
				o := known
				c.change(&o)
				fmt.Fprintf(&b, "%s:\n", c.name)
				weekRows(t, &b, weeks(t, n, shared, o), "all")
			}
		}
		t.Log(b.String())
	}
}

// weekRows writes how a user, or "all" of them, fared under each policy.
func weekRows(t *testing.T, b *strings.Builder, rs []*ReplayReport, user string) {
	t.Helper()
	for _, policy := range []string{"fifo", "greedy", "dqn"} {
		var jobs, wait, ratio, later, late, worst, slow, harmed []float64
		for _, r := range rs {
			x := r.Users[user][policy]
			if user == "all" {
				x = everybody(r, policy)
			}
			if x.MaxDelayS > rlcore.DefaultMaxDelayS+1e-6 || policy == Fifo && x.WorstLate > 0 {
				t.Errorf("%s under %s: %+v", user, policy, x)
			}
			jobs, wait, ratio, later = append(jobs, float64(x.Jobs)), append(wait, x.WaitS/60), append(ratio, x.VsFifo), append(later, 100*x.Later)
			late, worst, slow = append(late, 100*x.Late), append(worst, x.WorstLate), append(slow, x.MaxSlowdown)
			harmed = append(harmed, x.HarmedTimeout)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %.2f | %.2f | %s |\n", user, overWeeks("%.0f", jobs), policy, overWeeks("%.0f", wait),
			overWeeks("%.2f", ratio), overWeeks("%.0f", later), overWeeks("%.2f", late), slices.Max(worst), slices.Max(slow), overWeeks("%.1f", harmed))
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
		all.Late += x.Late * n
		all.WorstLate = max(all.WorstLate, x.WorstLate)
		all.MaxSlowdown = max(all.MaxSlowdown, x.MaxSlowdown)
		all.MaxDelayS = max(all.MaxDelayS, x.MaxDelayS)
		all.HarmedTimeout += x.HarmedTimeout
	}
	all.VsFifo = all.TurnaroundS / fifo
	n := float64(all.Jobs)
	all.WaitS, all.Later, all.Late = all.WaitS/n, all.Later/n, all.Late/n
	return all
}
