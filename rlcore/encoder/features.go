// Package encoder turns a decision into numbers for a network: either a few figures per combination (Features) or the
// thesis's images (Images). Training, experiments and the live bridge use the same code.
package encoder

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Version numbers the meaning of what Features and Images write. A network knows its inputs by position alone, so
// adding, dropping or redefining a figure must raise it; checkpoints of another version are refused.
const Version = 2

// Numbers of figures that describe a situation, and a combination in it.
const (
	ContextLen = 19
	ComboLen   = 32
)

const (
	queueLook = 64   // pending jobs that the situation describes
	lightGPU  = 0.6  // below it a job's mean GPU use counts as light
	smallMem  = 0.35 // below it a job's peak memory counts as small, as a fraction of the card's
	maxKnown  = 4096 // profiles with stored figures
)

// Features describes each combination by figures without unit, so that neither M, nor the number of GPUs, nor the
// length of jobs is built into a network. Times are in units of the jobs' mean solo duration (ScaleS).
type Features struct {
	Predictor rlcore.Predictor
	// Objective is what the network that reads them is for: it says which combinations are
	// described where there are more than Max.
	Objective policy.Objective
	// Max bounds the described combinations: waiting, and those that keep the promise with the highest index (see
	// baseline.Index), or for the makespan the highest throughput. 0 = all.
	Max int

	// ScaleS is the unit of time of the last Encode, s.
	ScaleS float64
	// Context describes the last situation: ContextLen figures.
	Context []float64
	// Combos are the combinations that are described, Rows their figures, len(Combos) × ComboLen. Throughput is the rate
	// of work on the GPU with each of them, in seconds of solo work per second.
	Combos     []rlcore.Combo
	Rows       []float64
	Throughput []float64
	// Index is baseline.Index of each of them, in units of Unit: what a second of work can be worth at most.
	Index []float64
	Unit  float64

	known map[*rlcore.Profile]jobFigures
	card  rlcore.GPUSpec // the card that known is for
	group baseline.Group
	index baseline.Index
	worth []float64 // index of every combination
	order []int
	all   []float64 // what every combination is ranked by
	// Of the last context: the window's jobs, the GPU's running jobs and after them a combination's, the pending jobs.
	window, members []jobFigures
	queue           loadMix
}

// Encode describes the window and its combinations. The results are valid until the next call.
func (f *Features) Encode(w *rlcore.Window, combos []rlcore.Combo) {
	f.index.Predictor = f.Predictor
	f.worth = slices.Grow(f.worth[:0], len(combos))[:len(combos)]
	f.index.Score(f.worth, w, combos)
	f.Unit = f.index.Unit
	f.choose(w, combos)
	f.encodeContext(w)
	f.Rows = slices.Grow(f.Rows[:0], len(f.Combos)*ComboLen)[:len(f.Combos)*ComboLen]
	f.Throughput = f.Throughput[:0]
	before, best := f.throughput(w, 0), 0.0
	for _, x := range f.Index {
		best = max(best, x)
	}
	for k, c := range f.Combos {
		x := f.Rows[k*ComboLen : (k+1)*ComboLen]
		f.Throughput = append(f.Throughput, f.encodeRow(x, w, c, before))
		x[rowIndex], x[rowIndexLess] = f.Index[k]/2, f.Index[k]-best
	}
}

// choose sets the combinations to describe.
func (f *Features) choose(w *rlcore.Window, combos []rlcore.Combo) {
	f.order = f.order[:0]
	for i := range combos {
		f.order = append(f.order, i)
	}
	if f.Max > 0 && len(combos) > f.Max {
		by := f.worth
		if f.Objective == policy.Makespan {
			by = f.index.Rates
		}
		f.all = append(f.all[:0], by...)
		if combos[0] == 0 {
			f.all[0] = math.Inf(1) // waiting is always described
		}
		slices.SortStableFunc(f.order, func(a, b int) int { return cmp.Compare(f.all[b], f.all[a]) })
		n := 0
		for _, k := range f.order {
			if n < f.Max && w.Keeps(combos[k]) {
				f.order[n] = k
				n++
			}
		}
		f.order = f.order[:n]
		slices.Sort(f.order)
	}
	f.Combos, f.Index = f.Combos[:0], f.Index[:0]
	for _, i := range f.order {
		f.Combos, f.Index = append(f.Combos, combos[i]), append(f.Index, f.worth[i]/f.Unit)
	}
}

