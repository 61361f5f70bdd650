// Package loop is the controller's loop: poll, observe, plan, apply, again. It owns the
// clock, the renewal of the gate and the tracker; everything it calls in between is pure.
package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// Run ticks until ctx ends. Failures are logged and counted; the gate's lease bounds what
// they can do. done is called after each tick.
func (b *Bridge) Run(ctx context.Context, done func(err error)) error {
	b.init()
	if b.Mode == job.Active {
		ctx, cancel := context.WithCancel(ctx)
		var beside sync.WaitGroup
		beside.Go(func() { b.Gate.Run(ctx) })
		defer beside.Wait()
		defer cancel()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	// After a round the bridge rests for as long as it polled and planned, within bounds, even if
	// events arrive: Slurm has other clients. The time for changes doesn't count: they serve jobs.
	const mostRest = 5 * time.Second
	var ended time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-b.wake:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(max(b.WakeDelay, min(b.thought, mostRest)-time.Since(ended))):
			}
			select {
			case <-b.wake:
			default:
			}
		}
		next, err := b.Tick(ctx)
		ended = time.Now()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			b.failures++
			next = min(time.Second<<min(b.failures, 5), b.PollEvery)
			b.Log.Error("poll failed", "err", err, "again_in", next)
		default:
			b.failures = 0
		}
		if done != nil {
			done(err)
		}
		timer.Reset(next)
	}
}

// Tick does one round and returns the latest time of the next.
func (b *Bridge) Tick(ctx context.Context) (next time.Duration, err error) {
	b.init()
	began := time.Now()
	defer func() {
		if err != nil {
			b.thought = time.Since(began)
			b.failed(err)
		}
	}()
	b.load(ctx)
	b.readOptOut()
	b.fault("look")
	started := b.Now()
	snap, err := b.Slurm.Poll(ctx)
	if err != nil {
		return 0, fmt.Errorf("poll: %w", err)
	}
	b.Metrics.polled(b.Now().Sub(started))
	b.comments.look(snap.Jobs)
	b.fault("gate")
	gate := b.tendGate(ctx, snap)
	b.countDelays(snap)
	bounds := b.readBounds(ctx, snap)
	in, repairs, events := b.observe(snap, gate)
	in.Bounds = bounds
	repairs = append(repairs, b.orphans(in)...)
	b.report(events)
	b.ended(ctx, snap, events)
	b.recordRuns(ctx, snap)
	b.fault("runs")
	if err := b.judge(ctx, snap); err != nil {
		b.Log.Warn("runs not judged; the next poll tries again", "err", err)
	}
	p := b.decide(ctx, in)
	p.Repairs = append(repairs, p.Repairs...)
	b.Gate.Progress()
	b.Metrics.broken.Add(float64(p.Broken))
	b.tracker.SetSlowdowns(p.Running, b.Planner.Decider.Guard.Predictor)
	p.Repairs = append(p.Repairs, b.extend(ctx, in)...)
	b.fault("plan")
	b.thought = time.Since(began)
	if b.standby == "" {
		b.apply(ctx, p)
	}
	b.tracker.LastAt = snap.At
	b.tracker.Plain = p.Plain
	b.save(ctx, p)
	b.publish(p, in)
	b.logged(b.Journal.RecordPoll(ctx, b.Status()))
	if b.acting() == job.Active {
		b.comments.write(ctx, p, in)
	}
	return b.next(snap, p), nil
}

// tendGate decides whether this daemon or another one owns the gate, tends it if it is this one's, and returns it; "" =
// no job waits for it.
func (b *Bridge) tendGate(ctx context.Context, snap *job.Snapshot) string {
	b.Gate.adopted = b.adoptLines(snap)
	b.giveWay(ctx, snap)
	if b.Mode == job.Shadow {
		b.logged(b.Gate.Idle(snap))
	}
	if b.acting() != job.Active {
		return ""
	}
	gated := b.tracker.StillGated(snap)
	if len(gated) > 0 {
		b.Gate.OpenFor(ctx, snap, gated)
	}
	err := b.Gate.Tend(ctx, snap)
	if err != nil {
		b.Metrics.gateErrors.Inc()
	} else if b.Gate.instead != "" {
		err = errors.New(b.Gate.instead)
	}
	b.complain("gate", err)
	return b.Gate.ID()
}

// giveWay makes this daemon a standby while another one owns the gate. The groups in its tracker and journal are then
// out of date: the other daemon has restored or changed them.
func (b *Bridge) giveWay(ctx context.Context, snap *job.Snapshot) {
	if b.Mode != job.Active {
		return
	}
	owner, err := b.Gate.Standby(ctx, snap)
	if err != nil {
		b.Log.Error("gate", "err", err)
	}
	was := b.standby
	b.standby = owner
	switch owner {
	case was:
		return
	case "":
		b.Log.Warn("this daemon decides now: the other one's gate has not been renewed", "other", was)
		return
	}
	b.complain("gate", nil)
	b.Log.Warn("standby: another daemon keeps the gate", "other", owner)
	for _, id := range b.tracker.GroupIDs() {
		g := b.tracker.Groups[id]
		for i := range g.Members {
			m := &g.Members[i]
			if !m.State.Final() {
				release.Move(g, m, job.MemberMoved)
			}
		}
	}
}

