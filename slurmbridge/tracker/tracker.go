// Package tracker is what the bridge remembers between polls: the groups it made, how
// long each job has waited because of it, how far running jobs have come. Everything else
// is read from Slurm each time. The loop owns the one Tracker; the planner reads it.
package tracker

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurmlimit"
)

// Tracker is the memory of one bridge. The journal keeps its JSON, and each group by itself.
type Tracker struct {
	Groups map[int64]*job.Group `json:"-"`
	Waits  map[string]*Wait     `json:"waits"`
	// Unmanaged says, by ref, why the bridge leaves a job alone: for example, its owner edited what the bridge had set.
	Unmanaged map[string]string `json:"unmanaged"`
	// Done says, by ref, how far each running job has come.
	Done map[string]*history.RunState `json:"done"`
	// Loans holds what was added to the time limits of jobs, by ref.
	Loans map[string]*Loan `json:"loans"`
	// Left lists the runs that the last poll no longer shows: jobs that polls have shown running, and members that ran
	// between two polls, in the order of refs.
	Left []Left `json:"-"`
	// Faulted holds the GPUs that other jobs still use after their MPS server failed, or after Slurm killed a job there.
	// No job joins these GPUs. The node restarts a GPU's server after the last job there has ended.
	Faulted map[job.GPUAddr]bool `json:"-"`
	Limits  *slurmlimit.Limits   `json:"-"`
	// Refusals are what Slurm has refused since the bridge started.
	Refusals Refusals `json:"-"`
	// Handwritten is the last poll with a job whose owner requested a part of a GPU's shares by hand.
	Handwritten time.Time `json:"handwritten,omitzero"`
	// Stops says which of the site's rules adopt no jobs for now.
	Stops adopt.Stops `json:"stops,omitzero"`
	// Plain is the schedule by which plain Slurm would run the jobs, on State.NowS's clock.
	Plain *schedule.SlurmAlone `json:"plain"`
	// MaxDelayS bounds Wait.DelayedS of a released job, s: after that it is left to Slurm. 0 = nothing bounds it.
	MaxDelayS float64 `json:"-"`
	// PassedOver holds what the last plan says of released jobs; see job.Plan.
	PassedOver map[string]bool `json:"-"`
	// LastAt is the time of the last poll, zero before the first.
	LastAt time.Time `json:"-"`
	NextID int64     `json:"-"`
}

// Wait is what has kept one pending job waiting.
type Wait struct {
	// DelayedS is how long the job has waited because of the bridge alone, s.
	DelayedS float64 `json:"delayed_s"`
	// UnstartedS is how long a job that the bridge doesn't manage has been pending, without a break, while as many GPUs as
	// it takes were idle, s.
	UnstartedS float64 `json:"unstarted_s,omitempty"`
	// PastLeaseS is how long the gate has held the job after the gate's lease, s: for example, while the bridge was down.
	PastLeaseS float64 `json:"past_lease_s,omitempty"`
	// Strikes counts the times the job was released and did not start.
	Strikes int `json:"strikes"`
	// Weights of failed changes, see refusedWeight: Refused of the changes that let the job share, Unrestored of the
	// changes that restore it, StillGated of the changes that ungate it.
	Refused    int `json:"refused,omitempty"`
	Unrestored int `json:"unrestored,omitempty"`
	StillGated int `json:"still_gated,omitempty"`
}

// Left is a run that is over.
type Left struct {
	Ref      string
	Requeued bool // the job is pending again
	Ending   history.Ending
}

// startupS is how long plain Slurm takes to start the next job on a GPU that has become free, s: seen on 22.05.8 and
// 24.11.5 under default settings.
const startupS = 1

