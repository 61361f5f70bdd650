package loop

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// rememberFor is how far back a bridge that starts learns from its outcomes.
const rememberFor = 90 * 24 * time.Hour

// patience is how long after its end a run may wait for Slurm to say how it ended.
const patience = time.Minute

// learner judges runs after their records have arrived, and updates the beliefs.
type learner struct {
	slurm   job.Slurm
	journal Journal
	runs    history.Runs
	beliefs history.Beliefs
	card    plan.Card
	log     *slog.Logger
	metrics *Metrics
	now     func() time.Time
	wake    func()

	loaded bool
	// again holds the jobs that were requeued to run alone, by ref; fails the applications
	// that have failed alone.
	again map[string]*history.Outcome
	fails map[string]bool
}

// remember teaches the beliefs what earlier outcomes say.
func (l *learner) remember(ctx context.Context) error {
	all, err := l.runs.Outcomes(ctx, l.now().Add(-rememberFor))
	if err != nil {
		return err
	}
	l.loaded, l.again, l.fails = true, map[string]*history.Outcome{}, map[string]bool{}
	history.Teach(l.beliefs, all)
	for i := range all {
		l.note(&all[i])
	}
	return nil
}

// note remembers what later outcomes depend on.
func (l *learner) note(o *history.Outcome) {
	delete(l.again, o.Ref)
	if o.Again {
		l.again[o.Ref] = o
	}
	if history.Failed(o.State) && !o.Shared() && o.App != "" {
		l.fails[o.App] = true
	}
}

// judging is what the runs of one tick are judged with.
type judging struct {
	tracker *tracker.Tracker
	snap    *job.Snapshot
	limit   float64 // the site's limit on slowdowns, 0 = none
	delay   float64 // how long the bridge alone may keep a job waiting, s
	retry   bool    // jobs that failed because of their co-runners may run again
	shadow  bool    // nothing is changed
}

// judge judges the runs with records that arrived since the last poll, in their order: what they
// teach, whether contracts were kept, and which jobs failed because of their co-runners.
func (l *learner) judge(ctx context.Context, in judging) error {
	if !l.loaded {
		if err := l.remember(ctx); err != nil {
			return err
		}
	}
	runs, err := l.runs.Unjudged(ctx)
	if err != nil || len(runs) == 0 {
		return err
	}
	refs := make([]string, len(runs))
	for i := range runs {
		refs[i] = runs[i].Ref
	}
	ended, err := l.slurm.Describe(ctx, refs)
	if err != nil {
		return fmt.Errorf("how jobs ended: %w", err)
	}
	active := map[string]bool{}
	for i := range in.snap.Jobs {
		if j := &in.snap.Jobs[i]; j.State != job.Pending {
			active[j.Ref] = true
		}
	}
	for i := range runs {
		r := &runs[i]
		how, known := l.howEnded(r, ended[r.Ref], active[r.Ref])
		if !known {
			return nil // the runs after it wait with it
		}
		if err := l.settle(ctx, in, r, how); err != nil {
			return err
		}
	}
	return nil
}

// howEnded is how a run's job ended. false: Slurm is expected to say soon. active says that
// the poll showed the job running.
func (l *learner) howEnded(r *history.Run, how job.Description, active bool) (job.Description, bool) {
	recent := l.now().Sub(r.End) < patience
	switch how.State {
	case "COMPLETING":
		if recent {
			return how, false
		}
	case "PENDING", "RUNNING", "CONFIGURING":
		if active && recent && how.State != "RUNNING" {
			l.wake()
			return how, false
		}
	default:
		if active && recent {
			l.wake() // it has ended since the poll: the next one knows how far it came
			return how, false
		}
		return how, true
	}
	how.State = "REQUEUED"
	return how, true
}

