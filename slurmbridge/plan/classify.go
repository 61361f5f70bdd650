package plan

import (
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// class is what a plan does with a pending job.
type class string

const (
	leftOut class = "left out" // of this plan
	foreign class = "foreign"  // Slurm's alone: in the queue, and no decision starts it
	toGate  class = "to gate"  // it still requests gpu:shared
	toSlurm class = "to Slurm" // it is ungated, and foreign from then on
	queued  class = "queued"   // it may share, unless a limit keeps it waiting
)

// facts are what a job's class follows from.
type facts uint

const (
	touched     facts = 1 << iota // a repair is about to change it: the poll is no longer true of it
	unmanaged                     // the bridge leaves it alone, since its owner has edited it, say
	behind                        // it waits behind the gate
	unconverted                   // it still requests gpu:shared
	itsTurn                       // it was released to keep its turn
	grouped                       // it is in another group
	gated                         // it waits for the bridge, which may group it
	ungroupable                   // it is gated, and can't be grouped
	ready                         // it is gated, its application was looked up, and it waits for nothing else
)

// classes is the table by which a job is classified: the facts that must be true, and the facts that must not. Each set
// of facts fulfils one line.
var classes = []struct {
	is   class
	all  facts
	none facts
}{
	{leftOut, touched, 0},
	{toSlurm, unmanaged | behind, touched},
	{foreign, unmanaged, touched | behind},
	{toGate, unconverted, touched | unmanaged},
	{foreign, itsTurn, touched | unmanaged | unconverted},
	{leftOut, grouped, touched | unmanaged | unconverted | itsTurn},
	{foreign, 0, touched | unmanaged | unconverted | itsTurn | grouped | gated},
	{toSlurm, gated | ungroupable, touched | unmanaged | unconverted | itsTurn | grouped},
	{leftOut, gated, touched | unmanaged | unconverted | itsTurn | grouped | ungroupable | ready},
	{queued, gated | ready, touched | unmanaged | unconverted | itsTurn | grouped | ungroupable},
}

// classify returns the class that follows from a job's facts.
func classify(f facts) class {
	for _, c := range classes {
		if f&c.all == c.all && f&c.none == 0 {
			return c.is
		}
	}
	return leftOut
}

// where returns the fact where it is true, else none.
func (f facts) where(is bool) facts {
	if is {
		return f
	}
	return 0
}

// factsOf returns the facts of a pending job, and why it can't be grouped.
func (q *queue) factsOf(j *job.Job) (f facts, why job.Ungated) {
	membership := q.view.membership[j.Ref]
	f |= touched.where(q.in.Touched[j.Ref])
	f |= unmanaged.where(q.in.Tracker.Unmanaged[j.Ref] != "")
	f |= behind.where(release.Behind(q.in.Snap.Gates, j))
	f |= unconverted.where(j.Request.Kind == job.SharedGPU)
	f |= itsTurn.where(q.view.waitsForTurn(j.Ref) && membership.Member.State != job.MemberRestoring)
	f |= grouped.where(membership.Group != nil)
	known := f&(touched|unmanaged|unconverted|itsTurn|grouped) > 0
	inShadow := q.in.Shadow && j.Request.Kind == job.WholeGPU
	if known || !q.in.WaitsForBridge(j) || inShadow && q.view.unadoptable(j) != "" {
		return f, ""
	}
	f |= gated
	if why = q.ungroupable(j); why != "" {
		return f | ungroupable, why
	}
	_, identified := q.in.Apps[j.Ref]
	return f | ready.where(identified && q.in.WaitsBesides(j) == ""), ""
}