// New returns an empty tracker.
func New() *Tracker {
	plain := schedule.NewSlurmAlone()
	plain.StartupS = startupS
	return &Tracker{
		Groups:    map[int64]*job.Group{},
		Waits:     map[string]*Wait{},
		Unmanaged: map[string]string{},
		Done:      map[string]*history.RunState{},
		Loans:     map[string]*Loan{},
		Faulted:   map[job.GPUAddr]bool{},
		Limits:    slurmlimit.New(),
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

// GroupIDs returns the groups' numbers in ascending order, so that a plan doesn't depend on the order of a map.
func (t *Tracker) GroupIDs() []int64 { return slices.Sorted(maps.Keys(t.Groups)) }

// Membership is a job's membership of a group.
type Membership struct {
	Group  *job.Group
	Member *job.Member
}

// Memberships returns the memberships of all members that have not ended or left their groups, by ref.
func (t *Tracker) Memberships() map[string]Membership {
	out := map[string]Membership{}
	for _, g := range t.Groups {
		for i := range g.Members {
			if m := &g.Members[i]; !m.State.Final() {
				out[m.Ref] = Membership{g, m}
			}
		}
	}
	return out
}

// Add adds a group; its members leave their former groups. memberships is what Memberships returned; Add updates it.
func (t *Tracker) Add(g *job.Group, memberships map[string]Membership) {
	for i := range g.Members {
		m := &g.Members[i]
		if s, ok := memberships[m.Ref]; ok {
			release.Move(s.Group, s.Member, job.MemberMoved)
		}
		memberships[m.Ref] = Membership{g, m}
	}
	t.Groups[g.ID] = g
}

// FreshID is a first number for groups where the journal, which says what numbers are used, can't be read: no group has
// had this number.
func FreshID(now time.Time) int64 { return now.Unix() }

// NewID returns the number of a new group.
func (t *Tracker) NewID() int64 {
	t.NextID++
	return t.NextID - 1
}

// progress updates how far the running jobs have come: the solo work that a job did between two polls is the time
// between them, divided by the job's slowdown.
func (t *Tracker) progress(s *job.Snapshot, jobs map[string]*job.Job, memberships map[string]Membership) {
	t.leave(s.At, jobs, memberships)
	for ref, j := range jobs {
		if j.State == job.Pending || j.Start.IsZero() {
			continue
		}
		p := t.Done[ref]
		// Until a requeued job is pending Slurm 26.05 shows of it when it may start next.
		if p == nil || !p.Start.Equal(j.Start) && j.State != job.Completing {
			ran := max(0, s.At.Sub(j.Start).Seconds())
			p = &history.RunState{
				Start: j.Start, Progress: job.Progress{At: s.At, RunS: ran, DoneS: ran, LeastS: ran, Slow: 1, Worst: 1},
			}
			if m := memberships[ref].Member; m != nil && m.Predicted > 1 { // maybe another bridge has seen it share until now
				p.Slow, p.Worst = m.Predicted, max(m.Predicted, 2)
				p.DoneS, p.LeastS = ran/p.Slow, ran/p.Worst
			}
			if w := t.Waits[ref]; w != nil {
				p.DelayedS, p.PastLeaseS, p.UnstartedS = w.DelayedS, w.PastLeaseS, w.UnstartedS
			}
			t.Done[ref] = p
		}
		if len(j.GPUs) > 0 {
			p.Node, p.GPUs = j.Nodes, j.GPUs
		}
		p.Advance(s.At, j.State == job.Running)
		p.Suspended = p.Suspended || j.State == job.Suspended
		p.LimitS, p.Deadline = j.TimeLimit.Seconds(), j.Deadline
	}
}

// leave lists the runs that are over, with how far they had come and, of jobs that have left the queue, with their ends
// on plain Slurm. Slurm may have left a job that the bridge doesn't manage pending next to idle GPUs: for cores, for
// licences, or until its next pass. Plain Slurm would have done that, too, so the time is added. A run that was
// suspended took longer than its work does: its plain end says nothing.
func (t *Tracker) leave(at time.Time, jobs map[string]*job.Job, memberships map[string]Membership) {
	t.Left = t.Left[:0]
	for _, ref := range slices.Sorted(maps.Keys(t.Done)) { // not in the order of a map
		if j := jobs[ref]; j == nil || j.State == job.Pending {
			left := Left{Ref: ref, Requeued: j != nil, Ending: history.Ending{RunState: *t.Done[ref]}}
			if l := t.Loans[ref]; l != nil {
				left.Ending.LentS = l.Lent().Seconds()
			}
			t.Left = append(t.Left, left)
			delete(t.Done, ref)
		}
	}
	var ends []schedule.End
	var gone []*history.Ending
	for i := range t.Left {
		l := &t.Left[i]
		if !l.Requeued {
			took := l.Ending.DoneS + max(0, at.Sub(l.Ending.At).Seconds())/max(l.Ending.Slow, 1)
			ends, gone = append(ends, schedule.End{ID: l.Ref, DoneS: took}), append(gone, &l.Ending)
		}
	}
	for i, endS := range t.Plain.Ended(Seconds(at), ends...) {
		if endS > 0 && !gone[i].Suspended {
			gone[i].PlainEnd = Time(endS + gone[i].UnstartedS)
		}
	}
	for ref, m := range memberships {
		i, ran := slices.BinarySearchFunc(t.Left, ref, func(l Left, ref string) int { return cmp.Compare(l.Ref, ref) })
		if !ran && jobs[ref] == nil {
			t.Left = slices.Insert(t.Left, i, Left{Ref: ref})
			ran = true
		}
		if ran {
			member := *m.Member
			t.Left[i].Ending.Member = &member
		}
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

// lastS is the last time of State.NowS's clock that counts, in the year 5138: JSON has no year after 9999, and the end
// of a long queue of jobs without a limit may be that far off.
const lastS = 1e11

// Time is a time of State.NowS's clock; zero = never, or nothing is known.
func Time(s float64) time.Time {
	if s <= 0 || s > lastS {
		return time.Time{}
	}
	return time.UnixMilli(int64(s * 1000))
}

// Awaited returns a function that reports whether other jobs depend on the end of a job.
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

// noteAwaited notes for each member whether other jobs depend on its end.
func noteAwaited(s *job.Snapshot, memberships map[string]Membership) {
	if len(memberships) == 0 {
		return
	}
	awaited := Awaited(s)
	for i := range s.Jobs {
		j := &s.Jobs[i]
		// When a job is completing, the jobs that depended on its end may be gone already.
		if m := memberships[j.Ref].Member; m != nil && j.State != job.Completing {
			m.Awaited = awaited(j)
		}
	}
}

// SetSlowdowns stores the predicted slowdowns of the running jobs. They depend on which jobs share a GPU and, for a
// rlcore.Pacer, on how far each job has come.
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
