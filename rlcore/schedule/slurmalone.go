package schedule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// SlurmAlone is plain Slurm's schedule of the same jobs: each has whole GPUs to itself and starts in order of priority
// when its GPUs are free. It is kept next to the real schedule. A job takes its profile's duration, else its time
// limit, and once it has ended the time that it took.
//
// Whenever a job comes, goes or changes its priority, the jobs that have not begun are scheduled again; jobs that have
// begun keep their GPUs. All times are s on one clock; a call that goes back in time counts as one of the
// present. A SlurmAlone is not safe for concurrent use.
type SlurmAlone struct {
	// StartupS is what Slurm takes to start a job on a free GPU, s.
	StartupS float64
	// DoneS returns the solo work that a running job has really done, s; nil = unknown. A job that outlasts its estimate
	// is given the expected length of runs that lasted as long (rlcore.Profile.Left).
	DoneS func(id string) float64

	nowS    float64 // of the last change
	gpus    []string
	jobs    map[string]*aloneJob
	queue   []*aloneJob // not begun, highest priority first
	begun   []*aloneJob // not ended
	sched   List        // of the jobs that have begun and of the queue
	cluster Cluster
	stale   bool // the queue must be scheduled again, as of nowS
	// restored: the schedule was read, and lacks the jobs that wait. It stands still until Wait or Add adds them.
	restored bool
	drawn    bool // earlyS of the queue is set
	came     int
}

// Entry is a job as plain Slurm's schedule sees it.
type Entry struct {
	ID       string  `json:"id"`
	Priority float64 `json:"priority"` // of two, the higher one goes first; of equals, the one that was submitted first
	SubmitS  float64 `json:"submit_s"`
	TakesS   float64 `json:"takes_s"`          // run time alone, s; +Inf = not known, stored as −1
	Spread   float64 `json:"spread,omitempty"` // standard deviation of its logarithm
	// LengthS returns the mean length of runs that have done doneS of solo work without ending, s, and the given quantile;
	// nil = always TakesS.
	LengthS func(doneS, part float64) (meanS, quantileS float64) `json:"-"`
	Request
}

// aloneJob is one job of the schedule, in memory and in JSON. Its priority rises as it waits, and its length grows as
// it runs.
type aloneJob struct {
	Entry
	Slot
	RanFromS float64 `json:"ran_from_s,omitempty"` // when it really started, where Runs
	EndS     float64 `json:"end_s"`
	Place    place   `json:"place"`
	Runs     bool    `json:"runs,omitempty"` // it runs in reality, or has
	Over     bool    `json:"over,omitempty"` // it has ended in reality
	OverS    float64 `json:"over_s,omitempty"`

	seenS  float64 // TakesS as it was last seen, 0 = not since a restart
	came   int     // of equals, the one that came first goes first
	earlyS float64 // of a job of the queue; see EarlyS
}

// Slot is where and when the schedule starts a job.
type Slot struct {
	On     []int   `json:"on,omitempty"` // GPUs; none = none will ever do
	StartS float64 `json:"start_s"`      // stored as −1 where it is +Inf, like EndS
}

// place says whether a job waits, runs, or has ended in the plain schedule.
type place string

const (
	queued place = "queue"
	begun  place = "begun"
	past   place = "past"
)

// NewSlurmAlone returns an empty schedule on GPUs of the given names. One node's have the same name up to the last
// colon.
func NewSlurmAlone(gpus ...string) *SlurmAlone {
	return &SlurmAlone{jobs: map[string]*aloneJob{}, gpus: slices.Clone(gpus), stale: true}
}

// nodeOf is the name of a GPU's node.
func (p *SlurmAlone) nodeOf(g int) string {
	if at := strings.LastIndexByte(p.gpus[g], ':'); at >= 0 {
		return p.gpus[g][:at]
	}
	return p.gpus[g]
}

// Clone copies the schedule.
func (p *SlurmAlone) Clone() *SlurmAlone {
	c := *p
	c.jobs = make(map[string]*aloneJob, len(p.jobs))
	c.sched = List{}
	c.cluster = Cluster{}
	c.queue = nil
	c.begun = nil
	for id, x := range p.jobs {
		one := *x
		one.On = slices.Clone(x.On)
		c.jobs[id] = &one
	}
	c.arrange()
	return &c
}

