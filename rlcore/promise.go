package rlcore

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

const (
	// spend is the part of a job's lead, the time between its start as things go on plainly and its latest, that one
	// decision may use: lengths and slowdowns may turn out differently. LEARNING.md has what it costs.
	spend    = 0.4
	rounding = schedule.Rounding
)

// promise keeps the promise to all jobs of the queue. A job of the bridge's is promised its end: its due is the end
// that plain Slurm would have given it, plus a grace. Any other job is promised its start.
//
// One list schedule says when each job would start if all went on plainly from now: no job joins a GPU, and each
// pending job gets its GPUs in order of priority. A combination is allowed only if
//
//   - its members and the jobs that run on the GPU end by their dues,
//   - the jobs of the window that it leaves, and the jobs in front of them, start by their latest starts, and
//   - the GPUs of each class, sorted by when they are free after these jobs, are free no later than without the
//     combination, or, where no job is behind these, than in the schedule of plain Slurm.
//
// With exact predictions this is an induction, and no job of one GPU ends after its due: the plain schedule and the
// real one begin the same, and each decision leaves every job its turn. It needs classes that don't change with the
// queue (State.Sets), and jobs that go on in the class that plain Slurm has them in (Job.goOn): if one chose another
// class for being free sooner, jobs confined to that class would find less than on plain Slurm. Jobs of several GPUs
// are Slurm's to place, so beside them it holds nearly. Where a prediction was wrong and a due is lost, no decision
// makes the job end later than going on plainly would, plus its grace.
type promise struct {
	on    bool
	cards []company     // by GPU: the running jobs
	gets  []bool        // by GPU: some job of the queue gets it
	next  []nextForeign // by GPU: the first foreign job that gets it

	cluster schedule.Cluster
	now     schedule.List // as things are
	queue   plainQueue
	trial   schedule.List // after a combination
	steps   int           // how many more jobs behind the window this decision may follow
	bound   []float64     // by when GPUs must be free for jobs that come later, as schedule.List.Times; nil = not known

	broken Veto // why Keeps was false

	free   []float64
	joined company // a combination's jobs and the running jobs of the window's GPU
}

// plainQueue is how the first jobs of the queue go on if no job joins a GPU.
type plainQueue struct {
	now     *schedule.List
	started []started     // the first jobs
	list    schedule.List // once they have started
	// times has when all GPUs are free, as schedule.List.Times, at first and after every so many jobs.
	times []float64
	every int
}

// started is the plain start of a job of the queue: no job joins a GPU.
type started struct {
	atS float64 // when it starts, s from now
	on  int     // its GPU, the first of several; −1 = none
}

// Where many GPUs become free at about the same time, it takes as many jobs until the time that a combination saves
// shows: jobs behind the window are followed until then, farByGPU for each GPU at most. All combinations of a decision
// together may follow a part of mostSteps, or as many as one of them may.
const (
	farByGPU  = 3
	mostSteps = 2_500_000
	// comparisons is the largest number of times that the schedules are compared while as many jobs as GPUs are followed.
	comparisons = 32
)

// nextForeign is the first foreign job of the queue that gets a GPU if all go on plainly.
type nextForeign struct {
	id    string  // "" = no foreign job gets the GPU
	at    int     // its index in State.Pending
	fromS float64 // when it starts, s from now
}

// Begin makes the list schedule of a State, and notes in its pending jobs when each starts if all go on plainly, and
// when it must. Choose needs it once for a State; Refresh keeps it true after a decision.
func (g *Guard) Begin(s *State) {
	p := &g.promise
	p.on = !g.Bare && slices.ContainsFunc(s.Pending, func(j Job) bool { return j.PlainEndS > 0 })
	p.cards = append(p.cards, make([]company, max(0, len(s.GPUs)-len(p.cards)))...)[:len(s.GPUs)]
	p.gets = resize(p.gets, len(s.GPUs))
	p.free = resize(p.free, len(s.GPUs))
	p.cluster.Sets = s.Sets
	p.cluster.ByNode = s.Several
	p.cluster.Divide(len(s.GPUs), s.nodeOf, len(s.Pending), s.request)
	p.bound = p.bound[:0]
	if len(s.PlainFreeS) == len(s.GPUs) {
		for k, at := range s.PlainFreeS {
			p.free[k] = max(0, at-s.NowS)
		}
		p.now.Reset(&p.cluster, p.free)
		p.bound = p.now.Times(p.bound)
	}
	for k := range s.GPUs {
		p.free[k] = p.cards[k].goOn(&g.Rules, &s.GPUs[k])
	}
	p.now.Reset(&p.cluster, p.free)
	p.queue.reset(&p.now)
	p.trial.Copy(&p.now)
	foreign := false
	p.next = resize(p.next, len(s.GPUs))
	for i := range s.Pending {
		j := &s.Pending[i]
		j.turn = turn{takesS: j.expectedS()}
		j.byS = g.latestStart(j, s.NowS)
		startS, on := j.goOn(&p.trial)
		j.startS = startS
		j.latestS = startS
		if len(on) == 1 {
			j.on = 1 + on[0]
		}
		if j.byS > startS && (!j.Foreign || j.PlainEndS > 0) {
			j.latestS += spend * (j.byS - startS)
		}
		for _, k := range on {
			p.gets[k] = true
			if j.Foreign && p.next[k].id == "" {
				p.next[k] = nextForeign{j.ID, i, startS}
			}
		}
		foreign = foreign || j.Foreign
	}
	if foreign {
		p.losers(&g.Rules, s)
	}
}

