// Package contention is the one law by which sharers of a GPU slow each other.
// The simulated GPU computes by it, the simulator runs on it, and the
// interference model starts from it.
//
//	slowdown_i = 1 + C · max(0, U − 1)^P · A_i^Q · g_i
//
// U is the sum of all sharers' utilisations, A_i what the others ask for: their
// mean utilisation times the square root of their number, so that n equal
// processes that each fill the card slow by about n. g_i is granularity: the
// others' iteration time over one's own, to the power B, within bounds: who
// launches long kernels makes one who launches short ones wait.
package contention

import "math"

// Demand is what one process asks of a GPU at an instant when it runs alone.
type Demand struct {
	GPU   float64 // fraction of time a kernel runs, 0..1
	Core  float64 // fraction of the SMs that are busy, 0..1
	PCIe  float64 // fraction of the link's throughput, 0..1
	StepS float64 // time of one iteration, s; 0 = unknown
}

// Exponents are the law's parameters.
type Exponents struct{ C, P, Q, B float64 }

// Law is a contention law.
type Law struct {
	Name string
	// Step holds where every sharer's iteration time is known, NoStep elsewhere.
	Step, NoStep Exponents
	// Fair is time-slicing: sharers take turns, so the others' utilisation counts
	// from the first percent on, not only what exceeds the card.
	Fair bool
}

// MPS is the law under MPS, fitted to the 49 ordered pairs that
// CentaurusInfra/alnair measured (Apache-2.0; absolute slowdowns, GPU unnamed) by
// the smallest mean |log error| on a grid. Median error 3.8 % with iteration
// times and 10.3 % without; leaving each application out in turn 4.8 % and 10.3 %.
// More than two sharers are an extrapolation, held to the median slowdowns of
// 1.24, 1.56 and 1.96 for 2, 3 and 4 that boringlee24/socc22-miso saw at least.
var MPS = Law{
	Name:   "mps",
	Step:   Exponents{C: 0.9, P: 0.5, Q: 1, B: 0.7},
	NoStep: Exponents{C: 1.0, P: 0.25, Q: 3, B: 0},
}

// TimeSlice is the law without MPS. Its one figure is the median slowdown of
// pairs on a P100, 1.69 (stanford-futuredata/gavel, MIT), which has no
// utilisations: that those jobs keep the card busy nine tenths of the time is an
// assumption.
var TimeSlice = Law{
	Name:   "time-slice",
	Step:   Exponents{C: 0.77, P: 0, Q: 1, B: 0},
	NoStep: Exponents{C: 0.77, P: 0, Q: 1, B: 0},
	Fair:   true,
}

// Granularity is bounded: nobody measured ratios beyond.
const minGrain, maxGrain = 0.25, 4

// rounding is what a sum of utilisations may be off by the order of its terms,
// with room for the law's steep start at a full card.
const rounding = 1e-9

// Slowdowns writes each member's slowdown (time together over time alone, ≥ 1)
// into dst, whose storage it reuses, and returns it.
//
// PCIe: beyond the link's throughput members wait in proportion to their own use
// of it. That is an assumption; nobody publishes pairs of PCIe-bound jobs.
func (l *Law) Slowdowns(dst []float64, d []Demand) []float64 {
	dst = dst[:0]
	total, link, steps := 0.0, 0.0, true
	for i := range d {
		total += d[i].GPU
		link += d[i].PCIe
		steps = steps && d[i].StepS > 0
	}
	x := &l.NoStep
	if steps {
		x = &l.Step
	}
	excess := max(0, total-1)
	if l.Fair {
		excess = 1
	}
	head := x.C * math.Pow(excess, x.P)
	if excess < rounding {
		head = 0
	}
	n := float64(len(d) - 1)
	for i := range d {
		s := 1.0
		if n > 0 {
			others := total - d[i].GPU
			grain := 1.0
			if steps && x.B != 0 && others > 0 {
				sum := 0.0
				for j := range d {
					if j != i {
						sum += d[j].GPU * d[j].StepS
					}
				}
				grain = min(maxGrain, max(minGrain, math.Pow(sum/others/d[i].StepS, x.B)))
			}
			a := others / math.Sqrt(n)
			if l.Fair {
				a = others
			}
			s += head * math.Pow(a, x.Q) * grain
			if over := link - 1; over > 0 {
				s *= 1 + d[i].PCIe*over
			}
		}
		dst = append(dst, s)
	}
	return dst
}
