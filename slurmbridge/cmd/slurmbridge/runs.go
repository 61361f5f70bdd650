package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// runs joins the nodes' records with what the journal knows of jobs.
type runs struct {
	store   *store.Store
	journal *journal.Journal
}

// atOnce is how many runs one look judges at most.
const atOnce = 200

// atEnd is how close to a run's end somebody must have been there still to count as
// there when it ended: nodes sample, and a group's members end one by one.
const atEnd = 5 * time.Second

func (r *runs) Unjudged(ctx context.Context) ([]history.Run, error) {
	last, err := r.journal.LastOutcome(ctx)
	if err != nil {
		return nil, err
	}
	kept, err := r.store.Runs(ctx, last, atOnce)
	if err != nil {
		return nil, err
	}
	out := make([]history.Run, 0, len(kept))
	for i := range kept {
		run, err := r.run(ctx, &kept[i])
		if err != nil {
			return nil, err
		}
		out = append(out, run)
	}
	return out, nil
}

// run is a record with the profiles of everybody in it.
func (r *runs) run(ctx context.Context, k *store.Run) (history.Run, error) {
	rec := &k.Record
	out := history.Run{
		ID: k.ID, Ref: rec.Ref(), User: rec.User, App: k.App, Node: rec.Node, Start: rec.Start, End: rec.End,
		Comment: rec.Comment, Whole: len(rec.GPUs) == 1 && !rec.Cut && len(rec.Series) > 0 && !rec.NoEpilog, PeakMemMiB: rec.Peak.MemMiB,
		Fault: !rec.MPSFault.IsZero(),
	}
	for _, g := range rec.GPUs {
		out.GPU = g.Index
		out.CardMemMiB = max(out.CardMemMiB, g.MemMiB)
	}
	var err error
	if out.Profile, err = r.profile(ctx, rec.User, k.App); err != nil {
		return out, err
	}
	for i := range rec.Neighbours {
		b, err := r.beside(ctx, rec, &rec.Neighbours[i])
		if err != nil {
			return out, err
		}
		out.Others = append(out.Others, b)
	}
	return out, nil
}

func (r *runs) beside(ctx context.Context, rec *gpuprof.Record, n *gpuprof.Neighbour) (history.Beside, error) {
	b := history.Beside{
		Ref: strconv.FormatInt(n.JobID, 10), S: max(0, n.To.Sub(n.From).Seconds()), Last: rec.End.Sub(n.To) < atEnd,
	}
	// The journal's times are ours.
	behind := time.Duration(rec.ClockBehindS * float64(time.Second))
	array, task, err := r.journal.Task(ctx, n.JobID, n.From.Add(behind), n.To.Add(behind))
	if err != nil {
		return b, err
	}
	if array != 0 {
		b.Ref = strconv.FormatInt(array, 10) + "_" + strconv.FormatInt(task, 10)
	}
	_, b.App, err = r.store.AppOf(ctx, b.Ref)
	if err != nil {
		return b, err
	}
	b.Profile, err = r.profile(ctx, n.User, b.App)
	return b, err
}

// profile is what is known of an application, nil = nothing.
func (r *runs) profile(ctx context.Context, user, app string) (*rlcore.Profile, error) {
	if app == "" {
		return nil, nil
	}
	p, err := r.store.Lookup(ctx, user, app)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return p, err
}

func (r *runs) Keep(ctx context.Context, o *history.Outcome) error {
	if err := r.journal.SaveOutcome(ctx, o); err != nil || !o.Learned {
		return err
	}
	kept, err := r.store.Runs(ctx, o.Run-1, 1)
	if err != nil || len(kept) == 0 || kept[0].ID != o.Run {
		return err
	}
	_, err = r.store.Learn(ctx, kept[0].App, &kept[0].Record)
	return err
}

func (r *runs) Outcomes(ctx context.Context, since time.Time) ([]history.Outcome, error) {
	return r.journal.Outcomes(ctx, since)
}
