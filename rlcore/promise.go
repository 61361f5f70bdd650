package rlcore

import (
	"cmp"
	"math"
	"slices"
)

// DefaultGrace and DefaultMaxSlowdown are the contract of a job that says nothing: it may end later than on plain Slurm
// by a tenth of its own solo time, and run 2.5 times as long.
const (
	DefaultGrace       = 0.1
	DefaultMaxSlowdown = 2.5
)

const (
	// spend is the part of a job's lead, the time between its start as things go on plainly and its latest, that one
	// decision may use: lengths and slowdowns may turn out differently. LEARNING.md has what it costs.
	spend = 0.4
	// reserve is the part of the time until plain Slurm's GPUs are free that stays unused, for jobs that come later.
	reserve = 0.3
	// firstTrust is how many more standard deviations count at a first meeting; see slowest.
	firstTrust = 1
	// rounding is the tolerance of sums of times, s.
	rounding = 1e-6
)

// promise keeps the promise to all jobs of the queue. A job of the bridge's is promised its end:
// its due is the end that plain Slurm would have given it, plus a grace. Any other job is promised
// its start.
//
// One list schedule says when each job would start if all went on plainly from now: no job joins a
// GPU, and each pending job gets its GPUs in order of priority. A combination is allowed only if
//
//   - its members and the jobs that run on the GPU end by their dues,
//   - the jobs of the window that it leaves, and the jobs in front of them, start by their latest starts, and
//   - the GPUs of each class, sorted by when they are free after these jobs, are free no later than without the
//     combination, or, where no job is behind these, than in the schedule of plain Slurm.
//
// With exact predictions this is an induction, and no job ends after its due: the plain schedule
// and the real one begin the same, and each decision leaves every job its turn. Where a prediction
// was wrong and a due is lost, no decision makes the job end later than going on plainly would,
// plus its grace.
type promise struct {
	on      bool
	bold    bool // first meetings count like others
	cards   []outlook
	claimed []string // by GPU: the foreign job that has its turn there now

	cluster   cluster
	now       schedule // as things are
	near, far ahead    // of one decision: the queue up to the window's last job, and farther
	trial     schedule // the same after a combination
	steps     int      // how many more jobs may be followed in far
	changes   int      // counts Begin and Settle
	// bound is by when GPUs must be free for jobs that come later, where that is known.
	bound   schedule
	bounded bool

	free, endS, workS []float64
	members           []*Profile
}

// ahead is how the first jobs of the queue go on plainly.
type ahead struct {
	starts []float64 // of each, s from now
	plain  schedule  // once they have gone on
	of     point
}

// point is what the first jobs of the queue go on from.
type point struct {
	changes int
	queue   *Job // its first
	n       int  // its length
}

// Where many GPUs become free at about the same time, it takes as many jobs until the time that a combination saves shows.
// They are followed if need be: farByGPU for each GPU, mostFar at most, and mostSteps after one Begin.
const (
	farByGPU, mostFar = 3, 256
	mostSteps         = 400_000
)

// outlook is what is expected of a GPU's running jobs.
type outlook struct {
	endS  []float64 // of each of known profile, s from now
	freeS float64   // of the last
	first bool      // some of them meet for the first time
}

// dueS returns when the job is to have ended, s on State.NowS's clock; +Inf = nothing is promised. A foreign job, and
// one of unknown length, is promised its start, without a grace.
func (g *Guard) dueS(j *Job) float64 {
	switch {
	case j.PlainEndS == 0 || g.Bare:
		return math.Inf(1)
	case j.Profile == nil || j.Foreign:
		return j.PlainEndS
	}
	return j.PlainEndS + g.graceS(j)
}

// graceS is by how much a job may end later than on plain Slurm, s.
func (g *Guard) graceS(j *Job) float64 {
	if j.Profile == nil {
		return 0
	}
	return cmp.Or(j.Grace, g.Grace, DefaultGrace) * j.Profile.DurationS
}

