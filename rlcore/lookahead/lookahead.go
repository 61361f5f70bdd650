// Package lookahead decides by playing the best few combinations out.
package lookahead

import (
	"cmp"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

var _ = policy.Register(policy.Spec{
	Name: "lookahead", About: "srpt, with its best few combinations played out until the jobs that are known have " +
		"ended; takes longer", Rank: 87,
	Live: true, Contender: true,
	New: func(s policy.Setup) (rlcore.Policy, error) { return New(s.Predictor), nil },
})

const (
	// tried is how many combinations are played out.
	tried = 4
	// nearGPUs and nearJobs bound what a playout knows: the GPU itself and the next ones that
	// the same jobs may use, and the front of the queue.
	nearGPUs, nearJobs = 8, 40
	// steps is after how many decisions a playout ends, and what is left is estimated. A
	// bound in time would let the same window get other scores on a busy machine.
	steps = 60
	// sharedRate is the rate of work that a GPU is taken to have in that estimate.
	sharedRate = 1.5
	// shares is what a job holds in a playout, of 100.
	shares = 20
)

// mostMeans bounds the profiles with stored means.
const mostMeans = 1024

// Policy is rollout (Bertsekas, Tsitsiklis and Wu, Journal of Heuristics 3, 1997) over srpt: each of the combinations
// of the highest index is played out with the predicted slowdowns, under the guard's own rules, with srpt deciding from
// then on. That of the least sum of turnarounds is taken. It knows of no job that hasn't come yet.
type Policy struct {
	index rlcore.Policy
	next  rlcore.Decider
	group baseline.Group
	doubt float64 // 0 = all of the best few are played out

	state   rlcore.State
	means   map[*rlcore.Profile]*rlcore.Profile
	pending []rlcore.Job                      // of the window's State that a playout knows
	gpus    []int                             // likewise, indexes in its GPUs
	to      []int                             // indexes in gpus, by index in its GPUs; −1 = not known
	may     map[*rlcore.GPUSet]*rlcore.GPUSet // see translate
	order   []int
	sums    []float64
	left    []float64
}

// New returns the policy, based on p's predictions.
func New(p rlcore.Predictor) *Policy {
	return &Policy{
		index: baseline.NewSRPT(p), group: baseline.Group{Predictor: p},
		next: rlcore.Decider{Policy: baseline.NewSRPT(p), Guard: rlcore.NewGuard(rlcore.Rules{Predictor: p})},
	}
}

// Guided returns the policy with another one's scores in the place of the index: it chooses what is
// played out. Combinations with a score below the best by more than doubt aren't.
func Guided(by rlcore.Policy, doubt float64, p rlcore.Predictor) *Policy {
	out := New(p)
	out.index, out.doubt = by, doubt
	return out
}

// Name implements rlcore.Policy.
func (*Policy) Name() string { return "lookahead" }

// Under implements rlcore.Foresighted.
func (p *Policy) Under(g *rlcore.Guard, m int) { p.next.Guard.Rules, p.next.M = g.Rules, m }

// Score implements rlcore.Policy. What is played out is worth more than what isn't, by one over
// the seconds by which its sum of turnarounds is above the least, plus 1.
func (p *Policy) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	p.index.Score(dst, w, combos)
	if len(combos) < 2 {
		return
	}
	if combos[0] == 0 && len(w.Card().Running) == 0 {
		// To leave a GPU idle is never worth it: what comes next isn't known.
		dst, combos = dst[1:], combos[1:]
	}
	order, sums := p.Try(dst, w, combos)
	if len(order) == 0 {
		return
	}
	best, least := dst[order[0]], slices.Min(sums)
	for i, k := range order {
		dst[k] = best + 1/(1+sums[i]-least)
	}
}

// Try plays out the combinations of the largest worth among those that keep the promise, best first. It returns their
// indexes and the resulting sums of turnarounds, s; both are valid until the next call.
func (p *Policy) Try(worth []float64, w *rlcore.Window, combos []rlcore.Combo) (order []int, sums []float64) {
	p.order = p.order[:0]
	for k := range combos {
		p.order = append(p.order, k)
	}
	slices.SortStableFunc(p.order, func(a, b int) int { return cmp.Compare(worth[b], worth[a]) })
	best := p.order[:0]
	for _, k := range p.order {
		near := len(best) == 0 || p.doubt == 0 || worth[k] >= worth[best[0]]-p.doubt
		if len(best) < tried && near && !math.IsInf(worth[k], -1) && w.Keeps(combos[k]) {
			best = append(best, k)
		}
	}
	p.order = best
	p.sums = p.sums[:0]
	if p.doubt > 0 && len(p.order) == 1 {
		return p.order, append(p.sums, 0) // there is nothing to decide
	}
	p.choose(w)
	for _, k := range p.order {
		p.sums = append(p.sums, p.play(w, combos[k]))
	}
	return p.order, p.sums
}

