// Package loop is the controller's loop: poll, observe, plan, apply, again. It owns the
// clock, the renewal of the gate and the tracker; everything it calls in between is pure.
package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"

	"github.com/prometheus/client_golang/prometheus"
)

// Journal keeps what must survive a restart, and what people ask about later.
type Journal interface {
	// Load returns the unfinished groups and the rest of the tracker; with an error the part that could be read, nil =
	// none.
	Load(ctx context.Context) (*tracker.Tracker, error)
	// SaveGroup stores a group by its ID.
	SaveGroup(ctx context.Context, g *job.Group) error
	// SaveTracker stores the tracker without its groups.
	SaveTracker(ctx context.Context, t *tracker.Tracker) error
	// Log records one applied (or, in shadow, intended) change and its outcome; group is a job's, 0 = none.
	Log(ctx context.Context, at time.Time, mode job.Mode, group func(ref string) int64, c *job.Change, outcome error) error
	// SaveExplanations stores the newest explanation of each job.
	SaveExplanations(ctx context.Context, explanations map[string]*job.Explanation) error
	// RecordRuns stores what a poll showed of runs, and how the ended runs in left ended. The status holds the poll and
	// what was known before it.
	RecordRuns(ctx context.Context, st *job.Status, left []tracker.Left) error
	// RecordPoll stores what else a poll showed and led to, for the receipt and the status page.
	RecordPoll(ctx context.Context, st *job.Status) error
}

// Bridge is the loop.
type Bridge struct {
	Slurm   job.Slurm
	Planner *plan.Planner
	Gate    *Gate
	Apps    Apps
	// Models returns the GPU models that records have named, nil = none yet (see job.NameCards), and the nodes whose
	// driver can't limit an MPS client's memory (see plan.Input.NoLimits).
	Models  func(ctx context.Context) (of map[job.GPUAddr]string, noLimits map[string]bool)
	Journal Journal
	// Runs and Beliefs let the bridge learn from runs; nil = it doesn't learn.
	Runs    history.Runs
	Beliefs *interference.Model
	// RetryAlone lets a job that failed because it shared run again, alone; see history.Outcome.Ours and job.Terms.Retry.
	RetryAlone bool
	// Sessions selects the interactive sessions.
	Sessions job.Sessions
	// AppNames are the site's names for applications, by patterns of job names.
	AppNames []job.AppName
	// ExtendLimit lets running jobs have more time where sharing makes them miss their limits.
	ExtendLimit bool
	// PastMaxTime lets them have it even beyond their partitions' MaxTime.
	PastMaxTime bool
	// IdleAfter is how long a job must not have used its GPUs to count as idle, 0 = none does.
	IdleAfter time.Duration
	// Adopt says which jobs of a whole GPU may share; nil = none.
	Adopt   *adopt.Policy
	Card    plan.Card
	Mode    job.Mode
	Log     *slog.Logger
	Metrics *Metrics
	Now     func() time.Time
	// PollEvery is the longest time between two polls.
	PollEvery time.Duration
	// WakeDelay is how long after an event the bridge polls. Default 5 ms: a group that is released before the node's
	// Epilog ends starts with it, a later one with Slurm's next look at its queue. Events that come during a tick are one
	// poll.
	WakeDelay time.Duration
	// Fault is called between the steps of a tick, for tests that kill the bridge there; nil = none.
	Fault func(step string)

	tracker *tracker.Tracker // nil = not loaded yet
	wake    chan struct{}
	once    sync.Once
	apps    identifier
	learned learned
	// described is what Slurm has said of jobs by name in this round.
	described map[string]job.Description
	comments  comments
	failures  int    // polls in a row
	standby   string // the daemon that keeps the gate instead of this one, "" = none does
	// complaints holds what complain logged last, by subject.
	complaints map[string]string
	maxDelay   float64 // of any job so far, s
	// thought is how long the last round took to poll and plan.
	thought time.Duration
	// bounds are the operators' bounds as of boundsAt; nil = not known.
	bounds   *job.Bounds
	boundsAt time.Time
	// nearLimit: a job that shares comes near its time limit.
	nearLimit bool
	status    atomic.Pointer[job.Status]
	health    job.HealthState // as it was last logged
	idle      idleReports
	rules     *adopt.Policy // Adopt as it was configured
	optedOut  bool          // the file of adopt_opt_out has been read
}

