package loop

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// rememberFor is how far back a bridge that starts learns from its outcomes.
const rememberFor = 90 * 24 * time.Hour

// patience is how long after its end a run may wait for Slurm to say how it ended.
const patience = time.Minute

// learned is what the bridge remembers of runs. What is known of applications is in Beliefs.
type learned struct {
	loaded bool        // what earlier daemons have learned
	shared []sharedRun // of the last day, for its harm
}

// remember has the beliefs learn what earlier daemons have learned.
func (b *Bridge) remember(ctx context.Context) error {
	l := &b.learned
	l.shared = nil
	for r, err := range b.Runs.Runs(ctx, history.Filter{From: b.Now().Add(-harmFor), Judged: true}) {
		if err != nil {
			return err
		}
		l.note(&r, b.Now())
	}
	if err := b.Runs.Recall(ctx, b.Beliefs, b.Now().Add(-rememberFor)); err != nil {
		return err
	}
	l.loaded = true
	return nil
}

// sharedRun is a run that shared a GPU, and how it was worse off for that.
type sharedRun struct {
	end  time.Time
	harm []history.Harm
}

// harmFor is of how long a time the status counts harm.
const harmFor = 24 * time.Hour

// harm counts the shared runs of the last day.
func (l *learned) harm(now time.Time) (c job.HarmCount) {
	l.shared = slices.DeleteFunc(l.shared, func(r sharedRun) bool { return now.Sub(r.end) > harmFor })
	c.Shared = len(l.shared)
	c.Kinds = map[string]int{}
	for _, r := range l.shared {
		if len(r.harm) > 0 {
			c.Harmed++
		}
		for _, kind := range r.harm {
			c.Kinds[string(kind)]++
		}
	}
	return c
}

// note remembers a run that shared a GPU.
func (l *learned) note(r *history.Run, now time.Time) {
	if r.Shared() && now.Sub(r.End) <= harmFor {
		l.shared = append(l.shared, sharedRun{r.End, r.Harm()})
	}
}

// barred counts the applications that aren't adopted now.
func (b *Bridge) barred(now time.Time) (n int) {
	if b.Beliefs == nil {
		return 0
	}
	for _, s := range b.Beliefs.Standings() {
		if adopt.Bars(s.Slower, now) {
			n++
		}
	}
	return n
}

// judge judges the runs with records that arrived since the last poll, in their order: what they
// teach, whether contracts were kept, and which jobs failed because of their co-runners.
func (b *Bridge) judge(ctx context.Context, snap *job.Snapshot) error {
	if b.Runs == nil || b.Beliefs == nil {
		return nil // it doesn't learn
	}
	if !b.learned.loaded {
		if err := b.remember(ctx); err != nil {
			return err
		}
	}
	runs, err := b.Runs.Unjudged(ctx)
	if err != nil || len(runs) == 0 {
		return err
	}
	if err := b.describe(ctx, runs); err != nil {
		return fmt.Errorf("how jobs ended: %w", err)
	}
	active := map[string]bool{}
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		if j.State != job.Pending {
			active[j.Ref] = true
		}
	}
	for i := range runs {
		r := &runs[i]
		how, known := b.howEnded(r, active[r.Ref])
		if !known || how.State != "COMPLETED" && !b.runsAgain(r) {
			return nil // the runs after it wait with it
		}
		if history.Failed(how.State) {
			all, err := b.company(ctx, r)
			if err != nil || !all {
				return err
			}
		}
		r.Ending.How = how
		if err := b.conclude(ctx, snap, r); err != nil {
			return err
		}
	}
	return nil
}

// describe has Slurm describe runs and their last co-runners, unless it has done so in this round.
func (b *Bridge) describe(ctx context.Context, runs []history.Run) error {
	var refs []string
	for i := range runs {
		refs = append(refs, runs[i].Ref)
		for _, c := range runs[i].CoRunners {
			if c.AtEnd {
				refs = append(refs, c.Ref)
			}
		}
	}
	refs = slices.DeleteFunc(refs, func(ref string) bool {
		_, known := b.described[ref]
		return known || ref == ""
	})
	if len(refs) == 0 {
		return nil
	}
	more, err := b.Slurm.Describe(ctx, refs)
	maps.Copy(b.described, more)
	return err
}

