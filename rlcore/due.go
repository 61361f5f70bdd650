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
	// reserve is the part of the time until a job's latest start that stays unused, for
	// predictions that turn out wrong. On measured pairs with open arrivals (alnair,
	// miso, gavel) 0.2 to 0.5 do the same.
	reserve = 0.3
	// farthest is how many pending jobs are followed, and moreByGPU how many more for
	// each GPU. Jobs behind them have all that is gained in front of them.
	farthest, moreByGPU = 64, 4
	// rounding is by how much sums of times may be off, s.
	rounding = 1e-6
)

// dues keeps the promise to jobs that have a plain end: to have ended by their due, the
// plain end plus a grace of their own solo time. It is scratch of one decision.
//
// What keeps it is that going on plainly, with nobody joining any more and a whole GPU for
// each pending job in order of priority, would keep it: that is true at first, when plain
// Slurm's schedule and the real one are the same, and a combination is allowed only if
// it stays true. Jobs that come later are kept in mind as well: their plain ends follow from
// when the plain schedule's GPUs are free, so the real ones must not be free later.
// Where predictions were wrong, or the bridge was away, and it isn't true any more, no job may
// end later than going on plainly from now would end it, plus its grace. Without that grace a
// full cluster that is behind plain Slurm's schedule for all jobs would never share again, and
// never catch up.
//
// With exact predictions and no reserve this is an induction, and no job ends after its due.
//
// On many GPUs the window's jobs are the first of many that are followed. A combination
// after which they leave no GPU free later than without it makes no job behind them start
// later, if jobs that may use one of these GPUs may use all, and then these aren't followed.
type dues struct {
	state *State // of the window, as the next two
	gpu   int
	jobs  []int
	on    bool
	trust float64
	cards []outlook

	followed  int       // so many pending jobs are
	near      int       // of these, up to the window's last
	alike     bool      // see areAlike
	soon, all bool      // what follows is known of the near jobs; tailS is
	now       fleet     // as it is
	nowS      float64   // it is of
	revs      []uint64  // of the GPUs in now; nil = not told
	base      fleet     // once the near jobs have gone on plainly
	startS    []float64 // by pending job: its start then, s from now, of the near ones and as many more as lookFar went
	latest    []float64 // by pending job: its latest start, s from now
	tailS     []float64 // when the GPUs must be free at the latest, ascending

	far     fleet     // base, once the others that are in startS have gone on
	before  []int     // by pending job: the followed one that had its GPU before, in far; −1 = none behind the near ones
	last    []int     // by GPU: the followed job that got it last
	given   int       // of far.given, in before
	apart   apart     // trial and base
	trial   fleet     // once those that a combination leaves have gone on plainly
	tried   []float64 // their starts
	members []*Profile
	workS   []float64
	endS    []float64
	gpus    []int
	mark    []bool // by GPU
	lists   []gpuList
	theirs  []bool // by pending job: it may use the GPUs that the window's jobs may use
	a, b    []float64
	late    []Combo // refused in this decision
}

// outlook is what is expected of a card's running jobs. It is kept as long as they are
// the same.
type outlook struct {
	nowS  float64
	after float64
	seen  []glimpse
	endS  []float64 // of each, s from now
	freeS float64   // of the last
}

// glimpse is what an outlook depends on of one job.
type glimpse struct {
	p              *Profile
	doneS, elapsed float64
	limitS         float64
}

// dueS returns the time by which the job is to have ended, s on State.NowS's clock; +Inf:
// nothing is promised. Of a job of unknown length the start is promised, without a grace.
func (g *Guard) dueS(j *Job) float64 {
	switch {
	case j.PlainEndS == 0 || g.Bare:
		return math.Inf(1)
	case j.Profile == nil:
		return j.PlainEndS
	}
	return j.PlainEndS + g.grace()*j.Profile.DurationS
}

// grace is the part of its solo time by which a job may end later than plainly.
func (g *Guard) grace() float64 { return cmp.Or(g.Grace, DefaultGrace) }