// Begin makes the list schedule of a State: when each pending job starts if all go on plainly, and when it must. Choose
// needs it once for a State; Settle keeps it true after a decision.
func (g *Guard) Begin(s *State) {
	p := &g.promise
	p.changes++
	p.on = !g.Bare && slices.ContainsFunc(s.Pending, func(j Job) bool { return j.PlainEndS > 0 })
	p.cards = slices.Grow(p.cards[:0], len(s.GPUs))[:len(s.GPUs)]
	p.claimed, p.free = resize(p.claimed, len(s.GPUs)), resize(p.free, len(s.GPUs))
	for k := range s.GPUs {
		p.free[k] = p.expect(g, k, &s.GPUs[k])
	}
	p.cluster.divide(len(s.GPUs), func(k int) string { return s.GPUs[k].Node }, len(s.Pending), func(i int) []int { return s.Pending[i].GPUs })
	p.now.reset(&p.cluster, p.free)
	if p.bounded = len(s.PlainFreeS) == len(s.GPUs); p.bounded {
		for k, at := range s.PlainFreeS {
			p.free[k] = max(0, at-s.NowS) / (1 + reserve)
		}
		p.bound.reset(&p.cluster, p.free)
	}
	p.steps = mostSteps
	p.trial.copy(&p.now)
	foreign := false
	for i := range s.Pending {
		j := &s.Pending[i]
		var on []int
		j.startS, on = p.trial.run(j.asks(), j.expectedS())
		j.loses = false
		by := g.latestStart(s, j)
		if j.latestS = j.startS; by > j.startS && (!j.Foreign || j.PlainEndS > 0) {
			j.latestS += spend * (by - j.startS)
		}
		if !j.Foreign {
			j.turnS = max(by, j.startS+g.graceS(j))
			continue
		}
		foreign = true
		for _, k := range on {
			if j.startS <= rounding {
				p.claimed[k] = j.ID
			}
		}
	}
	p.trial.copy(&p.now)
	for _, first := range []bool{true, false} {
		for i := 0; foreign && i < len(s.Pending); i++ {
			j := &s.Pending[i]
			if j.Foreign != first {
				continue
			}
			behindS, _ := p.trial.run(j.asks(), j.expectedS())
			j.loses = !first && behindS > j.turnS+rounding
		}
	}
}

// latestStart is when a pending job must start to keep its due and its deadline, s from now.
func (g *Guard) latestStart(s *State, j *Job) float64 {
	by := g.dueS(j) - s.NowS - j.expectedS()
	if math.IsNaN(by) { // it may take for ever
		by = math.Inf(1)
	}
	if j.DeadlineS > 0 && !g.Bare {
		// Slurm cancels a job that its limit doesn't fit before its deadline.
		by = min(by, j.DeadlineS-j.LimitS-granularityS-s.NowS)
	}
	return by
}

// Settle brings the schedule up to date after jobs have been put on GPU k, or taken off.
func (g *Guard) Settle(s *State, k int) {
	if p := &g.promise; len(p.cards) == len(s.GPUs) {
		p.now.set(k, p.expect(g, k, &s.GPUs[k]))
		p.changes++
	}
}

// StartS is when the pending job would start if all jobs went on plainly, s from the State's NowS; +Inf = never. Begin
// sets it.
func (j *Job) StartS() float64 { return j.startS }

// LosesTurn reports whether the job would start too late if all foreign jobs went first. Begin sets it.
func (j *Job) LosesTurn() bool { return j.loses }

// FreeInS returns in how many seconds the running jobs of GPU k will have ended, on the safe side; +Inf = unknown.
// Begin and Settle set it.
func (g *Guard) FreeInS(k int) float64 { return g.promise.cards[k].freeS }

// Claimed returns the ID of the foreign job that has its turn on GPU k now, "" = none. Begin sets it.
func (g *Guard) Claimed(k int) string { return g.promise.claimed[k] }

