package sim

import (
	"fmt"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
	"github.com/slurmbridge/slurmbridge/rlcore/sim/site"
)

// Sim is a simulation that stops whenever a decision is due:
//
//	for s.Next() {
//		s.Start(decide(s.State(), s.GPU()))
//	}
//	res, err := s.Result()
type Sim struct {
	cfg       Config
	jobs      []jobState
	devs      []device
	segs      map[*rlcore.Profile][]segment
	order     []int // jobs by arrival
	next      int   // position in order of the next arrival
	now       float64
	gpu       int // the GPU for which a decision is due
	state     rlcore.State
	stateS    float64         // when state was last brought up to date
	begun     *rlcore.Decider // that has decided on state as it is; nil = none
	wait      []int           // pending jobs, parallel to state.Pending
	left      int             // jobs that haven't ended
	choosy    bool            // some job may not use every GPU
	err       error
	decisions int

	forced bool // a decision must start something: nothing else would ever happen
	oom    int

	// plain is plain Slurm's schedule as the site expects it, truly the one that it would have been.
	plain, truly *schedule.SlurmAlone
	names        []string       // of the GPUs
	byID         map[string]int // index in jobs

	turns  turns
	vetoes []waiting // by GPU: the job that the last decision there keeps waiting
	waited []float64 // by job and reason, s
	site   site.Site
	onCard map[onCard]*rlcore.Profile

	scratch scratch
}

// jobState is a job and what has become of it so far.
type jobState struct {
	Arrival
	known          *rlcore.Profile // Arrival's, before anything was foretold
	started, ended float64         // s; −1 = not yet
	failures       int
	gpu            int
	on             []int // its GPUs, if it is foreign
	timedOut       bool
	done           float64 // solo work of its last run, s
}

// Next runs until a decision is due and reports whether one is. It returns false
// when all jobs have ended, or after an error, which Result returns.
func (s *Sim) Next() bool {
	for s.err == nil && s.left > 0 {
		if !s.endsNow() && s.due() {
			return true
		}
		s.event()
	}
	return false
}

// endsNow reports whether more ends at this moment: a decision sees all GPUs as they are then.
func (s *Sim) endsNow() bool {
	for g := range s.devs {
		if s.devs[g].nextS <= s.now {
			return true
		}
	}
	return false
}

// event lets the next thing happen: an arrival, the end of a segment or of a job's time, or the
// moment at which a decision about an idle GPU is due again.
func (s *Sim) event() {
	s.turns.known = false
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
			return
		}
		s.forced = true
		s.decideAll()
	case arrival <= min(end, wake):
		s.advance(arrival)
		s.arrive()
	case end <= wake:
		s.advance(end)
		s.endNext(ender)
	default:
		s.advance(wake)
		s.devs[waker].due = true
		s.devs[waker].wakeS = math.Inf(1)
	}
}

// due makes the next GPU with a decision due the current one and reports whether
// there is one. Like in the bridge, the GPU with the fewest jobs comes first.
func (s *Sim) due() bool {
	s.startForeign()
	if len(s.wait) == 0 {
		return false
	}
	next := -1
	for g := range s.devs {
		if s.devs[g].due && (next < 0 || len(s.devs[g].members) < len(s.devs[next].members)) {
			next = g
		}
	}
	if next < 0 {
		return false
	}
	s.gpu = next
	d := &s.devs[next]
	d.due = false
	d.wake()
	return true
}

// wake ends the wait of a device that a decision may have left idle.
func (d *device) wake() { d.leftIdle, d.wakeS = false, math.Inf(1) }

func (s *Sim) decideAll() {
	for g := range s.devs {
		s.devs[g].due = true
	}
}

// GPU returns the index in Config.GPUs of the GPU that the decision is for.
func (s *Sim) GPU() int { return s.gpu }

// NowS returns the simulated time, s.
func (s *Sim) NowS() float64 { return s.now }

// Start carries out a decision: the pending jobs with the given indexes in
// State.Pending join the GPU. None means to wait.
func (s *Sim) Start(pending []int) {
	s.decisions++
	if len(pending) == 0 {
		s.leave(s.gpu)
		return
	}
	s.forced = false
	d := &s.devs[s.gpu]
	k := len(d.members)
	for _, p := range pending {
		s.begin(p, []int{s.gpu})
	}
	s.dequeue(pending)
	s.refresh(s.gpu)
	// The jobs start one after the other; one for which memory doesn't suffice fails.
	for k < len(d.members) {
		if d.memOf(k+1) > d.spec.MemMiB {
			s.fail(s.gpu, k)
		} else {
			k++
		}
	}
	s.decideAll() // all windows have changed
}