// arrange fills queue and begun with the jobs that belong there. The queue is to be scheduled again.
func (p *SlurmAlone) arrange() {
	p.stale = true
	p.queue = p.queue[:0]
	p.begun = p.begun[:0]
	for _, x := range p.jobs {
		switch x.Place {
		case queued:
			p.queue = append(p.queue, x)
		case begun:
			p.begun = append(p.begun, x)
		}
	}
	slices.SortFunc(p.queue, byPriority)
}

// mostAhead is how far the clock may go back, s, before the schedule is reset.
const mostAhead = 60

// SetClock resets the schedule if its time is well ahead of the clock, which was wrong and has been set back. Otherwise
// all jobs would be due in the future until the real time had caught up.
func (p *SlurmAlone) SetClock(nowS float64) {
	if p.nowS-nowS > mostAhead {
		fresh := NewSlurmAlone(p.gpus...)
		fresh.StartupS, fresh.DoneS = p.StartupS, p.DoneS
		*p = *fresh
	}
}

// SetGPUs sets the GPUs in service. Jobs that have begun on other ones go on there; the queue moves.
func (p *SlurmAlone) SetGPUs(gpus []string, nowS float64) {
	if slices.Equal(gpus, p.gpus) {
		return
	}
	p.begin(nowS)
	index := make(map[string]int, len(gpus))
	for i, name := range gpus {
		index[name] = i
	}
	to := func(list []int) []int {
		out := make([]int, 0, len(list))
		for _, g := range list {
			if i, ok := index[p.gpus[g]]; ok {
				out = append(out, i)
			}
		}
		return out
	}
	moved := map[*GPUSet]*GPUSet{nil: nil}
	for _, x := range p.jobs {
		x.On = to(x.On)
		if moved[x.GPUs] == nil && x.GPUs != nil {
			moved[x.GPUs] = NewGPUSet(to(slices.Collect(x.GPUs.Of(len(p.gpus))))...)
		}
		x.GPUs = moved[x.GPUs]
	}
	p.gpus, p.stale = slices.Clone(gpus), true
}

// Add adds a new job to the queue.
func (p *SlurmAlone) Add(j Entry, nowS float64) {
	p.restored = false
	p.begin(nowS)
	if p.jobs[j.ID] == nil {
		p.wait([]Entry{j})
	}
}

func (p *SlurmAlone) newJob(j Entry) *aloneJob {
	p.came++
	x := &aloneJob{Entry: j, seenS: j.TakesS, came: p.came, Place: queued}
	p.jobs[j.ID] = x
	return x
}

// Wait sets the waiting jobs, in any order: it adds new ones, and updates priority, length and GPUs of known ones. Jobs
// of the queue that already run in reality would have aged like these; their priority rises by the median.
func (p *SlurmAlone) Wait(jobs []Entry, nowS float64) {
	if p.restored { // first the jobs that waited when it was stored
		p.restored = false
		p.wait(slices.DeleteFunc(slices.Clone(jobs), func(j Entry) bool { return j.SubmitS > p.nowS }))
	}
	p.begin(nowS)
	p.wait(jobs)
}

func (p *SlurmAlone) wait(jobs []Entry) {
	waits := make(map[string]bool, len(jobs))
	var aged []float64
	for _, j := range jobs {
		waits[j.ID] = true
		x := p.jobs[j.ID]
		if x == nil {
			p.queue = append(p.queue, p.newJob(j))
			continue
		}
		aged = append(aged, j.Priority-x.Priority)
		j.SubmitS = x.SubmitS
		x.Entry, x.seenS = j, j.TakesS
	}
	if len(aged) > 0 {
		slices.Sort(aged)
		for _, x := range p.queue {
			if !waits[x.ID] {
				x.Priority += aged[(len(aged)-1)/2]
			}
		}
	}
	slices.SortFunc(p.queue, byPriority)
	p.stale = true
}