// expect updates the outlook of GPU k, and returns when its last job has ended, s from now.
func (p *promise) expect(g *Guard, k int, card *GPU) float64 {
	o := &p.cards[k]
	o.endS, o.freeS = p.end(g, o.endS, card, nil, 0)
	o.first = g.forecast.first
	return o.freeS
}

// slowest is the slowdown among n members that ends allow for. A first meeting is an experiment: it takes place where all
// have slack for more than what is expected of a known company; see Keeps for the exception. It counts as no slower than
// members that take turns, which is what a card does at worst for all of them together; otherwise nothing would be tried
// where little is known.
func (g *Guard) slowest(p *Prediction, n int) float64 {
	if !p.First || g.promise.bold {
		return g.worst(p)
	}
	return max(1, p.Slowdown, min(p.Slowdown+(g.trust()+firstTrust)*p.SD, float64(n)))
}

// mostLeftS is the solo work that a running job of known profile has left at the most, s. How far it has come depends on
// how much it was slowed, which is predicted: the standard deviation of the mean slowdown's logarithm is taken to be that
// logarithm.
func (g *Guard) mostLeftS(r *Running) float64 {
	done := r.DoneS
	if done > 0 && done < r.ElapsedS {
		done *= math.Pow(done/r.ElapsedS, g.trust())
	}
	return r.Profile.Left(done, r.LimitS)
}

// end writes into dst when the GPU's jobs of known profile, then the jobs in c, are expected to
// end, s from now, and returns the end of the last job. A job of unknown length takes its limit.
func (p *promise) end(g *Guard, dst []float64, card *GPU, w *Window, c Combo) (_ []float64, freeS float64) {
	p.members, p.workS = p.members[:0], p.workS[:0]
	for i := range card.Running {
		r := &card.Running[i]
		if r.Profile == nil {
			freeS = max(freeS, r.expectedS()-r.ElapsedS)
			continue
		}
		p.members, p.workS = append(p.members, r.Profile), append(p.workS, g.mostLeftS(r))
	}
	for i := 0; c != 0 && i < len(w.Jobs); i++ {
		switch j := w.Job(i); {
		case !c.Has(i):
		case j.Profile == nil:
			freeS = max(freeS, j.expectedS())
		default:
			p.members, p.workS = append(p.members, j.Profile), append(p.workS, j.expectedS())
		}
	}
	dst = g.ends(dst, &card.Spec, p.members, p.workS)
	for _, t := range dst {
		freeS = max(freeS, t)
	}
	return dst, freeS
}

// look starts a decision: the jobs up to the last one of the window go on plainly.
func (p *promise) look(w *Window) {
	if n := len(w.Jobs); p.on && n > 0 {
		p.follow(&p.near, w.State, w.Jobs[n-1]+1)
	}
}

// follow lets the first n > 0 jobs of the queue go on plainly. What it has found before holds until something changes: with
// many GPUs and jobs most windows end at the same job.
func (p *promise) follow(x *ahead, s *State, n int) {
	if of := (point{p.changes, &s.Pending[0], len(s.Pending)}); of != x.of || len(x.starts) > n {
		x.plain.copy(&p.now)
		x.starts, x.of = x.starts[:0], of
	}
	for i := len(x.starts); i < n; i++ {
		j := &s.Pending[i]
		at, _ := x.plain.run(j.asks(), j.expectedS())
		x.starts = append(x.starts, at)
	}
}

// Keeps reports whether c may join the window of the last decision without breaking the promise to any job, other than
// to one for which it is lost already.
//
// Where all jobs are there from the start, none has slack before some have shared. So on an idle GPU a first meeting counts
// like a known company as long as no other one is under way.
func (g *Guard) Keeps(w *Window, c Combo) bool {
	p := &g.promise
	if !p.on || c == 0 {
		return true
	}
	if p.keeps(g, w, c) {
		return true
	}
	if !g.forecast.first || len(w.Card().Running) > 0 || slices.ContainsFunc(p.cards, func(o outlook) bool { return o.first }) {
		return false
	}
	p.bold = true
	kept := p.keeps(g, w, c)
	p.bold = false
	return kept
}

