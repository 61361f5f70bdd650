package sim

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/combin"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// maxMembers is the most jobs on one GPU.
const maxMembers = 100 / shares

// LowerBound returns a makespan, or a mean turnaround, s, below which no schedule of cfg is, not
// even one that knows everything: the largest of some relaxations. Limits are taken not to end any job.
//
// Prices. Give job j a price c_j for each second of its solo work such that on one GPU, whichever jobs share it, Σ c_j
// / s_j ≤ 1 over the members (s_j their slowdowns). Then a GPU sells at most one a second, the G GPUs together at most
// G, and job j buys W_j = ∫ c_j over its run alone. Prices that keep this:
//   - memory: what it holds, as a part of the largest card's. The members' sum is at most 1, and s_j ≥ 1.
//   - half of the memory: 1 while it holds more than half of the largest card, else 0: no two such meet.
//   - members: one over the most jobs that a GPU takes.
//   - under a Law: u_j ÷ K, since work is conserved: Σ u_j / s_j ≤ K.
//   - in a table of measured slowdowns: at first one over the largest Σ 1/s of all sets that j's
//     application may be in. With R_j ≥ R(set) = Σ 1/s over the set, Σ (1/R_j)/s_j ≤ Σ (1/s_j) / R(set) = 1.
//     Then one application's price after the other is raised as far as no set exceeds 1.
//   - the mean of two of these.
//
// A job of k whole GPUs pays each of these prices k times.
//
// Makespan. All that is bought between the first arrival and the end is at most G times that time,
// and so for the jobs that arrive from any moment on; and no job takes less than its solo time.
//
// Turnaround. Let ρ_j(t) be the speed of j at t, at most 1, and M_j = ∫ t ρ_j(t) dt / p_j its mean busy time, with p_j
// its solo time. Since ρ_j ≤ 1, the work that is done by its end is spread over p_j seconds or more, so its mean is
// p_j/2 or more before the end, which is no earlier than M_j + p_j/2. Σ M_j is least, among all speeds that sell at
// most G a second to jobs that have arrived, if jobs are served in the order of the work that they buy, smallest W_j
// first, each at once with all that is sold, and preempted by smaller ones: in terms of what is sold, x_j(t) ≤ G in
// all, Σ M_j = Σ ∫ t x_j(t) dt / W_j is a transportation problem, and exchanging two moments at which a job of larger W
// is served before one of smaller W that has arrived never makes it larger (Goemans, Queyranne, Schulz, Skutella and
// Wang, SIAM Journal on Discrete Mathematics 15, 2002, have it for one machine). It holds for prices that are constant
// over each job's run; others are replaced by the least price of the run. And no turnaround is below the solo time.
func LowerBound(cfg *Config, aim policy.Objective) float64 {
	jobs := make([]priced, 0, len(cfg.Jobs))
	for i := range cfg.Jobs {
		j := &cfg.Jobs[i]
		p := cmp.Or(j.Truth, j.Profile)
		jobs = append(jobs, priced{job: j, profile: p, submitS: j.SubmitS, soloS: p.DurationS})
	}
	slices.SortStableFunc(jobs, func(a, b priced) int { return cmp.Compare(a.submitS, b.submitS) })
	var lists [][]price
	for _, of := range cfg.prices() {
		list := make([]price, len(jobs))
		for i := range jobs {
			list[i] = of(&jobs[i])
		}
		lists = append(lists, list)
	}
	least := soloBound(jobs, aim)
	for a := range lists {
		for b := range lists[:a+1] {
			for i := range jobs {
				jobs[i].work = (lists[a][i].sum + lists[b][i].sum) / 2
				jobs[i].flat = (lists[a][i].least + lists[b][i].least) / 2 * jobs[i].soloS
			}
			if aim == policy.Makespan {
				least = max(least, spanBound(jobs, len(cfg.GPUs)))
			} else {
				least = max(least, turnaroundBound(jobs, len(cfg.GPUs)))
			}
		}
	}
	return least
}

// priced is a job with what it buys.
type priced struct {
	job            *Arrival
	profile        *rlcore.Profile
	submitS, soloS float64
	work, flat     float64 // W, and what it is at least at one price for the whole run
}

// price is what a job buys over its run, and the least of its prices.
type price struct{ sum, least float64 }

// prices are the prices of a Config.
func (cfg *Config) prices() []func(j *priced) price {
	largest, members := 0.0, 1
	for i := range cfg.GPUs {
		spec := &cfg.GPUs[i]
		largest = max(largest, spec.MemMiB)
		most := maxMembers
		if spec.MaxClients > 0 {
			most = min(most, spec.MaxClients)
		}
		members = max(members, most)
	}
	along := func(of func(j *priced, u *rlcore.Use) float64) func(j *priced) price {
		return func(j *priced) price {
			x := price{least: math.Inf(1)}
			for i := range j.profile.Series {
				from := float64(i) * j.profile.PeriodS
				until := min(from+j.profile.PeriodS, j.soloS)
				if i == len(j.profile.Series)-1 {
					until = j.soloS
				}
				if until <= from {
					break
				}
				c := of(j, &j.profile.Series[i])
				x.sum, x.least = x.sum+c*(until-from), min(x.least, c)
			}
			gpus := float64(j.job.WholeGPUs())
			return price{gpus * x.sum, gpus * x.least}
		}
	}
	out := []func(j *priced) price{
		along(func(_ *priced, u *rlcore.Use) float64 { return u.MemMiB / largest }),
		along(func(_ *priced, u *rlcore.Use) float64 {
			if u.MemMiB > largest/2 {
				return 1
			}
			return 0
		}),
		along(func(j *priced, _ *rlcore.Use) float64 {
			if j.job.NoShare || j.job.Foreign {
				return 1
			}
			return 1 / float64(members)
		}),
	}
	switch t := cfg.Truth.(type) {
	case Law:
		out = append(out, along(func(j *priced, u *rlcore.Use) float64 {
			d := demand(u, j.profile, &rlcore.GPUSpec{})
			return t.Use(&d) / t.Capacity
		}))
	case *Measured:
		if of := t.prices(cfg, members); of != nil {
			out = append(out, along(func(j *priced, _ *rlcore.Use) float64 { return of[j.profile.App] }))
		}
	}
	return out
}