// throughput returns the GPU's rate of work with combination c. It leaves the group in f.
func (f *Features) throughput(w *rlcore.Window, c rlcore.Combo) float64 {
	f.group.Predictor = f.Predictor
	f.group.Consider(w, c)
	return f.group.Rate()
}

// jobFigures is what a job takes of a card: work in s, the rest as fractions.
type jobFigures struct {
	work                 float64
	gpu, mem, peak, pcie float64
}

func (f *Features) figures(j *rlcore.Job, spec *rlcore.GPUSpec) jobFigures {
	p := j.Profile
	if p == nil {
		return jobFigures{work: j.WorkS(), gpu: 1, mem: 1, peak: 1}
	}
	if f.known == nil || f.card != *spec || len(f.known) > maxKnown {
		f.known, f.card = map[*rlcore.Profile]jobFigures{}, *spec
	}
	if x, ok := f.known[p]; ok {
		return x
	}
	mean, peak := p.Mean(), p.Peak()
	x := jobFigures{
		work: p.DurationS, gpu: mean.GPU, mem: spec.MemPart(mean.MemMiB), peak: spec.MemPart(peak.MemMiB),
	}
	if spec.PCIeMBps > 0 {
		x.pcie = mean.PCIeMBps / spec.PCIeMBps
	}
	f.known[p] = x
	return x
}

// loadMix sums up jobs, weighted by their work; light, small and heavy are the work
// of jobs with light GPU use, with small memory, and with neither.
type loadMix struct {
	work, gpu, mem, peak, light, small, heavy float64
}

func (m *loadMix) add(x jobFigures) {
	m.work += x.work
	m.gpu += x.work * x.gpu
	m.mem += x.work * x.mem
	m.peak += x.work * x.peak
	if x.gpu < lightGPU {
		m.light += x.work
	}
	if x.peak < smallMem {
		m.small += x.work
	}
	if x.gpu > lightGPU && x.peak > smallMem {
		m.heavy += x.work
	}
}

// per divides the sums by the work.
func (m *loadMix) per() loadMix {
	all := max(m.work, 1e-9)
	return loadMix{m.work, m.gpu / all, m.mem / all, m.peak / all, m.light / all, m.small / all, m.heavy / all}
}

// encodeContext describes the GPU and the queue.
func (f *Features) encodeContext(w *rlcore.Window) {
	card := w.Card()
	spec := &card.Spec
	f.window = f.window[:0]
	for i := range w.Jobs {
		f.window = append(f.window, f.figures(w.Job(i), spec))
	}
	var mix loadMix
	seen, longest := 0, 0.0
	for i := range min(len(w.State.Pending), queueLook) {
		j := &w.State.Pending[i]
		if !j.MayUse(w.GPU) {
			continue
		}
		x := f.figures(j, spec)
		seen++
		mix.add(x)
		longest = max(longest, x.work)
	}
	rate := f.throughput(w, 0)
	running, held := 0.0, 0.0
	soonest, latest := math.Inf(1), 0.0
	f.members = f.members[:0]
	for i := range card.Running {
		r := &card.Running[i]
		f.members = append(f.members, f.figures(&r.Job, spec))
		left := f.group.LeftS[i]
		running += left
		soonest, latest = min(soonest, left*f.group.Pred[i].Slowdown), max(latest, left*f.group.Pred[i].Slowdown)
		if r.Profile != nil {
			held += spec.MemPart(r.Profile.Peak().MemMiB)
		}
	}
	if len(card.Running) == 0 {
		soonest = 0
	}
	f.ScaleS = 1
	if total := float64(seen + len(card.Running)); total > 0 {
		f.ScaleS = max(1, (mix.work+running)/total)
	}
	idle := 0
	for g := range w.State.GPUs {
		if len(w.State.GPUs[g].Running) == 0 {
			idle++
		}
	}
	f.queue = mix.per()
	q := &f.queue
	gpus := float64(len(w.State.GPUs))
	f.Context = append(
		f.Context[:0],
		1,
		math.Log1p(float64(len(w.State.Pending))/gpus)/4,
		math.Log1p(mix.work/f.ScaleS/gpus)/4,
		q.gpu, q.mem, q.peak, q.light, q.small, q.heavy,
		float64(len(card.Running))/5,
		rate/2,
		min(4, latest/f.ScaleS), min(4, soonest/f.ScaleS), min(8, running/f.ScaleS)/2,
		held,
		float64(idle)/gpus,
		float64(len(w.Jobs))/rlcore.MaxWindow,
		min(4, longest/f.ScaleS),
		math.Log(f.Unit)/4,
	)
}

