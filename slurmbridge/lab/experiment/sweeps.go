package experiment

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

// A world of sweeps is a site as published queues show it: users come in sessions and submit one script many times, an
// application's runs differ tenfold, and a sweep's time limit says more of its length than the application's name does.
// All constants are assumptions, each with its reason.
const (
	// The median solo time of a run is half an hour, between the minutes of an evaluation and the days of a training.
	sweepMedianS = 1800
	// The logarithm of an application's run times has a standard deviation of 1.6, as on clusters whose queues were
	// published. Half of its variance lies between users and between sweeps, whose runs have one limit.
	userSigma, sweepSigma, runSigma = 0.8, 0.8, 1.13
	// A sweep has so many jobs; its logarithm is uniform, since most sweeps are small.
	leastSweep, mostSweep = 5, 50
	// The mean time between two jobs of a sweep, s: a loop around sbatch, and some thought in between.
	sweepGapS = 10
	// So many of the users submit that part of the sweeps: a few projects fill a cluster.
	sweepUsers, heavyUsers, heavyPart = 20, 5, 0.8
	// How many applications a user has.
	appsOfUser = 2
	// The part of the jobs that ends after so few seconds: a wrong path, a missing module.
	failingPart, leastFailS, mostFailS = 0.15, 5, 60
	// In the busiest hour 1 + daySwing times as many sessions begin as on average, in the quietest 1 − daySwing times.
	daySwing = 0.8
	// A user's limit allows for a run so many standard deviations above the sweep's typical one, times a caution.
	longestSigmas             = 2
	leastCaution, mostCaution = 1.0, 3.0
	// The longest run of a job, as a part of its limit: who has run into a limit asks for more.
	longestOfLimit = 0.95
)

// ladder holds the time limits that users write, h: the round ones of sites' partitions.
var ladder = [...]float64{1, 2, 4, 8, 12, 24, 48, 72, 7 * 24, 14 * 24}

// sweeps draws n jobs for so many GPUs, with as much work as load of what they do without sharing. The site has seen as
// many before: what it learned from them is in the profiles.
func (p *Place) sweeps(gpus, n int, load float64, seed uint64) *Trace {
	r := rand.New(rand.NewPCG(seed, 0x53eeb5)) //nolint:gosec // an experiment is repeatable, not secret
	var all [][]trace.Job                      // by sweep
	offset := map[string]float64{}             // of a user's application
	left := 2 * n
	for left > 0 {
		one := p.sweep(r, offset)
		one = one[:min(len(one), left)]
		all, left = append(all, one), left-len(one)
	}
	jobs := atHours(r, all, load*float64(gpus))
	t := &Trace{Pairs: p.Pairs, Law: p.Law, GPUs: slices.Repeat([]rlcore.GPUSpec{p.Card}, gpus), Jobs: jobs[n:]}
	for _, app := range p.Profiles {
		t.Profiles = append(t.Profiles, learned(app, jobs[:n]))
	}
	return t
}

// sweep draws one sweep; its jobs' times begin with it.
func (p *Place) sweep(r *rand.Rand, offset map[string]float64) []trace.Job {
	user := r.IntN(heavyUsers)
	if r.Float64() > heavyPart {
		user = heavyUsers + r.IntN(sweepUsers-heavyUsers)
	}
	name := fmt.Sprintf("user%d", user)
	app := p.Profiles[(7*user+3*r.IntN(appsOfUser))%len(p.Profiles)].App
	of := name + "/" + app
	if _, known := offset[of]; !known {
		offset[of] = userSigma * r.NormFloat64()
	}
	typicalS := sweepMedianS * math.Exp(offset[of]+sweepSigma*r.NormFloat64())
	limitS := limitAbove(typicalS * math.Exp(longestSigmas*runSigma) * (leastCaution +
		(mostCaution-leastCaution)*r.Float64()))
	jobs := make([]trace.Job, int(math.Round(leastSweep*math.Pow(mostSweep/leastSweep, r.Float64()))))
	at := 0.0
	for i := range jobs {
		s := math.Inf(1)
		for s > longestOfLimit*limitS {
			s = typicalS * math.Exp(runSigma*r.NormFloat64())
		}
		if r.Float64() < failingPart {
			s = leastFailS + (mostFailS-leastFailS)*r.Float64()
		}
		jobs[i] = trace.Job{User: name, App: app, SubmitS: at, DurationS: math.Round(max(leastFailS, s)), LimitS: limitS}
		at += sweepGapS * r.ExpFloat64()
	}
	return jobs
}

// limitAbove is the first step of the ladder above s, or its last, s.
func limitAbove(s float64) float64 {
	for _, hours := range ladder {
		if hours*3600 >= s {
			return hours * 3600
		}
	}
	return ladder[len(ladder)-1] * 3600
}

// atHours lets sweeps begin at hours of the day, so that they bring so much work a second, and returns their jobs in
// order.
func atHours(r *rand.Rand, sweeps [][]trace.Job, workPerS float64) []trace.Job {
	work := 0.0
	for _, jobs := range sweeps {
		for i := range jobs {
			work += jobs[i].DurationS
		}
	}
	var out []trace.Job
	for _, jobs := range sweeps {
		at := math.Inf(1)
		for !(r.Float64() < (1+daySwing*math.Sin(2*math.Pi*at/86400))/(1+daySwing)) {
			at = work / workPerS * r.Float64()
		}
		for _, j := range jobs {
			j.SubmitS += at
			out = append(out, j)
		}
	}
	slices.SortStableFunc(out, func(a, b trace.Job) int { return cmp.Compare(a.SubmitS, b.SubmitS) })
	for i := range out {
		out[i].ID = fmt.Sprint(i + 1)
	}
	return out
}

// learned is an application's profile as a site has learned it from earlier jobs.
func learned(app *rlcore.Profile, jobs []trace.Job) *rlcore.Profile {
	var took []float64
	var past []rlcore.Past
	for _, j := range jobs {
		if j.App == app.App {
			took = append(took, j.DurationS)
			past = append(past, rlcore.Past{SoloS: j.DurationS, LimitS: j.LimitS, User: j.User})
		}
	}
	if len(took) < 2 {
		return app.Stretched(sweepMedianS)
	}
	mean, sd := stat.MeanStdDev(took, nil)
	p := *app.Stretched(mean)
	p.DurationSD, p.Past = sd, past[max(0, len(past)-rlcore.MostPast):]
	return &p
}
