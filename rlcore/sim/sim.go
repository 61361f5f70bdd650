// Package sim runs jobs on simulated GPUs, event by event.
//
// It fills the same rlcore.State that the bridge fills and asks the same
// Decider; what happens then follows from a Truth: the contention law that the
// simulated GPU runs, or measured slowdowns of pairs. Nothing is drawn at random
// here: the same Config gives the same Result to the last bit.
package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Job is a job to simulate. The embedded Job is what a decision is told of it.
type Arrival struct {
	rlcore.Job
	// Truth is what the job really does when it runs alone; nil = as Profile says.
	Truth *rlcore.Profile
}

// Config is what to simulate.
type Config struct {
	Jobs []Arrival // in order of priority among those that arrive together
	GPUs []rlcore.GPUSpec
	// Truth says how sharers slow each other.
	Truth Truth
	// Predictor is what the site believes of slowdowns. A decision is told how far
	// a running job has come by it, since nobody can see that in a real job; nil:
	// decisions are told the truth.
	Predictor rlcore.Predictor
	// Observer, if set, is told of every co-run that says something.
	Observer Observer
	// M is the window of decisions: an arrival behind it wakes no GPU. Default 5;
	// Run takes it from its Decider.
	M int
	// MaxRestarts is how often a job that failed for want of memory starts again
	// among others before it gets a GPU of its own. Default 1.
	MaxRestarts int
	// Track keeps how busy the GPUs were over time in the Result.
	Track bool
	// MaxDelayS is the guard's: an idle GPU that was left waiting is asked again when
	// a job of its window has been delayed that long. Default
	// rlcore.DefaultMaxDelayS; Run takes it from its Decider.
	MaxDelayS float64
	// Horizon ends a simulation that goes on longer, s. Default 1e9.
	Horizon float64
}

// ErrBadConfig marks a Config that can't be simulated.
var ErrBadConfig = errors.New("can't simulate")

// ErrStuck marks a simulation in which jobs are left, but neither an event nor a decision moves them.
var ErrStuck = errors.New("simulation is stuck")

// segment is a stretch of a profile in which nothing changes.
type segment struct {
	until float64 // s of solo work
	use   rlcore.Use
}

// member is a job on a GPU.
type member struct {
	job     int // index in Sim.jobs
	segs    []segment
	k       int     // the segment it is in
	done    float64 // s of solo work really done
	est     float64 // the same as a decision is told
	slow    float64 // slowdown at this instant
	estSlow float64 // slowdown believed in
	startS  float64
}

// device is a GPU and who is on it. Its figures hold at atS; they are brought
// forward only when the device or a decision needs them.
type device struct {
	spec    rlcore.GPUSpec
	members []member
	atS     float64
	nextS   float64            // when a member's segment ends at the present speeds
	workS   float64            // solo work done so far, s
	busy    float64            // fraction of time a kernel runs, at this instant
	mem     float64            // MiB held at this instant
	busyS   float64            // ∫ busy dt
	memMiBS float64            // ∫ mem dt
	ask     bool               // a decision is due
	waits   bool               // the last decision left it idle though jobs were pending
	wakeS   float64            // when to ask again at the latest
	told    bool               // Sim.state knows the members
	counted int                // members in Sim.total
	met     map[[2]int]float64 // s that two jobs were here together; kept for an Observer
}

// Sim is a simulation that stops wherever a decision is due:
//
//	for s.Next() {
//		s.Start(decide(s.State(), s.GPU()))
//	}
//	res, err := s.Result()
type Sim struct {
	cfg   Config
	truth Truth
	jobs  []jobState
	devs  []device
	segs  map[*rlcore.Profile][]segment
	order []int // jobs by arrival
	next  int   // the next of order to arrive
	now   float64
	gpu   int // the GPU a decision is due for
	state rlcore.State
	wait  []int // pending jobs, parallel to state.Pending
	left  int
	err   error
	// choosy: not every job may use every GPU.
	choosy bool

	asked   bool    // some device's ask is not in queue yet
	queue   []int   // GPUs that want a decision, the first to be asked last
	waiting int     // devices that wait
	toldS   float64 // when state was brought up to date

	forced    bool // waiting would be for ever
	decisions int
	oom       int
	track     []Sample
	total     Sample // sums over the devices

	scratch scratch
}

