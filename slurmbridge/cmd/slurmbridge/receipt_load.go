package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
)

// usageURL is where the daemon of the settings shows what GPUs were used for, by the name of this host; "" = nowhere.
func usageURL(cfg *config.Config) string {
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return ""
		}
	}
	scheme := "http"
	if cfg.WebConfig != "" {
		scheme = "https" // or a password alone: the reader will see
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/usage"
}

// loadReceipt gathers what the receipt of [from, to) is made from.
func loadReceipt(ctx context.Context, cfg *config.Config, st *store.Store, log *slog.Logger, from, to time.Time, replay bool) (*receipt.Input, error) {
	j := journal.New(st.DB())
	in := &receipt.Input{From: from, To: to, Mode: job.Mode(cfg.Mode), UsageURL: usageURL(cfg)}
	runs, err := (&history.History{Records: st, Journal: j}).Ended(ctx, from, to)
	if err != nil {
		return nil, err
	}
	// A record without GPUs of a job that no poll showed is of no job with GPUs.
	in.Jobs = slices.DeleteFunc(runs, func(r history.Run) bool { return !r.Shown() && len(r.GPUs) == 0 })
	groups, err := j.Groups(ctx, from, 0)
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
	if in.Refused, err = j.Refused(ctx, from, to); err != nil || !replay {
		return in, err
	}
	in.Replay, err = loadWorld(ctx, cfg, st, j, log, from)
	return in, err
}

// loadWorld is the cluster as polls have shown it since the given time, with what decides in it and what is
// believed of slowdowns today.
func loadWorld(ctx context.Context, cfg *config.Config, st *store.Store, j *journal.Journal, log *slog.Logger, since time.Time) (*receipt.World, error) {
	nodes, err := j.Nodes(ctx, since)
	if err != nil {
		return nil, err
	}
	past, err := j.Outcomes(ctx, time.Now().Add(-history.KeptFor), time.Now().Add(time.Hour))
	if err != nil {
		return nil, err
	}
	model := interference.New(&contention.MPS)
	history.Teach(model, past)
	policies, err := newPolicies(cfg, model, log)
	if err != nil {
		return nil, err
	}
	policies, _ = ownPolicy(cfg, model, policies, log)
	return &receipt.World{Nodes: nodes, Card: cfg.Card, Decider: func() *rlcore.Decider { return newDecider(cfg, policies, model) }}, nil
}
