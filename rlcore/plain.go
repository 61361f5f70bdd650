package rlcore

import (
	"cmp"
	"slices"
	"strings"
)

// Plain is the schedule that plain Slurm would have made of the same jobs: each has a
// whole GPU to itself, and starts in order of priority as soon as one that it may use is
// free. It is kept beside the real schedule. What a job takes is what is known of it: its
// profile's duration, else its time limit, and what it turned out to take once it has
// ended.
//
// Jobs that have not begun in it are scheduled anew whenever a job comes, goes, or changes
// its priority; those that have begun keep their GPU. All times are s on State.NowS's
// clock; a call that goes back in time is one of the present. A Plain is not safe for
// concurrent use.
type Plain struct {
	// StartupS is what Slurm takes to start a job on a free GPU, s.
	StartupS float64
	// DoneS returns how much solo work a job has done in reality that has not ended, s; a
	// job that has done more than was expected in all takes longer on plain Slurm, too. nil
	// = that isn't known.
	DoneS func(id string) float64

	nowS  float64 // of the last change
	gpus  []string
	node  []int // by GPU; see schedule
	jobs  map[string]*plainJob
	queue []*plainJob // not begun, highest priority first
	begun []*plainJob // not ended
	sched schedule    // of the jobs that have begun and of the queue
	stale bool        // the queue must be scheduled anew, as of nowS
	came  int
}

// plainJob is one job of the plain schedule.
type plainJob struct {
	id       string
	priority float64
	submitS  float64
	came     int     // of equals, the one that came first goes first
	takesS   float64 // run time alone
	asks     asks
	on       []int // its GPUs; none = none will ever do
	startS   float64
	endS     float64
	runs     bool // it runs in reality, or has
	over     bool // it has ended in reality
	goesOn   bool // it should have ended
}

// NewPlain returns an empty schedule on GPUs of the given names. Those of one node have the same name up to
// the last colon.
func NewPlain(gpus ...string) *Plain {
	p := &Plain{jobs: map[string]*plainJob{}, begun: make([]*plainJob, 0, 2*len(gpus))}
	p.setGPUs(gpus)
	return p
}

func (p *Plain) setGPUs(gpus []string) {
	p.gpus, p.stale = slices.Clone(gpus), true
	p.node = nodeNumbers(nil, len(gpus), func(g int) string {
		if at := strings.LastIndexByte(gpus[g], ':'); at >= 0 {
			return gpus[g][:at]
		}
		return gpus[g]
	})
}

// Clone copies the schedule.
func (p *Plain) Clone() *Plain {
	c := &Plain{
		StartupS: p.StartupS, DoneS: p.DoneS, nowS: p.nowS, gpus: p.gpus, node: p.node, jobs: make(map[string]*plainJob, len(p.jobs)), stale: true, came: p.came,
	}
	for id, x := range p.jobs {
		one := *x
		one.on = slices.Clone(x.on)
		c.jobs[id] = &one
	}
	for _, x := range p.queue {
		c.queue = append(c.queue, c.jobs[x.id])
	}
	for _, x := range p.begun {
		c.begun = append(c.begun, c.jobs[x.id])
	}
	return c
}

// SetGPUs tells which GPUs are in service now. Jobs that have begun on another one go on
// there; those of the queue go to the others.
func (p *Plain) SetGPUs(gpus []string, nowS float64) {
	if slices.Equal(gpus, p.gpus) {
		return
	}
	p.begin(nowS)
	index := make(map[string]int, len(gpus))
	for i, name := range gpus {
		index[name] = i
	}
	to := func(dst, list []int) []int {
		for _, g := range list {
			if g < 0 || g >= len(p.gpus) {
				continue
			}
			if i, ok := index[p.gpus[g]]; ok {
				dst = append(dst, i)
			}
		}
		return dst
	}
	for _, x := range p.jobs {
		x.on = to(x.on[:0], x.on)
		if x.asks.gpus != nil {
			x.asks.gpus = to(make([]int, 0, len(x.asks.gpus)), x.asks.gpus)
		}
	}
	p.setGPUs(gpus)
}

