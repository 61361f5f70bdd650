package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
)

// receiptLoader gathers what a receipt is made of.
type receiptLoader struct {
	cfg      *config.Config
	store    *store.Store
	log      *slog.Logger
	profiles map[[2]string]*rlcore.Profile // by user and application
}

// mostJobs is how many of the ledger's jobs a receipt counts.
const mostJobs = 1_000_000

func (l *receiptLoader) load(ctx context.Context, from, to time.Time, replay bool) (*receipt.Input, error) {
	j := journal.New(l.store.DB())
	l.profiles = map[[2]string]*rlcore.Profile{}
	in := &receipt.Input{From: from, To: to, Mode: job.Mode(l.cfg.Mode)}
	past, err := j.Outcomes(ctx, time.Now().Add(-keepFor))
	if err != nil {
		return nil, err
	}
	if in.Jobs, err = l.jobs(ctx, j, past, from, to); err != nil {
		return nil, err
	}
	groups, err := j.Groups(ctx, from)
	if err != nil {
		return nil, err
	}
	for i := range groups {
		if groups[i].Decided.Before(to) {
			in.Groups = append(in.Groups, groups[i].Group)
		}
	}
	if in.Intended, err = j.Intended(ctx, from, to); err != nil {
		return nil, err
	}
	if in.Refused, err = j.Refused(ctx, from, to); err != nil {
		return nil, err
	}
	if replay {
		if in.Replay, err = l.world(ctx, j, past, from); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// clocksAgree is how far a node's clock may be off, with the time that Slurm takes
// from a job's start to its prolog.
const clocksAgree = 10 * time.Minute

// jobs joins what the looks showed of jobs, what their nodes recorded, and what was
// made of it. A job that only one of them knows counts as well.
func (l *receiptLoader) jobs(ctx context.Context, j *journal.Journal, past []history.Outcome, from, to time.Time) ([]receipt.Job, error) {
	seen, err := j.Over(ctx, from, to, mostJobs)
	if err != nil {
		return nil, err
	}
	recorded, err := l.store.Ended(ctx, from, to)
	if err != nil {
		return nil, err
	}
	outcomes := make(map[int64]*history.Outcome, len(past))
	for i := range past {
		outcomes[past[i].Run] = &past[i]
	}
	byRef := map[string][]*store.Run{}
	for i := range recorded {
		ref := recorded[i].Record.Ref()
		byRef[ref] = append(byRef[ref], &recorded[i])
	}
	used := map[int64]bool{}
	var out []receipt.Job
	for i := range seen {
		r := &seen[i]
		job := receipt.Job{
			Ref: r.Ref, User: r.User, Account: r.Account, Partition: r.Partition, App: r.App, Mode: r.Mode, Ready: r.Ready,
			Start: r.Start, End: r.End, Whole: r.Count, GPUs: names(r.Node, r.GPUs),
		}
		rec := match(byRef[r.Ref], r, used)
		if rec == nil && r.Start.IsZero() {
			continue // it never ran
		}
		if rec != nil {
			used[rec.ID] = true
			l.fill(&job, rec, outcomes)
		}
		if job.Profile, err = l.profile(ctx, job.User, job.App); err != nil {
			return nil, err
		}
		out = append(out, job)
	}
	for i := range recorded {
		rec := &recorded[i]
		if used[rec.ID] || len(rec.Record.GPUs) == 0 {
			continue
		}
		job := receipt.Job{Ref: rec.Record.Ref(), User: rec.Record.User, App: rec.App}
		if !rec.Record.Shared {
			job.Whole = len(rec.Record.GPUs)
		}
		l.fill(&job, rec, outcomes)
		if job.Profile, err = l.profile(ctx, job.User, job.App); err != nil {
			return nil, err
		}
		out = append(out, job)
	}
	return out, nil
}

// match finds the record of a run that was seen, nil = there is none. Where nobody
// saw it start, its end tells.
func match(recorded []*store.Run, r *journal.Ran, used map[int64]bool) *store.Run {
	for _, rec := range recorded {
		off := rec.Record.Start.Sub(r.Start)
		if r.Start.IsZero() {
			off = rec.Record.End.Sub(r.End)
		}
		if !used[rec.ID] && (r.Node == "" || r.Node == rec.Record.Node) && off.Abs() < clocksAgree {
			return rec
		}
	}
	return nil
}

// fill takes over what the node recorded: it knows best when and where a job ran.
func (l *receiptLoader) fill(j *receipt.Job, rec *store.Run, outcomes map[int64]*history.Outcome) {
	r := &rec.Record
	j.Start, j.End, j.Terms, j.Outcome = r.Start, r.End, job.ParseTerms(r.Comment), outcomes[rec.ID]
	j.GPUs = names(r.Node, indexesOf(r.GPUs))
	if rec.App != "" {
		j.App = rec.App
	}
	if j.Outcome != nil && j.Account == "" {
		j.Account = j.Outcome.Account
	}
}

func indexesOf(gpus []gpuprof.GPU) []int {
	out := make([]int, len(gpus))
	for i := range gpus {
		out[i] = gpus[i].Index
	}
	return out
}

func names(node string, gpus []int) []string {
	var out []string
	for _, g := range gpus {
		out = append(out, fmt.Sprintf("%s/%d", node, g))
	}
	return out
}

func (l *receiptLoader) profile(ctx context.Context, user, app string) (*rlcore.Profile, error) {
	if app == "" {
		return nil, nil
	}
	k := [2]string{user, app}
	if p, ok := l.profiles[k]; ok {
		return p, nil
	}
	p, err := l.store.Lookup(ctx, user, app)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	l.profiles[k] = p
	return p, nil
}

// world is the cluster as it was seen lately, with what decides in it and what is
// believed of slowdowns today.
func (l *receiptLoader) world(ctx context.Context, j *journal.Journal, past []history.Outcome, from time.Time) (*receipt.World, error) {
	nodes, err := j.Nodes(ctx, from)
	if err != nil {
		return nil, err
	}
	model := interference.New(&contention.MPS)
	history.Teach(model, past)
	policies, err := newPolicies(l.cfg, model, l.log)
	if err != nil {
		return nil, err
	}
	policies = ownPolicy(ctx, l.cfg, models.NewRegister(l.store.DB()), model, policies, l.log)
	return &receipt.World{Nodes: nodes, Card: l.cfg.Card, Decider: func() *rlcore.Decider { return newDecider(l.cfg, policies, model) }}, nil
}
