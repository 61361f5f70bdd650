package plan

import (
	"cmp"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// limitMemory sets what the members of a group may hold of the GPU's memory, and makes the run of a job that starts
// alone a trial where that may show something.
func (r *planRun) limitMemory(members []placement) {
	card := &r.view.state.GPUs[members[0].gpu]
	for i, mib := range r.draft.guard.MemoryLimits(card, profilesOf(members)) {
		members[i].MemLimitMiB = mib
	}
	m := &members[0]
	if len(members) > 1 || r.draft.of(m.group).kind != job.StartNow {
		return
	}
	if r.mayTry(m) {
		m.tried = true
		m.MemLimitMiB = r.tryMiB(m)
	} else if r.firstUnderMPS(m, &card.Spec) {
		m.first = true
	}
	if m.onTrial() {
		m.NoShare = true
		m.FirstRun = true
	}
}

// unlimit takes the memory limit from a job that has all shares: no job can join it.
func unlimit(members []placement) {
	m := &members[0]
	if len(members) == 1 && m.Shares >= job.Units {
		m.tried = false
		m.first = false
		m.MemLimitMiB = 0
	}
}

// tryMiB is the memory that a job is to make do with, MiB, 0 = all: by its owner's wish, or by the site's.
func (r *planRun) tryMiB(m *placement) float64 {
	return cmp.Or(r.in.Terms[m.ID].TryMiB, r.planner.TryMiB)
}

// mayTry reports whether a job that starts alone gets a part of the GPU's memory, since its application takes most of a
// card at its start, or isn't known, and its owner or the site wants to see what it needs. MPS limits sharers only, so
// the job leaves one of the shares, and no job joins it. One that fails runs again with all of the memory; by the
// site's wish, only a job is tried that may be run again.
func (r *planRun) mayTry(m *placement) bool {
	spec := &r.view.state.GPUs[m.gpu].Spec
	owner := r.in.Terms[m.ID].TryMiB
	mib := r.tryMiB(m)
	app := r.in.Apps[m.ID].Key
	p := m.Profile
	switch {
	case mib == 0, mib >= spec.MemMiB, !spec.MemLimits, app == "",
		mib <= r.in.standing(&job.Job{Ref: m.ID, User: m.User}).TriedMiB:
		return false
	case p == nil && owner == 0, p != nil && (p.HeldMiB > 0 || !p.Preallocating(spec.MemMiB)):
		return false
	case m.NoShare, r.in.Shadow, r.view.adopted(m.ID), r.in.handwritten():
		return false
	}
	return owner > 0 || r.mayRunAgain(m)
}

// mayRunAgain reports whether Slurm may requeue a job, and no job waits for its end.
func (r *planRun) mayRunAgain(m *placement) bool {
	own := r.view.jobs[m.ID]
	return own.Requeue && !tracker.Awaited(r.in.Snap)(own)
}

// firstUnderMPS reports whether a job that starts alone is the first of an application that is to share under MPS: it
// leaves one share, so that it computes there, too, and what can't run there shows it alone. It must be a job that may
// run again, without MPS. No job joins it; one by hand could.
func (r *planRun) firstUnderMPS(m *placement, spec *rlcore.GPUSpec) bool {
	switch {
	case m.Profile != nil, m.NoShare, r.in.Apps[m.ID].Key == "", spec.Sharing == contention.TimeSlice.Name:
		return false
	case !r.in.RetryAlone, r.in.handwritten(), r.view.adopted(m.ID):
		return false
	}
	return r.mayRunAgain(m)
}
