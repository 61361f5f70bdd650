package rlcore

import (
	"cmp"
	"math"
	"slices"
)

// DefaultGrace and DefaultMaxSlowdown are the contract of a job that says nothing: it may
// end later than on plain Slurm by a tenth of its own solo time, and run 2.5 times as long.
const (
	DefaultGrace       = 0.1
	DefaultMaxSlowdown = 2.5
)

const (
	// slackUsed is the part of the queue's smallest slack by which a decision may delay the jobs behind it.
	slackUsed = 0.1
	// reserve is the part of the time until a job's latest start that stays unused: the farther that start is, the
	// more lengths and slowdowns are in front of it that may turn out otherwise. experiment --worlds, loads 0.9 and
	// 1.1, 6 seeds, dqn, turnaround ÷ fifo's and late jobs: 0.426, 4.2 % with neither; 0.396, 5.5 % with slackUsed
	// alone; 0.402, 4.3 % with both.
	reserve = 0.3
	// mostFollowed is how many jobs are followed one by one that may use a few GPUs only, or take several;
	// mostAhead is how far into the queue they are looked for.
	mostFollowed, mostAhead = 16, 256
	// rounding is by how much sums of times may be off, s.
	rounding = 1e-6
)

// promise keeps the promise to all jobs of the queue. A job of the bridge's is promised its end: its due is the end
// that plain Slurm would have given it, plus a grace. Any other job is promised its start.
//
// One list schedule says when each job would start if all went on plainly from now: no job joins a GPU, and each
// pending job gets its GPUs in order of priority. Each job has a slack, the time from that start to its latest one.
// A combination is allowed only if
//
//   - its members and the jobs that run on the GPU end by their dues,
//   - the jobs of the window that it leaves, and those in front of them, start within their slack, and
//   - the sorted times at which GPUs of a class are free after them are not later than without the combination, or
//     later by no more than what the rest of the queue can bear.
//
// With exact predictions this is an induction, and no job ends after its due: the plain schedule and the real one
// begin the same, and each decision leaves every job its turn. Where a prediction was wrong and a due is lost, no
// decision makes the job end later than going on plainly would, plus its grace.
type promise struct {
	sched schedule
	on    bool
	cards []outlook
	// rest is, by pending job at Begin, by how much all jobs from it to the queue's end may be delayed; given is how
	// much of that the decisions since have used.
	rest  []float64
	given float64
	node  []int

	claimed []bool    // by GPU: it is free, and a foreign job's turn
	now     []float64 // by GPU: when it is free, as things are
	steps   int       // how many more jobs may be followed beyond the window's

	// Of one decision: how the queue goes on without any combination, as far as the window's jobs, and farther.
	near, far ahead
	late      []Combo // refused
	allowed   []shift

	base, trial []moment
	plain       []moment
	gpus        []int
	endS        []float64
	members     []*Profile
	workS       []float64
}

// ahead is how the first jobs of the queue go on without any combination.
type ahead struct {
	ready    bool
	last     int       // index of the last of these jobs; later ones may be followed that are special
	followed []int     // indexes in the queue, ascending
	starts   []float64 // of the followed jobs
	freeAt   []float64 // by GPU: when it is free then
	changed  []int     // GPUs where that is another time than now
	slack    float64   // by how much all jobs behind may be delayed, s
}

// shift is by how much a combination delays the jobs behind the followed ones at most, s.
type shift struct {
	combo Combo
	s     float64
}

// moment is when a GPU of a class is free.
type moment struct {
	class int
	at    float64
}

// outlook is what is expected of a GPU's running jobs.
type outlook struct {
	endS  []float64 // of each of known profile, s from now
	freeS float64   // of the last
}

// dueS returns the time by which the job is to have ended, s on State.NowS's clock; +Inf:
// nothing is promised. Of a job of unknown length, and of a foreign one, the start is promised, without a grace.
func (g *Guard) dueS(j *Job) float64 {
	switch {
	case j.PlainEndS == 0 || g.Bare:
		return math.Inf(1)
	case j.Profile == nil || j.Foreign:
		return j.PlainEndS
	}
	return j.PlainEndS + g.grace()*j.Profile.DurationS
}

// grace is the part of its solo time by which a job may end later than plainly.
func (g *Guard) grace() float64 { return cmp.Or(g.Grace, DefaultGrace) }