// look begins a decision.
func (d *dues) look(g *Guard, w *Window) {
	s := w.State
	d.on = !g.Bare && slices.ContainsFunc(w.Jobs, func(at int) bool { return s.Pending[at].PlainEndS > 0 })
	d.soon, d.late = false, d.late[:0]
	d.state, d.gpu, d.jobs = s, w.GPU, w.Jobs
}

// of reports whether w is the window of the last decision.
func (d *dues) of(w *Window) bool {
	return d.state == w.State && d.gpu == w.GPU && sameList(d.jobs, w.Jobs)
}

// foresee finds out when the GPUs will be free, and how many jobs to follow.
func (d *dues) foresee(g *Guard, w *Window) {
	s := w.State
	d.ready(g, s)
	if s.revs != nil && len(d.revs) == len(s.revs) && d.nowS == s.NowS {
		for k, rev := range s.revs {
			if d.revs[k] != rev {
				d.now.set(k, d.freeS(g, k, s))
			}
		}
		d.now.favour(w.GPU)
	} else {
		d.a = d.a[:0]
		for k := range s.GPUs {
			d.a = append(d.a, d.freeS(g, k, s))
		}
		d.now.reset(d.a, w.GPU)
	}
	d.nowS, d.revs = s.NowS, append(d.revs[:0], s.revs...)
	d.followed = min(len(s.Pending), farthest+moreByGPU*len(s.GPUs))
	d.near = 0
	if n := len(w.Jobs); n > 0 {
		d.near = min(d.followed, w.Jobs[n-1]+1)
	}
}

// freeS returns when GPU k is free for those that nothing was decided about, s from now.
func (d *dues) freeS(g *Guard, k int, s *State) float64 {
	return max(d.expect(g, k, s).freeS, s.GPUs[k].NextS)
}

// ready makes room for as many GPUs as there are.
func (d *dues) ready(g *Guard, s *State) {
	d.trust = g.trust()
	d.cards = slices.Grow(d.cards, max(0, len(s.GPUs)-len(d.cards)))[:max(len(d.cards), len(s.GPUs))]
}

// try lets c join now and the near jobs that it leaves go on plainly. It sets trial and
// tried. false: one starts after its latest start, if there are any.
func (d *dues) try(w *Window, c Combo, freeS float64, latest []float64) (inTime bool) {
	d.trial.copy(&d.now)
	if next := w.Card().NextS; next > 0 { // those that follow start so much later
		freeS += max(0, next-d.cards[w.GPU].freeS)
	}
	d.trial.set(w.GPU, freeS)
	d.tried, inTime = d.trial.goOn(d.tried[:0], w, d.near, c, latest)
	return inTime
}

// Late reports whether the last call of Combos refused c because a job would end after its
// due.
func (g *Guard) Late(c Combo) bool { return slices.Contains(g.dues.late, c) }

// Expect writes into dst, whose storage it reuses, when each job of the window is expected
// to have ended, s on State.NowS's clock, if c joins now and nobody after it: those of c on
// the window's GPU, the others each with a whole one. +Inf = nothing is known. Right after a decision about
// the same window it uses what that found out.
func (g *Guard) Expect(dst []float64, w *Window, c Combo) []float64 {
	d, s := &g.dues, w.State
	if !d.soon || !d.of(w) {
		d.soon = false
		d.foresee(g, w)
	}
	var freeS float64
	d.endS, freeS = d.end(g, d.endS, w.Card(), w, c)
	d.try(w, c, freeS, nil)
	together := len(d.endS) // those of c are the last of it
	for i := range w.Jobs {
		if c.Has(i) && w.Job(i).Profile != nil {
			together--
		}
	}
	dst = dst[:0]
	for i, at := range w.Jobs {
		in := math.Inf(1)
		switch j := w.Job(i); {
		case c.Has(i) && j.Profile != nil:
			in = d.endS[together]
			together++
		case c.Has(i):
			in = j.expectedS()
		case at < d.near:
			in = d.tried[at] + j.expectedS()
		}
		dst = append(dst, s.NowS+in)
	}
	return dst
}