// choose chooses what playouts know of the window's State: all of it on few GPUs; otherwise the
// window's GPU with some more GPUs, and a proportional part of the queue, the window's jobs first.
func (p *Policy) choose(w *rlcore.Window) {
	s := w.State
	p.gpus = append(p.gpus[:0], w.GPU)
	p.to = slices.Grow(p.to[:0], len(s.GPUs))[:len(s.GPUs)]
	for g := range p.to {
		p.to[g] = -1
	}
	p.to[w.GPU] = 0
	may := 1
	for k := 1; k < len(s.GPUs); k++ {
		g := (w.GPU + k) % len(s.GPUs)
		if len(w.Jobs) > 0 && !w.Job(0).MayUse(g) {
			continue
		}
		if may++; len(p.gpus) < nearGPUs {
			p.to[g] = len(p.gpus)
			p.gpus = append(p.gpus, g)
		}
	}
	skip := (may + nearGPUs - 1) / nearGPUs // one job of so many is followed
	p.pending = p.pending[:0]
	p.may = map[*rlcore.GPUSet]*rlcore.GPUSet{}
	last := -1
	if n := len(w.Jobs); n > 0 {
		last = w.Jobs[n-1]
	}
	inWindow := 0
	for i := range s.Pending {
		if len(p.pending) == nearJobs {
			break
		}
		isIn := inWindow < len(w.Jobs) && w.Jobs[inWindow] == i
		if isIn {
			inWindow++
		}
		if !isIn && (i <= last || (i-last)%skip != 0 || s.Pending[i].Foreign || !s.Pending[i].MayUse(w.GPU)) {
			continue
		}
		j := s.Pending[i]
		j.Profile, j.ByModel = j.On(w.Card()), nil
		if j.Profile != nil && j.Profile.DurationSD > 0 {
			j.Profile = p.mean(j.Profile)
		}
		j.GPUs, j.PlainSlot = p.translate(j.GPUs), nil
		p.pending = append(p.pending, j)
	}
}

// translate returns a set of the State's GPUs as indexes in gpus.
func (p *Policy) translate(set *rlcore.GPUSet) *rlcore.GPUSet {
	if set == nil {
		return nil
	}
	if p.may[set] == nil {
		var near []int
		for g := range set.Of(len(p.to)) {
			near = append(near, p.to[g]) // −1 is none
		}
		p.may[set] = rlcore.NewGPUSet(near...)
	}
	return p.may[set]
}

// play returns the sum of the times until the known jobs have ended, s, if c starts now and srpt decides from then on.
func (p *Policy) play(w *rlcore.Window, c rlcore.Combo) float64 {
	p.begin(w)
	s, now := &p.state, w.State.NowS
	var jobs []int
	for i := range w.Jobs { // they are the first of pending
		if c.Has(i) {
			jobs = append(jobs, i)
		}
	}
	p.start(0, jobs)
	sum := 0.0
	for decisions := 0; ; {
		g, i, in := p.nextEnd()
		if g < 0 {
			break
		}
		for k := range s.GPUs {
			p.advance(k, in)
		}
		s.NowS += in
		sum += s.NowS - now
		p.end(g, i)
		for k := 0; k < len(s.GPUs) && len(s.Pending) > 0; k++ {
			at := (g + k) % len(s.GPUs)
			d := p.next.Decide(s, at)
			decisions++
			if chosen := d.Jobs(); len(chosen) > 0 {
				p.start(at, chosen)
				k = -1 // all windows have changed
			}
			if decisions >= steps {
				return sum + p.rest(now)
			}
		}
	}
	return sum + p.rest(now)
}