// howEnded is how a run's job ended. false: Slurm is expected to say soon. active says that
// the poll showed the job running. Of a job that Slurm has forgotten it is what Slurm said when the job left the queue.
func (b *Bridge) howEnded(r *history.Run, active bool) (job.Description, bool) {
	how, known := b.described[r.Ref]
	if !known {
		how = r.Ending.How
		how.Requeue = false
	}
	recent := b.Now().Sub(r.End).Abs() < patience // a node's clock may be wrong
	switch how.State {
	case "COMPLETING":
		if recent {
			return how, false
		}
	case "PENDING", "RUNNING", "CONFIGURING":
		if active && recent && how.State != "RUNNING" {
			b.Wake()
			return how, false
		}
	default:
		if active && recent {
			b.Wake() // it has ended since the poll: the next one knows how far it came
			return how, false
		}
		if !how.Start.After(r.End) {
			return how, true
		}
		// That is how a later run ended.
	}
	how.State = "REQUEUED"
	return how, true
}

// runsAgain reports whether a job could be requeued now. slurmd refuses a job ("already killed") that starts in the
// second in which its last run ended there: the job is FAILED with exit code 1. That second must be over, and half of
// the next for the clocks of two hosts.
func (b *Bridge) runsAgain(r *history.Run) bool {
	left := r.End.Truncate(time.Second).Add(1500 * time.Millisecond).Sub(b.Now())
	if left <= 0 || left > patience {
		return true
	}
	b.Wake()
	return false
}

// company fills in how a failed run's co-runners ended. It returns false while one of them may still end by the same
// fault.
func (b *Bridge) company(ctx context.Context, r *history.Run) (bool, error) {
	age := b.Now().Sub(r.End).Abs() // a node's clock may be wrong
	for i := range r.CoRunners {
		c := &r.CoRunners[i]
		if !c.AtEnd {
			continue
		}
		c.How = b.described[c.Ref]
		mayEnd := c.How.State == "RUNNING" && age < 2*history.SameMoment || c.How.State == "COMPLETING" && age < patience
		if mayEnd {
			b.Wake()
			return false, nil
		}
		if history.Failed(c.How.State) {
			continue
		}
		// It may run again since.
		last, err := b.Runs.Last(ctx, c.Ref, math.MaxInt64)
		if err != nil {
			return false, err
		}
		if last != nil && last.Outcome.Fault && last.End.Sub(r.End).Abs() < patience {
			c.How = last.Ending.How
			c.How.Start = last.Start
			c.How.End = last.End
		}
	}
	return true, nil
}

// conclude judges one run and does what follows from it.
func (b *Bridge) conclude(ctx context.Context, snap *job.Snapshot, r *history.Run) error {
	before, err := b.Runs.Last(ctx, r.Ref, r.ID)
	if err != nil {
		return err
	}
	if before != nil && !before.Outcome.Again {
		before = nil
	}
	standing := b.Beliefs.Standing(r.Identity())
	guard := b.Planner.Decider.Guard
	j := &history.Judgement{
		Run: r, Spec: b.spec(snap, r), Limit: guard.MaxSlowdown, Alone: before != nil,
		FailsAlone: standing.FailsAlone, Served: standing.Served, Unserved: before != nil && before.Outcome.Unserved,
		MaxDelayS: guard.DelayLimitS(),
	}
	if r.Profile != nil {
		r.Profile = r.Profile.Foretold(r.User, r.OwnLimitS())
	}
	o := j.Judge(b.Beliefs)
	// Jobs that waited for its end have seen it fail: a second run comes too late for them, or at the same time. The same
	// holds for the tools of its owner, so that where the fault may be the job's own, the owner must ask for it.
	how := r.Ending.How
	m := r.Ending.Member
	ours := o.Ours && o.Suspect != ""
	wished := r.Terms.Retry && history.Failed(how.State) && r.Shared()
	may := how.Requeue && b.RetryAlone && b.acting() == job.Active && m != nil && !m.Awaited && before == nil
	o.Again = may && (ours || wished)
	r.Outcome = &o
	var excused *history.Run
	if o.Cleared {
		excused = before
		excused.Excuse(&standing)
	}
	r.Teach(&standing)
	if err := b.Runs.Store(ctx, r, &standing, excused); err != nil {
		return err
	}
	b.Beliefs.SetStanding(r.Identity(), standing)
	for i := range o.Lessons {
		b.Beliefs.Take(&o.Lessons[i])
	}
	if o.Broken && r.Rule() != "" {
		b.tracker.Stops.Broke(r.Account, r.Rule(), r.End)
	}
	if o.Again {
		b.runAlone(ctx, r)
	}
	b.learned.note(r, b.Now())
	b.Metrics.outcome(r)
	b.reportRun(r)
	return nil
}