// The figures of a row that depend on the positions of the combination's jobs in the window.
const (
	rowMeanRank = 20
	rowFirst    = 21
	rowUnused   = 22 // 0: networks are older than the rule that it was for
)

// The figures of a row that are the index: in units of Unit, and less the largest.
const rowIndex, rowIndexLess = 30, 31

// encodeRow writes the figures of one combination into x, ComboLen long, and returns
// its throughput; before is that of waiting.
func (f *Features) encodeRow(x []float64, w *rlcore.Window, c rlcore.Combo, before float64) float64 {
	after := f.throughput(w, c)
	var fresh, longest, ranks float64 // of the jobs that c starts: work, s, and the sum of their positions
	var rest loadMix                  // of the other ones
	f.members = f.members[:len(w.Card().Running)]
	for i, j := range f.window {
		if !c.Has(i) {
			rest.add(j)
			continue
		}
		f.members = append(f.members, j)
		fresh, longest, ranks = fresh+j.work, max(longest, j.work), ranks+float64(i)
	}
	rest = rest.per()
	n := float64(len(f.members))
	var gpu, mem, peak, pcie, work float64
	var worst, mean, sd float64                      // of slowdowns less 1
	end, soonest, stretched := 0.0, math.Inf(1), 0.0 // the last and the first end, and the sum of all
	leastStep, mostStep := math.Inf(1), 0.0          // time of an iteration
	for k, j := range f.members {
		p, left := f.group.Pred[k], f.group.LeftS[k]
		gpu, mem, peak, pcie, work = gpu+j.gpu, mem+j.mem, peak+j.peak, pcie+j.pcie, work+left
		worst, mean, sd = max(worst, p.Slowdown-1), mean+(p.Slowdown-1)/n, max(sd, p.SD)
		t := left * p.Slowdown
		end, soonest, stretched = max(end, t), min(soonest, t), stretched+t
		if profile := f.group.Members[k]; profile != nil && profile.StepS > 0 {
			leastStep, mostStep = min(leastStep, profile.StepS), max(mostStep, profile.StepS)
		}
	}
	overlap, grain := 0.0, 0.0
	if end > 0 {
		overlap = stretched / end / n
	}
	if mostStep > 0 {
		grain = math.Log(mostStep/leastStep) / 4
	}
	if n == 0 {
		soonest = 0
	}
	wait, first := 1.0, 0
	if c != 0 {
		wait, first = 0, bits.TrailingZeros32(uint32(c))
	}
	m := max(1, float64(len(w.Jobs)))
	jobs := float64(c.Len())
	s := f.ScaleS
	copy(x, []float64{
		wait, jobs / 5, n / 5,
		after / 2, after - before, after / max(1, n),
		min(3, worst), min(3, mean), sd,
		gpu / 2, mem, peak, pcie, max(0, gpu-1),
		min(8, work/s) / 2, min(8, end/s) / 2, min(8, soonest/s) / 2, overlap,
		min(8, fresh/s) / 2, min(8, longest/s) / 2,
		rowMeanRank: ranks / max(1, jobs) / m,
		rowFirst:    float64(first) / m,
		rowUnused:   0,
		rest.gpu, rest.peak, rest.light, rest.gpu - f.queue.gpu, rest.peak - f.queue.peak,
		grain, min(4, work/max(after, 1)/s),
	})
	return after
}
