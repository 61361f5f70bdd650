package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// usageFlags are what `slurmbridge usage` is called with.
type usageFlags struct {
	since, until, by string
	users, accounts  []string
	limit            int
	csv              bool
}

func newUsage(s *shared) *cobra.Command {
	var o usageFlags
	c := &cobra.Command{
		Use:   "usage",
		Short: "What the GPUs were used for: held, computed, idle, shared; by user, account and so on",
		Long: `usage sums up the GPU jobs of some time: the GPU-hours that they held, how much of
that they computed, how long they held a GPU and did nothing, how much of its memory
they used, how long they shared it, what that saved and cost them, and the energy.

Shares of a GPU count as parts of one, so that the hours held are those of accounting
(sacct's gres/gpu and gres/mps). Jobs count by the part of their time that lies in the
period, those that run as well. What can't be known is empty, not 0: the nodes' records
tell what jobs computed, and each comes with the end of its job. The notes below the
table say how much is missing.

It reads the database and needs no daemon.`,
		Example: `  slurmbridge usage                               the last thirty days, by user
  slurmbridge usage --by account --since 2026-03-01 --until 2026-04-01
  slurmbridge usage --by job --user ann --since 7d
  slurmbridge usage --by node --csv > nodes.csv`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			q, err := o.query(time.Now())
			if err != nil {
				return cli.Usage(err)
			}
			if o.csv && s.JSON {
				return cli.Usage(errors.New("--csv and --json are two ways to say the same: choose one"))
			}
			cfg, err := s.Load(c)
			if err != nil {
				return err
			}
			st, err := cli.OpenStore(c.Context(), cfg, slog.New(slog.NewTextHandler(s.ErrOut, nil)))
			if err != nil {
				return err
			}
			defer st.Close()
			j := journal.New(st.DB())
			if err := settle(c.Context(), st, j, time.Now()); err != nil {
				return err
			}
			r, err := loadUsage(c.Context(), j, time.Now(), q)
			if err != nil {
				return err
			}
			return s.printUsage(r, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.since, "since", "30d", "from when on: how long ago (7d, 36h, 2w) or a `TIME` (2026-03-01, 2026-03-01T12:00)")
	f.StringVar(&o.until, "until", "0h", "up to when, likewise; 0h = now")
	f.StringVar(&o.by, "by", "user", "sum up by user, account, partition, application, node or job")
	f.StringSliceVar(&o.users, "user", nil, "only these users' jobs")
	f.StringSliceVar(&o.accounts, "account", nil, "only these accounts' jobs")
	f.IntVar(&o.limit, "limit", 20, "lines of the table; --csv and --json have all")
	f.BoolVar(&o.csv, "csv", false, "all lines as CSV, with a header")
	return c
}

// query reads the flags.
func (o *usageFlags) query(now time.Time) (usage.Query, error) {
	q := usage.Query{Users: o.users, Accounts: o.accounts}
	var err error
	if q.From, err = moment(now, o.since); err != nil {
		return q, fmt.Errorf("--since: %w", err)
	}
	if q.To, err = moment(now, o.until); err != nil {
		return q, fmt.Errorf("--until: %w", err)
	}
	if !q.From.Before(q.To) {
		return q, fmt.Errorf("--since %s is not before --until %s", o.since, o.until)
	}
	if q.By, err = usage.ParseBy(o.by); err != nil {
		return q, fmt.Errorf("--by: %w", err)
	}
	if o.limit < 1 {
		return q, fmt.Errorf("--limit is %d: at least 1", o.limit)
	}
	return q, nil
}

func (s *shared) printUsage(r *usage.Report, o *usageFlags) error {
	switch {
	case s.JSON:
		return s.PrintJSON(r)
	case o.csv:
		return r.CSV(s.Out)
	}
	r.Text(s.Out, o.limit)
	return nil
}