// Runs notes that a job really runs on the given GPUs, since startS. An unknown job never waited for the bridge: it
// gets the same GPUs here.
func (p *SlurmAlone) Runs(j Entry, gpus []int, startS, nowS float64) {
	if x := p.jobs[j.ID]; x != nil {
		x.Runs, x.RanFromS, x.LengthS, x.seenS = true, startS, j.LengthS, j.TakesS
		if len(x.On) == 0 && x.Place == begun { // its GPU was away
			x.On, p.stale = slices.Clone(gpus), true
		}
		return
	}
	if nowS > p.nowS { // many jobs may be new in one poll
		p.begin(nowS)
	}
	x := p.newJob(j)
	x.On, x.StartS, x.Runs, x.RanFromS, x.Place = slices.Clone(gpus), startS, true, startS, begun
	x.EndS = max(p.endOf(x, startS), p.nowS)
	p.begun, p.stale = append(p.begun, x), true
}

// Requeued reports whether a waiting job has run before: the schedule knows its last run.
func (p *SlurmAlone) Requeued(id string) bool { return p.jobs[id] != nil && p.jobs[id].Runs }

// Each calls f with the ID of every job that has not really ended, in no order.
func (p *SlurmAlone) Each(f func(id string)) {
	for id, x := range p.jobs {
		if !x.Over {
			f(id)
		}
	}
}

// End is the end of a run, and the solo work that it did as predicted, s; 0 = unknown.
type End struct {
	ID    string
	DoneS float64
}

// Ended notes that jobs have really ended by nowS. It returns when plain Slurm would have ended each of them, 0 = an
// unknown job. The queue is scheduled again once for all of them.
func (p *SlurmAlone) Ended(nowS float64, ends ...End) []float64 {
	p.schedule()
	at := make([]float64, len(ends))
	now := make([]*aloneJob, len(ends))
	for i, e := range ends {
		x := p.jobs[e.ID]
		if x == nil || x.Over {
			continue
		}
		now[i] = x
		took := x.took(e.DoneS, nowS)
		x.Over = true
		x.OverS = nowS
		x.Runs = true
		if took > 0 && math.Abs(took-x.TakesS) > Rounding {
			x.TakesS, p.stale = took, true
		}
		if x.Place == begun {
			x.EndS = p.endOf(x, x.StartS)
		}
	}
	p.schedule() // the jobs behind them may have begun by now
	for i, x := range now {
		if x == nil {
			continue
		}
		if at[i] = p.endOf(x, x.StartS); x.Place == past {
			delete(p.jobs, x.ID)
		}
	}
	p.begin(nowS)
	return at
}

// took is Took of the job.
func (x *aloneJob) took(doneS, nowS float64) float64 {
	if !x.Runs {
		return doneS
	}
	return Took(doneS, nowS-x.RanFromS, cmp.Or(x.seenS, x.TakesS), x.Spread)
}

// Took returns what a run would have taken alone, s, that ended after ranS and did doneS of solo work as predicted. It
// was expected to take expectedS, with a standard deviation spread of the logarithm. If it shared and took something
// else, it was a longer run or was slowed more than predicted. The difference is divided in proportion to the variances
// of both; the standard deviation of the mean slowdown's logarithm is taken to be that logarithm. If all of it counted
// as length, each slowdown that was predicted too low would put off the dues of the jobs behind. Slowdowns account for
// a factor of 2 at most.
func Took(doneS, ranS, expectedS, spread float64) float64 {
	slow := math.Log(ranS / doneS)
	if !(doneS > 0 && slow > alone && expectedS > 0) || math.IsInf(expectedS, 1) {
		return doneS
	}
	by := math.Log(doneS/expectedS) * slow * slow / (slow*slow + spread*spread)
	return doneS * math.Exp(-max(-math.Ln2, min(by, math.Ln2)))
}

// alone is the logarithm of a slowdown below which a run counts as one alone: times are rounded.
const alone = 1e-3

// endOf returns when a job ends that starts at startS.
func (p *SlurmAlone) endOf(x *aloneJob, startS float64) float64 {
	return startS + p.StartupS + x.TakesS
}