// Begin makes the list schedule of a State: when each pending job starts if all go on plainly, and when it must.
// Choose needs it once for a State; Settle keeps it true when a decision was carried out.
func (g *Guard) Begin(s *State) {
	p := &g.promise
	p.on = !g.Bare && slices.ContainsFunc(s.Pending, func(j Job) bool { return j.PlainEndS > 0 })
	p.cards = slices.Grow(p.cards[:0], len(s.GPUs))[:len(s.GPUs)]
	p.node = nodeNumbers(p.node, len(s.GPUs), func(k int) string { return s.GPUs[k].Node })
	p.sched.shape(p.node, len(s.Pending), func(i int) []int { return s.Pending[i].GPUs })
	p.now = p.now[:0]
	for k := range s.GPUs {
		p.now = append(p.now, p.expect(g, &p.cards[k], &s.GPUs[k]))
	}
	p.claimed = slices.Grow(p.claimed[:0], len(s.GPUs))[:len(s.GPUs)]
	clear(p.claimed)
	for _, x := range []*ahead{&p.near, &p.far} {
		x.freeAt, x.changed = append(x.freeAt[:0], p.now...), x.changed[:0]
	}
	p.steps = mostSteps
	p.sched.reset(p.now)
	for i := range s.Pending {
		j := &s.Pending[i]
		var on []int
		if j.startS, on = p.sched.run(j.asks(), j.expectedS()); j.Foreign && j.startS <= rounding {
			for _, k := range on {
				p.claimed[k] = true
			}
		}
		if j.latestS = j.startS; !j.Foreign {
			j.latestS = max(j.startS, g.latestStart(s, j))
		}
	}
	p.given = 0
	p.slacks(s)
	p.sched.back(0)
}

// slacks sets how much of the smallest slack may be used of the queue from each job on. Jobs that come later are part of the rest: each
// class of GPUs is free for them no later than in the plain schedule.
func (p *promise) slacks(s *State) {
	p.rest = slices.Grow(p.rest[:0], len(s.Pending)+1)[:len(s.Pending)+1]
	least := p.tailSlack(s)
	for i := len(s.Pending); i >= 0; i-- {
		if i < len(s.Pending) {
			if j := &s.Pending[i]; !math.IsInf(j.startS, 1) {
				least = min(least, slackUsed*(j.latestS-j.startS))
			}
		}
		p.rest[i] = least
	}
}

// tailSlack is by how much all GPUs are free earlier than in the plain schedule once the queue has gone on.
func (p *promise) tailSlack(s *State) float64 {
	if len(s.PlainFreeS) != len(s.GPUs) {
		return math.Inf(1)
	}
	p.base, p.trial = p.base[:0], p.trial[:0]
	for k := range s.GPUs {
		p.base = append(p.base, moment{p.sched.class[k], p.sched.free[k]})
		p.trial = append(p.trial, moment{p.sched.class[k], max(0, s.PlainFreeS[k]-s.NowS) / (1 + reserve)})
	}
	sortMoments(p.base)
	sortMoments(p.trial)
	least := math.Inf(1)
	for i := range p.base {
		if !math.IsInf(p.base[i].at, 1) {
			least = min(least, p.trial[i].at-p.base[i].at)
		}
	}
	return max(0, least)
}

func sortMoments(all []moment) {
	slices.SortFunc(all, func(a, b moment) int { return cmp.Or(a.class-b.class, cmp.Compare(a.at, b.at)) })
}

// latestStart is when a pending job must start to keep its due and its deadline, s from now.
func (g *Guard) latestStart(s *State, j *Job) float64 {
	by := g.dueS(j) - s.NowS - j.expectedS()
	if by > 0 {
		by /= 1 + reserve
	}
	if math.IsNaN(by) { // it may take for ever
		by = math.Inf(1)
	}
	if j.DeadlineS > 0 && !g.Bare {
		// Slurm cancels a job that its limit doesn't fit before its deadline.
		by = min(by, j.DeadlineS-j.LimitS-granularityS-s.NowS)
	}
	return by
}

// Settle brings the schedule up to date after a decision: c of its window runs on GPU k now and has left the queue.
func (g *Guard) Settle(s *State, k int, c Combo) {
	p := &g.promise
	if len(p.cards) != len(s.GPUs) {
		return
	}
	p.now[k] = p.expect(g, &p.cards[k], &s.GPUs[k])
	p.near.freeAt[k], p.far.freeAt[k] = p.now[k], p.now[k]
	p.sched.put(k, p.now[k])
	for _, x := range p.allowed {
		if x.combo == c {
			p.given += x.s
		}
	}
	p.allowed = p.allowed[:0]
}

// StartS is when the pending job would start if all jobs went on plainly, s from the State's NowS; +Inf = never.
// Begin finds it out.
func (j *Job) StartS() float64 { return j.startS }

// FreeInS returns in how many seconds the running jobs of GPU k are expected to have ended, on the safe side; +Inf =
// it isn't known. Begin finds it out.
func (g *Guard) FreeInS(k int) float64 { return g.promise.cards[k].freeS }

// Claimed reports whether GPU k is free and a foreign job has its turn there now. Begin finds it out.
func (g *Guard) Claimed(k int) bool { return g.promise.claimed[k] }

