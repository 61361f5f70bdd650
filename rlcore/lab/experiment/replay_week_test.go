package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/lab/trace"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
)

const (
	hour = 3600.
	day  = 24 * hour
)

// habit is how one user of the generated week works.
type habit struct {
	user string
	// visits is how often the user comes a day, on average; each time with between
	// few and many jobs of one application.
	visits    float64
	few, many int
	apps      []string
	// lengthened is the median of how much longer than the catalogue's its jobs run.
	lengthened float64
	// night: comes at any time; elsewhere by office hours, see intensity.
	night bool
}

// habits are the users of the week. The applications are the thesis's eleven (package
// apps); everything else is made up, so that each of them needs something else of a
// scheduler: sweepers alike jobs in bursts, students short ones by day, one user the
// whole card's memory, one a job now and then at any hour.
func habits() []habit {
	return []habit{
		{user: "sweep", visits: 3, few: 10, many: 40, apps: []string{"hoomd", "alexnet", "googlenet"}, lengthened: 16},
		{user: "student1", visits: 12, few: 1, many: 3, apps: []string{"googlenet", "alexnet"}, lengthened: 4},
		{user: "student2", visits: 12, few: 1, many: 3, apps: []string{"lammps", "gromacs", "qmcpack"}, lengthened: 4},
		{user: "large", visits: 6, few: 1, many: 4, apps: []string{"vgg16", "resnet101", "resnet152"}, lengthened: 40},
		{user: "long", visits: 1.5, few: 1, many: 3, apps: []string{"gromacs", "hoomd", "alexnet"}, lengthened: 300},
		{user: "cron", visits: 24, few: 1, many: 1, apps: []string{"lammps", "googlenet"}, lengthened: 4, night: true},
	}
}

// intensity is how busy an hour of the week is, as a factor of the mean: office hours
// on five days, a fifth of that at night and on the last two.
func intensity(at float64) float64 {
	h, weekday := math.Mod(at, day)/hour, int(at/day)
	busy := weekday < 5 && h >= 9 && h < 19
	// 50 of 168 hours are busy.
	const quiet = 168 / (50*5 + 118.)
	if busy {
		return 5 * quiet
	}
	return quiet
}

// week draws a week's jobs: each user's visits are a Poisson process of the intensity
// of the hour (thinned from its largest), the jobs of a visit come ten seconds apart,
// run times are log-normal (σ = 0.5, between a quarter of and four times the median).
// The same seed draws the same week.
func week(seed uint64) *Trace {
	r := rand.New(rand.NewPCG(seed, 0x3ee6))
	t := &Trace{}
	for range 4 {
		t.GPUs = append(t.GPUs, rlcore.TitanXp)
	}
	known := map[string]*rlcore.Profile{}
	for _, h := range habits() {
		for _, name := range h.apps {
			if p, ok := apps.ByName(name); ok && known[name] == nil {
				known[name] = p
			}
		}
		const most = 168 / (50*5 + 118.) * 5
		for at := 0.0; ; {
			at += r.ExpFloat64() * day / h.visits / most
			if at >= 7*day {
				break
			}
			now := intensity(at)
			if h.night {
				now = 1
			}
			if r.Float64() >= now/most {
				continue
			}
			app := h.apps[r.IntN(len(h.apps))]
			for i := range h.few + r.IntN(h.many-h.few+1) {
				times := h.lengthened * math.Exp(max(-math.Log(4), min(math.Log(4), 0.5*r.NormFloat64())))
				t.Jobs = append(t.Jobs, trace.Job{
					ID: fmt.Sprintf("%s-%d-%d", h.user, int(at), i), User: h.user, App: app,
					SubmitS: at + 10*float64(i), DurationS: math.Ceil(times * known[app].DurationS),
				})
			}
		}
	}
	slices.SortStableFunc(t.Jobs, func(a, b trace.Job) int { return cmp.Compare(a.SubmitS, b.SubmitS) })
	for _, name := range slices.Sorted(maps.Keys(known)) {
		t.Profiles = append(t.Profiles, known[name])
	}
	return t
}

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
		tr := week(uint64(seed + 1))
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
		fmt.Fprintln(&b, "| user | jobs | policy | wait, min | turnaround ÷ fifo's | later than fifo, % | worst slowdown | passed over, mean | at most | delay at most, s |")
		fmt.Fprintln(&b, "|---|---|---|---|---|---|---|---|---|---|")
		for _, h := range append(habits(), habit{user: "all"}) {
			for _, policy := range []string{"fifo", "greedy", "dqn"} {
				var jobs, wait, ratio, later, slow, passed, most, delay []float64
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
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %.2f | %s | %.0f | %.0f |\n", h.user, overWeeks("%.0f", jobs), policy, overWeeks("%.0f", wait),
					overWeeks("%.2f", ratio), overWeeks("%.0f", later), slices.Max(slow), overWeeks("%.2f", passed), slices.Max(most), slices.Max(delay))
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
	}
	all.VsFifo = all.TurnaroundS / fifo
	n := float64(all.Jobs)
	all.WaitS, all.Later, all.PassedOver = all.WaitS/n, all.Later/n, all.PassedOver/n
	return all
}