func (p *promise) keeps(g *Guard, w *Window, c Combo) bool {
	var freeS float64
	p.endS, freeS = p.end(g, p.endS, w.Card(), w, c)
	return p.membersKeep(g, w, c) && p.queueKeeps(w, c, freeS)
}

// membersKeep reports whether the running jobs and the jobs in c, expected to end at endS, keep their dues.
func (p *promise) membersKeep(g *Guard, w *Window, c Combo) bool {
	s, card := w.State, w.Card()
	before := p.cards[w.GPU].endS
	k := 0
	for i := range card.Running {
		r := &card.Running[i]
		if r.Profile == nil {
			continue
		}
		most := g.dueS(&r.Job) - s.NowS
		if plainly := r.expectedS() - r.ElapsedS; plainly > most { // it was lost when the job started
			most = plainly + g.graceS(&r.Job)
		}
		if p.endS[k] > max(before[k], most)+rounding {
			return false
		}
		k++
	}
	for i, at := range w.Jobs {
		j := w.Job(i)
		if !c.Has(i) || j.Profile == nil {
			continue
		}
		most := g.dueS(j) - s.NowS
		if plainly := p.near.starts[at] + j.expectedS(); plainly > most { // it is lost
			most = plainly + g.graceS(j)
		}
		if p.endS[k] > most+rounding {
			return false
		}
		k++
	}
	return true
}

// queueKeeps reports whether the remaining jobs have their turn in time if the GPU is free at freeS.
func (p *promise) queueKeeps(w *Window, c Combo, freeS float64) bool {
	inTime, free := p.after(&p.near, w, c, freeS)
	if !inTime || free {
		return inTime
	}
	near := len(p.near.starts)
	n := min(len(w.State.Pending), near+min(mostFar, farByGPU*len(w.State.GPUs)))
	if p.steps -= n; n == near || p.steps < 0 {
		return false
	}
	p.follow(&p.far, w.State, n)
	inTime, free = p.after(&p.far, w, c, freeS)
	return inTime && free
}

// after schedules the followed jobs that c leaves after it. inTime: each starts in time. free:
// after these jobs the GPUs are free in time for the rest of the queue.
func (p *promise) after(x *ahead, w *Window, c Combo, freeS float64) (inTime, free bool) {
	p.trial.copy(&p.now)
	p.trial.set(w.GPU, freeS)
	next := 0 // in the window
	for i, start := range x.starts {
		if next < len(w.Jobs) && w.Jobs[next] == i {
			if next++; c.Has(next - 1) {
				continue
			}
		}
		j := &w.State.Pending[i]
		if at, _ := p.trial.run(j.asks(), j.expectedS()); at > max(start, j.latestS)+rounding {
			return false, false
		}
	}
	bound := &x.plain
	if p.bounded && len(x.starts) == len(w.State.Pending) {
		bound = &p.bound
	}
	return true, p.trial.later(&x.plain, bound) <= rounding
}

// Expect writes into dst, reusing its storage, when each job of the window is expected to end, s on
// State.NowS's clock, if c joins now and no job after it: jobs in c on the window's GPU, other jobs
// on GPUs of their own. +Inf = unknown.
func (g *Guard) Expect(dst []float64, w *Window, c Combo) []float64 {
	p := &g.promise
	p.endS, _ = p.end(g, p.endS, w.Card(), w, c)
	together := len(p.endS) // the jobs in c come last
	for i := range w.Jobs {
		if c.Has(i) && w.Job(i).Profile != nil {
			together--
		}
	}
	dst = dst[:0]
	for i := range w.Jobs {
		j := w.Job(i)
		in := j.startS + j.expectedS()
		switch {
		case c.Has(i) && j.Profile != nil:
			in = p.endS[together]
			together++
		case c.Has(i):
			in = j.expectedS()
		}
		dst = append(dst, w.State.NowS+in)
	}
	return dst
}