// mostSets bounds the sets that prices go by.
const mostSets = 300_000

// prices returns a price for each application that keeps Σ c/s ≤ 1 in all sets of up to so many members;
// nil where there are too many sets.
func (t *Measured) prices(cfg *Config, members int) map[string]float64 {
	var apps []*rlcore.Profile
	rate := map[string]float64{} // the largest Σ 1/s of the sets that an application may be in
	for i := range cfg.Jobs {
		p := cmp.Or(cfg.Jobs[i].Truth, cfg.Jobs[i].Profile)
		if _, there := rate[p.App]; !there {
			rate[p.App] = 1
			apps = append(apps, p)
		}
	}
	if combin.GeneralizedBinomial(float64(len(apps)+members), float64(members)) > mostSets {
		return nil
	}
	type together struct {
		apps []string
		slow []float64
	}
	var sets []together
	var set []*rlcore.Profile
	var grow func(from int)
	grow = func(from int) {
		for i := from; i < len(apps); i++ {
			if slices.ContainsFunc(set, func(p *rlcore.Profile) bool { return t.Lacks(p.App, apps[i].App) }) {
				continue
			}
			set = append(set, apps[i])
			x, sum := together{slow: t.Slowdowns(nil, set, nil)}, 0.0
			for k, p := range set {
				x.slow[k] = max(1, x.slow[k])
				x.apps = append(x.apps, p.App)
				sum += 1 / x.slow[k]
			}
			for _, app := range x.apps {
				rate[app] = max(rate[app], sum)
			}
			if sets = append(sets, x); len(set) < members {
				grow(i)
			}
			set = set[:len(set)-1]
		}
	}
	grow(0)
	out := map[string]float64{}
	for app, r := range rate {
		out[app] = 1 / r
	}
	// If some sets sell less than a second's worth, each price in turn rises up to what all sets allow.
	for _, p := range apps {
		highest := 1.0
		for _, x := range sets {
			others, own := 0.0, 0.0
			for k, app := range x.apps {
				if app == p.App {
					own += 1 / x.slow[k]
				} else {
					others += out[app] / x.slow[k]
				}
			}
			if own > 0 {
				highest = min(highest, (1-others)/own)
			}
		}
		out[p.App] = max(out[p.App], highest)
	}
	return out
}

// soloBound is what jobs take alone.
func soloBound(jobs []priced, aim policy.Objective) float64 {
	last, sum := 0.0, 0.0
	for i := range jobs {
		last = max(last, jobs[i].submitS+jobs[i].soloS-jobs[0].submitS)
		sum += jobs[i].soloS / float64(len(jobs))
	}
	if aim == policy.Makespan {
		return last
	}
	return sum
}

// spanBound is the makespan's bound by what is bought.
func spanBound(jobs []priced, gpus int) float64 {
	left, least := 0.0, 0.0
	for i := len(jobs) - 1; i >= 0; i-- {
		left += jobs[i].work
		least = max(least, jobs[i].submitS-jobs[0].submitS+left/float64(gpus))
	}
	return least
}

// turnaroundBound is the mean turnaround's bound by mean busy times.
func turnaroundBound(jobs []priced, gpus int) float64 {
	speed, sum, now := float64(gpus), 0.0, 0.0
	var waiting []int // by flat, largest first
	left := make([]float64, len(jobs))
	for next := 0; next < len(jobs) || len(waiting) > 0; {
		if len(waiting) == 0 {
			now = max(now, jobs[next].submitS)
		}
		for next < len(jobs) && jobs[next].submitS <= now {
			left[next] = jobs[next].flat
			at, _ := slices.BinarySearchFunc(waiting, jobs[next].flat,
				func(i int, x float64) int { return cmp.Compare(x, jobs[i].flat) })
			waiting = slices.Insert(waiting, at, next)
			sum += jobs[next].soloS/2 - jobs[next].submitS
			next++
		}
		i := waiting[len(waiting)-1]
		dt := left[i] / speed
		if next < len(jobs) {
			dt = min(dt, jobs[next].submitS-now)
		}
		if jobs[i].flat > 0 {
			sum += (now + dt/2) * dt * speed / jobs[i].flat
		} else {
			sum += now
		}
		now += dt
		if left[i] -= dt * speed; left[i] <= 1e-9*jobs[i].flat {
			waiting = waiting[:len(waiting)-1]
		}
	}
	return sum / float64(len(jobs))
}