// begin makes pending job p a member of the given GPUs; they are to be refreshed.
func (s *Sim) begin(p int, on []int) {
	i := s.wait[p]
	j := &s.jobs[i]
	j.started, j.gpu = s.now, on[0]
	s.plain.Runs(j.ForSchedule(), on, s.now, s.now)
	truth := s.truth(i, on[0])
	latest := s.cfg.latestEnd(&j.Arrival, truth.DurationS, s.now)
	for _, g := range on {
		s.sync(g) // with the members so far
		d := &s.devs[g]
		d.members = append(d.members, member{
			job: i, segs: s.segments(truth), startS: s.now, latestS: latest, slow: 1, estSlow: 1,
		})
		d.inState, s.stateS, s.turns.known = false, -1, false
		s.vetoes[g] = waiting{}
	}
}

// latestEnd returns when a run of the job that starts at startS is ended at its time limit; +Inf = never. Slurm checks
// about every 30 s; here it is exact. A job that gets back what sharing costs it isn't ended at a limit within which it
// would end alone, after aloneS.
func (cfg *Config) latestEnd(j *Arrival, aloneS, startS float64) float64 {
	if j.LimitS > 0 && !(cfg.ExtendLimit && !j.LimitFixed && aloneS < j.LimitS) {
		return startS + j.LimitS
	}
	return math.Inf(1)
}

// dequeue removes jobs from the pending ones. They are near the front, so the jobs in front of them move.
func (s *Sim) dequeue(pending []int) {
	s.begun = nil
	end := slices.Max(pending) + 1
	gone := make([]bool, end)
	for _, p := range pending {
		gone[p] = true
		s.noLonger(s.wait[p])
		if s.state.Pending[p].Foreign {
			s.turns.pending--
		}
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

// arrive queues all jobs that have arrived by now.
func (s *Sim) arrive() {
	for s.next < len(s.order) && s.jobs[s.order[s.next]].SubmitS <= s.now {
		s.enqueue(s.order[s.next])
		s.next++
	}
}

// enqueue appends job i to the pending ones; a decision is due for every GPU with a window that it enters. A foreign
// job enters none.
func (s *Sim) enqueue(i int) {
	s.know(i)
	s.expect(i)
	s.wait, s.begun = append(s.wait, i), nil
	s.state.Pending = append(s.state.Pending, s.jobs[i].Job)
	if s.jobs[i].Foreign {
		s.turns.pending++
		return
	}
	if len(s.wait)-s.turns.pending <= s.cfg.M {
		s.decideAll()
		return
	}
	if !s.choosy { // all windows are the same, and full
		return
	}
	for g := range s.devs {
		w := s.window(g)
		enters := len(w) > 0 && w[len(w)-1] == len(s.wait)-1
		if enters || len(s.devs[g].members) == 0 && s.jobs[i].MayUse(g) { // its turn may be there
			s.devs[g].due = true
		}
	}
}

// window returns the window of a decision on GPU g, as indexes in State.Pending.
func (s *Sim) window(g int) []int {
	w := rlcore.NewWindow(s.scratch.window, &s.state, g, s.cfg.M)
	s.scratch.window = w.Jobs
	return w.Jobs
}

// end removes a job that has ended from its GPU.
func (s *Sim) end(g, k int) {
	d := &s.devs[g]
	i := d.members[k].job
	s.over(i, s.truth(i, g).DurationS)
	believed := s.believed(&d.members[k])
	s.plain.Ended(s.now, schedule.End{ID: s.jobs[i].ID, DoneS: believed})
	s.learn(g, i, believed, s.remove(g, k))
}

// kill ends a running job at its limit. Its work is lost; how far it had come is unknown to a site, so nothing is
// learned from it.
func (s *Sim) kill(g, k int) {
	m := &s.devs[g].members[k]
	j := &s.jobs[m.job]
	j.timedOut = true
	s.over(m.job, m.done)
	s.plain.Ended(s.now, schedule.End{ID: j.ID})
	s.remove(g, k)
}

// over records that job i has ended, with what of it was done, s of solo work.
func (s *Sim) over(i int, done float64) {
	s.jobs[i].ended, s.jobs[i].done = s.now, done
	s.left--
}

// maxRestarts is how often a job that ran out of memory starts again with co-runners before it gets a GPU of its own.
const maxRestarts = 1

// fail ends a run that has run out of memory: its work is lost and the job is queued again.
func (s *Sim) fail(g, k int) {
	i := s.devs[g].members[k].job
	j := &s.jobs[i]
	j.failures++
	s.oom++
	if j.failures > maxRestarts {
		j.NoShare = true
	}
	s.remove(g, k)
	s.enqueue(i)
}

// remove takes member k from GPU g; a foreign job, from all its GPUs. It returns the member's co-runners.
func (s *Sim) remove(g, k int) (met []interference.Overlap) {
	i := s.devs[g].members[k].job
	met = s.part(g, k)
	on := s.jobs[i].on
	if on == nil {
		on = []int{g}
	}
	for _, g := range on {
		s.sync(g)
		d := &s.devs[g]
		d.members = slices.DeleteFunc(d.members, func(m member) bool { return m.job == i })
		d.inState, s.stateS = false, -1
		s.vetoes[g] = waiting{}
		s.refresh(g)
		s.devs[g].due = true
	}
	return met
}
