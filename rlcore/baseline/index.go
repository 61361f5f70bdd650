package baseline

import (
	"math/bits"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Index values combinations by how fast the sum of all turnarounds shrinks with them. It keeps
// scratch and is not safe for concurrent use.
//
// A second of work on a job is worth a second to the job itself, and something to the jobs that wait behind it. If the
// queue is served in the order of the work that is left, shortest first, these are the longer ones, and each has its
// turn earlier by 1 / (GPUs · rate), where rate is what a shared GPU does. So
//
//	index = Σ over the jobs on the GPU of (1 + longer / (GPUs · rate)) / slowdown
//
// If no job waits, that is the rate of work. If many wait, it is shortest remaining processing time (Schrage, 1968)
// under slowdowns: short jobs come first, and a job shares their GPU only if it gains more than it holds them up.
type Index struct {
	Predictor rlcore.Predictor
	// Rates are the rates of work with the combinations of the last Score, in seconds of solo work
	// a second, and Behind what their work is worth to the waiting jobs.
	Rates, Behind []float64
	// Unit is the most that a second of work could be worth: to itself, and to all that wait.
	Unit float64

	group Group
	// What waits for a second of work on a running job, and on a job of the window: the
	// longer jobs, each as one over the GPUs that it may use.
	running, window []float64
	share, work     []float64 // of the window's jobs: one over their GPUs; s
	jobs            []int     // of a combination
}

// sampled is how many pending jobs stand for the whole queue.
const sampled = 256

// Score writes the index of each combination into dst.
func (x *Index) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	x.count(w)
	x.Rates, x.Behind = x.Rates[:0], x.Behind[:0]
	x.group.Predictor = x.Predictor
	best := 1.0
	for _, c := range combos {
		x.group.Consider(w, c)
		x.Rates = append(x.Rates, x.group.Rate())
		x.Behind = append(x.Behind, x.behind(c))
		best = max(best, x.Rates[len(x.Rates)-1])
	}
	x.Unit = 1 + longer(w.State, w.GPU, -1)/best
	for k := range combos {
		x.Behind[k] /= best
		dst[k] = x.Rates[k] + x.Behind[k]
	}
}

// count counts the jobs that wait behind each job.
func (x *Index) count(w *rlcore.Window) {
	s := w.State
	card := w.Card()
	x.running, x.window = slices.Grow(x.running[:0], len(card.Running)), slices.Grow(x.window[:0], len(w.Jobs))
	x.share, x.work = x.share[:0], x.work[:0]
	for i := range card.Running {
		x.running = append(x.running, longer(s, w.GPU, card.Running[i].LeftS()))
	}
	for i := range w.Jobs {
		j := w.Job(i)
		x.share, x.work = append(x.share, shareOf(s, j)), append(x.work, j.WorkS())
		x.window = append(x.window, longer(s, w.GPU, j.WorkS()))
	}
}

// shareOf is one over the number of GPUs that the job may use.
func shareOf(s *rlcore.State, j *rlcore.Job) float64 {
	return 1 / float64(max(1, j.GPUs.Len(len(s.GPUs))))
}

// longer counts the pending jobs that may use GPU g and take longer than workS s, each as its shareOf.
func longer(s *rlcore.State, g int, workS float64) float64 {
	n := min(len(s.Pending), sampled)
	sum := 0.0
	for i := range n {
		if j := &s.Pending[i]; j.WorkS() > workS && j.MayUse(g) {
			sum += shareOf(s, j)
		}
	}
	return sum * float64(len(s.Pending)) / float64(max(1, n))
}

// behind is Σ longer / (GPUs · slowdown) over the group that was looked at: that of c.
func (x *Index) behind(c rlcore.Combo) float64 {
	x.jobs = x.jobs[:0]
	for ; c != 0; c &= c - 1 {
		x.jobs = append(x.jobs, bits.TrailingZeros32(uint32(c)))
	}
	sum := 0.0
	for i := range x.running {
		sum += max(0, x.running[i]-x.joining(x.group.LeftS[i])) / x.group.Pred[i].Slowdown
	}
	for k, i := range x.jobs {
		sum += max(0, x.window[i]-x.joining(x.work[i])) / x.group.Pred[len(x.running)+k].Slowdown
	}
	return sum
}

// joining counts the jobs of the combination that take longer than workS s, as longer does: they don't wait.
func (x *Index) joining(workS float64) float64 {
	sum := 0.0
	for _, i := range x.jobs {
		if x.work[i] > workS {
			sum += x.share[i]
		}
	}
	return sum
}

// Group holds the jobs that would be on a window's GPU, and what is expected of each. It reuses its
// storage and is not safe for concurrent use.
type Group struct {
	Predictor rlcore.Predictor

	// By member, the running jobs first: its profile, nil = unknown; its predicted slowdown;
	// the solo work that it has left, s.
	Members []*rlcore.Profile
	Pred    []rlcore.Prediction
	LeftS   []float64
}

// Consider sets the group to the running jobs of the window's GPU and the jobs of c.
func (g *Group) Consider(w *rlcore.Window, c rlcore.Combo) {
	g.Members, g.LeftS = g.Members[:0], g.LeftS[:0]
	card := w.Card()
	for i := range card.Running {
		r := &card.Running[i]
		g.Members, g.LeftS = append(g.Members, r.Profile), append(g.LeftS, r.LeftS())
	}
	for i := range w.Jobs {
		if c.Has(i) {
			j := w.Job(i)
			g.Members, g.LeftS = append(g.Members, j.Profile), append(g.LeftS, j.WorkS())
		}
	}
	n := len(g.Members)
	g.Pred = slices.Grow(g.Pred[:0], n)[:n]
	if n < 2 || slices.Contains(g.Members, nil) {
		for i := range g.Pred {
			g.Pred[i] = rlcore.Prediction{Slowdown: float64(n)} // an unknown job runs alone
		}
		return
	}
	g.Predictor.Predict(g.Pred, &card.Spec, g.Members)
}

// Rate is the group's rate of work, in seconds of solo work a second.
func (g *Group) Rate() float64 {
	sum := 0.0
	for i := range g.Pred {
		sum += 1 / g.Pred[i].Slowdown
	}
	return sum
}