// Starts writes into dst, whose storage it reuses, when the first pending jobs start, s from now,
// if they go on plainly: each with a whole GPU, in order of priority. +Inf = not known. They are as
// many as the dues follow.
func (g *Guard) Starts(dst []float64, s *State) []float64 {
	d, w := &g.dues, &Window{State: s, GPU: -1}
	d.soon = false
	d.foresee(g, w)
	d.trial.copy(&d.now)
	dst, _ = d.trial.goOn(dst[:0], w, d.followed, 0, nil)
	return dst
}

// lookAhead lets the near jobs go on plainly.
func (d *dues) lookAhead(g *Guard, w *Window) {
	if d.soon {
		return
	}
	d.soon = true
	d.foresee(g, w)
	s := w.State
	d.alike = d.areAlike(w)
	d.base.copy(&d.now)
	d.startS, _ = d.base.goOn(d.startS[:0], w, d.near, 0, nil)
	d.all, d.tailS = false, d.tailS[:0]
	d.latest = g.latestStarts(d.latest[:0], s, d.startS)
}

// areAlike reports whether each of the followed jobs may use all GPUs that the window's jobs
// may use, and no others, or none of them.
func (d *dues) areAlike(w *Window) bool {
	theirs := w.Job(0).GPUs
	d.mark = slices.Grow(d.mark[:0], len(w.State.GPUs))[:len(w.State.GPUs)]
	for k := range d.mark {
		d.mark[k] = theirs == nil
	}
	inside := func(k int) bool { return k >= 0 && k < len(d.mark) }
	for _, k := range theirs {
		if inside(k) {
			d.mark[k] = true
		}
	}
	d.lists, d.theirs = append(d.lists[:0], gpuList{theirs, true}), d.theirs[:0]
	at := 0
	for i := range d.followed {
		gpus := w.State.Pending[i].GPUs
		if !sameList(d.lists[at].gpus, gpus) { // neighbours often share one
			at = slices.IndexFunc(d.lists, func(l gpuList) bool { return sameList(l.gpus, gpus) })
		}
		if at < 0 {
			same := gpus != nil && slices.Equal(gpus, theirs)
			if gpus == nil || !same && slices.ContainsFunc(gpus, func(k int) bool { return inside(k) && d.mark[k] }) {
				return false
			}
			at, d.lists = len(d.lists), append(d.lists, gpuList{gpus, same})
		}
		d.theirs = append(d.theirs, d.lists[at].theirs)
	}
	return true
}

// gpuList are the GPUs that a job may use, and whether they are those of the window's jobs.
type gpuList struct {
	gpus   []int
	theirs bool
}

// sameList reports whether a and b are one list; many jobs share one.
func sameList(a, b []int) bool {
	return len(a) == len(b) && (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0])
}

// lookFar lets the followed jobs before the given one go on as well, and some more.
func (d *dues) lookFar(g *Guard, w *Window, to int) {
	from := len(d.startS)
	if from == d.near { // nobody has yet
		d.far.copy(&d.base)
		if d.alike {
			d.follow(d.near, len(w.State.GPUs))
		}
	}
	if to <= from {
		return
	}
	d.startS, _ = d.far.goOn(d.startS, w, min(d.followed, max(to, 2*from)), 0, nil)
	d.latest = g.latestStarts(d.latest, w.State, d.startS)
	for i := from; d.alike && i < len(d.startS); i++ {
		was := -1
		if !math.IsInf(d.startS[i], 1) {
			k := d.far.given[d.given]
			d.given++
			was, d.last[k] = d.last[k], i
		}
		d.before = append(d.before, was)
	}
}

// follow begins to note which jobs have the same GPU one after the other.
func (d *dues) follow(near, gpus int) {
	d.given, d.last, d.before = 0, d.last[:0], d.before[:0]
	for range gpus {
		d.last = append(d.last, -1)
	}
	for range near {
		d.before = append(d.before, -1)
	}
}

// tail finds out when the GPUs must be free for those that come later, once all have gone on; nothing where there
// are more pending jobs than are followed.
func (d *dues) tail(g *Guard, w *Window) []float64 {
	d.lookFar(g, w, d.followed)
	s := w.State
	if d.all || d.followed < len(s.Pending) || len(s.PlainFreeS) != len(s.GPUs) {
		return d.tailS
	}
	d.all = true
	d.tailS = append(d.tailS[:0], d.far.freeS...)
	slices.Sort(d.tailS)
	for k, t := range s.PlainFreeS {
		d.tailS[k] = max(d.tailS[k], (t-s.NowS)/(1+reserve))
	}
	return d.tailS
}

