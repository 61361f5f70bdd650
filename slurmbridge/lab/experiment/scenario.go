package experiment

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// JobsPerWorkload is the thesis's number of jobs.
const JobsPerWorkload = 30

// thesisApps are the thesis's applications by name.
var thesisApps = func() map[string]*rlcore.Profile {
	out := map[string]*rlcore.Profile{}
	for _, n := range apps.Names() {
		out[n], _ = apps.ByName(n)
	}
	return out
}()

// Thesis is the scenario of a workload: 30 jobs drawn at random, all submitted at
// once by one user, on one Titan Xp under MPS. Of "general" each job set is of another one of the
// five: what is learned on one GPU holds on many, since the scorer's figures know nothing of their number.
func Thesis(workload string) (dqn.Scenario, error) {
	if _, ok := apps.Workloads[workload]; !ok && workload != "general" {
		return nil, optionError(fmt.Sprintf("workload: there is no workload %q; there are %v", workload, Workloads()))
	}
	return func(r *rand.Rand) (sim.Config, error) {
		of := workload
		if of == "general" {
			of = Workloads()[r.IntN(len(Workloads()))]
		}
		names, err := apps.Workload(of, JobsPerWorkload, rand.NewPCG(r.Uint64(), r.Uint64()))
		if err != nil {
			return sim.Config{}, err
		}
		cfg := sim.Config{GPUs: []rlcore.GPUSpec{rlcore.TitanXp}, Truth: sim.Law{Law: &contention.MPS}}
		for i, n := range names {
			cfg.Jobs = append(cfg.Jobs,
				sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint(i + 1), User: "thesis", Profile: thesisApps[n]}})
		}
		return cfg, nil
	}, nil
}

// Arrivals is the scenario of a network for sites with jobs that come over time. Each job set is of another site: one
// to eight GPUs, applications, a law of slowdowns around a fitted one with factors for each application (see drawn), a
// load of 0.5 to 1.3 of what the GPUs do without sharing, jobs that come at random, in bursts, by day, or in sweeps,
// and profiles that are wrong by up to 30 %. It has nothing of the measured places.
func Arrivals(r *rand.Rand) (sim.Config, error) {
	card := rlcore.GPUSpec{Model: "card", MemMiB: 12000 * float64(1+r.IntN(6)), PCIeMBps: 32000}
	if r.IntN(3) == 0 {
		card.MaxClients = 2
	}
	gpus := 1 + r.IntN(8)
	known := drawApps(r, &card)
	cfg := sim.Config{GPUs: slices.Repeat([]rlcore.GPUSpec{card}, gpus), Truth: drawTruth(r, known)}
	n := min(90, 30+15*gpus)
	wrong := 0.3 * r.Float64()
	at := drawTimes(r, n, (0.5+0.8*r.Float64())*float64(gpus))
	off := func() float64 { return 1 + wrong*(2*r.Float64()-1) }
	app := 0
	for i := range n {
		if !at[i].again {
			app = r.IntN(len(known))
		}
		truth := known[app].Stretched(at[i].takesS)
		seen := *truth.Stretched(truth.DurationS * off())
		seen.DurationSD = wrong / math.Sqrt(3) * seen.DurationS
		seen.Series = slices.Clone(seen.Series)
		use := off()
		for k := range seen.Series {
			seen.Series[k].GPU, seen.Series[k].Core = min(1, use*seen.Series[k].GPU), min(1, use*seen.Series[k].Core)
		}
		cfg.Jobs = append(cfg.Jobs,
			sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint(i), User: "site", Profile: &seen, SubmitS: at[i].s}, Truth: truth})
	}
	return cfg, nil
}

// coming is a job's arrival.
type coming struct {
	s, takesS float64
	again     bool // of the application of the one before
}

