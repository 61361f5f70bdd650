package loop

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// rememberFor is how far back a bridge that starts learns from its outcomes.
const rememberFor = 90 * 24 * time.Hour

// patience is how long after its end a run may wait for Slurm to say how it ended.
const patience = time.Minute

// learner is what the bridge keeps in mind of runs that ended. It belongs to the
// loop.
type learner struct {
	loaded bool
	// again holds the jobs that were requeued to run alone, fails the applications
	// that have failed alone.
	again map[string]*history.Outcome
	fails map[string]bool
}

// remember lets the beliefs learn what is known from before.
func (b *Bridge) remember(ctx context.Context) error {
	all, err := b.Runs.Outcomes(ctx, b.Now().Add(-rememberFor))
	if err != nil {
		return err
	}
	b.learned = learner{loaded: true, again: map[string]*history.Outcome{}, fails: map[string]bool{}}
	history.Teach(b.Beliefs, all)
	for i := range all {
		b.noteOutcome(&all[i])
	}
	return nil
}

// note keeps in mind what later outcomes depend on.
func (b *Bridge) noteOutcome(o *history.Outcome) {
	l := &b.learned
	delete(l.again, o.Ref)
	if o.Again {
		l.again[o.Ref] = o
	}
	if history.Failed(o.State) && !o.Shared() && o.App != "" {
		l.fails[o.App] = true
	}
}

// judge looks at the runs whose records came since the last look: what they teach,
// whether contracts were kept, and who failed for having company.
func (b *Bridge) judge(ctx context.Context, snap *job.Snapshot) error {
	if b.Runs == nil || b.Beliefs == nil {
		return nil
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
	refs := make([]string, len(runs))
	for i := range runs {
		refs[i] = runs[i].Ref
	}
	how, err := b.Slurm.Describe(ctx, refs)
	if err != nil {
		return fmt.Errorf("how jobs ended: %w", err)
	}
	seen := map[string]bool{}
	for i := range snap.Jobs {
		if j := &snap.Jobs[i]; j.State != job.Pending {
			seen[j.Ref] = true
		}
	}
	for i := range runs {
		r := &runs[i]
		d := how[r.Ref]
		switch state, active := d.State, d.State == "COMPLETING"; {
		case active && b.Now().Sub(r.End) < patience:
			return nil // in order: the rest waits with it
		case seen[r.Ref] && state != "RUNNING" && b.Now().Sub(r.End) < patience:
			// It has ended since this look: the next one knows how far it came.
			b.Wake()
			return nil
		case active, state == "PENDING", state == "RUNNING", state == "CONFIGURING":
			d.State = "REQUEUED"
		}
		if err := b.settle(ctx, snap, r, d); err != nil {
			return err
		}
	}
	return nil
}

// settle judges one run and does what follows from it.
func (b *Bridge) settle(ctx context.Context, snap *job.Snapshot, r *history.Run, how job.Description) error {
	ending := b.tracker.Endings[r.Ref]
	j := &history.Judgement{
		Run: r, How: how, Spec: b.spec(snap, r.Node), Limit: b.Planner.Decider.Guard.MaxSlowdown,
		Alone: b.learned.again[r.Ref] != nil, FailsAlone: b.learned.fails[r.App],
	}
	if ending != nil {
		j.Ending, j.Member = ending.Ending, ending.Member
	}
	o := j.Judge(b.Beliefs)
	// Those that waited for its end have seen it fail: a second run comes too late for
	// them, or at the same time as they.
	o.Again = o.Suspect != "" && how.Requeue && b.RetryAlone && b.Mode == job.Active &&
		ending != nil && ending.Member != nil && !ending.Member.Awaited && b.learned.again[r.Ref] == nil
	if o.Cleared {
		b.learned.again[r.Ref].Forgive(b.Beliefs)
	}
	if err := b.Runs.Keep(ctx, &o); err != nil {
		return err
	}
	o.Teach(b.Beliefs)
	b.noteOutcome(&o)
	b.Metrics.outcome(&o)
	if o.Again {
		b.runAlone(ctx, ending, &o)
	}
	delete(b.tracker.Endings, r.Ref)
	if r.MPSFault {
		for _, gpu := range r.GPUs {
			b.tracker.Faulted[job.GPUAddr{Node: r.Node, GPU: gpu}] = true // the next poll drops it where no job is left
			b.Log.Warn("MPS server failed: no job joins its GPU until it is renewed", "node", r.Node, "gpu", gpu, "job", r.Ref)
		}
	}
	switch {
	case o.Suspect != "":
		b.Log.Warn("job failed beside others", "job", o.Ref, "beside", strings.Join(o.With, ","), "why", o.Suspect, "again", o.Again)
	case o.Broken:
		b.Log.Warn("job slowed by more than its contract", "job", o.Ref, "beside", strings.Join(o.With, ","),
			"slowdown", o.Slowdown, "contract", o.Contract, "predicted", o.Predicted)
	}
	return nil
}

// spec is the card of a node as the settings describe it.
func (b *Bridge) spec(snap *job.Snapshot, node string) rlcore.GPUSpec {
	for i := range snap.Nodes {
		if snap.Nodes[i].Name == node && b.Card != nil {
			if spec, ok := b.Card(snap.Nodes[i].GPUType); ok {
				return spec
			}
		}
	}
	return rlcore.GPUSpec{}
}

// runAlone requeues a job that failed for having company. What it asked for at
// first is given back to it like to any other member; until a look shows that, it
// is one of a group again.
func (b *Bridge) runAlone(ctx context.Context, e *tracker.Ended, o *history.Outcome) {
	if err := b.Slurm.Requeue(ctx, o.Ref); err != nil {
		b.Log.Warn("job can't be run again", "job", o.Ref, "err", err)
		o.Again = false
		delete(b.learned.again, o.Ref)
		if err := b.Runs.Keep(ctx, o); err != nil {
			b.Log.Error("journal", "err", err)
		}
		return
	}
	m := *e.Member
	m.State, m.Cause, m.Tries, m.Alone = job.MemberRestoring, job.Cause{Kind: job.CauseRunAlone}, 0, true
	g := &job.Group{
		ID: b.tracker.NewID(), Kind: job.StartNow, State: job.Started, Node: e.Node, GPU: e.GPU, Pinned: true,
		Members: []job.Member{m}, Decided: b.Now(), Policy: "again",
	}
	b.tracker.Groups[g.ID] = g
	b.tracker.Unmanaged[o.Ref] = m.Cause.String()
	if err := b.Journal.SaveGroup(ctx, g); err != nil {
		b.Log.Error("journal", "err", err)
	}
	b.Wake()
}