// Add puts a job into the schedule that has come.
func (p *Plain) Add(j *Job, nowS float64) {
	p.begin(nowS)
	if p.jobs[j.ID] != nil {
		return
	}
	x := p.newJob(j)
	at, _ := slices.BinarySearchFunc(p.queue, x, plainOrder)
	p.queue = slices.Insert(p.queue, at, x)
	if at < len(p.queue)-1 {
		p.stale = true
	}
	if !p.stale {
		p.place(x)
	}
}

func (p *Plain) newJob(j *Job) *plainJob {
	p.came++
	x := &plainJob{id: j.ID, came: p.came, priority: j.Priority, submitS: j.SubmitS, takesS: j.expectedS(), asks: j.asks()}
	p.jobs[j.ID] = x
	return x
}

// Wait tells which jobs wait now, in any order: new ones are added, and the priority,
// length and GPUs of the others are taken over. The jobs of the queue that run already
// in reality would have aged like these, so their priority is raised by as much as the
// median one of these.
func (p *Plain) Wait(jobs []Job, nowS float64) {
	p.begin(nowS)
	waits := make(map[string]bool, len(jobs))
	var aged []float64
	for i := range jobs {
		j := &jobs[i]
		waits[j.ID] = true
		x := p.jobs[j.ID]
		if x == nil {
			p.queue = append(p.queue, p.newJob(j))
			p.stale = true
			continue
		}
		aged = append(aged, j.Priority-x.priority)
		x.priority = j.Priority
		if takes := j.expectedS(); takes != x.takesS || !j.asks().same(x.asks) {
			x.takesS, x.asks, p.stale = takes, j.asks(), true
		}
	}
	if len(aged) > 0 {
		slices.Sort(aged)
		for _, x := range p.queue {
			if !waits[x.id] {
				x.priority += aged[(len(aged)-1)/2]
			}
		}
	}
	if !slices.IsSortedFunc(p.queue, plainOrder) {
		slices.SortFunc(p.queue, plainOrder)
		p.stale = true
	}
}

// Runs tells that a job runs in reality on the given GPUs, since startS. One that the schedule
// doesn't know never waited for the bridge: it has them there, too.
func (p *Plain) Runs(j *Job, gpus []int, startS, nowS float64) {
	if x := p.jobs[j.ID]; x != nil {
		x.runs = true
		if len(x.on) == 0 && slices.Contains(p.begun, x) { // its GPU was away
			x.on, p.stale = slices.Clone(gpus), true
		}
		return
	}
	p.begin(nowS)
	x := p.newJob(j)
	x.on, x.startS, x.runs, x.endS = slices.Clone(gpus), startS, true, max(p.endOf(x, startS), p.nowS)
	p.begun = append(p.begun, x)
	p.stale = true
}

// Requeued reports whether a job that waits has run before: the schedule knows its last run.
func (p *Plain) Requeued(id string) bool { return p.jobs[id] != nil && p.jobs[id].runs }

// Each calls f with the ID of every job that has not ended in reality, in no order.
func (p *Plain) Each(f func(id string)) {
	for id, x := range p.jobs {
		if !x.over {
			f(id)
		}
	}
}

// Ended tells that a job has ended in reality, and what it would have taken alone, s; 0 =
// that isn't known. It returns when plain Slurm would have ended it, 0 = the schedule
// doesn't know it.
func (p *Plain) Ended(id string, tookS, nowS float64) (endS float64) {
	x := p.jobs[id]
	if x == nil || x.over {
		return 0
	}
	p.settle()
	x.over, x.runs, x.goesOn = true, true, false
	if tookS > 0 && tookS != x.takesS {
		x.takesS, p.stale = tookS, true
	}
	if slices.Contains(p.begun, x) {
		x.endS = p.endOf(x, x.startS)
	} else if !slices.Contains(p.queue, x) {
		delete(p.jobs, id)
	}
	p.settle() // those behind it may have begun by now
	endS = p.endOf(x, x.startS)
	p.begin(nowS)
	return endS
}

// endOf returns when a job ends that starts, or is started, at startS.
func (p *Plain) endOf(x *plainJob, startS float64) float64 { return startS + p.StartupS + x.takesS }