// expect finds out what is to be expected of a GPU's running jobs, and when the last one has ended.
func (p *promise) expect(g *Guard, o *outlook, card *GPU) float64 {
	o.endS, o.freeS = p.end(g, o.endS, card, nil, 0)
	return o.freeS
}

// end writes into dst when the GPU's jobs of known profile, and those of c after them, are expected to
// have ended, s from now, and returns when the last job has. A job of unknown length takes
// its limit.
func (p *promise) end(g *Guard, dst []float64, card *GPU, w *Window, c Combo) (_ []float64, freeS float64) {
	p.members, p.workS = p.members[:0], p.workS[:0]
	for i := range card.Running {
		r := &card.Running[i]
		if r.Profile == nil {
			freeS = max(freeS, r.expectedS()-r.ElapsedS)
			continue
		}
		p.members, p.workS = append(p.members, r.Profile), append(p.workS, r.LeftS())
	}
	for i := 0; c != 0 && i < len(w.Jobs); i++ {
		if !c.Has(i) {
			continue
		}
		j := w.Job(i)
		if j.Profile == nil {
			freeS = max(freeS, j.expectedS())
			continue
		}
		p.members, p.workS = append(p.members, j.Profile), append(p.workS, j.expectedS())
	}
	dst = g.ends(dst, &card.Spec, p.members, p.workS, g.trust())
	for _, t := range dst {
		freeS = max(freeS, t)
	}
	return dst, freeS
}

// look begins a decision: it finds out when the jobs up to the window's last start without any combination.
func (p *promise) look(w *Window) {
	p.late, p.allowed = p.late[:0], p.allowed[:0]
	p.near.ready, p.far.ready = false, false
	if p.on && len(w.Jobs) > 0 {
		p.follow(&p.near, w.State, w.Jobs[len(w.Jobs)-1])
	}
}

// follow lets the queue go on up to the given job.
func (p *promise) follow(x *ahead, s *State, last int) {
	for _, k := range x.changed {
		x.freeAt[k] = p.now[k]
	}
	x.ready, x.last = true, last
	x.followed, x.starts, x.changed = x.followed[:0], x.starts[:0], x.changed[:0]
	for i := 0; i < min(len(s.Pending), max(mostAhead, last+1)) && len(x.followed) <= last+mostFollowed; i++ {
		if i <= last || p.special(&s.Pending[i]) {
			x.followed = append(x.followed, i)
		}
	}
	for _, i := range x.followed {
		at, _ := p.sched.run(s.Pending[i].asks(), s.Pending[i].expectedS())
		x.starts = append(x.starts, at)
	}
	x.changed = p.touched(x.changed)
	for _, k := range x.changed {
		x.freeAt[k] = p.sched.free[k]
	}
	p.sched.back(0)
	// The jobs behind the last one are the queue's end, as they were at Begin.
	behind := len(s.Pending) - last - 1
	x.slack = max(0, p.rest[max(0, len(p.rest)-1-behind)]-p.given)
}

// special reports whether GPUs of one class that are free at the same times may still make a difference to the job.
func (p *promise) special(j *Job) bool {
	if j.asks().several() {
		return true
	}
	if j.GPUs == nil {
		return false
	}
	_, ok := p.sched.listOf(j.GPUs)
	return !ok
}

// touched appends the GPUs that the schedule's log names, each once.
func (p *promise) touched(dst []int) []int {
	from := len(dst)
	for _, u := range p.sched.undo {
		dst = append(dst, u.gpu)
	}
	slices.Sort(dst[from:])
	return append(dst[:from], slices.Compact(dst[from:])...)
}

// keep reports whether the promise to all jobs is kept if c joins now, as far as it can still be.
func (p *promise) keep(g *Guard, w *Window, c Combo) bool {
	if !p.on {
		return true
	}
	var freeS float64
	p.endS, freeS = p.end(g, p.endS, w.Card(), w, c)
	ok := p.membersKeep(g, w, c) && p.queueKeeps(w, c, freeS)
	p.sched.back(0)
	return ok
}

// membersKeep reports whether the running jobs and those of c, which are expected to end
// at endS, keep their dues.
func (p *promise) membersKeep(g *Guard, w *Window, c Combo) bool {
	s, card := w.State, w.Card()
	before := p.cards[w.GPU].endS
	k := 0
	for i := range card.Running {
		r := &card.Running[i]
		if r.Profile == nil {
			continue
		}
		if p.endS[k] > max(before[k], g.dueS(&r.Job)-s.NowS)+rounding {
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
			most = plainly + g.grace()*j.Profile.DurationS
		}
		if p.endS[k] > most+rounding {
			return false
		}
		k++
	}
	return true
}

