package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
)

func newReceipt(s *shared) *cobra.Command {
	var since, until string
	limit := 10
	var noReplay bool
	var whatIf string
	c := &cobra.Command{
		Use:   "receipt",
		Short: "What the bridge did lately, or in shadow would have done",
		Long: `receipt says in one page what sharing brought and cost: jobs grouped, GPU-hours
against the GPU-hours that the jobs would have taken one by one, slowdowns predicted and measured,
waits shortened and lengthened, contracts kept and broken,
failures that may be due to co-runners, and how often the guard gave which reason.

In mode shadow nothing was changed; the receipt then says what sharing would have done. Its
end says what is measured and what is an estimate. Waits are an estimate: the recorded
jobs are run again on a simulator of the cluster's GPUs, once each with a GPU of its own
and once sharing.

--what-if answers another question: what if the jobs that requested a whole GPU and used
less than half of it had requested gpu:shared? The recorded days are replayed both ways,
under the current settings of guard and promise. It needs records of a few days, by the nodes'
agents and a daemon in mode shadow, and names who would gain most.

--what-if mig asks how each GPU with MIG would best be cut: the days are replayed with GPUs that
are whole, 2 × 3g, 3 × 2g + 1g or 7 × 1g, with and without sharing. It says under which layout jobs
would have ended earliest, with none refused for its memory, and changes no GPU.

It reads the database and needs no daemon.`,
		Example: `  slurmbridge receipt                         the last seven days
  slurmbridge receipt --since 7d --what-if
  slurmbridge receipt --since 21d --what-if mig
  slurmbridge receipt --since 2026-03-01 --until 2026-04-01 --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 { // the flag's value, which may be left out
				whatIf = cmp.Or(map[bool]string{true: args[0]}[whatIf == "share" && len(args) == 1], "?")
			}
			if !slices.Contains([]string{"", "share", "mig"}, whatIf) {
				return cli.Usage(errors.New("it takes no words but --what-if mig"))
			}
			return nil
		},
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			from, to, err := period(time.Now(), since, until)
			if err != nil {
				return cli.Usage(err)
			}
			if whatIf != "" && noReplay {
				return cli.Usage(errors.New("--what-if is a replay: it doesn't go with --no-replay"))
			}
			if limit < 1 {
				return cli.Usage(fmt.Errorf("--limit is %d: at least 1", limit))
			}
			in, err := s.loadReceipt(c.Context(), cfg, from, to, !noReplay || whatIf != "")
			if err != nil {
				return err
			}
			switch whatIf {
			case "share":
				return s.whatIf(in, limit)
			case "mig":
				x, err := in.Replay.MIG(in.Jobs)
				if err != nil {
					return err
				}
				return s.Show(x, func() { x.Text(s.Out) })
			}
			r := receipt.Make(in)
			return s.Show(r, func() { r.Text(s.Out, limit) })
		}),
	}
	f := c.Flags()
	sinceFlag(f, &since, "7d")
	untilFlag(f, &until)
	f.IntVar(&limit, "limit", limit, "lines a list")
	f.BoolVar(&noReplay, "no-replay", false, "leave the estimate of waits out: it takes seconds where there are many jobs")
	f.StringVar(&whatIf, "what-if", "",
		"what if the jobs that requested a whole GPU and used little of it had requested gpu:shared; `mig`: what if GPUs "+
			"were cut")
	f.Lookup("what-if").NoOptDefVal = "share"
	cli.Values(c, "what-if", "share", "mig")
	return c
}

func sinceFlag(f *pflag.FlagSet, since *string, usual string) {
	f.StringVar(since, "since", usual,
		"from when on: how long ago (7d, 36h, 2w) or a `TIME` (2026-03-01, 2026-03-01T12:00)")
}

func untilFlag(f *pflag.FlagSet, until *string) {
	f.StringVar(until, "until", "0h", "up to when, likewise; 0h = now")
}

func period(now time.Time, since, until string) (from, to time.Time, err error) {
	if from, err = moment(now, since); err != nil {
		return from, to, fmt.Errorf("--since: %w", err)
	}
	if to, err = moment(now, until); err != nil {
		return from, to, fmt.Errorf("--until: %w", err)
	}
	if !from.Before(to) {
		return from, to, fmt.Errorf("--since %s is not before --until %s", since, until)
	}
	return from, to, nil
}

var errMoment = errors.New("it takes how long ago (7d, 36h, 2w) or a time (2026-03-01, 2026-03-01T12:00, " +
	"2026-03-01T12:00:00Z)")

// moment reads a time, or how long before now it was.
func moment(now time.Time, text string) (time.Time, error) {
	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if ago, err := model.ParseDuration(text); err == nil {
		return now.Add(-time.Duration(ago)), nil
	}
	return time.Time{}, fmt.Errorf("%.40q: %w", text, errMoment)
}

func (s *shared) loadReceipt(ctx context.Context, cfg *config.Config, from, to time.Time, replay bool) (*receipt.Input,
	error,
) {
	st, err := cli.OpenStore(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	j := journal.New(st.DB())
	in := &receipt.Input{From: from, To: to}
	if len(cfg.Adopt) > 0 && cfg.AdoptMode == "shadow" {
		rules := &adopt.Policy{Rules: cfg.Adopt, Percent: 100}
		in.Rule = func(r *history.Run) *adopt.Rule { return ruleOf(rules, r) }
	}
	runs, err := past(st).Ended(ctx, from, to)
	if err != nil {
		return nil, err
	}
	// A record without GPUs of a job that no poll showed is of no job with GPUs.
	in.Jobs = slices.DeleteFunc(runs, func(r history.Run) bool { return !r.Shown() && len(r.GPUs) == 0 })
	if in.VetoCounts, err = j.VetoCounts(ctx, from, to); err != nil || !replay {
		return in, err
	}
	in.Replay, err = loadWorld(ctx, cfg, st, j, s.Log(), from)
	return in, err
}

// loadWorld is the cluster as polls have shown it since the given time, with what decides in it and what is
// believed of slowdowns today.
func loadWorld(ctx context.Context, cfg *config.Config, st *store.Store, j *journal.Journal, log *slog.Logger,
	since time.Time,
) (*receipt.World, error) {
	nodes, err := j.Nodes(ctx, since)
	if err != nil {
		return nil, err
	}
	beliefs := interference.New(&contention.MPS)
	if err := past(st).Recall(ctx, beliefs, time.Unix(0, 0)); err != nil {
		return nil, err
	}
	policies, err := newPolicies(cfg, beliefs, log)
	if err != nil {
		return nil, err
	}
	decider := func() *rlcore.Decider { return newDecider(cfg, policies, beliefs) }
	return &receipt.World{Nodes: nodes, Card: cfg.Spec, Cut: cfg.Cut, Decider: decider}, nil
}

// whatIf prints the estimated effect of more sharing.
func (s *shared) whatIf(in *receipt.Input, limit int) error {
	in.Replay.WhatIf = true
	x, err := in.Replay.Replay(in.Jobs)
	if err != nil {
		return err
	}
	return s.Show(x, func() { x.Text(s.Out, limit) })
}

func newAdopt(s *shared) *cobra.Command {
	c := &cobra.Command{Use: "adopt", Short: "rules by which unchanged jobs of one GPU share"}
	c.AddCommand(newPreview(s))
	return c
}

func newPreview(s *shared) *cobra.Command {
	var since, file string
	c := &cobra.Command{
		Use:   "preview",
		Short: "what rules would have done to the jobs of the last weeks",
		Long: `Replays the recorded days twice: as they were, and with those jobs sharing that the rules
would have adopted, all users of them, each within its rule's contract. It changes nothing
and needs no daemon. Jobs with a deadline or in a reservation are left alone.`,
		Example: `  slurmbridge adopt preview                          the rules of slurmbridge.yaml
  slurmbridge adopt preview --rules new.yaml --since 30d`,
		Args: cobra.NoArgs,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			now := time.Now()
			from, err := moment(now, since)
			if err != nil {
				return cli.Usage(fmt.Errorf("--since: %w", err))
			}
			policy := &adopt.Policy{Rules: cfg.Adopt, Percent: 100}
			if file != "" {
				if policy.Rules, err = config.ReadRules(file); err != nil {
					return cli.Usage(err)
				}
			}
			if len(policy.Rules) == 0 {
				return cli.Usage(fmt.Errorf("%s has no rules: name a file with --rules", cfg.Where("adopt")))
			}
			in, err := s.loadReceipt(c.Context(), cfg, from, now, true)
			if err != nil {
				return err
			}
			in.Replay.Rule = func(r *history.Run) *adopt.Rule { return ruleOf(policy, r) }
			return s.whatIf(in, 20)
		}),
	}
	sinceFlag(c.Flags(), &since, "14d")
	c.Flags().StringVar(&file, "rules", "",
		"`FILE` with a list below adopt:, as in slurmbridge.yaml; without it those of the settings")
	return c
}

// ruleOf returns the rule that would have adopted a run of a whole GPU, nil = none.
func ruleOf(p *adopt.Policy, r *history.Run) *adopt.Rule {
	if !r.Deadline.IsZero() || r.Reservation != "" { // the bridge leaves them alone
		return nil
	}
	return p.Of(&job.Job{
		User: r.User, Account: r.Account, Partition: r.Partition, QOS: r.QOS, NumNodes: 1,
		Request: job.GPURequest{Kind: job.WholeGPU, Count: 1, PerNode: true},
	})
}
