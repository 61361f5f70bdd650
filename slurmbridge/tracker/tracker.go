// Package tracker is what the bridge remembers between polls: the groups it made, how
// long each job has waited because of it, how far running jobs have come. Everything else
// is read from Slurm each time. The loop owns the one Tracker; the planner reads it.
package tracker

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// Tracker is the memory of one bridge. As JSON it is what outlives a daemon, but for the groups, which the journal
// keeps one by one.
type Tracker struct {
	Groups map[int64]*job.Group `json:"-"`
	Waits  map[string]*Wait     `json:"waits"`
	// Unmanaged says, by ref, why the bridge leaves a job alone: its owner edited what
	// the bridge had set, or it did not start twice, say.
	Unmanaged map[string]string `json:"unmanaged"`
	// Done is the solo work that each running job has done, by ref.
	Done map[string]*Progress `json:"done"`
	// Loans holds what was added to the time limits of jobs, by ref.
	Loans map[string]*Loan `json:"loans"`
	// Endings holds what is known of ended jobs until their records come, by ref.
	Endings map[string]*Ended `json:"endings"`
	// Faulted holds the GPUs with an MPS server that failed under a job that has ended since, or in which Slurm has killed
	// a job, while other jobs compute there: no job joins them, and the server is restarted after the last one has ended.
	Faulted map[job.GPUAddr]bool `json:"-"`
	Limits  *limit.Limits        `json:"-"`
	// Refusals are what Slurm has refused since the bridge started.
	Refusals Refusals `json:"-"`
	// Handwritten is when a poll last showed a job with a hand-written request for a part of a
	// GPU's shares; until one does, the first poll of all. Seen: one did.
	Handwritten     time.Time `json:"handwritten,omitzero"`
	HandwrittenSeen bool      `json:"handwritten_seen,omitempty"`
	// Plain is plain Slurm's schedule of the same jobs, on State.NowS's clock.
	Plain *schedule.Plain `json:"plain"`
	// LastAt is the time of the last poll, zero before the first.
	LastAt time.Time `json:"-"`
	NextID int64     `json:"-"`
}

// Wait is how one pending job fared.
type Wait struct {
	DelayedS float64 `json:"delayed_s"`
	// UnstartedS is for how long the job, which is not the bridge's, has been pending next to as many idle GPUs as it
	// takes, without a break, s.
	UnstartedS float64 `json:"unstarted_s,omitempty"`
	// PastLeaseS is for how long after the end of its lease the gate has held the job, s: while the bridge was away, say.
	PastLeaseS float64 `json:"past_lease_s,omitempty"`
	// Strikes counts the times it was released and did not start.
	Strikes int `json:"strikes"`
	// Refused weighs the changes that came to nothing and were to let the job share, Unrestored those that were to give it
	// back what it had, and Kept those that were to let it go.
	Refused    int `json:"refused,omitempty"`
	Unrestored int `json:"unrestored,omitempty"`
	Kept       int `json:"kept,omitempty"`
}

// Progress is how far one running job has come: it will be its Ending. LentS isn't in it yet.
type Progress struct {
	history.Ending
	UnstartedS float64 // what Wait said when it started
}

// advance lets a job go on until a poll.
func (p *Progress) advance(at time.Time, runs bool) {
	if dt := at.Sub(p.At).Seconds(); runs && dt > 0 {
		p.RunS += dt
		p.DoneS += dt / max(p.Slow, 1)
		p.LeastS += dt / max(p.Worst, p.Slow, 1)
	}
	p.At = at
}

// Ended is a job that is gone, or pending again.
type Ended struct {
	Gone time.Time // since when
	// Ending is how far it had come, nil = no poll saw it run.
	Ending *history.Ending `json:",omitempty"`
	// PlainEnd is when plain Slurm would have ended it, zero = not known.
	PlainEnd time.Time `json:",omitzero"`
	// Member it was, nil = of no group; Node and GPU are its group's.
	Member *job.Member `json:",omitempty"`
	Node   string      `json:",omitempty"`
	GPU    int         `json:",omitempty"`
}

// startupS is what plain Slurm takes to start the next job on a GPU that has become free, s: seen on
// 22.05.8 and 24.11.5 under default settings.
const startupS = 1

