// Package contention is the law by which sharers of a GPU slow each other. The
// simulated GPU and the simulator compute by it, and the interference model starts
// from it.
//
// The law is weighted fair sharing of a conserved capacity K:
//
//	Σ_j u_j / s_j ≤ K                  work done by all, in units of the whole card
//	o_i = what fair queueing offers i  if i took all it can get and each other j took
//	                                   at most u_j; weights w_j
//	s_i = (1 + (u_i / o_i)^p)^(1/p)    a smooth max(1, u_i / o_i)
//
// u is a process's solo demand. The card serves kernel by kernel, so the weights are
// the lengths of the kernels: a process with long kernels makes one with short kernels
// wait. No profile has kernel lengths, but two figures grow with them: the time T of an
// iteration, and u/(1−u), the length of a kernel over the gap before the next one. So
//
//	w = T^a · (u/(1 − u + ε))^b
//
// with a = 0 where some member's T is unknown. Iterations of different programs aren't
// comparable: where the law has a Reach, a ratio of two T beyond it counts as less.
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
	// Capacity is K, in seconds of solo work per second. It exceeds 1 where kernels of
	// several processes overlap.
	Capacity float64
	// Knee is log2 of p: how sharply slowdown sets in where the card is full.
	Knee int
	// StepPower is a. StepOdds is b where every member's iteration time is known, Odds
	// elsewhere.
	StepPower, StepOdds, Odds float64
	// Reach is the largest ratio of two iteration times that is taken at its word; 0 = any.
	Reach float64
	// CorePower reduces the demand of a process with kernels that leave SMs idle: u is GPU · min(1,
	// Core/GPU/usualCore)^CorePower.
	CorePower float64
}

const (
	// epsilon is ε: the odds hardly differ at utilisations above 1−ε.
	epsilon = 0.02
	// maxWeight bounds the ratio of two weights: the fitted data has none above 6.4, and
	// iterations of two programs aren't comparable.
	maxWeight = 6.0
	// usualCore is the SM activity ÷ utilisation of a training job, an assumption:
	// kernels that leave fewer SMs idle get no credit.
	usualCore = 0.85
	minWeight = 1e-9
	// onStack is how many members need no allocation.
	onStack = 32
)

// member is a Demand in the law's terms. Its weight is step · weight.
type member struct {
	use, step, weight float64
	sated             bool // takes its whole demand, less than its fair part
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
	far := reach{full: math.Inf(1)}
	if steps {
		far = l.reach()
	}
	for i := range ms {
		s := smoothMax(ms[i].use/l.offered(ms, i, far), l.Knee)
		if over := link - 1; over > 0 {
			s *= 1 + d[i].PCIe*over
		}
		dst = append(dst, s)
	}
	return dst
}

func (l *Law) member(d *Demand, steps bool) member {
	m := member{use: d.GPU, step: 1}
	if part := d.Core / (usualCore * d.GPU); part > 0 && part < 1 {
		m.use *= math.Pow(part, l.CorePower)
	}
	odds := d.GPU / (1 - d.GPU + epsilon)
	if steps {
		m.step, m.weight = math.Pow(d.StepS, l.StepPower), math.Pow(odds, l.StepOdds)
	} else {
		m.weight = math.Pow(odds, l.Odds)
	}
	m.weight = max(m.weight, minWeight)
	return m
}

// offered returns what fair queueing leaves for member i if i takes all it can get: the
// capacity is divided by weight, a member with less demand than its part takes that,
// and the rest is divided again.
func (l *Law) offered(ms []member, i int, b reach) float64 {
	for j := range ms {
		ms[j].sated = j == i
	}
	ratio := func(j int) float64 {
		return min(maxWeight, max(1/maxWeight, b.believed(ms[j].step/ms[i].step)*ms[j].weight/ms[i].weight))
	}
	left := l.Capacity
	for {
		weights := 1.0 // i's own
		for j := range ms {
			if !ms[j].sated {
				weights += ratio(j)
			}
		}
		taken := 0.0
		again := false
		for j := range ms {
			if !ms[j].sated && ms[j].use*weights <= left*ratio(j) {
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

// reach bounds the ratio of two members' weights by iteration time, (T_j/T_i)^a.
type reach struct{ full, least float64 }

// reach returns the law's; without one ratios aren't bounded.
func (l *Law) reach() reach {
	if l.Reach <= 0 {
		return reach{full: math.Inf(1)}
	}
	return reach{math.Pow(l.Reach, l.StepPower), math.Pow(min(2, l.Reach), l.StepPower)}
}

// believed returns the part of a ratio that counts: up to Reach all of it, and beyond that less and
// less, down to what a ratio of 2 counts. Programs with iterations that differ by so much don't
// mean the same by one.
func (b reach) believed(ratio float64) float64 {
	switch {
	case ratio > b.full:
		return max(b.least, b.full*(b.full/ratio)*(b.full/ratio))
	case ratio*b.full < 1:
		return 1 / b.believed(1/ratio)
	}
	return ratio
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