// begin sets the state that is played out to what is known of the window's.
func (p *Policy) begin(w *rlcore.Window) {
	s, src := &p.state, w.State
	s.NowS, s.PlainFreeS = src.NowS, nil
	if len(p.gpus) == len(src.PlainFreeS) && len(p.pending) == len(src.Pending) {
		for _, g := range p.gpus {
			s.PlainFreeS = append(s.PlainFreeS, src.PlainFreeS[g])
		}
	}
	s.GPUs = s.GPUs[:0]
	for _, g := range p.gpus {
		gpu := src.GPUs[g]
		gpu.Running = slices.Clone(gpu.Running)
		for i := range gpu.Running {
			r := &gpu.Running[i]
			if r.Profile != nil && r.Profile.DurationSD > 0 {
				left := r.LeftS()
				r.Profile = p.mean(r.Profile)
				r.DoneS = r.Profile.DurationS - left
			}
		}
		s.GPUs = append(s.GPUs, gpu)
	}
	s.Pending = append(s.Pending[:0], p.pending...)
}

// mean returns a profile with runs that all take the given one's mean duration: playouts use mean lengths.
func (p *Policy) mean(of *rlcore.Profile) *rlcore.Profile {
	if one, ok := p.means[of]; ok {
		return one
	}
	if len(p.means) >= mostMeans || p.means == nil {
		p.means = map[*rlcore.Profile]*rlcore.Profile{}
	}
	one := *of
	one.DurationSD = 0
	p.means[of] = &one
	return &one
}

// start lets pending jobs, by ascending index, start on GPU g.
func (p *Policy) start(g int, jobs []int) {
	s := &p.state
	gpu := &s.GPUs[g]
	members := len(gpu.Running) + len(jobs)
	for _, at := range jobs {
		j := &s.Pending[at]
		x := rlcore.Running{Job: *j, Shares: shares, Whole: j.NoShare || j.Profile == nil}
		x.CPUs, x.HostMemMiB = j.Host(members)
		gpu.Running = append(gpu.Running, x)
		take(gpu, &x.Job, 1)
	}
	for k := len(jobs) - 1; k >= 0; k-- {
		s.Pending = slices.Delete(s.Pending, jobs[k], jobs[k]+1)
	}
}

// nextEnd returns which running job ends next, and in how many seconds; g = −1: none runs.
func (p *Policy) nextEnd() (g, i int, in float64) {
	g, in = -1, math.Inf(1)
	for k := range p.state.GPUs {
		p.group.Consider(&rlcore.Window{State: &p.state, GPU: k}, 0)
		for n, left := range p.group.LeftS {
			if t := left * p.group.Pred[n].Slowdown; t < in {
				g, i, in = k, n, t
			}
		}
	}
	return g, i, in
}

// advance lets the jobs of GPU g run for so many seconds.
func (p *Policy) advance(g int, s float64) {
	p.group.Consider(&rlcore.Window{State: &p.state, GPU: g}, 0)
	r := p.state.GPUs[g].Running
	for i := range r {
		r[i].DoneS += s / p.group.Pred[i].Slowdown
		r[i].ElapsedS += s
	}
}

// end removes running job i of GPU g.
func (p *Policy) end(g, i int) {
	gpu := &p.state.GPUs[g]
	take(gpu, &gpu.Running[i].Job, -1)
	gpu.Running = slices.Delete(gpu.Running, i, i+1)
}

// take takes what a job has of the node, or with −1 gives it back.
func take(gpu *rlcore.GPU, j *rlcore.Job, sign int) {
	if gpu.FreeCPUs >= 0 {
		gpu.FreeCPUs = max(0, gpu.FreeCPUs-sign*j.CPUs)
	}
	if gpu.FreeHostMemMiB >= 0 {
		gpu.FreeHostMemMiB = max(0, gpu.FreeHostMemMiB-float64(sign)*j.HostMemMiB)
	}
}

// rest is about the sum of the times from now until the jobs that are left have ended, s, if the queue is
// served shortest first: each its own work, and that of the shorter ones, which all GPUs share.
func (p *Policy) rest(now float64) float64 {
	s, left := &p.state, p.left[:0]
	for g := range s.GPUs {
		for i := range s.GPUs[g].Running {
			left = append(left, s.GPUs[g].Running[i].LeftS())
		}
	}
	for i := range s.Pending {
		left = append(left, s.Pending[i].WorkS())
	}
	slices.Sort(left)
	sum, before := 0.0, 0.0
	for _, x := range left {
		sum += x + before/sharedRate/float64(len(s.GPUs))
		before += x
	}
	p.left = left
	return sum + float64(len(left))*(s.NowS-now)
}
