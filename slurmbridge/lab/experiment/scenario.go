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
// load of 0.5 to 1.3 of what the GPUs do without sharing, users with habits like one of the worlds' (see drawHabits),
// as many earlier jobs as come, of which the site has learned lengths, and profiles whose utilisations are wrong by up
// to 30 %. It has nothing of the measured places.
func Arrivals(r *rand.Rand) (sim.Config, error) {
	card := rlcore.GPUSpec{Model: "card", MemMiB: 12000 * float64(1+r.IntN(6)), PCIeMBps: 32000}
	if r.IntN(3) == 0 {
		card.MaxClients = 2
	}
	gpus := 1 + r.IntN(8)
	known := drawApps(r, &card)
	cfg := sim.Config{GPUs: slices.Repeat([]rlcore.GPUSpec{card}, gpus), Truth: drawTruth(r, known), Foretell: true}
	n := min(90, 30+15*gpus)
	s := newSite(drawHabits(r), known, r)
	jobs := s.draw(2*n, (0.5+0.8*r.Float64())*float64(gpus))
	wrong := 0.3 * r.Float64()
	truth := map[string]*rlcore.Profile{}
	seen := map[string]*rlcore.Profile{}
	for _, app := range known {
		p := s.learned(app, jobs[:n])
		p.Series = slices.Clone(p.Series)
		use := 1 + wrong*(2*r.Float64()-1)
		for k := range p.Series {
			p.Series[k].GPU = min(1, use*p.Series[k].GPU)
			p.Series[k].Core = min(1, use*p.Series[k].Core)
		}
		truth[app.App] = app
		seen[app.App] = p
	}
	cfg.Jobs = arrivals(jobs[n:], seen, truth)
	return cfg, nil
}

// drawHabits draws habits around those of a world: a median of one minute to an hour, spreads changed by up to 40 %,
// and sessions of 15 jobs at the most.
func drawHabits(r *rand.Rand) habits {
	h := []habits{byRun, byUser, twoClusters, sweeps}[r.IntN(4)]
	h.medianS = 60 * math.Exp(math.Log(60)*r.Float64())
	h.mostJobs = min(h.mostJobs, 15)
	for _, sigma := range []*float64{&h.appSigma, &h.userSigma, &h.sessionSigma, &h.runSig} {
		*sigma *= 0.6 + 0.8*r.Float64()
	}
	return h
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
	law.StepPower = around(law.StepPower)
	law.StepOdds = around(law.StepOdds)
	law.Odds = around(law.Odds)
	d := &drawn{law: law, card: cardSD * r.NormFloat64(), victim: map[string]float64{}, aggressor: map[string]float64{}}
	for _, p := range known {
		a := r.NormFloat64()
		b := r.NormFloat64()
		d.victim[p.App] = appSD * a
		d.aggressor[p.App] = appSD * (roleCorr*a + math.Sqrt(1-roleCorr*roleCorr)*b)
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
