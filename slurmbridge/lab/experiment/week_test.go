package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
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

// Week draws a week of six users on four Titan Xp: each user's visits are a Poisson
// process of the intensity of the hour (thinned from its largest), the jobs of a visit come
// ten seconds apart, run times are log-normal (σ = 0.5, between a quarter of and four times
// the median), time limits 1.1 to 3 times the run time. The same seed draws the same week.
func Week(seed uint64) *Trace {
	r := rand.New(rand.NewPCG(seed, 0x3ee6)) //nolint:gosec // a week is repeatable, not secret
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
		for at, visit := 0.0, 0; ; {
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
			visit++
			for i := range h.few + r.IntN(h.many-h.few+1) {
				times := h.lengthened * math.Exp(max(-math.Log(4), min(math.Log(4), 0.5*r.NormFloat64())))
				t.Jobs = append(t.Jobs, trace.Job{
					ID: fmt.Sprintf("%s-%d-%d", h.user, visit, i), User: h.user, App: app,
					SubmitS: at + 10*float64(i), DurationS: math.Ceil(times * known[app].DurationS),
				})
			}
		}
	}
	slices.SortStableFunc(t.Jobs, func(a, b trace.Job) int { return cmp.Compare(a.SubmitS, b.SubmitS) })
	// From a source of their own, so that the jobs don't depend on them.
	limits := rand.New(rand.NewPCG(seed, 0x11317)) //nolint:gosec // as above
	for i := range t.Jobs {
		t.Jobs[i].LimitS = t.Jobs[i].DurationS * (1.1 + 1.9*limits.Float64())
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		t.Profiles = append(t.Profiles, known[name])
	}
	return t
}