type jobState struct {
	Arrival
	started, ended float64
	failures       int
	gpu            int
	noShare        bool // before any failure
}

// New prepares a simulation. Errors wrap ErrBadConfig and name the job or GPU.
func New(cfg Config) (*Sim, error) {
	if cfg.M == 0 {
		cfg.M = rlcore.DefaultWindow
	}
	if cfg.MaxRestarts == 0 {
		cfg.MaxRestarts = 1
	}
	if cfg.MaxDelayS == 0 {
		cfg.MaxDelayS = rlcore.DefaultMaxDelayS
	}
	if cfg.Horizon == 0 {
		cfg.Horizon = 1e9
	}
	if cfg.Truth == nil {
		return nil, fmt.Errorf("%w: no law of contention is given", ErrBadConfig)
	}
	if len(cfg.GPUs) == 0 {
		return nil, fmt.Errorf("%w: there is no GPU", ErrBadConfig)
	}
	s := &Sim{cfg: cfg, truth: cfg.Truth, segs: map[*rlcore.Profile][]segment{}}
	for i, spec := range cfg.GPUs {
		if !(spec.MemMiB > 0) {
			return nil, fmt.Errorf("%w: GPU %d has %v MiB of memory", ErrBadConfig, i, spec.MemMiB)
		}
		s.devs = append(s.devs, device{spec: spec})
		s.state.GPUs = append(s.state.GPUs, rlcore.GPU{
			ID: fmt.Sprint(i), Node: "sim", Spec: spec, FreeCPUs: -1, FreeHostMemMiB: -1,
		})
	}
	for i := range cfg.Jobs {
		j := &cfg.Jobs[i]
		n, err := cfg.job(j)
		if err != nil {
			return nil, fmt.Errorf("%w: job %s: %w", ErrBadConfig, j.ID, err)
		}
		s.jobs = append(s.jobs, n)
		s.order = append(s.order, i)
		s.choosy = s.choosy || n.GPUs != nil
	}
	sortByArrival(s.order, s.jobs)
	s.reset()
	return s, nil
}

// job checks a job. One that some of its GPUs can't hold may only use the others:
// its owner knows that much, and alone nobody else keeps it from failing there.
func (cfg *Config) job(j *Arrival) (jobState, error) {
	n := jobState{Arrival: *j}
	if n.Truth == nil {
		n.Truth = n.Profile
	}
	if n.Truth == nil {
		return n, errors.New("it has no profile")
	}
	for _, p := range []*rlcore.Profile{n.Truth, n.Profile} {
		if p == nil {
			continue
		}
		if err := p.Validate(); err != nil {
			return n, err
		}
	}
	if !(j.SubmitS >= 0) || math.IsInf(j.SubmitS, 0) {
		return n, fmt.Errorf("it arrives at %v s", j.SubmitS)
	}
	for _, g := range j.GPUs {
		if g < 0 || g >= len(cfg.GPUs) {
			return n, fmt.Errorf("there is no GPU %d", g)
		}
	}
	mem := n.Truth.Peak().MemMiB
	var holds []int
	all := true
	for g := range cfg.GPUs {
		switch {
		case !j.MayUse(g):
		case mem <= cfg.GPUs[g].MemMiB:
			holds = append(holds, g)
		default:
			all = false
		}
	}
	if len(holds) == 0 {
		return n, fmt.Errorf("it needs %.0f MiB, more than any GPU it may use has", mem)
	}
	if !all {
		n.GPUs = holds
	}
	n.noShare = n.NoShare
	return n, nil
}

// reset goes back to the start.
func (s *Sim) reset() {
	inf := math.Inf(1)
	for i := range s.jobs {
		j := &s.jobs[i]
		j.started, j.ended, j.failures, j.gpu, j.NoShare = -1, -1, 0, 0, j.noShare
	}
	for g := range s.devs {
		d := &s.devs[g]
		*d = device{spec: d.spec, members: d.members[:0], nextS: inf, wakeS: inf}
	}
	s.next, s.now, s.left, s.err, s.forced = 0, 0, len(s.jobs), nil, false
	s.decisions, s.oom, s.track, s.total = 0, 0, nil, Sample{}
	s.asked, s.queue, s.waiting, s.toldS = false, s.queue[:0], 0, -1
	s.wait, s.state.Pending = s.wait[:0], s.state.Pending[:0]
}

