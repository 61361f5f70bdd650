package models

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

const (
	// judgeSets is how many job sets are drawn from the held-out runs by default.
	judgeSets = 100
	// judgeBlocks is how many blocks a set has at most, over all slices.
	judgeBlocks = 60
	// fewestBlocks is how many the held-out runs must make: below, a spread says
	// little.
	fewestBlocks = 5
	// Confidence is of the one-sided bound on the gain. There is a round a day, and with few blocks
	// the noise may have any distribution: with 0.99 a candidate that is no better passes in at
	// most one of twenty rounds for any of them (TestNoPromotionByChance), and usually in one of a
	// hundred.
	Confidence = 0.99
	// LeastGain is what a change must bring, as a part of the mean turnaround: less
	// isn't worth it, however sure.
	LeastGain = 0.005
)

// Score is how jobs fared under one network, means over the drawn sets.
type Score struct {
	TurnaroundS  float64 `json:"mean_turnaround_s"`
	MakespanS    float64 `json:"makespan_s"` // of a slice
	MeanSlowdown float64 `json:"mean_slowdown"`
	P95Slowdown  float64 `json:"p95_slowdown"`
	OOM          float64 `json:"oom"` // runs lost for want of memory, a set
}

// Verdict compares a network with another on runs that neither learned from. Gain is
// by how much the mean turnaround, or the makespan, is shorter, as a part of the other's;
// positive is better.
type Verdict struct {
	Better bool    `json:"better"`
	Gain   float64 `json:"gain"`
	// Noise is Gain's standard error: had other runs come, it would be that far off.
	Noise float64 `json:"noise"`
	// Bound is what Gain exceeds with 99 % confidence.
	Bound  float64 `json:"bound"`
	Sets   int     `json:"sets"`   // job sets drawn
	Blocks int     `json:"blocks"` // a set, drawn with replacement
	Jobs   int     `json:"jobs"`   // a set
	Other  Score   `json:"other"`
	// Objective is what the gain is in; "" (in rows of earlier releases) = the turnaround.
	Objective policy.Objective `json:"objective,omitempty"`
	Own       Score            `json:"own"`
}

// weigh is the rule: a change is for the better where the gain's one-sided bound is above 0, and
// the gain itself worth it.
//
// gains are measured on job sets drawn by blocks, with replacement, each of as many blocks as the
// held-out runs have. Their spread is thus the bootstrap's estimate of what other days would have
// given (Künsch, Annals of Statistics 17, 1989), as n blocks estimate it: too small by √((n−1)/n),
// and to be held against Student's t with n−1 degrees of freedom. Where a set's gain is the mean of
// its blocks' this is the paired one-sided t test over the blocks.
//
// A candidate that is often a little better and now and then much worse would pass that test too
// often. So t is corrected for the skew of the gains by Hall's cubic (Journal of the Royal
// Statistical Society B 54, 1992), where that makes it smaller.
func weigh(gains []float64, blocks int) (v Verdict) {
	n, k := float64(len(gains)), float64(blocks)
	v.Sets, v.Blocks = len(gains), blocks
	if len(gains) < 2 || blocks < fewestBlocks {
		return v
	}
	v.Gain = stat.Mean(gains, nil)
	square, cube := stat.Moment(2, gains, nil), stat.Moment(3, gains, nil)
	if !(square > 1e-18) { // rounding
		v.Bound, v.Better = v.Gain, v.Gain >= LeastGain
		return v
	}
	skew := cube / math.Pow(square, 1.5)
	// The mean over the sets is itself known only so well.
	v.Noise = math.Sqrt(square * n / (n - 1) * k / (k - 1) * (1 + 1/n))
	t := v.Gain / v.Noise
	corrected := t + skew*t*t/3 + skew*skew*t*t*t/27 + skew/6
	v.Bound = v.Noise * (min(t, corrected) - distuv.StudentsT{Mu: 0, Sigma: 1, Nu: k - 1}.Quantile(Confidence))
	v.Better = v.Bound > 0 && v.Gain >= LeastGain
	return v
}

// Why is the result of the comparison in words.
func (v *Verdict) Why() string {
	figures := fmt.Sprintf("%s %+.1f %% ± %.1f %% on %d job sets like the last days'", cmp.Or(v.Objective, policy.Turnaround), -100*v.Gain, 100*v.Noise, v.Sets)
	switch {
	case v.Better:
		return "better beyond the noise: " + figures
	case v.Gain < LeastGain:
		return fmt.Sprintf("less than %.1f %% better: %s", 100*LeastGain, figures)
	}
	return "within the noise: " + figures
}

// sets draws n job sets that networks are compared on: for each slice as many blocks
// as its held-out runs make, up to judgeBlocks in all.
func (m *Mix) sets(n int, seed uint64) (sets [][]sim.Config, drawn int) {
	for i := range n {
		r := rand.New(rand.NewPCG(seed^0x3d6e, uint64(i))) //nolint:gosec // a comparison is repeatable, not secret
		var set []sim.Config
		left := judgeBlocks
		for _, k := range r.Perm(len(m.Slices)) {
			s := &m.Slices[k]
			n := min(blocks(len(s.Jobs)-s.Split), left)
			if n == 0 {
				continue
			}
			left -= n
			set = append(set, m.draw(s, s.Split, len(s.Jobs), n*blockJobs, false, r))
		}
		sets, drawn = append(sets, set), judgeBlocks-left
	}
	return sets, drawn
}

// play lets a network schedule all sets and returns each one's sum of turnarounds, or of
// makespans, s. It decides alone: playouts even out what networks differ in, and take longer.
func (m *Mix) play(sets [][]sim.Config, net dqn.Network) ([]float64, Score, error) {
	tools := m.tools()
	d := &rlcore.Decider{Policy: dqn.NewPolicy("dqn", net.Alias(tools.Predictor)), Guard: tools.Guard, M: m.rules.Window}
	sums := make([]float64, len(sets))
	var all Score
	for i, set := range sets {
		n, jobs, p95 := float64(len(sets)), 0, 0.0
		for _, cfg := range set {
			jobs += len(cfg.Jobs)
		}
		for _, cfg := range set {
			cfg.Predictor = tools.Predictor
			res, err := sim.Run(cfg, d)
			if err != nil {
				return nil, all, fmt.Errorf("replay: %w", err)
			}
			part := float64(len(res.Jobs)) / float64(jobs) / n
			if m.rules.Objective == policy.Makespan {
				sums[i] += res.MakespanS
			} else {
				sums[i] += res.MeanTurnaroundS * float64(len(res.Jobs))
			}
			s := res.Slowdowns()
			all.TurnaroundS += res.MeanTurnaroundS * part
			all.MeanSlowdown += stat.Mean(s, nil) * part
			all.MakespanS += res.MakespanS / float64(len(set)) / n
			all.OOM += float64(res.OOM) / n
			p95 = max(p95, s[int(0.95*float64(len(s)))])
		}
		all.P95Slowdown += p95 / n
	}
	return sums, all, nil
}

// judge compares own with other on the same sets, of so many blocks each.
func (m *Mix) judge(own, other dqn.Network, sets [][]sim.Config, blocks int) (*Verdict, error) {
	a, mine, err := m.play(sets, own)
	if err != nil {
		return nil, err
	}
	b, theirs, err := m.play(sets, other)
	if err != nil {
		return nil, err
	}
	for i := range a {
		a[i] = (b[i] - a[i]) / b[i]
	}
	v := weigh(a, blocks)
	v.Objective = m.rules.Objective
	v.Own, v.Other, v.Jobs = mine, theirs, blocks*blockJobs
	return &v, nil
}