// latestStarts appends the latest starts of the jobs behind the last in dst, for those
// that start at startS when all go on plainly.
func (g *Guard) latestStarts(dst []float64, s *State, startS []float64) []float64 {
	for i := len(dst); i < len(startS); i++ {
		j := &s.Pending[i]
		due := g.dueS(j) - s.NowS - j.expectedS()
		if math.IsNaN(due) { // it may take for ever
			due = math.Inf(1)
		}
		if j.DeadlineS > 0 && !g.Bare {
			// Slurm cancels a job that its limit doesn't fit before its deadline.
			due = min(due, j.DeadlineS-j.LimitS-granularityS-s.NowS)
		}
		dst = append(dst, max(startS[i], due/(1+reserve)))
	}
	return dst
}

// expect returns what is expected of GPU k's running jobs.
func (d *dues) expect(g *Guard, k int, s *State) *outlook {
	o, card := &d.cards[k], &s.GPUs[k]
	same := o.nowS == s.NowS && o.after == card.AfterS && len(o.seen) == len(card.Running) && len(o.seen) > 0
	for i := 0; same && i < len(o.seen); i++ {
		same = o.seen[i] == glance(&card.Running[i])
	}
	if same {
		return o
	}
	o.nowS, o.after, o.seen = s.NowS, card.AfterS, o.seen[:0]
	for i := range card.Running {
		o.seen = append(o.seen, glance(&card.Running[i]))
	}
	o.endS, o.freeS = d.end(g, o.endS, card, nil, 0)
	return o
}

func glance(r *Running) glimpse {
	return glimpse{r.Profile, r.DoneS, r.ElapsedS, r.LimitS}
}

// end writes into dst when the card's jobs, and those of c after them, are expected to
// have ended, s from now, and returns when the last one has. A job of unknown length takes
// its limit.
func (d *dues) end(g *Guard, dst []float64, card *GPU, w *Window, c Combo) (_ []float64, freeS float64) {
	d.members, d.workS = d.members[:0], d.workS[:0]
	add := func(j *Job, doneS, elapsedS float64) {
		if j.Profile == nil {
			freeS = max(freeS, j.expectedS()-elapsedS)
			return
		}
		d.members, d.workS = append(d.members, j.Profile), append(d.workS, j.Profile.DurationS-doneS)
	}
	for i := range card.Running {
		r := &card.Running[i]
		add(&r.Job, r.DoneS, r.ElapsedS)
	}
	if w != nil {
		for i := range w.Jobs {
			if c.Has(i) {
				add(w.Job(i), 0, 0)
			}
		}
	}
	dst = g.ends(dst, &card.Spec, d.members, d.workS, d.trust)
	for i := range dst {
		freeS = max(freeS, dst[i])
		dst[i] += card.AfterS
	}
	return dst, freeS + card.AfterS
}

// InTime reports whether a job is expected to keep its due that starts on GPU k when the jobs
// there have ended, and is slowed so much then.
func (g *Guard) InTime(s *State, k int, j *Job, slowdown float64) bool {
	return s.NowS+g.FreeInS(s, k)+max(1, slowdown)*j.expectedS() <= g.dueS(j)+rounding
}

// LatestStarts writes into dst, whose storage it reuses, in how many seconds each job of a group must start to keep
// its due if all start together on an idle GPU of the kind; +Inf: nothing is promised.
func (g *Guard) LatestStarts(dst []float64, s *State, spec *GPUSpec, group []Running) []float64 {
	d := &g.dues
	d.soon, d.trust = false, g.trust()
	d.endS, _ = d.end(g, d.endS, &GPU{Spec: *spec, Running: group}, nil, 0)
	dst = dst[:0]
	known := 0 // of those before
	for i := range group {
		j := &group[i].Job
		takes := j.expectedS()
		if j.Profile != nil {
			takes = d.endS[known]
			known++
		}
		by := g.dueS(j)
		if !math.IsInf(by, 1) {
			by -= s.NowS + takes
		}
		dst = append(dst, by)
	}
	return dst
}