// Next runs until a decision is due and reports whether one is; false when all
// jobs have ended, or at an error, which Result returns.
func (s *Sim) Next() bool {
	for s.err == nil && s.left > 0 {
		if s.due() {
			return true
		}
		end, wake, arrival := math.Inf(1), math.Inf(1), math.Inf(1)
		ender, waker := -1, -1
		for g := range s.devs {
			d := &s.devs[g]
			if d.nextS < end {
				end, ender = d.nextS, g
			}
			if d.wakeS < wake {
				wake, waker = d.wakeS, g
			}
		}
		if s.next < len(s.order) {
			arrival = s.jobs[s.order[s.next]].SubmitS
		}
		switch {
		case math.IsInf(end, 1) && math.IsInf(arrival, 1):
			if s.forced || len(s.wait) == 0 {
				s.err = fmt.Errorf("%w at %.0f s with %d jobs left", ErrStuck, s.now, s.left)
				return false
			}
			// Everything is idle and nothing will come: waiting is no choice.
			s.forced = true
			s.askAll()
		case arrival <= min(end, wake):
			s.advance(arrival)
			s.arrive()
		case end <= wake:
			s.advance(end)
			s.step(ender)
		default:
			s.advance(wake)
			s.askOne(waker)
			s.devs[waker].wakeS = math.Inf(1)
		}
		if s.now > s.cfg.Horizon {
			s.err = fmt.Errorf("%w: %d jobs are left after %.0f s", ErrStuck, s.left, s.now)
		}
	}
	return false
}

// due looks for a GPU that wants a decision and makes it the current one. Like
// the bridge it turns to those with the fewest jobs first.
func (s *Sim) due() bool {
	if len(s.wait) == 0 {
		return false
	}
	if s.asked {
		s.line()
	}
	last := len(s.queue) - 1
	if last < 0 {
		return false
	}
	s.gpu = s.queue[last]
	s.queue = s.queue[:last]
	d := &s.devs[s.gpu]
	d.ask = false
	if d.waits {
		d.waits, d.wakeS = false, math.Inf(1)
		s.waiting--
	}
	return true
}

// line queues the GPUs that want a decision, the first to be asked last.
func (s *Sim) line() {
	s.asked = false
	s.queue = s.queue[:0]
	for g := range s.devs {
		if s.devs[g].ask {
			s.queue = append(s.queue, g)
		}
	}
	slices.SortFunc(s.queue, func(a, b int) int {
		return cmp.Or(len(s.devs[b].members)-len(s.devs[a].members), b-a)
	})
}

// State is what the decision that is due may look at; valid until Start.
func (s *Sim) State() *rlcore.State {
	s.tell()
	return &s.state
}

// GPU is the GPU the decision is for, by index in Config.GPUs.
func (s *Sim) GPU() int { return s.gpu }

// MustStart reports that waiting is no choice: nothing else will ever happen.
func (s *Sim) MustStart() bool { return s.forced }

// NowS is the simulated time, s.
func (s *Sim) NowS() float64 { return s.now }

// WorkS is the solo work done on GPU g so far, s.
func (s *Sim) WorkS(g int) float64 {
	s.sync(g)
	return s.devs[g].workS
}

// Start carries out a decision: the pending jobs of the given indexes in
// State.Pending join the GPU. None means to wait.
func (s *Sim) Start(pending []int) {
	s.decisions++
	if len(pending) == 0 {
		s.leave(s.gpu)
		return
	}
	s.forced = false
	s.sync(s.gpu) // before anybody joins
	d := &s.devs[s.gpu]
	k := len(d.members)
	for _, p := range pending {
		i := s.wait[p]
		j := &s.jobs[i]
		j.started, j.gpu = s.now, s.gpu
		d.members = append(d.members, member{job: i, segs: s.segments(j.Truth), startS: s.now, slow: 1, estSlow: 1})
	}
	s.forget(pending)
	d.told, s.toldS = false, -1
	s.settle(s.gpu)
	// They start one after the other: who asks for memory and doesn't get it fails.
	for k < len(d.members) {
		if d.memOf(k+1) > d.spec.MemMiB {
			s.fail(s.gpu, k)
		} else {
			k++
		}
	}
	// The window has changed for everybody.
	s.askAll()
}

