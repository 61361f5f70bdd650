// Package contention is the law by which sharers of a GPU slow each other. The simulated GPU and the simulator compute
// by it, and the interference model starts from it.
//
// The law is weighted fair sharing of a conserved capacity K:
//
//	Σ_j u_j / s_j ≤ K                  work done by all, in units of the whole card
//	o_i = what fair queueing offers i  if i took all it can get and each other j took
//	                                   at most u_j; weights w_j
//	s_i = (1 + (u_i / o_i)^p)^(1/p)    a smooth max(1, u_i / o_i)
//
// u is a process's solo demand. The card serves kernel by kernel, so the weights are the lengths of the kernels: a
// process with long kernels makes one with short kernels wait. No profile has kernel lengths, but two figures grow with
// them. Where launches set the pace, u/(1−u) is the length of a kernel over the gap before the next one, and the time T
// of an iteration only says how many kernels it has. Where the card is always busy, u/(1−u) says nothing more, and T
// grows with the kernels. So the ratio of two weights is, with j the member with the longer iterations,
//
//	w_j / w_i = (T_j/T_i)^(a·u_j^q) · (odds_j/odds_i)^b        odds = u/(1 − u + ε)
//
// with a = 0 where some member's T is unknown.
package contention

import "math"

// Demand is what one process uses of a GPU at an instant when it runs alone.
type Demand struct {
	GPU   float64 // fraction of time a kernel runs, 0..1
	Core  float64 // fraction of the SMs that are busy, 0..1; 0 = unknown
	PCIe  float64 // fraction of the link's throughput, 0..1
	StepS float64 // time of one iteration, s; 0 = unknown
}

// Law is a contention law; laws.go has the fitted ones.
type Law struct {
	Name string
	// Capacity is K, in seconds of solo work per second. It exceeds 1 where kernels of several processes overlap.
	Capacity float64
	// Knee is log2 of p: how sharply slowdown sets in where the card is full.
	Knee int
	// StepPower is a, and Busy q: 0 = T counts however busy the members keep the card. StepOdds is b where every
	// member's iteration time is known, Odds elsewhere.
	StepPower, StepOdds, Odds float64
	Busy                      float64
	// Unseen is the standard deviation of slowdowns where the law sees none, in units of that of a predicted excess of 1.
	Unseen float64
	// CorePower reduces the demand of a process with kernels that leave SMs idle: u is GPU · min(1,
	// Core/GPU/usualCore)^CorePower.
	CorePower float64
}

const (
	// epsilon is ε: the odds hardly differ at utilisations above 1−ε.
	epsilon = 0.02
	// maxWeight bounds the ratio of two weights: the fitted data has none above 6.4.
	maxWeight = 6.0
	// usualCore is the SM activity ÷ utilisation of a training job, an assumption:
	// kernels that leave fewer SMs idle get no credit.
	usualCore = 0.85
	minWeight = 1e-9
	// onStack is how many members need no allocation.
	onStack = 32
)

// member is a Demand in the law's terms.
type member struct {
	use    float64
	weight float64 // odds^b
	step   float64 // ln T
	busy   float64 // a · u^q
	sated  bool    // takes its whole demand, less than its fair part
}

// Slowdowns writes each member's slowdown (time together ÷ alone, ≥ 1) into dst, reusing its
// storage, and returns it. It allocates nothing where dst has room and d has at most 32 members.
//
// PCIe: where demands exceed the link's throughput, members wait in proportion to their own use of
// it. That is an assumption; no measured pairs of PCIe-bound jobs are published.
func (l *Law) Slowdowns(dst []float64, d []Demand) []float64 {
	dst = dst[:0]
	if len(d) == 1 {
		return append(dst, 1)
	}
	var stack [onStack]member
	ms := stack[:0]
	link, steps := 0.0, true
	for i := range d {
		link += d[i].PCIe
		steps = steps && d[i].StepS > 0 && d[i].StepS <= math.MaxFloat64
	}
	for i := range d {
		ms = append(ms, l.member(&d[i], steps))
	}
	for i := range ms {
		s := smoothMax(ms[i].use/l.offered(ms, i), l.Knee)
		if over := link - 1; over > 0 {
			s *= 1 + d[i].PCIe*over
		}
		dst = append(dst, s)
	}
	return dst
}

// Use is u, the part of the capacity that a demand needs.
func (l *Law) Use(d *Demand) float64 {
	if part := d.Core / (usualCore * d.GPU); part > 0 && part < 1 {
		return d.GPU * math.Pow(part, l.CorePower)
	}
	return d.GPU
}

func (l *Law) member(d *Demand, steps bool) member {
	m := member{use: l.Use(d)}
	power := l.Odds
	if steps {
		power = l.StepOdds
		m.step, m.busy = math.Log(d.StepS), l.StepPower*math.Pow(d.GPU, l.Busy)
	}
	m.weight = max(minWeight, math.Pow(d.GPU/(1-d.GPU+epsilon), power))
	return m
}

// weightOf returns the ratio of b's weight to m's.
func (m *member) weightOf(b *member) float64 {
	ratio := b.weight / m.weight
	switch longer := b.step - m.step; {
	case longer > 0:
		ratio *= math.Exp(longer * b.busy)
	case longer < 0:
		ratio *= math.Exp(longer * m.busy)
	}
	return min(maxWeight, max(1/maxWeight, ratio))
}

// offered returns what fair queueing leaves for member i if i takes all it can get: the capacity is divided by weight,
// a member with less demand than its part takes that, and the rest is divided again.
func (l *Law) offered(ms []member, i int) float64 {
	for j := range ms {
		ms[j].sated = j == i
	}
	left := l.Capacity
	for {
		weights := 1.0 // i's own
		for j := range ms {
			if !ms[j].sated {
				weights += ms[i].weightOf(&ms[j])
			}
		}
		taken := 0.0
		again := false
		for j := range ms {
			if !ms[j].sated && ms[j].use*weights <= left*ms[i].weightOf(&ms[j]) {
				ms[j].sated, again = true, true
				taken += ms[j].use
			}
		}
		if !again {
			return left / weights
		}
		left -= taken
	}
}

// smoothMax returns (1 + x^p)^(1/p) for p = 2^knee.
func smoothMax(x float64, knee int) float64 {
	for range knee {
		x *= x
	}
	x++
	for range knee {
		x = math.Sqrt(x)
	}
	return x
}

// Busy returns the fraction of time in which any member's kernel runs, given the members'
// slowdowns; 0 without members. A process with kernels that take a fraction u of its solo time
// leaves the GPU idle for (1−u) of that time, regardless of how long the kernels get, so slowed by
// s it leaves it idle for (1−u)/s of the time. Under MPS members overlap independently.
func Busy(d []Demand, slow []float64) float64 {
	idle := 1.0
	for i := range d {
		idle *= (1 - d[i].GPU) / slow[i]
	}
	return 1 - idle
}
