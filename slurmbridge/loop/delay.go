package loop

import (
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// gateOpens is how long Slurm may take to notice that the gate's deadline has passed.
const gateOpens = time.Minute

// undone returns the jobs with an unfinished change, for which they wait behind the gate.
func (b *Bridge) undone() map[string]bool {
	out := map[string]bool{}
	for _, g := range b.tracker.Groups {
		for i := range g.Members {
			m := &g.Members[i]
			switch m.State {
			case job.MemberPrepared, job.MemberRestoring, job.MemberHandingBack:
				out[m.Ref] = true
			}
		}
	}
	for ref, w := range b.tracker.Waits {
		out[ref] = out[ref] || w.StillGated > 0
	}
	return out
}

// countDelays adds the time since the last poll to the delay of the jobs that waited for the bridge beside an idle GPU:
// behind the gate, where they were sent, or after a failed change. It notes the jobs that a gate holds after its lease.
func (b *Bridge) countDelays(snap *job.Snapshot) {
	b.tracker.MaxDelayS = b.Planner.Decider.Guard.DelayLimitS()
	var idle, unstarted map[string]bool // as the last plan has it
	dt := 0.0
	last := b.Status()
	if last != nil && last.Plan != nil && !b.tracker.LastAt.IsZero() {
		idle = last.Plan.Idle
		unstarted = last.Plan.Unstarted
		dt = max(0, snap.At.Sub(b.tracker.LastAt).Seconds())
		b.tracker.PassedOver = last.Plan.PassedOver
	}
	undone := b.undone()
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		if j.State != job.Pending {
			if unstarted[j.Ref] && b.tracker.Done[j.Ref] == nil { // it has started since
				b.tracker.Wait(j.Ref).UnstartedS += min(dt, max(0, j.Start.Sub(b.tracker.LastAt).Seconds()))
			}
			continue
		}
		if idle[j.Ref] || undone[j.Ref] && release.Behind(snap.Gates, j) {
			b.delayed(j.Ref, dt)
		}
		if unstarted[j.Ref] {
			b.tracker.Wait(j.Ref).UnstartedS += dt
		} else if w := b.tracker.Waits[j.Ref]; w != nil {
			w.UnstartedS = 0
		}
		for _, g := range snap.Gates {
			past := snap.At.Sub(g.Begin)
			if !g.Begin.IsZero() && past > gateOpens && release.Behind([]job.GateState{g}, j) {
				w := b.tracker.Wait(j.Ref)
				w.PastLeaseS = max(w.PastLeaseS, past.Seconds())
			}
		}
	}
}

// delayed adds to the time for which the bridge alone has kept a job waiting. A job with a change that Slurm refused
// isn't tried again after the longest delay.
func (b *Bridge) delayed(ref string, dt float64) {
	w := b.tracker.Wait(ref)
	w.DelayedS += dt
	b.maxDelay = max(b.maxDelay, w.DelayedS)
	b.Metrics.delay.Observe(w.DelayedS)
	if w.Refused > 0 && w.DelayedS >= b.tracker.MaxDelayS && b.tracker.Unmanaged[ref] == "" {
		b.tracker.Unmanaged[ref] = job.UngatedDelay.String()
	}
}