// New returns an empty tracker.
func New() *Tracker {
	plain := schedule.NewPlain()
	plain.StartupS = startupS
	return &Tracker{
		Groups:    map[int64]*job.Group{},
		Waits:     map[string]*Wait{},
		Unmanaged: map[string]string{},
		Done:      map[string]*Progress{},
		Loans:     map[string]*Loan{},
		Endings:   map[string]*Ended{},
		Faulted:   map[job.GPUAddr]bool{},
		Limits:    limit.New(),
		Refusals:  Refusals{all: map[reason]*job.RefusedChanges{}, sent: map[string][]job.Change{}},
		Plain:     plain,
		NextID:    1,
	}
}

// Wait returns the job's entry, made when there is none.
func (t *Tracker) Wait(ref string) *Wait {
	w := t.Waits[ref]
	if w == nil {
		w = &Wait{}
		t.Waits[ref] = w
	}
	return w
}

// Ending returns the entry of a job that is gone, made when there is none.
func (t *Tracker) Ending(ref string, at time.Time) *Ended {
	e := t.Endings[ref]
	if e == nil {
		e = &Ended{Gone: at}
		t.Endings[ref] = e
	}
	return e
}

// GroupIDs returns the groups' numbers in ascending order, so that a plan doesn't depend on the order of a map.
func (t *Tracker) GroupIDs() []int64 { return slices.Sorted(maps.Keys(t.Groups)) }

// Seat is a job's membership of a group.
type Seat struct {
	Group  *job.Group
	Member *job.Member
}

// Seats returns the groups of all jobs that are looked after, by ref.
func (t *Tracker) Seats() map[string]Seat {
	out := map[string]Seat{}
	for _, g := range t.Groups {
		for i := range g.Members {
			if m := &g.Members[i]; !m.State.Final() {
				out[m.Ref] = Seat{g, m}
			}
		}
	}
	return out
}

// Add adds a group; a member that is in another one leaves it. seats, from Seats, stays true.
func (t *Tracker) Add(g *job.Group, seats map[string]Seat) {
	for i := range g.Members {
		m := &g.Members[i]
		if s, ok := seats[m.Ref]; ok {
			release.Move(s.Group, s.Member, job.MemberMoved)
		}
		seats[m.Ref] = Seat{g, m}
	}
	t.Groups[g.ID] = g
}

// FreshID is a first number for groups that was never given out before, where the numbers that were can't be read.
func FreshID(now time.Time) int64 { return now.Unix() }

// NewID returns the number of a new group.
func (t *Tracker) NewID() int64 {
	t.NextID++
	return t.NextID - 1
}

// recordsComeWithin is how long after a job its record is waited for.
const recordsComeWithin = 2 * time.Hour

// progress advances the running jobs' solo work: between two polls each did the time that
// passed divided by its slowdown.
func (t *Tracker) progress(s *job.Snapshot, jobs map[string]*job.Job) {
	var ends []schedule.End
	for ref, p := range t.Done {
		switch j := jobs[ref]; {
		case j == nil:
			took := p.DoneS + max(0, s.At.Sub(p.At).Seconds())/max(p.Slow, 1)
			ends = append(ends, schedule.End{ID: ref, DoneS: took})
		case j.State == job.Pending:
			t.Ending(ref, s.At).Ending = t.ending(ref, p)
			delete(t.Done, ref)
		}
	}
	t.ended(ends, s.At)
	maps.DeleteFunc(t.Endings, func(_ string, e *Ended) bool { return s.At.Sub(e.Gone).Abs() > recordsComeWithin })
	for ref, j := range jobs {
		if j.State == job.Pending || j.Start.IsZero() {
			continue
		}
		p := t.Done[ref]
		if p == nil || !p.Start.Equal(j.Start) {
			ran := max(0, s.At.Sub(j.Start).Seconds())
			p = new(Progress)
			p.Start, p.Progress = j.Start, job.Progress{At: s.At, RunS: ran, DoneS: ran, LeastS: ran, Slow: 1, Worst: 1}
			if w := t.Waits[ref]; w != nil {
				p.DelayedS, p.PastLeaseS, p.UnstartedS = w.DelayedS, w.PastLeaseS, w.UnstartedS
			}
			t.Done[ref] = p
		}
		p.advance(s.At, j.State == job.Running)
		p.LimitS, p.Deadline, p.Submit = j.TimeLimit.Seconds(), j.Deadline, j.Submit
	}
}