// Remove removes jobs that will not run: they were cancelled or are held, say.
func (p *SlurmAlone) Remove(nowS float64, ids ...string) {
	if !slices.ContainsFunc(ids, func(id string) bool { return p.jobs[id] != nil }) {
		return
	}
	p.begin(nowS)
	for _, id := range ids {
		delete(p.jobs, id)
	}
	p.arrange()
}

// EndS returns when the job ends; 0 = it isn't in the schedule. A job that has begun there and waits in reality ends by
// what is expected of its length now. The jobs behind it stay where its expected length at its start put them: moved at
// each change, they would begin whenever it is expected to be short, and never go back.
func (p *SlurmAlone) EndS(id string) float64 {
	p.schedule()
	x := p.jobs[id]
	switch {
	case x == nil:
		return 0
	case x.Place == begun && !x.Runs && !x.Over:
		return p.endOf(x, x.StartS)
	}
	return x.EndS
}

// Slot returns where and when the job starts, nil = it isn't in the schedule. It changes with the schedule.
func (p *SlurmAlone) Slot(id string) *Slot {
	p.schedule()
	if x := p.jobs[id]; x != nil {
		return &x.Slot
	}
	return nil
}

// FreeS writes into dst, and reuses its storage, when each GPU is free after all jobs have ended.
func (p *SlurmAlone) FreeS(dst []float64, nowS float64) []float64 {
	p.schedule()
	dst = append(dst[:0], p.sched.free...)
	for i := range dst {
		dst[i] = max(dst[i], nowS)
	}
	return dst
}

// behindS is how far plain Slurm may fall behind reality, s. Where sharing completes more jobs than plain Slurm could
// run, its queue would grow without bound and dues would soon bind no job; on a real plain Slurm, users would submit
// less. So a job that really ended a day ago and hasn't begun here is dropped. Plain Slurm catches up with a day's peak
// at night.
const behindS = 24 * 3600

// begin moves the time on to nowS: jobs begin and end.
func (p *SlurmAlone) begin(nowS float64) {
	if p.restored {
		return
	}
	p.schedule()
	p.nowS = max(p.nowS, nowS)
	p.foretell()
	for id, x := range p.jobs {
		behind := x.Place == queued && x.Over && p.nowS-x.OverS > behindS
		if x.Place == queued && x.StartS < p.nowS { // at this very moment another job may still come before it
			x.Place = begun
		}
		if x.Place == begun && x.EndS <= p.nowS {
			x.Place = past
		}
		if behind || x.Over && x.Place == past {
			delete(p.jobs, id)
		}
	}
	p.arrange()
}

// foretell sets the length of each running job to the mean of runs that have got as far. Where runs differ in length,
// only the long ones get far: with the mean of all runs, every job would be late soon after its start, and no other
// could join it.
func (p *SlurmAlone) foretell() {
	for id, x := range p.jobs {
		if p.DoneS != nil && x.Runs && !x.Over && x.LengthS != nil {
			x.TakesS, _ = x.LengthS(p.DoneS(id), 0)
			x.EndS = p.endOf(x, x.StartS)
		}
	}
}

// schedule schedules the queue again if needed: each job gets the GPUs that are free first.
func (p *SlurmAlone) schedule() {
	if !p.stale || p.restored {
		return
	}
	p.stale = false
	p.drawn = !slices.ContainsFunc(p.begun, (*aloneJob).differs) && !slices.ContainsFunc(p.queue, (*aloneJob).differs)
	p.cluster.Divide(len(p.gpus), p.nodeOf, len(p.queue), func(i int) Request { return p.queue[i].Request })
	p.behind(&p.sched, func(x *aloneJob) float64 { return x.EndS })
	for _, x := range p.queue {
		at, gpus := p.sched.Run(x.Request, p.StartupS+x.TakesS)
		x.StartS = at
		x.EndS = p.endOf(x, at)
		x.On = append(x.On[:0], gpus...)
		x.earlyS = 0
	}
}

// differs reports whether the job's application has runs of different lengths.
func (x *aloneJob) differs() bool { return x.LengthS != nil }