// reportRun logs problems of a run, and closes GPUs with a failed MPS server to new jobs; the next
// poll opens GPUs without jobs again.
func (b *Bridge) reportRun(r *history.Run) {
	if r.MPSFault {
		for _, gpu := range r.GPUs {
			b.tracker.Faulted[job.GPUAddr{Node: r.Node, GPU: gpu}] = true
			b.Log.Warn("MPS server failed: no job joins its GPU until it is renewed", "node", r.Node, "gpu", gpu, "job", r.Ref)
		}
	}
	o := r.Outcome
	harm := r.Harm()
	if len(harm) > 0 {
		b.Log.Warn("job harmed", "job", r.Ref, "kinds", harm, "plain_end", r.Ending.PlainEnd, "held_s", o.HeldS)
	}
	with := strings.Join(r.With(), ",")
	switch {
	case o.Suspect != "":
		b.Log.Warn("job failed while sharing", "job", r.Ref, "beside", with, "why", o.Suspect, "again", o.Again)
	case o.Broken:
		b.Log.Warn("job slowed by more than its contract", "job", r.Ref, "beside", with,
			"slowdown", o.Slowdown, "contract", o.Contract, "predicted", r.Predicted())
	}
}

// spec is the card that a run was on, as the settings describe it; nil = its node isn't known any more, or the run was
// on cards of several types.
func (b *Bridge) spec(snap *job.Snapshot, r *history.Run) *rlcore.GPUSpec {
	node := snap.Node(r.Node)
	if node == nil || len(r.Devices) == 0 {
		return nil
	}
	var specs []rlcore.GPUSpec
	for i := range r.Devices {
		specs = append(specs, b.Specs.OfType(node.GPU(r.Devices[i].Index).Type))
	}
	specs = slices.Compact(specs)
	if len(specs) > 1 {
		return nil
	}
	return &specs[0]
}

// runAlone requeues a job that failed because of its co-runners. It is the member of a group again
// until a poll shows its original request.
func (b *Bridge) runAlone(ctx context.Context, r *history.Run) {
	if err := b.Slurm.Requeue(ctx, r.Ref); err != nil {
		b.Log.Warn("job can't be run again", "job", r.Ref, "err", err)
		r.Outcome.Again = false
		b.logged(b.Runs.Amend(ctx, r))
		return
	}
	m := *r.Ending.Member
	m.State = job.MemberRestoring
	m.Cause = job.Cause{Kind: job.CauseRunAlone}
	m.Tries = 0
	m.Alone = true
	if r.Outcome.TriedMiB > 0 {
		m.Tried = false
		m.Cause.Kind = job.CauseTried
	}
	g := &job.Group{
		ID: b.tracker.NewID(), Kind: job.StartNow, State: job.Started, Node: r.Node, Pinned: true,
		Members: []job.Member{m}, Decided: b.Now(), Policy: "again",
	}
	if len(r.GPUs) > 0 {
		g.GPU = r.GPUs[0]
	}
	b.tracker.Groups[g.ID] = g
	b.tracker.Unmanaged[r.Ref] = m.Cause.String()
	b.logged(b.Journal.SaveGroup(ctx, g))
	b.Wake()
}