// drawTimes draws when n jobs come, and how long they take: so much solo work a second on
// average. One day is 60 mean durations long.
func drawTimes(r *rand.Rand, n int, rate float64) []coming {
	out := make([]coming, n)
	median := math.Exp(math.Log(60) + math.Log(60)*r.Float64()) // one minute to an hour
	spread := 0.3 + 0.9*r.Float64()
	total := 0.0
	for i := range out {
		out[i].takesS = median * math.Exp(spread*r.NormFloat64())
		total += out[i].takesS
	}
	gap := total / float64(n) / rate
	kind, burst, at := r.IntN(4), 1, 0.0
	day := 60 * total / float64(n)
	for i := range out {
		out[i].s = at
		switch kind {
		case 0: // at random
			at += gap * r.ExpFloat64()
		case 1, 3: // in bursts; a sweep is one of alike jobs
			if burst--; burst > 0 {
				out[i].again = kind == 3 && i > 0
				if out[i].again {
					out[i].takesS = out[i-1].takesS * math.Exp(0.1*r.NormFloat64())
				}
				continue
			}
			burst = 1 + r.IntN(15)
			at += gap * float64(burst) * r.ExpFloat64()
		case 2: // by day
			at += gap * r.ExpFloat64() * (1 + 0.8*math.Sin(2*math.Pi*at/day))
		}
	}
	return out
}

// drawApps draws applications that fit on the card: the thesis's, and made-up ones.
func drawApps(r *rand.Rand, card *rlcore.GPUSpec) []*rlcore.Profile {
	var out []*rlcore.Profile
	names := apps.Names()
	for i := range 5 + r.IntN(8) {
		if r.IntN(3) == 0 {
			p, _ := apps.ByName(names[r.IntN(len(names))])
			if p.Peak().MemMiB <= card.MemMiB {
				out = append(out, p)
				continue
			}
		}
		u := rlcore.Use{GPU: 0.05 + 0.95*r.Float64(), MemMiB: card.MemMiB * (0.05 + 0.55*r.Float64())}
		u.Core = 0.85 * u.GPU
		p := &rlcore.Profile{App: fmt.Sprint("app", i), DurationS: 600, PeriodS: 600, Series: []rlcore.Use{u}}
		if r.IntN(2) == 0 {
			p.StepS = 0.004 * math.Exp(math.Log(250)*r.Float64())
		}
		out = append(out, p)
	}
	return out
}

// drawn is a law with factors of its own for each application: ln(slowdown − 1 + floor) differs
// from the law's by them, as in the interference model.
type drawn struct {
	law               contention.Law
	card              float64
	victim, aggressor map[string]float64
}

// Standard deviations and correlation of the factors, and the floor. The factors vary more than the
// interference model expects, and its floor is 0.2.
const appSD, cardSD, roleCorr, floor = 0.3, 0.15, -0.3, 0.1

func drawTruth(r *rand.Rand, known []*rlcore.Profile) sim.Truth {
	law := contention.MPS
	if r.IntN(4) == 0 {
		law = contention.TimeSlice
	}
	around := func(x float64) float64 { return x * (0.6 + 0.8*r.Float64()) }
	law.Capacity *= 0.92 + 0.16*r.Float64()
	law.Knee = 2 + r.IntN(3)
	law.StepPower, law.StepOdds, law.Odds = around(law.StepPower), around(law.StepOdds), around(law.Odds)
	d := &drawn{law: law, card: cardSD * r.NormFloat64(), victim: map[string]float64{}, aggressor: map[string]float64{}}
	for _, p := range known {
		a, b := r.NormFloat64(), r.NormFloat64()
		d.victim[p.App], d.aggressor[p.App] = appSD*a, appSD*(roleCorr*a+math.Sqrt(1-roleCorr*roleCorr)*b)
	}
	return d
}

// Slowdowns implements sim.Truth.
func (d *drawn) Slowdowns(dst []float64, p []*rlcore.Profile, dem []contention.Demand) []float64 {
	dst = d.law.Slowdowns(dst, dem)
	if len(p) < 2 {
		return dst
	}
	for i := range dst {
		z := d.card + d.victim[p[i].App]
		for k := range p {
			if k != i {
				z += d.aggressor[p[k].App] / float64(len(p)-1)
			}
		}
		dst[i] = max(1, dst[i]+(dst[i]-1+floor)*math.Expm1(z))
	}
	return dst
}
