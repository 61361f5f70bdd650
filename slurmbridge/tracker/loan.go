package tracker

import (
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Loan is what was added to one job's time limit because sharing had slowed it.
type Loan struct {
	Start time.Time     // of the run that it was for
	Own   time.Duration // the limit without it
	// Set is the limit that the bridge set last, in place of Was. Shown: a poll has shown it.
	Set, Was time.Duration
	Shown    bool
	// Tries counts how often Set was sent, At is when it was sent last, or when Refused was found.
	Tries int
	At    time.Time
	// Refused: MaxTime, a reservation or the job's deadline left no room for more.
	Refused bool
	// Closed: the limit was lowered by its owner, or can't be raised. Nothing is added any more.
	Closed bool
}

// A limit that polls don't show is set again so often, and so long after the last time: before 26.05.3 a
// backfill cycle of Slurm's may undo it.
const (
	mostLoanTries = 5
	loanTryAfter  = 10 * time.Second
	// refusedFor is how long a limit that has no room is left alone: a reservation may be withdrawn.
	refusedFor = time.Minute
)

// Lent is what the job has been lent and still has.
func (l *Loan) Lent() time.Duration {
	switch {
	case l.Shown:
		return l.Set - l.Own
	case l.Was > l.Own:
		return l.Was - l.Own
	}
	return 0
}

// observe takes in the limit that a poll shows.
func (l *Loan) observe(limit time.Duration) {
	switch {
	case limit == l.Set:
		l.Shown, l.Tries = true, 0
	case !l.Shown && limit == l.Was: // undone, or refused
		l.Closed = l.Closed || l.Tries >= mostLoanTries
	case limit < l.Set && limit > 0:
		// Its owner has lowered it, which is what owners may do.
		l.Own, l.Set, l.Was, l.Shown, l.Closed = limit, limit, limit, true, true
	case limit == 0: // it has no limit any more
		l.Own, l.Set, l.Was, l.Shown, l.Closed = 0, 0, 0, true, true
	default: // an administrator has raised it: that is no loan
		l.Own, l.Set, l.Shown = l.Own+limit-l.Set, limit, true
	}
}

// loans brings what was lent up to date with a poll. A job that was requeued gets its own limit back.
func (o *observer) loans() {
	for ref, l := range o.t.Loans {
		j := o.jobs[ref]
		switch {
		case j == nil:
		case j.State == job.Completing: // which a requeued job is before it is pending, without a start
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

// Lendable reports whether a running job's limit may be raised now, and what it is without what was lent.
func (t *Tracker) Lendable(j *job.Job, at time.Time) (own time.Duration, ok bool) {
	l := t.Loans[j.Ref]
	if l == nil {
		return j.TimeLimit, true
	}
	age := at.Sub(l.At)
	return l.Own, !l.Closed && (!l.Refused || age >= refusedFor) && (l.Shown || age >= loanTryAfter)
}

// loan returns the entry of a running job, made when there is none.
func (t *Tracker) loan(j *job.Job) *Loan {
	l := t.Loans[j.Ref]
	if l == nil {
		l = &Loan{Start: j.Start, Own: j.TimeLimit, Set: j.TimeLimit, Was: j.TimeLimit, Shown: true}
		t.Loans[j.Ref] = l
	}
	return l
}

// Lend notes that a running job's limit is being set.
func (t *Tracker) Lend(j *job.Job, limit time.Duration, at time.Time) {
	l := t.loan(j)
	l.Was, l.Set, l.Shown, l.Refused, l.At = j.TimeLimit, limit, false, false, at
	l.Tries++
}

// Refuse notes that a running job's limit has no room for more. It reports whether that is news.
func (t *Tracker) Refuse(j *job.Job, at time.Time) (news bool) {
	l := t.loan(j)
	news = !l.Refused
	l.Refused, l.At = true, at
	return news
}
