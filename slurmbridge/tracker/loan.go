package tracker

import (
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Loan is the time that was added to one job's limit because sharing had slowed the job.
type Loan struct {
	Start time.Time     // of the run that got the time
	Own   time.Duration // the limit without the time
	// Set is the limit that the bridge set last, in place of Was. Shown: a poll has shown Set.
	Set, Was time.Duration
	Shown    bool
	// Tries counts how often Set was sent, At is when it was sent last, or when NoRoom was found.
	Tries int
	At    time.Time
	// NoRoom: MaxTime, a reservation or the job's deadline left no room for more.
	NoRoom bool
	// Closed: the job's owner has lowered the limit, or Slurm doesn't raise it. No more time is added.
	Closed bool
}

// A limit that polls don't show is set again, mostLoanTries times and each time loanTryAfter later: before 26.05.3 a
// backfill cycle of Slurm's may undo the change.
const (
	mostLoanTries = 5
	loanTryAfter  = 10 * time.Second
	// noRoomFor is how long the bridge leaves a limit alone that can't be raised: a reservation may be withdrawn.
	noRoomFor = time.Minute
)

// Lent is the added time that the job still has.
func (l *Loan) Lent() time.Duration {
	switch {
	case l.Shown:
		return l.Set - l.Own
	case l.Was > l.Own:
		return l.Was - l.Own
	}
	return 0
}

// observe updates the loan with the limit that a poll shows.
func (l *Loan) observe(limit time.Duration) {
	switch {
	case limit == l.Set:
		l.Shown, l.Tries = true, 0
	case !l.Shown && limit == l.Was: // undone, or refused
		l.Closed = l.Closed || l.Tries >= mostLoanTries
	case limit < l.Set && limit > 0:
		// The job's owner has lowered it, as owners may.
		l.Own, l.Set, l.Was, l.Shown, l.Closed = limit, limit, limit, true, true
	case limit == 0: // the job has no limit any more
		l.Own, l.Set, l.Was, l.Shown, l.Closed = 0, 0, 0, true, true
	default: // an administrator has raised the limit: that is no loan
		l.Own, l.Set, l.Shown = l.Own+limit-l.Set, limit, true
	}
}

// loans updates the loans with a poll. A job that was requeued gets its own limit back.
func (o *observer) loans() {
	for ref, l := range o.t.Loans {
		j := o.jobs[ref]
		switch {
		case j == nil:
		case j.State == job.Completing: // a requeued job is completing, without a start, before it is pending
			continue
		case j.State != job.Pending && j.Start.Equal(l.Start):
			l.observe(j.TimeLimit)
			continue
		case j.TimeLimit == l.Set && l.Own < l.Set && l.Tries < mostLoanTries:
			l.Tries++
			o.repairs = append(o.repairs, job.Change{
				Step: job.StepExtend, Why: "requeued: its own time limit again",
				Update: job.Update{Jobs: []string{ref}, TimeLimit: l.Own},
				Was:    map[string]string{ref: "TimeLimit=" + j.TimeLimit.String()},
			})
			continue
		}
		delete(o.t.Loans, ref)
	}
}

// Lendable reports whether a running job's limit may be raised now, and the job's own limit.
func (t *Tracker) Lendable(j *job.Job, at time.Time) (own time.Duration, ok bool) {
	l := t.Loans[j.Ref]
	if l == nil {
		return j.TimeLimit, true
	}
	age := at.Sub(l.At)
	return l.Own, !l.Closed && (!l.NoRoom || age >= noRoomFor) && (l.Shown || age >= loanTryAfter)
}

// loan returns a running job's entry, made when there is none.
func (t *Tracker) loan(j *job.Job) *Loan {
	l := t.Loans[j.Ref]
	if l == nil {
		l = &Loan{Start: j.Start, Own: j.TimeLimit, Set: j.TimeLimit, Was: j.TimeLimit, Shown: true}
		t.Loans[j.Ref] = l
	}
	return l
}

// Lend notes that the bridge sets a running job's limit.
func (t *Tracker) Lend(j *job.Job, limit time.Duration, at time.Time) {
	l := t.loan(j)
	l.Was, l.Set, l.Shown, l.NoRoom, l.At = j.TimeLimit, limit, false, false, at
	l.Tries++
}

// NoteNoRoom notes that a running job's limit can't be raised. It reports whether that is new.
func (t *Tracker) NoteNoRoom(j *job.Job, at time.Time) (news bool) {
	l := t.loan(j)
	news = !l.NoRoom
	l.NoRoom, l.At = true, at
	return news
}