// losers finds the jobs that would start too late if all foreign jobs went first.
func (p *promise) losers(r *Rules, s *State) {
	p.trial.Copy(&p.now)
	for _, first := range []bool{true, false} {
		for i := range s.Pending {
			j := &s.Pending[i]
			if j.Foreign != first {
				continue
			}
			behindS, _ := j.goOn(&p.trial)
			j.loses = !first && behindS > max(r.latestStart(j, s.NowS), j.startS+r.graceS(j))+rounding
		}
	}
}

// Refresh brings the schedule up to date after the jobs of GPU k, or the queue, have changed.
func (g *Guard) Refresh(s *State, k int) {
	if p := &g.promise; len(p.cards) == len(s.GPUs) {
		p.now.Set(k, p.cards[k].goOn(&g.Rules, &s.GPUs[k]))
		p.queue.reset(&p.now)
	}
}

// StartS is when the pending job would start if all jobs went on plainly, s from the State's NowS; +Inf = never. Begin
// sets it.
func (j *Job) StartS() float64 { return j.startS }

// LosesTurn reports whether the job would start too late if all foreign jobs went first. Begin sets it.
func (j *Job) LosesTurn() bool { return j.loses }

// FreeInS returns in how many seconds the running jobs of GPU k will have ended, on the safe side; +Inf = unknown.
// Begin and Refresh set it.
func (g *Guard) FreeInS(k int) (s float64) {
	for _, x := range g.promise.cards[k].members {
		s = max(s, x.endS)
	}
	return s
}

// Claimed returns the ID of the foreign job that has its turn on GPU k now, "" = none. Begin sets it.
func (g *Guard) Claimed(k int) string {
	if next := &g.promise.next[k]; next.fromS <= rounding {
		return next.id
	}
	return ""
}

// Spare reports whether no job of the queue gets GPU k if all jobs go on plainly. Begin sets it.
func (g *Guard) Spare(k int) bool { return !g.promise.gets[k] }

// goOn sets the company to the running jobs of a GPU, and returns when the last one is expected to have ended if no job
// joins, s from now.
func (m *company) goOn(r *Rules, card *GPU) (freeS float64) {
	m.gather(r, card.Running)
	for i := range m.members {
		x := &m.members[i]
		x.aloneS = x.expectedS() - x.elapsedS
		x.leftS = x.aloneS
		if x.Profile != nil {
			x.leftS = card.Running[i].LeftS()
		}
	}
	freeS = m.ends(r, &card.Spec)
	for i := range m.members {
		m.members[i].asIsS = m.members[i].endS
	}
	return freeS
}

// join sets joined to the running jobs of the window's GPU and the jobs in c, and returns the expected end of the last
// one, s from now.
func (p *promise) join(r *Rules, w *Window, c Combo) (freeS float64) {
	m := &p.joined
	m.members = append(m.members[:0], p.cards[w.GPU].members...)
	for i := range w.Jobs {
		if c.Has(i) {
			m.members = append(m.members, member{Job: w.Job(i), joins: true, leftS: w.Job(i).takesS})
		}
	}
	return m.ends(r, &w.Card().Spec)
}

// open starts a decision: the jobs up to the last one of the window go on plainly.
func (p *promise) open(w *Window) {
	gpus := len(w.State.GPUs)
	p.steps = max(mostSteps/gpus, farByGPU*gpus)
	if n := len(w.Jobs); p.on && n > 0 {
		p.queue.follow(w.State, w.Jobs[n-1]+1)
	}
}

// reset begins at the front of the queue.
func (x *plainQueue) reset(now *schedule.List) {
	x.now = now
	x.started = x.started[:0]
	x.times = x.times[:0]
	x.every = max(1, now.GPUs()/comparisons)
}