// ended has Slurm say how the runs ended that are over: it may have lost a member, or killed one of several sharers.
func (b *Bridge) ended(ctx context.Context, snap *job.Snapshot, events []tracker.Event) {
	b.described = map[string]job.Description{}
	var refs []string
	for i := range b.tracker.Left {
		refs = append(refs, b.tracker.Left[i].Ref)
	}
	if len(refs) == 0 {
		return
	}
	known, err := b.Slurm.Describe(ctx, refs)
	if err != nil {
		b.Log.Warn("what became of jobs is not known", "jobs", refs, "err", err)
		return
	}
	b.described = known
	for _, e := range events {
		if e.Kind == tracker.EventEnded && b.mayBeLost(snap, &e) && known[e.Ref] == (job.Description{}) {
			b.Metrics.harmed.WithLabelValues(string(history.HarmLost)).Inc()
			b.Log.Error("job lost: it waited for a GPU, is gone, and Slurm doesn't know it", "job", e.Ref)
		}
	}
	for i := range b.tracker.Left {
		l := &b.tracker.Left[i]
		how := known[l.Ref]
		if !l.Requeued && final(how.State) {
			l.Ending.How = how
		}
		// How a job that is pending again ended nobody says: by scontrol requeue or preemption it was killed.
		end := how.End
		if l.Requeued || end.IsZero() {
			end = l.Ending.At
		}
		killed := l.Requeued || history.Killed(how.State)
		if !killed || !b.leftOthers(snap, l, end) {
			continue
		}
		at := job.GPUAddr{Node: l.Ending.Node, GPU: l.Ending.GPUs[0]}
		b.tracker.Faulted[at] = true
		b.Log.Warn("Slurm has killed a job beside others: its GPU's MPS server may be broken, and no job joins until "+
			"they have ended", "node", at.Node, "gpu", at.GPU, "job", l.Ref, "state", how.State)
	}
}

// final reports whether a state of Slurm's is that of a job that has ended.
func final(state string) bool {
	switch state {
	case "", "PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING":
		return false
	}
	return true
}

// recordRuns writes down what the poll shows of runs, and how those ended that are over: judge reads it there.
func (b *Bridge) recordRuns(ctx context.Context, snap *job.Snapshot) {
	st := &job.Status{Snap: snap, Mode: b.Mode}
	before := b.Status()
	if before != nil {
		st.Apps = before.Apps
		st.Plan = before.Plan
	}
	for _, id := range b.tracker.GroupIDs() {
		st.Groups = append(st.Groups, *b.tracker.Groups[id])
	}
	for i := range b.tracker.Left {
		if b.acting() == job.Shadow {
			b.tracker.Left[i].Ending.PlainEnd = time.Time{} // plain Slurm did end it
		}
	}
	b.logged(b.Journal.RecordRuns(ctx, st, b.tracker.Left))
}

// mayBeLost reports whether a member that was about to start at the last poll is one that Slurm should still know: it
// remembers jobs that have started and ended since, or were cancelled, for MinJobAge. After a longer time between two
// polls nothing is certain.
func (b *Bridge) mayBeLost(snap *job.Snapshot, e *tracker.Event) bool {
	since := b.tracker.LastAt
	ran := slices.ContainsFunc(e.Group.Members, func(m job.Member) bool { return m.Ref == e.Ref && m.Ran() })
	return !ran && !since.IsZero() && snap.At.Sub(since) < snap.Remembers-time.Second
}

// leftOthers reports whether a run that ended at the given time, in whole seconds, computed through an MPS server which
// others still use: jobs that have started since have a server of their own.
func (b *Bridge) leftOthers(snap *job.Snapshot, l *tracker.Left, end time.Time) bool {
	node := snap.Node(l.Ending.Node)
	gpus := l.Ending.GPUs
	if node == nil || len(gpus) != 1 {
		return false
	}
	if b.Specs.OfType(node.GPU(gpus[0]).Type).Sharing == contention.TimeSlice.Name {
		return false
	}
	// One that did nothing with its GPU had no work in flight.
	st := b.Status()
	if st != nil && slices.ContainsFunc(st.Idle, func(i job.Idle) bool { return i.Ref == l.Ref }) {
		return false
	}
	addr := job.GPUAddr{Node: node.Name, GPU: gpus[0]}
	return slices.ContainsFunc(snap.Jobs, func(j job.Job) bool { return j.MayBeOn(addr) && j.Start.Before(end) })
}