func (b *Bridge) init() {
	b.once.Do(func() {
		b.wake, b.complaints = make(chan struct{}, 1), map[string]string{}
		if b.Now == nil {
			b.Now = time.Now
		}
		if b.WakeDelay == 0 {
			b.WakeDelay = 5 * time.Millisecond
		}
		if b.Log == nil {
			b.Log = slog.New(slog.DiscardHandler)
		}
		if b.Metrics == nil {
			b.Metrics = NewMetrics(prometheus.NewRegistry())
		}
		if b.Gate != nil {
			b.Gate.Log, b.Gate.Adopt = cmp.Or(b.Gate.Log, b.Log), b.adoptLines
		}
		b.apps = newIdentifier(b)
		b.comments = comments{Bridge: b, said: map[string]string{}}
	})
}

// Wake requests a poll soon. It never blocks.
func (b *Bridge) Wake() {
	b.init()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Status returns the state after the last poll; nil before the first.
func (b *Bridge) Status() *job.Status { return b.status.Load() }

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

func (b *Bridge) fault(step string) {
	if b.Fault != nil {
		b.Fault(step)
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
	b.giveWay(ctx, snap)
	switch {
	case b.acting() == job.Active:
		if kept := b.tracker.Kept(snap); len(kept) > 0 {
			b.Gate.OpenFor(ctx, snap, kept)
		}
		b.keepGate(ctx, snap)
	case b.Mode == job.Shadow:
		b.logged(b.Gate.Idle(snap))
	}
	b.countDelays(snap)
	gate := ""
	if b.acting() == job.Active {
		gate = b.Gate.ID()
	}
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
	b.tracker.LastAt, b.tracker.Plain = snap.At, p.Plain
	b.save(ctx, p)
	b.publish(p, in)
	b.logged(b.Journal.RecordPoll(ctx, b.Status()))
	if b.acting() == job.Active {
		b.comments.write(ctx, p, in)
	}
	return b.next(snap, p), nil
}

// acting returns the mode of this round: a standby daemon changes nothing.
func (b *Bridge) acting() job.Mode {
	if b.standby != "" {
		return job.Shadow
	}
	return b.Mode
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
	if b.standby = owner; owner == was {
		return
	}
	if owner == "" {
		b.Log.Warn("this daemon decides now: the other one's gate has not been renewed", "other", was)
		return
	}
	b.complain("gate", nil)
	b.Log.Warn("standby: another daemon keeps the gate", "other", owner)
	for _, id := range b.tracker.GroupIDs() {
		g := b.tracker.Groups[id]
		for i := range g.Members {
			if m := &g.Members[i]; !m.State.Final() {
				release.Move(g, m, job.MemberMoved)
			}
		}
	}
}

// keepGate tends the gate; its faults go into the status.
func (b *Bridge) keepGate(ctx context.Context, snap *job.Snapshot) {
	err := b.Gate.Tend(ctx, snap)
	if err != nil {
		b.Metrics.gateErrors.Inc()
	} else if b.Gate.instead != "" {
		err = errors.New(b.Gate.instead)
	}
	b.complain("gate", err)
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

// failed publishes that a poll failed.
func (b *Bridge) failed(err error) {
	b.Metrics.pollFailed()
	st := job.Status{}
	if old := b.status.Load(); old != nil {
		st = *old
	}
	st.Err, st.Lease = err.Error(), b.lease()
	b.status.Store(&st)
	b.tellHealth(&st)
}

// Fresh returns the age up to which the last successful poll counts as fresh.
func (b *Bridge) Fresh() time.Duration { return 3 * b.PollEvery }

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

// observe brings the tracker up to date with a poll and begins the input of a plan.
func (b *Bridge) observe(snap *job.Snapshot, gate string) (*plan.Input, []job.Change, []tracker.Event) {
	in := &plan.Input{
		Snap: snap, Shadow: b.acting() == job.Shadow, Card: b.Card, Tracker: b.tracker, Gate: gate,
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

// lease returns how long the gate stays closed without another renewal.
func (b *Bridge) lease() time.Duration {
	if b.acting() != job.Active {
		return 0
	}
	return b.Gate.Left()
}

// gateOpens is how long Slurm may take to notice that the gate's deadline has passed.
const gateOpens = time.Minute

// undone returns the jobs with an unfinished change, for which they wait behind the gate.
func (b *Bridge) undone() map[string]bool {
	out := map[string]bool{}
	for _, g := range b.tracker.Groups {
		for i := range g.Members {
			switch m := &g.Members[i]; m.State {
			case job.MemberPrepared, job.MemberRestoring, job.MemberHandingBack:
				out[m.Ref] = true
			}
		}
	}
	for ref, w := range b.tracker.Waits {
		out[ref] = out[ref] || w.Kept > 0
	}
	return out
}

// countDelays adds the time since the last poll to the delay of the jobs that waited for the bridge beside an idle GPU:
// behind the gate, where they were sent, or after a failed change. It notes the jobs that a gate holds after its lease.
func (b *Bridge) countDelays(snap *job.Snapshot) {
	over := slices.DeleteFunc(slices.Clone(snap.Gates), func(g job.GateState) bool {
		return g.Open || g.Begin.IsZero() || snap.At.Sub(g.Begin) <= gateOpens
	})
	idle, unstarted, dt := map[string]bool{}, map[string]bool{}, 0.0
	if old := b.status.Load(); old != nil && old.Plan != nil && !b.tracker.LastAt.IsZero() {
		idle, unstarted, dt = old.Plan.Idle, old.Plan.Unstarted, max(0, snap.At.Sub(b.tracker.LastAt).Seconds())
		b.tracker.PassedOver = old.Plan.PassedOver
	}
	undone := b.undone()
	b.tracker.MaxDelayS = b.Planner.Decider.Guard.DelayLimitS()
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		if j.State != job.Pending {
			if unstarted[j.Ref] && b.tracker.Done[j.Ref] == nil { // it has started since
				b.tracker.Wait(j.Ref).UnstartedS += min(dt, max(0, j.Start.Sub(b.tracker.LastAt).Seconds()))
			}
			continue
		}
		if idle[j.Ref] || undone[j.Ref] && release.Behind(snap.Gates, j) {
			w := b.tracker.Wait(j.Ref)
			w.DelayedS += dt
			b.maxDelay = max(b.maxDelay, w.DelayedS)
			b.Metrics.delay.Observe(w.DelayedS)
			if w.Refused > 0 && w.DelayedS >= b.tracker.MaxDelayS && b.tracker.Unmanaged[j.Ref] == "" {
				b.tracker.Unmanaged[j.Ref] = job.UngatedDelay.String() // it isn't tried again
			}
		}
		if unstarted[j.Ref] {
			b.tracker.Wait(j.Ref).UnstartedS += dt
		} else if w := b.tracker.Waits[j.Ref]; w != nil {
			w.UnstartedS = 0
		}
		for _, g := range over {
			if release.Behind([]job.GateState{g}, j) {
				w := b.tracker.Wait(j.Ref)
				w.PastLeaseS = max(w.PastLeaseS, snap.At.Sub(g.Begin).Seconds())
			}
		}
	}
}

// complain logs an error on a subject once, until the error changes or is gone (nil).
func (b *Bridge) complain(of string, err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != "" && said != b.complaints[of] {
		b.Log.Error(of, "err", err)
	}
	b.complaints[of] = said
}

// logged logs an error of the journal, if there is one.
func (b *Bridge) logged(err error) {
	if err != nil {
		b.Log.Error("journal", "err", err)
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

// publish makes the status after a plan. Readers hold it while the loop goes on, so it shares no memory that the loop
// changes.
func (b *Bridge) publish(p *job.Plan, in *plan.Input) {
	policy := b.Planner.Decider.Policy
	st := &job.Status{
		At: in.Snap.At, Mode: b.Mode, Standby: b.standby, Policy: policy.Name(), Model: modelOf(policy),
		Wanted: b.Planner.Wanted, Gate: in.Gate, GateAccount: b.Gate.current().account, GateErr: b.complaints["gate"],
		Lease: b.lease(),
		Snap:  in.Snap, Plan: p.Published(), Explanations: p.Explanations, Apps: in.Apps,
		Unmanaged: maps.Clone(b.tracker.Unmanaged), Refused: b.tracker.Refusals.List(), MaxDelayS: b.maxDelay,
		Window: b.Planner.Window(), Harm: b.learned.harm(in.Snap.At),
		Shareable: b.Planner.Partitions.CountGPUs(in.Snap),
	}
	if b.standby == "" {
		st.Misread = b.Gate.distrust.fields
	} else {
		st.Gate, st.Lease = b.Gate.other.gate, b.Gate.other.expires.Sub(in.Snap.At)
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
	st.KeptOut, st.StoppedRules = b.barred(in.Snap.At), b.tracker.Stops.Count(in.Snap.At)
	b.status.Store(st)
	b.Metrics.state(st)
	b.tellHealth(st)
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
		if g := &snap.Gates[i]; b.standby != "" && g.Owner == b.standby {
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

// modelOf returns the name of a policy's model, "" = it has none.
func modelOf(p rlcore.Policy) string {
	if m, ok := p.(interface{ Model() string }); ok {
		return m.Model()
	}
	return ""
}