// follow lets the first n jobs of the queue go on plainly.
func (x *plainQueue) follow(s *State, n int) {
	if len(x.started) == 0 {
		x.list.Copy(x.now)
	}
	for i := len(x.started); i < n; i++ {
		x.after(s, i)
		j := &s.Pending[i]
		atS, gpus := j.goOn(&x.list)
		one := started{atS: atS, on: -1}
		if len(gpus) > 0 {
			one.on = gpus[0]
		}
		x.started = append(x.started, one)
	}
}

// hasTurn reports whether a job of the queue would start now, if no job joined another, on GPU g or another one of its
// class. On a GPU of another class it would take what is left for other jobs.
func (p *promise) hasTurn(job, g int) bool {
	x := p.queue.started[job]
	return x.on >= 0 && x.atS <= rounding && p.cluster.Alike(x.on, g)
}

// after returns when all GPUs are free once n jobs have started, where schedules are compared there; else nil.
func (x *plainQueue) after(s *State, n int) []float64 {
	if n%x.every > 0 && n < len(s.Pending) {
		return nil
	}
	x.follow(s, n)
	at := (n + x.every - 1) / x.every * x.list.GPUs()
	if len(x.times) == at {
		x.times = x.list.Times(x.times)
	}
	return x.times[at : at+x.list.GPUs()]
}

// Keeps reports whether c may join the window of the last decision without breaking the promise to any job, other than
// to one for which it is lost already.
func (g *Guard) Keeps(w *Window, c Combo) bool {
	p := &g.promise
	switch {
	case c == 0:
		return true
	case !p.on:
		p.broken = VetoTurn
		return p.leavesForeign(&g.Rules, w, c)
	}
	freeS := p.join(&g.Rules, w, c)
	joining := p.joined.members[len(w.Card().Running):]
	for i, at := range w.Jobs {
		if c.Has(i) {
			joining[0].aloneS = p.queue.started[at].atS + w.Job(i).takesS
			joining = joining[1:]
		}
	}
	p.broken = VetoDue
	if !p.joined.keepDues(&g.Rules, w.State.NowS) {
		return false
	}
	if !p.joined.unlikely(&g.Rules, &w.Card().Spec) {
		p.broken = VetoLength
		return false
	}
	return p.queueKeeps(w, c, freeS)
}

// leavesForeign reports whether c leaves the GPU to the foreign job that gets it next, as Slurm's backfill does where
// nothing else is promised: jobs behind that job may join if the GPU is free when it starts.
func (p *promise) leavesForeign(r *Rules, w *Window, c Combo) bool {
	next := &p.next[w.GPU]
	for i, at := range w.Jobs {
		if next.id != "" && c.Has(i) && at > next.at {
			return p.join(r, w, c) <= next.fromS+rounding
		}
	}
	return true
}

// queueKeeps reports whether the jobs that c leaves have their turn in time if the GPU is free at freeS. It follows
// them until the GPUs are free in time for the rest of the queue.
func (p *promise) queueKeeps(w *Window, c Combo, freeS float64) bool {
	s := w.State
	next := 0 // in the window
	near := w.Jobs[len(w.Jobs)-1] + 1
	far := near + farByGPU*len(s.GPUs)
	p.trial.Copy(&p.now)
	p.trial.Set(w.GPU, freeS)
	for i := 0; ; i++ {
		if i >= near {
			plain := p.queue.after(s, i)
			bound := plain
			if i == len(s.Pending) && len(p.bound) > 0 {
				bound = p.bound
			}
			if plain != nil && p.trial.NoLater(plain, bound) {
				return true
			}
			if i == len(s.Pending) || i >= far && plain != nil || p.steps == 0 {
				return false
			}
			p.steps--
		}
		p.queue.follow(s, i+1)
		if next < len(w.Jobs) && w.Jobs[next] == i {
			next++
			if c.Has(next - 1) {
				continue
			}
		}
		j := &s.Pending[i]
		atS, _ := j.goOn(&p.trial)
		if atS > max(p.queue.started[i].atS, j.latestS)+rounding {
			if j.Foreign {
				p.broken = VetoTurn
			}
			return false
		}
	}
}

// Expect writes into dst, reusing its storage, when each job of the window is expected to end, s on State.NowS's clock,
// if c joins now and no job after it: jobs in c on the window's GPU, other jobs on GPUs of their own. +Inf = unknown.
func (g *Guard) Expect(dst []float64, w *Window, c Combo) []float64 {
	p := &g.promise
	p.join(&g.Rules, w, c)
	joined := p.joined.members[len(w.Card().Running):]
	dst = dst[:0]
	for i := range w.Jobs {
		in := w.Job(i).startS + w.Job(i).takesS
		if c.Has(i) {
			in = joined[0].endS
			joined = joined[1:]
		}
		dst = append(dst, w.State.NowS+in)
	}
	return dst
}