// forget takes jobs out of the queue. They are near its front, so that it is
// those before them that move.
func (s *Sim) forget(pending []int) {
	end := slices.Max(pending) + 1
	gone := s.scratch.marks(end)
	for _, p := range pending {
		gone[p] = true
	}
	k := end
	for p := end - 1; p >= 0; p-- {
		if !gone[p] {
			k--
			s.wait[k], s.state.Pending[k] = s.wait[p], s.state.Pending[p]
		}
	}
	s.wait, s.state.Pending = s.wait[k:], s.state.Pending[k:]
}

func (s *Sim) askAll() {
	s.asked = true
	for g := range s.devs {
		s.devs[g].ask = true
	}
}

func (s *Sim) askOne(g int) {
	s.asked = true
	s.devs[g].ask = true
}

// arrive lets the next job join the queue.
func (s *Sim) arrive() {
	for s.next < len(s.order) && s.jobs[s.order[s.next]].SubmitS <= s.now {
		s.enqueue(s.order[s.next])
		s.next++
	}
}

func (s *Sim) enqueue(i int) {
	s.wait = append(s.wait, i)
	s.state.Pending = append(s.state.Pending, s.jobs[i].Arrival.Job)
	if len(s.wait) <= s.cfg.M {
		s.askAll()
		return
	}
	if !s.choosy { // all windows are the same, and full
		return
	}
	for g := range s.devs {
		if w := s.window(g); len(w) > 0 && w[len(w)-1] == len(s.wait)-1 {
			s.askOne(g)
		}
	}
}

// window is what a decision on GPU g looks at, by index in State.Pending.
func (s *Sim) window(g int) []int {
	w := rlcore.NewWindow(s.scratch.window, &s.state, g, s.cfg.M)
	s.scratch.window = w.Jobs
	return w.Jobs
}

// step lets the first segment of device g that ends now end.
func (s *Sim) step(g int) {
	s.sync(g)
	d := &s.devs[g]
	k, least := -1, math.Inf(1)
	for i := range d.members {
		m := &d.members[i]
		if left := (m.segs[m.k].until - m.done) * m.slow; left < least {
			k, least = i, left
		}
	}
	m := &d.members[k]
	// Exactly, whatever the sums' rounding says.
	m.done = m.segs[m.k].until
	if m.k+1 == len(m.segs) {
		s.end(g, k)
		return
	}
	was := m.segs[m.k].use
	m.k++
	is := m.segs[m.k].use
	grows := is.MemMiB > was.MemMiB
	if is.MemMiB = was.MemMiB; is == was {
		s.note(g, d.busy) // nobody's speed changes
	} else {
		s.settle(g)
	}
	if grows && d.mem > d.spec.MemMiB {
		s.fail(g, k)
	}
}

// end takes a finished job off its GPU.
func (s *Sim) end(g, k int) {
	d := &s.devs[g]
	i, est := d.members[k].job, d.members[k].est
	s.jobs[i].ended = s.now
	s.left--
	s.report(g, i, est)
	s.remove(g, k)
}

// fail ends a job for want of memory: its work is lost, it is submitted again.
func (s *Sim) fail(g, k int) {
	i := s.devs[g].members[k].job
	j := &s.jobs[i]
	s.forgetMet(g, i)
	j.failures++
	s.oom++
	if j.failures > s.cfg.MaxRestarts {
		j.NoShare = true
	}
	s.remove(g, k)
	s.enqueue(i)
}

func (s *Sim) remove(g, k int) {
	d := &s.devs[g]
	d.members = append(d.members[:k], d.members[k+1:]...)
	d.told, s.toldS = false, -1
	s.settle(g)
	s.askOne(g)
}

// PassOver counts, for the guard's fairness, that the given pending job of the
// state was passed over by the decision that is about to be carried out.
func (s *Sim) PassOver(p int) { s.state.Pending[p].PassedOver++ }