// Where many GPUs are free at about the same time, it takes as many jobs until what a combination saves is seen. They are
// followed if need be: so many for each GPU, at most mostFar, and mostSteps in all after one Begin.
const (
	farByGPU, mostFar = 3, 256
	mostSteps         = 400_000
)

// queueKeeps reports whether the jobs that c leaves have their turn in time once the GPU is free at freeS.
func (p *promise) queueKeeps(w *Window, c Combo, freeS float64) bool {
	inTime, keeps := p.keepsFrom(&p.near, w, c, freeS)
	if !inTime || keeps {
		return inTime
	}
	last := min(len(w.State.Pending)-1, p.near.last+min(mostFar, farByGPU*len(w.State.GPUs)))
	if last == p.near.last || p.steps < last {
		return false
	}
	p.sched.back(0)
	if !p.far.ready {
		p.follow(&p.far, w.State, last)
	}
	p.steps -= last
	_, keeps = p.keepsFrom(&p.far, w, c, freeS)
	return keeps
}

// keepsFrom lets the followed jobs that c leaves go on after it. inTime: each starts within its slack. keeps: and the
// GPUs are free in time for all jobs behind.
func (p *promise) keepsFrom(x *ahead, w *Window, c Combo, freeS float64) (inTime, keeps bool) {
	s := w.State
	p.sched.set(w.GPU, freeS)
	next := 0 // in the window
	for n, i := range x.followed {
		if next < len(w.Jobs) && w.Jobs[next] == i {
			if next++; c.Has(next - 1) {
				continue
			}
		}
		j := &s.Pending[i]
		by := max(x.starts[n], j.latestS)
		if i > x.last { // the jobs in between were passed over
			by = x.starts[n] + max(0, j.latestS-j.startS)
		}
		if j.Foreign {
			by = x.starts[n]
		}
		if at, _ := p.sched.run(j.asks(), j.expectedS()); at > by+rounding {
			return false, false
		}
	}
	later := p.later(x)
	if later > x.slack+rounding && (x.last < len(s.Pending)-1 || !p.tailKeeps(x, s)) {
		return true, false
	}
	p.allowed = append(p.allowed, shift{c, min(later, x.slack)})
	return true, true
}

// mostTail is up to how many GPUs the times of all are compared.
const mostTail = 64

// tailKeeps reports whether the GPUs are free for jobs that come later, now that all jobs of the queue have gone on, no
// later than without the combination or than in the plain schedule.
func (p *promise) tailKeeps(x *ahead, s *State) bool {
	if len(s.PlainFreeS) != len(s.GPUs) || len(s.GPUs) > mostTail {
		return false
	}
	p.base, p.trial, p.plain = p.base[:0], p.trial[:0], p.plain[:0]
	for k := range s.GPUs {
		class := p.sched.class[k]
		p.base = append(p.base, moment{class, x.freeAt[k]})
		p.trial = append(p.trial, moment{class, p.sched.free[k]})
		p.plain = append(p.plain, moment{class, (s.PlainFreeS[k] - s.NowS) / (1 + reserve)})
	}
	sortMoments(p.base)
	sortMoments(p.trial)
	sortMoments(p.plain)
	for i := range p.trial {
		if p.trial[i].at > max(p.base[i].at, p.plain[i].at)+rounding {
			return false
		}
	}
	return true
}

// later is by how much the GPUs of any class are free later in the trial than in the base schedule, at the most:
// the first of one compared with the first of the other, and so on.
func (p *promise) later(x *ahead) float64 {
	p.gpus = p.touched(append(p.gpus[:0], x.changed...))
	slices.Sort(p.gpus)
	p.gpus = slices.Compact(p.gpus)
	p.base, p.trial = p.base[:0], p.trial[:0]
	for _, k := range p.gpus {
		class := p.sched.class[k]
		p.base = append(p.base, moment{class, x.freeAt[k]})
		p.trial = append(p.trial, moment{class, p.sched.free[k]})
	}
	sortMoments(p.base)
	sortMoments(p.trial)
	most := 0.0
	for i := range p.base {
		if p.trial[i].at > p.base[i].at {
			most = max(most, p.trial[i].at-p.base[i].at)
		}
	}
	return most
}

// Late reports whether the last call of Combos refused c because of the promise.
func (g *Guard) Late(c Combo) bool { return slices.Contains(g.promise.late, c) }

// Expect writes into dst, whose storage it reuses, when each job of the window is expected
// to have ended, s on State.NowS's clock, if c joins now and no job after it: those of c on
// the window's GPU, the others each with GPUs of their own. +Inf = nothing is known. It uses what Begin found out.
func (g *Guard) Expect(dst []float64, w *Window, c Combo) []float64 {
	p := &g.promise
	p.endS, _ = p.end(g, p.endS, w.Card(), w, c)
	together := len(p.endS) // those of c are the last of it
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
