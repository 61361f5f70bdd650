// Package encoder turns a decision into numbers for a network: either a few
// figures per combination (Features), or the thesis's images (Images). The same
// code serves training, experiments and the live bridge.
package encoder

import (
	"cmp"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// The number of figures that describe a situation, and a combination in it.
const (
	ContextLen = 18
	ComboLen   = 30
)

// queueLook is how many pending jobs the picture of the queue is drawn from.
const queueLook = 64

// Features describes each combination by figures without unit, so that neither
// M, nor the number of GPUs, nor the length of jobs is built into a network.
// Times are measured in the mean solo duration of the jobs in sight (ScaleS).
type Features struct {
	Predictor rlcore.Predictor
	// Max is how many combinations are described at most: those of the highest
	// predicted throughput, and waiting. 0 = all.
	Max int

	// ScaleS is the unit of time of the last Encode, s.
	ScaleS float64
	// Context is the last situation, ContextLen figures.
	Context []float64
	// Combos are the combinations described, Rows their figures, len(Combos) ×
	// ComboLen; Throughput is what the GPU's work rate would be with each, in
	// seconds of solo work a second.
	Combos     []rlcore.Combo
	Rows       []float64
	Throughput []float64

	known   map[*rlcore.Profile]jobFigures
	card    rlcore.GPUSpec // the card known is for
	members []*rlcore.Profile
	pred    []rlcore.Prediction
	left    []float64 // solo work left of members, s
	order   []int
	all     []float64 // throughput of every combination
	window  []jobFigures
}

// jobFigures is what is needed of a pending job again and again.
type jobFigures struct {
	known          bool
	work           float64 // s
	gpu, mem, peak float64 // fractions of the card
	pcie           float64
}

func (f *Features) figures(j *rlcore.Job, spec *rlcore.GPUSpec) jobFigures {
	p := j.Profile
	if p == nil {
		work := j.LimitS
		if work == 0 {
			work = 3600
		}
		return jobFigures{work: work, gpu: 1, mem: 1, peak: 1}
	}
	if f.known == nil || f.card != *spec || len(f.known) > 4096 {
		f.known, f.card = map[*rlcore.Profile]jobFigures{}, *spec
	}
	if x, ok := f.known[p]; ok {
		return x
	}
	mean, peak := p.Mean(), p.Peak()
	x := jobFigures{known: true, work: p.DurationS, gpu: mean.GPU, mem: mean.MemMiB / spec.MemMiB, peak: peak.MemMiB / spec.MemMiB}
	if spec.PCIeMBps > 0 {
		x.pcie = mean.PCIeMBps / spec.PCIeMBps
	}
	f.known[p] = x
	return x
}

// throughput is the work rate of the GPU with combination c, and what the figures
// of a row need besides. Members are the running jobs, then c's.
func (f *Features) throughput(w *rlcore.Window, c rlcore.Combo) float64 {
	f.members = f.members[:0]
	card := w.Card()
	for i := range card.Running {
		f.members = append(f.members, card.Running[i].Profile)
	}
	for i := range w.Jobs {
		if c.Has(i) {
			f.members = append(f.members, w.Job(i).Profile)
		}
	}
	n := len(f.members)
	if cap(f.pred) < n {
		f.pred = make([]rlcore.Prediction, n, 2*n)
	}
	f.pred = f.pred[:n]
	if n == 0 {
		return 0
	}
	if n == 1 || slices.Contains(f.members, nil) {
		for i := range f.pred {
			f.pred[i] = rlcore.Prediction{Slowdown: float64(n)}
		}
		return 1
	}
	f.Predictor.Predict(f.pred, &card.Spec, f.members)
	sum := 0.0
	for i := range f.pred {
		sum += 1 / f.pred[i].Slowdown
	}
	return sum
}

// Encode describes the window and its combinations. What it writes is valid until
// the next call.
func (f *Features) Encode(w *rlcore.Window, combos []rlcore.Combo) {
	f.choose(w, combos)
	f.context(w)
	f.Rows = slices.Grow(f.Rows[:0], len(f.Combos)*ComboLen)[:len(f.Combos)*ComboLen]
	f.Throughput = f.Throughput[:0]
	before := f.throughput(w, 0)
	for k, c := range f.Combos {
		f.Throughput = append(f.Throughput, f.row(f.Rows[k*ComboLen:(k+1)*ComboLen], w, c, before))
	}
}

// choose picks the combinations to describe.
func (f *Features) choose(w *rlcore.Window, combos []rlcore.Combo) {
	f.Combos = append(f.Combos[:0], combos...)
	if f.Max == 0 || len(combos) <= f.Max {
		return
	}
	f.all, f.order = f.all[:0], f.order[:0]
	for i, c := range combos {
		t := f.throughput(w, c)
		if c == 0 {
			t = math.Inf(1) // waiting is always described
		}
		f.all, f.order = append(f.all, t), append(f.order, i)
	}
	slices.SortStableFunc(f.order, func(a, b int) int { return cmp.Compare(f.all[b], f.all[a]) })
	f.order = f.order[:f.Max]
	slices.Sort(f.order)
	f.Combos = f.Combos[:0]
	for _, i := range f.order {
		f.Combos = append(f.Combos, combos[i])
	}
}

// context draws the picture of the GPU and the queue.
func (f *Features) context(w *rlcore.Window) {
	card := w.Card()
	spec := &card.Spec
	f.window = f.window[:0]
	for i := range w.Jobs {
		f.window = append(f.window, f.figures(w.Job(i), spec))
	}
	var work, gpu, mem, peak, light, small, busyMem, longest float64
	n := min(len(w.State.Pending), queueLook)
	seen := 0
	for i := range n {
		j := &w.State.Pending[i]
		if !j.MayUse(w.GPU) {
			continue
		}
		x := f.figures(j, spec)
		seen++
		work += x.work
		gpu += x.work * x.gpu
		mem += x.work * x.mem
		peak += x.work * x.peak
		longest = max(longest, x.work)
		if x.gpu < 0.6 {
			light += x.work
		}
		if x.peak < 0.35 {
			small += x.work
		}
		if x.gpu > 0.6 && x.peak > 0.35 {
			busyMem += x.work
		}
	}
	running := 0.0
	least, most := math.Inf(1), 0.0
	now := f.throughput(w, 0)
	held := 0.0
	for i := range card.Running {
		r := &card.Running[i]
		left := leftOf(r)
		running += left
		least, most = min(least, left*f.pred[i].Slowdown), max(most, left*f.pred[i].Slowdown)
		if r.Profile != nil {
			held += r.Profile.Peak().MemMiB / spec.MemMiB
		}
	}
	if len(card.Running) == 0 {
		least = 0
	}
	f.ScaleS = 1
	if total := float64(seen + len(card.Running)); total > 0 {
		f.ScaleS = max(1, (work+running)/total)
	}
	idle := 0
	for g := range w.State.GPUs {
		if len(w.State.GPUs[g].Running) == 0 {
			idle++
		}
	}
	all := max(work, 1e-9)
	gpus := float64(len(w.State.GPUs))
	f.Context = append(
		f.Context[:0],
		1,
		math.Log1p(float64(len(w.State.Pending))/gpus)/4,
		math.Log1p(work/f.ScaleS/gpus)/4,
		gpu/all, mem/all, peak/all, light/all, small/all, busyMem/all,
		float64(len(card.Running))/5,
		now/2,
		min(4, most/f.ScaleS), min(4, least/f.ScaleS), min(8, running/f.ScaleS)/2,
		held,
		float64(idle)/gpus,
		float64(len(w.Jobs))/rlcore.MaxWindow,
		min(4, longest/f.ScaleS),
	)
}

// leftOf is the solo work left of a running job, s.
func leftOf(r *rlcore.Running) float64 {
	if r.Profile == nil {
		return max(0, r.LimitS-r.ElapsedS)
	}
	return max(0, r.Profile.DurationS-r.DoneS)
}

// row writes one combination's figures and returns its throughput.
func (f *Features) row(x []float64, w *rlcore.Window, c rlcore.Combo, before float64) float64 {
	card := w.Card()
	spec := &card.Spec
	after := f.throughput(w, c)
	n := len(f.members)
	f.left = f.left[:0]
	var gpu, mem, peak, pcie, work, worst, mean, sd, end, soonest, stretched float64
	fresh, longest, rank, passed, first := 0, 0.0, 0.0, 0.0, -1
	soonest = math.Inf(1)
	least, most := math.Inf(1), 0.0
	add := func(i int, j jobFigures, left float64) {
		p := f.pred[i]
		gpu, mem, peak, pcie = gpu+j.gpu, mem+j.mem, peak+j.peak, pcie+j.pcie
		work += left
		worst, mean = max(worst, p.Slowdown-1), mean+(p.Slowdown-1)/float64(n)
		sd = max(sd, p.SD)
		t := left * p.Slowdown
		end, soonest, stretched = max(end, t), min(soonest, t), stretched+t
		if q := f.members[i]; q != nil && q.StepS > 0 {
			least, most = min(least, q.StepS), max(most, q.StepS)
		}
	}
	for i := range card.Running {
		add(i, f.figures(&card.Running[i].Job, spec), leftOf(&card.Running[i]))
	}
	var newWork float64
	var rest, restGPU, restPeak, restLight float64
	k := len(card.Running)
	for i := range w.Jobs {
		j := f.window[i]
		if c.Has(i) {
			add(k, j, j.work)
			k++
			fresh++
			newWork += j.work
			longest = max(longest, j.work)
			rank += float64(i)
			if first < 0 {
				first = i
			}
			continue
		}
		rest += j.work
		restGPU += j.work * j.gpu
		restPeak += j.work * j.peak
		if j.gpu < 0.6 {
			restLight += j.work
		}
		if c == 0 || c>>i > 1 { // it waits, or one of lower priority starts
			passed = max(passed, float64(w.Job(i).PassedOver)/5)
		}
	}
	if n == 0 {
		soonest = 0
	}
	wait := 0.0
	if c == 0 {
		wait = 1
	}
	overlap := 0.0
	if end > 0 {
		overlap = stretched / end / float64(n)
	}
	grain := 0.0
	if most > 0 {
		grain = math.Log(most/least) / 4
	}
	rest = max(rest, 1e-9)
	m := max(1, float64(len(w.Jobs)))
	fr := max(1, float64(fresh))
	s := f.ScaleS
	copy(x, []float64{
		wait, float64(fresh) / 5, float64(n) / 5,
		after / 2, after - before, after / max(1, float64(n)),
		min(3, worst), min(3, mean), sd,
		gpu / 2, mem, peak, pcie, max(0, gpu-1),
		min(8, work/s) / 2, min(8, end/s) / 2, min(8, soonest/s) / 2, overlap,
		min(8, newWork/s) / 2, min(8, longest/s) / 2,
		rank / fr / m, float64(max(first, 0)) / m, passed,
		restGPU / rest, restPeak / rest, restLight / rest, restGPU/rest - f.Context[3], restPeak/rest - f.Context[5],
		grain, min(4, work/max(after, 1)/s),
	})
	return after
}