// behind begins a schedule with the jobs that have begun, which end then.
func (p *SlurmAlone) behind(f *List, endS func(x *aloneJob) float64) {
	free := make([]float64, len(p.gpus))
	for _, x := range p.begun {
		for _, g := range x.On {
			free[g] = max(free[g], endS(x))
		}
	}
	for g := range free {
		if free[g] < p.nowS-Rounding {
			free[g] = p.nowS
		}
	}
	f.Reset(&p.cluster, free)
}

// draws is how many schedules EarlyS rests on, and golden is (√5 − 1)/2: its multiples are spread evenly over the parts
// of a whole, however many jobs in a row have them.
const (
	draws  = 4
	golden = 0.6180339887498949
)

// EarlyS is by how much sooner than in the schedule a job of its queue can be expected to start, s. In the schedule
// each job runs for its mean time. Of many runs that differ the first one ends long before that, so GPUs are free
// sooner. The mean start is found from schedules with run times that are drawn evenly from the jobs' distributions.
func (p *SlurmAlone) EarlyS(id string) float64 {
	p.schedule()
	for k := 0; k < draws && !p.drawn; k++ {
		p.draw(k)
	}
	p.drawn = true
	if x := p.jobs[id]; x != nil && x.Place == queued && !math.IsInf(x.StartS, 1) {
		return max(0, x.earlyS)
	}
	return 0
}

func (p *SlurmAlone) draw(k int) {
	var f List
	p.behind(&f, func(x *aloneJob) float64 { return x.StartS + p.StartupS + p.drawnS(x, k) })
	for _, x := range p.queue {
		at, _ := f.Run(x.Request, p.StartupS+p.drawnS(x, k))
		x.earlyS += (x.StartS - at) / draws
	}
}

// drawnS is how long a job runs in a drawn schedule, s.
func (p *SlurmAlone) drawnS(x *aloneJob, k int) float64 {
	if x.LengthS == nil || x.Over {
		return x.TakesS
	}
	done := 0.0
	if p.DoneS != nil && x.Runs {
		done = p.DoneS(x.ID)
	}
	_, s := x.LengthS(done, math.Mod(float64(x.came)*golden+float64(k)/draws, 1))
	return s
}

func byPriority(a, b *aloneJob) int {
	return cmp.Or(-cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.SubmitS, b.SubmitS), cmp.Compare(a.came, b.came))
}

// aloneJSON is the JSON of a SlurmAlone, without the jobs that wait in reality and in the schedule: Wait adds them
// again.
type aloneJSON struct {
	StartupS float64    `json:"startup_s,omitempty"`
	NowS     float64    `json:"now_s"`
	GPUs     []string   `json:"gpus"`
	Jobs     []aloneJob `json:"jobs"`
}

// MarshalJSON implements json.Marshaler.
func (p *SlurmAlone) MarshalJSON() ([]byte, error) {
	p.schedule()
	out := aloneJSON{StartupS: p.StartupS, NowS: p.nowS, GPUs: p.gpus}
	for _, x := range p.jobs {
		one := *x
		for _, t := range []*float64{&one.TakesS, &one.StartS, &one.EndS} {
			if math.IsInf(*t, 1) {
				*t = -1
			}
		}
		if one.Runs || one.Place != queued {
			out.Jobs = append(out.Jobs, one)
		}
	}
	slices.SortFunc(out.Jobs, func(a, b aloneJob) int { return cmp.Compare(a.came, b.came) })
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *SlurmAlone) UnmarshalJSON(b []byte) error {
	var in aloneJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*p = *NewSlurmAlone(in.GPUs...)
	p.StartupS, p.nowS = in.StartupS, in.NowS
	for i := range in.Jobs {
		x := &in.Jobs[i]
		if p.jobs[x.ID] != nil || slices.ContainsFunc(x.On, func(g int) bool { return g < 0 || g >= len(in.GPUs) }) {
			return fmt.Errorf("plain schedule: job %.40q is there twice, or on GPUs %v of %d", x.ID, x.On, len(in.GPUs))
		}
		p.came++
		x.came = p.came
		for _, t := range []*float64{&x.TakesS, &x.StartS, &x.EndS} {
			if *t < 0 {
				*t = math.Inf(1)
			}
		}
		p.jobs[x.ID] = x
	}
	p.arrange()
	p.restored, p.drawn = true, true
	return nil
}