// ended notes jobs that are gone, with their ends on plain Slurm. For as long as Slurm left a job of its own queue
// pending next to idle GPUs, for its cores, its licences or until its next pass, it would have done so without the
// bridge.
func (t *Tracker) ended(ends []schedule.End, at time.Time) {
	slices.SortFunc(ends, func(a, b schedule.End) int { return cmp.Compare(a.ID, b.ID) }) // not in the order of a map
	for i, endS := range t.Plain.Ended(Seconds(at), ends...) {
		ref := ends[i].ID
		p, e := t.Done[ref], t.Ending(ref, at)
		if e.Ending = t.ending(ref, p); endS > 0 {
			e.PlainEnd = Time(endS + p.UnstartedS)
		}
		delete(t.Done, ref)
	}
}

// doneS is how much solo work a running job is believed to have done, s.
func (t *Tracker) doneS(ref string) float64 {
	if p := t.Done[ref]; p != nil {
		return p.DoneS
	}
	return 0
}

// Seconds is a time on State.NowS's clock, and Time the way back; a time that is never is zero.
func Seconds(at time.Time) float64 { return float64(at.UnixMilli()) / 1000 }

// Time is a time of State.NowS's clock; zero = never, or nothing is known.
func Time(s float64) time.Time {
	if s <= 0 || s > math.MaxInt32*1e3 {
		return time.Time{}
	}
	return time.UnixMilli(int64(s * 1000))
}

// ending is how far a job has come that is gone.
func (t *Tracker) ending(ref string, p *Progress) *history.Ending {
	e := p.Ending
	if l := t.Loans[ref]; l != nil {
		e.LentS = l.Lent().Seconds()
	}
	return &e
}

// Awaited returns what reports whether other jobs wait for the end of a job.
func Awaited(s *job.Snapshot) func(j *job.Job) bool {
	awaited := maps.Clone(s.Awaited)
	if awaited == nil {
		awaited = map[string]bool{}
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		for _, d := range j.Dependency.List {
			if d.OnEnd() {
				awaited[d.Job] = true
			}
		}
	}
	return func(j *job.Job) bool {
		return awaited[j.Ref] || j.ArrayID != 0 && awaited[strconv.FormatInt(j.ArrayID, 10)]
	}
}

// noteAwaited notes which members other jobs wait for the end of.
func noteAwaited(s *job.Snapshot, seats map[string]Seat) {
	if len(seats) == 0 {
		return
	}
	awaited := Awaited(s)
	for i := range s.Jobs {
		j := &s.Jobs[i]
		// The jobs that waited for one that is completing may be gone already.
		if m := seats[j.Ref].Member; m != nil && j.State != job.Completing {
			m.Awaited = awaited(j)
		}
	}
}

// SetSlowdowns stores the expected slowdowns of the running jobs, predicted from which jobs share a
// GPU and, if the predictor can use it, from how far each has come.
func (t *Tracker) SetSlowdowns(st *rlcore.State, p rlcore.Predictor) {
	var members []*rlcore.Profile
	var refs []string
	var done []float64
	for g := range st.GPUs {
		card := &st.GPUs[g]
		members, refs, done = members[:0], refs[:0], done[:0]
		for i := range card.Running {
			if r := &card.Running[i]; r.Profile != nil {
				members, refs, done = append(members, r.Profile), append(refs, r.ID), append(done, r.DoneS)
			}
		}
		for i, s := range slowdowns(p, &card.Spec, members, done) {
			if pr := t.Done[refs[i]]; pr != nil {
				pr.Slow, pr.Worst = s.Slowdown, max(s.Slowdown+s.SD, float64(len(card.Running)))
			}
		}
	}
}

func slowdowns(p rlcore.Predictor, spec *rlcore.GPUSpec, members []*rlcore.Profile,
	done []float64,
) []rlcore.Prediction {
	out := make([]rlcore.Prediction, len(members))
	pacer, knowsPace := p.(rlcore.Pacer)
	switch {
	case len(members) > 1 && knowsPace:
		pacer.Pace(out, spec, members, done)
	case len(members) > 1 && p != nil:
		p.Predict(out, spec, members)
	default:
		for i := range out {
			out[i].Slowdown = 1
		}
	}
	return out
}