// Remove forgets jobs that will not run: they were cancelled or are held, say.
func (p *Plain) Remove(nowS float64, ids ...string) {
	gone := map[*plainJob]bool{}
	for _, id := range ids {
		if x := p.jobs[id]; x != nil {
			gone[x] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	p.begin(nowS)
	for x := range gone {
		delete(p.jobs, x.id)
	}
	is := func(x *plainJob) bool { return gone[x] }
	p.queue, p.begun = slices.DeleteFunc(p.queue, is), slices.DeleteFunc(p.begun, is)
	p.stale = true
}

// EndS returns when the job would have ended; 0 = it isn't in the schedule.
func (p *Plain) EndS(id string) float64 {
	p.settle()
	if x := p.jobs[id]; x != nil {
		return x.endS
	}
	return 0
}

// FreeS writes into dst, whose storage it reuses, when each GPU is free once all jobs have ended.
func (p *Plain) FreeS(dst []float64, nowS float64) []float64 {
	p.settle()
	dst = append(dst[:0], p.sched.free...)
	for i := range dst {
		dst[i] = max(dst[i], nowS)
	}
	return dst
}

// begin goes on to nowS: jobs begin whose time has come, and others end. Those that one GPU
// has for them are in the queue in the order in which they start.
func (p *Plain) begin(nowS float64) {
	p.settle()
	if nowS > p.nowS {
		p.nowS = nowS
		for g, t := range p.sched.free {
			if t < nowS { // an idle GPU is like another, however long it has been idle
				p.sched.put(g, nowS)
			}
		}
	}
	var held []int // GPUs
	for _, x := range p.begun {
		if p.goOn(x) {
			held = append(held, x.on...)
		}
	}
	waits := p.queue[:0]
	for _, x := range p.queue {
		// At this very moment another may come before it.
		if x.startS >= p.nowS || slices.ContainsFunc(x.on, func(g int) bool { return slices.Contains(held, g) }) {
			waits = append(waits, x)
			continue
		}
		p.begun = append(p.begun, x)
		if p.goOn(x) {
			held = append(held, x.on...)
		}
	}
	clear(p.queue[len(waits):])
	p.queue = waits
	p.begun = slices.DeleteFunc(p.begun, func(x *plainJob) bool {
		ended := x.endS <= p.nowS && !x.goesOn
		if ended && x.over {
			delete(p.jobs, x.id)
		}
		return ended
	})
	p.settle()
}

// goOn lets a job go on, and reports it, that should have ended and has done all that was
// expected of it, but has not ended in reality.
func (p *Plain) goOn(x *plainJob) bool {
	x.goesOn = false
	if p.DoneS == nil || x.over || !x.runs || x.endS > p.nowS {
		return false
	}
	// What it had done by its plain end, at the least: nobody does more than a second of work
	// a second.
	over := p.nowS - x.endS
	if p.DoneS(x.id)-over < x.takesS-rounding {
		return false
	}
	x.takesS, x.endS, x.goesOn, p.stale = x.takesS+over, p.nowS, true, true
	return true
}

// settle schedules the queue anew where that is due.
func (p *Plain) settle() {
	if !p.stale {
		return
	}
	p.stale = false
	p.sched.shape(p.node, len(p.queue), func(i int) []int { return p.queue[i].asks.gpus })
	free := make([]float64, len(p.gpus))
	for g := range free {
		free[g] = p.nowS
	}
	for _, x := range p.begun {
		for _, g := range x.on {
			free[g] = max(free[g], x.endS)
		}
	}
	p.sched.reset(free)
	for _, x := range p.queue {
		p.place(x)
	}
}

// place gives a job the GPUs that are free first.
func (p *Plain) place(x *plainJob) {
	at, gpus := p.sched.start(x.asks)
	x.startS, x.on = max(at, p.nowS), append(x.on[:0], gpus...)
	x.endS = p.endOf(x, x.startS)
	for _, g := range gpus {
		p.sched.put(g, x.endS)
	}
}

func plainOrder(a, b *plainJob) int {
	return cmp.Or(-cmp.Compare(a.priority, b.priority), cmp.Compare(a.submitS, b.submitS), cmp.Compare(a.came, b.came))
}