// decide identifies the applications of a poll's jobs and makes the plan.
func (b *Bridge) decide(ctx context.Context, in *plan.Input) *job.Plan {
	if b.Models != nil {
		models, noLimits := b.Models(ctx)
		in.Models = job.NameModels(models, in.Snap.Nodes)
		in.NoLimits = noLimits
	}
	b.apps.identify(ctx, in)
	started := b.Now()
	p := b.Planner.Plan(in)
	b.Metrics.planTime.Observe(b.Now().Sub(started).Seconds())
	return p
}

// Preview polls and plans without applying, recording or keeping a gate: what the bridge
// would do now. It needs no running daemon and disturbs none.
func (b *Bridge) Preview(ctx context.Context) (*job.Status, error) {
	b.init()
	var err error
	if b.tracker, err = b.Journal.Load(ctx); err != nil {
		return nil, err
	}
	if b.Runs != nil && b.Beliefs != nil {
		if err := b.remember(ctx); err != nil {
			return nil, err
		}
	}
	snap, err := b.Slurm.Poll(ctx)
	if err != nil {
		return nil, fmt.Errorf("poll: %w", err)
	}
	gate := ""
	for _, g := range snap.Gates {
		if !g.Open {
			gate = g.ID
		}
	}
	in, repairs, _ := b.observe(snap, gate)
	in.Unproved = slices.ContainsFunc(snap.Gates, func(g job.GateState) bool { return len(g.Misread) > 0 })
	p := b.decide(ctx, in)
	p.Repairs = append(repairs, p.Repairs...)
	b.publish(p, in)
	return b.Status(), nil
}

// load reads the journal before the first poll. Without a journal the bridge starts empty: a poll shows the jobs behind
// the gate, and AdminComments show the members of groups.
func (b *Bridge) load(ctx context.Context) {
	if b.tracker != nil {
		return
	}
	var err error
	if b.tracker, err = b.Journal.Load(ctx); err != nil {
		b.Log.Error("the journal can't be read; starting with what could be", "err", err)
	}
	if b.tracker == nil {
		b.tracker = tracker.New()
		b.tracker.NextID = tracker.FreshID(b.Now())
	}
}

// observe brings the tracker up to date with a poll and begins the input of a plan.
func (b *Bridge) observe(snap *job.Snapshot, gate string) (*plan.Input, []job.Change, []tracker.Event) {
	in := &plan.Input{
		Snap: snap, Shadow: b.acting() == job.Shadow, Specs: b.Specs, Tracker: b.tracker, Gate: gate,
		HoldS: (b.Gate.Lease + gateOpens).Seconds(),
	}
	in.Unproved = b.acting() == job.Active && !b.Gate.Proved(snap.Release)
	in.RetryAlone = b.RetryAlone
	in.Adopt = b.Adopt
	if b.Beliefs != nil {
		in.Standing = b.Beliefs.Standing
	}
	repairs, events := b.tracker.Observe(snap, gate)
	in.Touched = map[string]bool{}
	for i := range repairs {
		for _, ref := range repairs[i].Update.Jobs {
			in.Touched[ref] = true
		}
	}
	return in, repairs, events
}

// save stores the tracker, and drops the groups that are done.
func (b *Bridge) save(ctx context.Context, p *job.Plan) {
	for _, id := range b.tracker.GroupIDs() {
		g := b.tracker.Groups[id]
		b.logged(b.Journal.SaveGroup(ctx, g))
		if g.State == job.Done {
			delete(b.tracker.Groups, id)
		}
	}
	b.logged(b.Journal.SaveTracker(ctx, b.tracker))
	b.logged(b.Journal.SaveExplanations(ctx, p.Explanations))
}

// The times until the next poll while something is about to happen.
const (
	pollReleased   = time.Second            // a released group has not started
	pollCompleting = 500 * time.Millisecond // a job is ending
	pollClosed     = 5 * time.Second        // an operator has closed what jobs wait for
	pollSoonest    = 100 * time.Millisecond
)

// next returns the time of the next poll unless an event comes first.
func (b *Bridge) next(snap *job.Snapshot, p *job.Plan) time.Duration {
	next := b.PollEvery
	for i := range snap.Gates {
		g := &snap.Gates[i]
		if b.standby != "" && g.Owner == b.standby {
			next = min(next, max(pollReleased, g.Begin.Sub(snap.At)+clockSlack)) // it may be to be taken over
		}
	}
	if b.acting() == job.Active {
		next = min(next, b.Gate.Lease/3)
		if len(p.Repairs) > 0 || b.Gate.ID() != "" && !b.Gate.Proved(snap.Release) {
			next = min(next, pollReleased)
		}
	}
	if b.nearLimit {
		next = min(next, pollNearLimit)
	}
	if b.tracker.Limits.ByOperator() {
		next = min(next, pollClosed)
	}
	for _, g := range b.tracker.Groups {
		if g.State == job.Released {
			next = min(next, pollReleased)
		}
	}
	for i := range snap.Jobs {
		if snap.Jobs[i].State == job.Completing {
			next = min(next, pollCompleting)
		}
	}
	return max(next, pollSoonest)
}
