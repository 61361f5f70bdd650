package rlcore

import (
	"cmp"
	"math"
	"slices"
)

// Plain is the schedule that plain Slurm would have made of the same jobs: each has a
// whole GPU to itself, and starts in order of priority as soon as one that it may use is
// free. It is kept beside the real schedule. What a job takes is what is known of it: its
// profile's duration, else its time limit, and what it turned out to take once it has
// ended.
//
// Jobs that have not begun in it are scheduled anew whenever a job comes, goes, or changes
// its priority; those that have begun keep their GPU. All times are s on State.NowS's
// clock, and no call may go back in time. A Plain is not safe for concurrent use.
type Plain struct {
	nowS  float64 // of the last change
	jobs  map[string]*plainJob
	queue []*plainJob // not begun, highest priority first
	begun []*plainJob // not ended
	free  []float64   // by GPU: when the jobs scheduled there have ended
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
	gpus     []int   // as Job.GPUs
	gpu      int     // that it has, −1 = none will ever do
	startS   float64
	endS     float64
	over     bool // it has ended in reality
}

// NewPlain returns an empty schedule on n GPUs.
func NewPlain(n int) *Plain {
	return &Plain{jobs: map[string]*plainJob{}, begun: make([]*plainJob, 0, 2*n), free: make([]float64, n)}
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
	x := &plainJob{id: j.ID, came: p.came, priority: j.Priority, submitS: j.SubmitS, takesS: j.expectedS(), gpus: j.GPUs}
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
		if takes := j.expectedS(); takes != x.takesS || !slices.Equal(j.GPUs, x.gpus) {
			x.takesS, x.gpus, p.stale = takes, j.GPUs, true
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

// Ended tells that a job has ended in reality, and what it would have taken alone, s; 0 =
// that isn't known.
func (p *Plain) Ended(id string, tookS, nowS float64) {
	x := p.jobs[id]
	if x == nil || x.over {
		return
	}
	p.begin(nowS)
	x.over = true
	if tookS == 0 {
		tookS = x.takesS
	}
	if i := slices.Index(p.begun, x); i >= 0 {
		x.endS = max(nowS, x.startS+tookS)
	} else if !slices.Contains(p.queue, x) {
		delete(p.jobs, id)
		return
	}
	p.stale = p.stale || x.takesS != tookS
	x.takesS = tookS
}

// Remove forgets a job that will not run: it was cancelled or is held, say.
func (p *Plain) Remove(id string, nowS float64) {
	x := p.jobs[id]
	if x == nil {
		return
	}
	p.begin(nowS)
	same := func(y *plainJob) bool { return x == y }
	delete(p.jobs, id)
	p.queue, p.begun = slices.DeleteFunc(p.queue, same), slices.DeleteFunc(p.begun, same)
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

// FreeS writes into dst, whose storage it reuses, when the GPUs are free once all jobs
// have ended, in ascending order.
func (p *Plain) FreeS(dst []float64, nowS float64) []float64 {
	p.settle()
	dst = append(dst[:0], p.free...)
	for i := range dst {
		dst[i] = max(dst[i], nowS)
	}
	slices.Sort(dst)
	return dst
}

// begin goes on to nowS: jobs begin whose time has come, and others end.
func (p *Plain) begin(nowS float64) {
	p.settle()
	p.nowS = nowS
	waits := p.queue[:0]
	for _, x := range p.queue {
		if x.startS >= nowS { // at this very moment another may come before it
			waits = append(waits, x)
		} else {
			p.begun = append(p.begun, x)
		}
	}
	clear(p.queue[len(waits):])
	p.queue = waits
	p.begun = slices.DeleteFunc(p.begun, func(x *plainJob) bool {
		ended := x.endS <= nowS
		if ended && x.over {
			delete(p.jobs, x.id)
		}
		return ended
	})
}

// settle schedules the queue anew where that is due.
func (p *Plain) settle() {
	if !p.stale {
		return
	}
	p.stale = false
	for g := range p.free {
		p.free[g] = p.nowS
	}
	for _, x := range p.begun {
		if x.gpu >= 0 {
			p.free[x.gpu] = max(p.free[x.gpu], x.endS)
		}
	}
	for _, x := range p.queue {
		p.place(x)
	}
}

// place gives a job the GPU that is free first.
func (p *Plain) place(x *plainJob) {
	x.gpu, x.startS = -1, math.Inf(1)
	for g, t := range p.free {
		if t = max(t, p.nowS); t < x.startS && (x.gpus == nil || slices.Contains(x.gpus, g)) {
			x.gpu, x.startS = g, t
		}
	}
	x.endS = x.startS + x.takesS
	if x.gpu >= 0 {
		p.free[x.gpu] = x.endS
	}
}

func plainOrder(a, b *plainJob) int {
	return cmp.Or(-cmp.Compare(a.priority, b.priority), cmp.Compare(a.submitS, b.submitS), cmp.Compare(a.came, b.came))
}