// FreeInS returns in how many seconds the running jobs of GPU k are expected to have ended,
// on the safe side; +Inf = it isn't known.
func (g *Guard) FreeInS(s *State, k int) float64 {
	g.dues.soon = false // what a decision found out may hold no longer
	g.dues.ready(g, s)
	return g.dues.expect(g, k, s).freeS
}

// keep reports whether every due is kept, as far as it can still be, if c joins now.
func (d *dues) keep(g *Guard, w *Window, c Combo) bool {
	if !d.on {
		return true
	}
	d.lookAhead(g, w)
	var freeS float64
	d.endS, freeS = d.end(g, d.endS, w.Card(), w, c)
	if !d.nextKeep(w, freeS) || !d.membersKeep(g, w, c) || !d.try(w, c, freeS, d.latest) {
		return false
	}
	if !d.alike {
		return d.restKeep(g, w)
	}
	d.differ(w.GPU)
	return d.apart.noLater() || d.restAlike(g, w)
}

// nextKeep reports whether those that follow on the GPU start in time if it is free then, as far as they still
// can.
func (d *dues) nextKeep(w *Window, freeS float64) bool {
	card := w.Card()
	return card.NextS == 0 || freeS <= max(card.NextByS, d.cards[w.GPU].freeS)+rounding
}

// membersKeep reports whether the running jobs and those of c, which are expected to end
// at endS, keep their dues.
func (d *dues) membersKeep(g *Guard, w *Window, c Combo) bool {
	s, card := w.State, w.Card()
	before := d.cards[w.GPU].endS
	k := 0
	for i := range card.Running {
		r := &card.Running[i]
		if r.Profile == nil {
			continue
		}
		if d.endS[k] > max(before[k], g.dueS(&r.Job)-s.NowS)+rounding {
			return false
		}
		k++
	}
	for i, at := range w.Jobs {
		j := w.Job(i)
		if !c.Has(i) || j.Profile == nil {
			continue
		}
		plainly := math.Inf(1) // not followed: nothing is known of its turn
		if at < d.near {
			plainly = d.startS[at] + j.Profile.DurationS
		}
		most := g.dueS(j) - s.NowS
		if plainly > most { // it is lost
			most = plainly + g.grace()*j.Profile.DurationS
		}
		if d.endS[k] > most+rounding {
			return false
		}
		k++
	}
	return true
}

// differ finds out how trial and base differ, where gpu and those given to jobs are all that may.
func (d *dues) differ(gpu int) {
	d.gpus = append(append(append(d.gpus[:0], gpu), d.base.given...), d.trial.given...)
	slices.Sort(d.gpus)
	d.gpus = slices.Compact(d.gpus)
	d.a, d.b = d.a[:0], d.b[:0]
	for _, k := range d.gpus {
		d.a, d.b = append(d.a, d.trial.freeS[k]), append(d.b, d.base.freeS[k])
	}
	d.apart.set(d.a, d.b)
}

// restAlike is restKeep where d.alike.
func (d *dues) restAlike(g *Guard, w *Window) bool {
	keep, known := d.apart.goOn(g, d, w)
	if !known {
		return d.restKeep(g, w)
	}
	return keep
}

// restKeep reports whether the jobs behind the near ones keep their dues after trial, and
// those that come later.
func (d *dues) restKeep(g *Guard, w *Window) bool {
	tail := d.tail(g, w)
	var inTime bool
	if d.tried, inTime = d.trial.goOn(d.tried, w, d.followed, 0, d.latest); !inTime {
		return false
	}
	if len(tail) == 0 {
		return true
	}
	d.a = append(d.a[:0], d.trial.freeS...)
	slices.Sort(d.a)
	return noneLater(d.a, tail)
}

// noneLater reports whether none of a is later than its counterpart of b.
func noneLater(a, b []float64) bool {
	for i, t := range a {
		if t > b[i]+rounding {
			return false
		}
	}
	return true
}
