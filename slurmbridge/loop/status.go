package loop

import (
	"maps"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// publish makes the status after a plan. Readers hold it while the loop goes on, so it shares no memory that the loop
// changes.
func (b *Bridge) publish(p *job.Plan, in *plan.Input) {
	policy := b.Planner.Decider.Policy
	st := &job.Status{
		At: in.Snap.At, Mode: b.Mode, Standby: b.standby, Policy: policy.Name(), Model: modelOf(policy),
		Wanted: b.Planner.Wanted, Gate: in.Gate, GateAccount: b.Gate.current().account, GateErr: b.complaints["gate"],
		Lease: b.lease(), Snap: in.Snap, Plan: p.Published(), Explanations: p.Explanations, Apps: in.Apps,
		Unmanaged: maps.Clone(b.tracker.Unmanaged), Refused: b.tracker.Refusals.List(), MaxDelayS: b.maxDelay,
		Window: b.Planner.Window(), Harm: b.learned.harm(in.Snap.At),
		Shareable: b.Planner.Partitions.CountGPUs(in.Snap),
	}
	if b.standby == "" {
		st.Misread = b.Gate.distrust.fields
	} else {
		st.Gate = b.Gate.other.gate
		st.Lease = b.Gate.other.expires.Sub(in.Snap.At)
	}
	for _, id := range b.tracker.GroupIDs() {
		st.Groups = append(st.Groups, b.tracker.Groups[id].Clone())
	}
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		if j.State == job.Pending && (release.Behind(in.Snap.Gates, j) || j.Request.Kind == job.SharedGPU) {
			st.Waiting++
		}
	}
	st.Idle, st.WithoutMPS = b.idle.read(in.Snap, b.Now(), b.IdleAfter)
	st.Faulted = slices.Collect(maps.Keys(b.tracker.Faulted))
	st.BarredApps = b.barred(in.Snap.At)
	st.StoppedRules = b.tracker.Stops.Count(in.Snap.At)
	b.status.Store(st)
	b.Metrics.state(st)
	b.tellHealth(st)
}

// failed publishes that a poll failed.
func (b *Bridge) failed(err error) {
	b.Metrics.pollFailed()
	st := job.Status{}
	last := b.Status()
	if last != nil {
		st = *last
	}
	st.Err = err.Error()
	st.Lease = b.lease()
	b.status.Store(&st)
	b.tellHealth(&st)
}

// tellHealth exports the health as a metric and logs its changes.
func (b *Bridge) tellHealth(st *job.Status) {
	now := st.Health(b.Now(), b.Fresh())
	b.Metrics.healthy(now.State)
	if now.State == b.health {
		return
	}
	b.health = now.State
	if now.State == job.Well {
		b.Log.Info("health", "state", now.State)
	} else {
		b.Log.Warn("health", "state", now.State, "why", now.Why)
	}
}

// report logs and counts what a poll showed of the groups' members.
func (b *Bridge) report(events []tracker.Event) {
	for _, e := range events {
		b.Metrics.event(e)
		log := b.Log.Info
		switch e.Kind {
		case tracker.EventStuck, tracker.EventPartial, tracker.EventLeft, tracker.EventMisplaced:
			log = b.Log.Warn
		}
		args := []any{"job", e.Ref, "group", e.Group.ID, "where", e.Group.Where()}
		if why := e.Why(); why != "" {
			args = append(args, "why", why)
		}
		log("job "+string(e.Kind), args...)
	}
}

// modelOf returns the name of a policy's model, "" = it has none.
func modelOf(p rlcore.Policy) string {
	if m, ok := p.(interface{ Model() string }); ok {
		return m.Model()
	}
	return ""
}
