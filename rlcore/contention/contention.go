// Package contention is the one law by which sharers of a GPU slow each other.
// The simulated GPU computes by it, the simulator runs on it, and the
// interference model starts from it.
//
// The law is weighted fair sharing of a capacity that is conserved:
//
//	Σ_j u_j / s_j ≤ K                  what all get done, in units of the whole card
//	o_i = what fair queueing offers i  when i would take all it can get and each
//	                                   other j takes no more than u_j; weights w_j
//	s_i = (1 + (u_i / o_i)^p)^(1/p)    a smooth max(1, u_i / o_i)
//
// u is what a process asks for alone. The card serves kernel by kernel, so the
// weights are the lengths of the kernels: who launches long ones makes one who
// launches short ones wait. No profile has kernel lengths; two figures grow with
// them. One is the time of an iteration T. The other is u/(1−u), the length of a
// kernel over the gap that the host leaves before the next one. So
//
//	w = T^a · (u/(1 − u + ε))^b
//
// with a = 0 where some member's T is unknown.
package contention

import "math"

// Demand is what one process asks of a GPU at an instant when it runs alone.
type Demand struct {
	GPU   float64 // fraction of time a kernel runs, 0..1
	Core  float64 // fraction of the SMs that are busy, 0..1; 0 = unknown
	PCIe  float64 // fraction of the link's throughput, 0..1
	StepS float64 // time of one iteration, s; 0 = unknown
}

// Law is a contention law. See laws.go for those that are fitted.
type Law struct {
	Name string
	// Capacity is K: what all members together get done in a second, in seconds
	// of work alone. Over 1 where kernels of several processes overlap.
	Capacity float64
	// Knee is log2 of p: how sharply slowing sets in where the card is full.
	Knee int
	// StepPower is a, StepOdds b where every member's iteration time is known;
	// Odds is b elsewhere.
	StepPower, StepOdds, Odds float64
	// CorePower is how much a process whose kernels leave SMs idle asks less: u is
	// GPU · min(1, Core/GPU/usualCore)^CorePower.
	CorePower float64
}

const (
	// busiest is ε: at a utilisation of 1−ε and more the odds say nothing further.
	busiest = 0.02
	// maxWeight bounds the ratio of two weights: the fit saw none above 6.4, and an
	// iteration of one program isn't an iteration of another.
	maxWeight = 6.0
	// usualCore is the SM activity over the utilisation of a training job (an
	// assumption): kernels that leave no more idle aren't credited for it.
	usualCore = 0.85
	// tiny stands for the weight of one that asks for nothing.
	tiny = 1e-9
	// onStack is how many members need no allocation.
	onStack = 32
)

// member is a Demand in the law's terms.
type member struct {
	use, weight float64
	sated       bool // takes what it asks for, less than its fair part
}

// Slowdowns writes each member's slowdown (time together over time alone, ≥ 1)
// into dst, whose storage it reuses, and returns it. It allocates nothing where
// dst has room and d has at most 32 members.
//
// PCIe: beyond the link's throughput members wait in proportion to their own use
// of it. That is an assumption; nobody publishes pairs of PCIe-bound jobs.
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

func (l *Law) member(d *Demand, steps bool) member {
	m := member{use: d.GPU}
	if part := d.Core / (usualCore * d.GPU); part > 0 && part < 1 {
		m.use *= math.Pow(part, l.CorePower)
	}
	odds := d.GPU / (1 - d.GPU + busiest)
	if steps {
		m.weight = math.Pow(d.StepS, l.StepPower) * math.Pow(odds, l.StepOdds)
	} else {
		m.weight = math.Pow(odds, l.Odds)
	}
	m.weight = max(m.weight, tiny)
	return m
}

// offered is what fair queueing leaves for member i if it takes all it can get:
// the capacity is divided by weight, who asks for less than his part takes what
// he asks for, and the rest is divided again.
func (l *Law) offered(ms []member, i int) float64 {
	for j := range ms {
		ms[j].sated = j == i
	}
	ratio := func(j int) float64 {
		return min(maxWeight, max(1/maxWeight, ms[j].weight/ms[i].weight))
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

// smoothMax is (1 + x^p)^(1/p) for p = 2^knee.
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