// settle judges one run and does what follows from it.
func (l *learner) settle(ctx context.Context, in judging, r *history.Run, how job.Description) error {
	ending := in.tracker.Endings[r.Ref]
	before := l.again[r.Ref]
	j := &history.Judgement{
		Run: r, How: how, Spec: l.spec(in.snap, r.Node), Limit: in.limit, Alone: before != nil, FailsAlone: l.fails[r.App],
		MaxDelayS: in.delay, Shadow: in.shadow,
	}
	if ending != nil {
		j.Ending, j.Member, j.PlainEnd = ending.Ending, ending.Member, ending.PlainEnd
	}
	o := j.Judge(l.beliefs)
	// Jobs that waited for its end have seen it fail: a second run comes too late for them,
	// or at the same time. The same holds for the tools of its owner, so that where the fault may be the job's own, the
	// owner must ask for it.
	o.Again = o.Suspect != "" && (o.Ours || r.Terms.Retry) && how.Requeue && in.retry && ending != nil && ending.Member != nil && !ending.Member.Awaited && before == nil
	if o.Cleared {
		before.Forgive(l.beliefs)
	}
	if err := l.runs.Keep(ctx, &o); err != nil {
		return err
	}
	o.Teach(l.beliefs)
	l.note(&o)
	l.metrics.outcome(&o)
	if o.Again {
		l.runAlone(ctx, in.tracker, ending, &o)
	}
	delete(in.tracker.Endings, r.Ref)
	l.report(in.tracker, r, &o)
	return nil
}

// report logs problems of a run, and closes GPUs with a failed MPS server to new jobs; the next
// poll opens GPUs without jobs again.
func (l *learner) report(t *tracker.Tracker, r *history.Run, o *history.Outcome) {
	if r.MPSFault {
		for _, gpu := range r.GPUs {
			t.Faulted[job.GPUAddr{Node: r.Node, GPU: gpu}] = true
			l.log.Warn("MPS server failed: no job joins its GPU until it is renewed", "node", r.Node, "gpu", gpu, "job", r.Ref)
		}
	}
	if harm := o.Harm(); len(harm) > 0 {
		l.log.Warn("job harmed", "job", o.Ref, "kinds", harm, "plain_end", o.PlainEnd, "held_s", o.HeldS)
	}
	with := strings.Join(o.With, ",")
	switch {
	case o.Suspect != "":
		l.log.Warn("job failed while sharing", "job", o.Ref, "beside", with, "why", o.Suspect, "again", o.Again)
	case o.Broken:
		l.log.Warn("job slowed by more than its contract", "job", o.Ref, "beside", with,
			"slowdown", o.Slowdown, "contract", o.Contract, "predicted", o.Predicted)
	}
}

// spec is the card of a node as the settings describe it.
func (l *learner) spec(snap *job.Snapshot, node string) rlcore.GPUSpec {
	for i := range snap.Nodes {
		if snap.Nodes[i].Name == node && l.card != nil {
			if spec, ok := l.card(snap.Nodes[i].GPUType); ok {
				return spec
			}
		}
	}
	return rlcore.GPUSpec{}
}

// runAlone requeues a job that failed because of its co-runners. It is the member of a group again
// until a poll shows its original request.
func (l *learner) runAlone(ctx context.Context, t *tracker.Tracker, e *tracker.Ended, o *history.Outcome) {
	logged := func(err error) {
		if err != nil {
			l.log.Error("journal", "err", err)
		}
	}
	if err := l.slurm.Requeue(ctx, o.Ref); err != nil {
		l.log.Warn("job can't be run again", "job", o.Ref, "err", err)
		o.Again = false
		delete(l.again, o.Ref)
		logged(l.runs.Keep(ctx, o))
		return
	}
	m := *e.Member
	m.State, m.Cause, m.Tries, m.Alone = job.MemberRestoring, job.Cause{Kind: job.CauseRunAlone}, 0, true
	g := &job.Group{
		ID: t.NewID(), Kind: job.StartNow, State: job.Started, Node: e.Node, GPU: e.GPU, Pinned: true,
		Members: []job.Member{m}, Decided: l.now(), Policy: "again",
	}
	t.Groups[g.ID] = g
	t.Unmanaged[o.Ref] = m.Cause.String()
	logged(l.journal.SaveGroup(ctx, g))
	l.wake()
}
