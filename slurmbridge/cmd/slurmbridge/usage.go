package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

type usageFlags struct {
	since, until, by string
	users, accounts  []string
	limit            int
	csv, me, idle    bool
	charged          bool
	remote           bool // --server was given
}

func newUsage(s *shared) *cobra.Command {
	var o usageFlags
	c := &cobra.Command{
		Use:   "usage",
		Short: "What the GPUs were used for: held, computed, idle, shared; by user, account and so on",
		Long: `usage sums up the GPU jobs of some time: the GPU-hours that they held, how much of
that they computed, how long they held a GPU and did nothing, how much of its memory
they used, how long they shared it, what that saved and cost them, and the energy.

Shares of a GPU count as parts of one, as in accounting (sacct's gres/gpu and gres/mps).
Jobs, running ones included, count by the part of their time that lies in the period.
Unknown figures are empty, not 0: what a job computed is in its node's record, which
arrives when the job ends. The notes below the table say how much is missing.

It reads the database, as the user that slurmbridge runs as, and needs no daemon. Without
a database that it may read it asks the daemon (the setting server or --server names it), which
shows users their own jobs (--me) by their MUNGE credential, and all jobs if Slurm doesn't hide
them (PrivateData).

--charged adds what billing counts. Slurm bills a job that shares a GPU by its shares
alone: with TRESBillingWeights=CPU=1,GRES/gpu=200 it pays for no GPU at all. A hundredth of
the GPU's weight for each share (GRES/mps=2, or GRES/shard=2) makes each job pay for the part
that it holds, so a GPU costs the same for any number of sharers; a smaller one rewards sharing.
slurmbridge doctor prints the line. gres/mps must be in AccountingStorageTRES first.

--idle lists the running jobs that have done nothing with their GPUs for idle_after, as
reported by the nodes' agents. No job is ever ended for it.`,
		Example: `  slurmbridge usage                               the last thirty days, by user
  slurmbridge usage --by account --since 2026-03-01 --until 2026-04-01
  slurmbridge usage --by job --user ann --since 7d
  slurmbridge usage --by node --csv > nodes.csv
  slurmbridge usage --me --by application         a user's own, also from a login node
  slurmbridge usage --by account --charged
  slurmbridge usage --idle`,
		Args: cobra.NoArgs,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			o.remote = c.Flags().Changed("server")
			q, err := o.query(time.Now())
			if err != nil {
				return cli.Usage(err)
			}
			if o.csv && s.JSON {
				return cli.Usage(errors.New("--csv and --json are two ways to say the same: choose one"))
			}
			if o.csv || s.JSON {
				q.Limit = 0
			}
			if o.idle {
				var r httpapi.IdleReport
				if err := ask(c.Context(), cfg, httpapi.IdlePath, &r); err != nil {
					return err
				}
				return s.Show(&r, func() { s.printIdle(&r, o.limit) })
			}
			if o.charged {
				if q.Weights, err = loadWeights(c.Context(), cfg); err != nil {
					return err
				}
			}
			r, err := s.usage(c.Context(), cfg, q, &o)
			if err != nil {
				return err
			}
			if r.More > 0 && (o.csv || s.JSON) {
				fmt.Fprintf(s.ErrOut,
					"slurmbridge: the daemon answers with %d lines and leaves out %d, the smallest; ask for a shorter time\n",
					len(r.Lines), r.More)
			}
			if o.csv {
				return r.CSV(s.Out)
			}
			return s.Show(r, func() { r.Text(s.Out, o.limit) })
		}),
	}
	f := c.Flags()
	sinceFlag(f, &o.since, "30d")
	untilFlag(f, &o.until)
	f.StringVar(&o.by, "by", "user", "sum up by user, account, partition, application, node or job")
	ways := make([]string, len(usage.Ways()))
	for i, by := range usage.Ways() {
		ways[i] = string(by)
	}
	cli.Values(c, "by", ways...)
	f.StringSliceVar(&o.users, "user", nil, "only these users' jobs")
	f.StringSliceVar(&o.accounts, "account", nil, "only these accounts' jobs")
	f.IntVar(&o.limit, "limit", 20, "lines of the table; --csv and --json have all, or the 1000 largest from the daemon")
	f.BoolVar(&o.me, "me", false, "only my own jobs: from the daemon, by my MUNGE credential")
	f.BoolVar(&o.idle, "idle", false, "the running jobs that have done nothing with their GPUs for long; from the daemon")
	f.BoolVar(&o.charged, "charged", false,
		"also the GPU-hours that TRESBillingWeights charge, against those computed; read from Slurm")
	askFlags(c)
	f.BoolVar(&o.csv, "csv", false, "lines as CSV, with a header")
	return c
}

func (o *usageFlags) query(now time.Time) (usage.Query, error) {
	q := usage.Query{Period: history.Period{Users: o.users, Accounts: o.accounts}, Limit: o.limit}
	var err error
	if q.From, q.To, err = period(now, o.since, o.until); err != nil {
		return q, err
	}
	if q.By, err = usage.ParseBy(o.by); err != nil {
		return q, fmt.Errorf("--by: %w", err)
	}
	if o.charged && (o.me || o.remote) {
		return q, errors.New("--charged is worked out from the database: it goes with neither --me nor --server")
	}
	if o.me && (o.users != nil || o.accounts != nil) {
		return q, errors.New("--me is one user: --user and --account say otherwise")
	}
	if slices.Contains(o.users, "") || slices.Contains(o.accounts, "") || o.users != nil && len(o.users) == 0 ||
		o.accounts != nil && len(o.accounts) == 0 {
		return q, errors.New("--user and --account take names, and got an empty one")
	}
	if o.limit < 1 {
		return q, fmt.Errorf("--limit is %d: at least 1", o.limit)
	}
	return q, nil
}

// usage sums up the runs in the database. If the database can't be read, or for a user's own runs,
// it requests the report from the daemon.
func (s *shared) usage(ctx context.Context, cfg *config.Config, q usage.Query, o *usageFlags) (*usage.Report, error) {
	if !o.me && !o.remote {
		open := cli.StoreOrNone
		if o.charged { // which the daemon doesn't work out
			open = cli.OpenStore
		}
		st, err := open(ctx, cfg)
		if err != nil {
			return nil, err
		}
		if st != nil {
			defer st.Close()
			return loadUsage(ctx, st, time.Now(), q)
		}
	}
	path := httpapi.UsagePath
	if o.me {
		path = httpapi.OwnUsagePath
	}
	v := url.Values{
		"since": {q.From.Format(time.RFC3339)}, "until": {q.To.Format(time.RFC3339)}, "by": {string(q.By)},
		"user": q.Users, "account": q.Accounts,
	}
	r := new(usage.Report)
	if err := ask(ctx, cfg, path+"?"+v.Encode(), r); err != nil {
		return nil, err
	}
	return r, nil
}

func (s *shared) printIdle(r *httpapi.IdleReport, limit int) {
	if len(r.Jobs) == 0 {
		s.printf("No running job has done nothing with its GPUs for longer than idle_after, " +
			"by the reports of the nodes' agents.\n")
		return
	}
	t := s.Table("GPUs held idle", "job", "user", "account", "on", "GPUs", "idle for", "since")
	gpus := 0.0
	for _, j := range r.Jobs[:min(len(r.Jobs), limit)] {
		t.AppendRow(table.Row{
			j.Ref, j.User, j.Account, j.Node, strconv.FormatFloat(j.GPUs, 'g', 3, 64),
			r.At.Sub(j.Since).Round(time.Minute), j.Since.Local().Format(time.DateTime),
		})
	}
	for _, j := range r.Jobs {
		gpus += j.GPUs
	}
	t.AppendFooter(table.Row{fmt.Sprintf("%d jobs", len(r.Jobs)), "", "", "", strconv.FormatFloat(gpus, 'g', 4, 64)})
	t.Render()
}

// pollsAgo is how long ago a poll may have been for the jobs that it showed to be taken to run.
const pollsAgo = 2 * time.Hour

// past reads and writes the runs in a database.
func past(st *store.Store) *history.History {
	return &history.History{DB: st.DB(), Profiles: st}
}

// loadUsage sums up footprints; a run that hasn't ended has gone on until a poll last showed it.
func loadUsage(ctx context.Context, st *store.Store, now time.Time, q usage.Query) (*usage.Report, error) {
	if err := past(st).Fit(ctx); err != nil {
		return nil, err
	}
	seen, err := journal.New(st.DB()).LastPoll(ctx)
	if err != nil {
		return nil, err
	}
	if now.Sub(seen) < pollsAgo {
		seen = now
	}
	r, err := usage.Make(ctx, st.DB(), q, seen)
	if err == nil && r == nil {
		err = noUsage(ctx, st, q)
	}
	return r, err
}

func noUsage(ctx context.Context, st *store.Store, q usage.Query) error {
	of := "GPU jobs"
	switch {
	case len(q.Users) > 0:
		of += " of " + strings.Join(q.Users, ", ")
	case len(q.Accounts) > 0:
		of += " of account " + strings.Join(q.Accounts, ", ")
	}
	first, err := history.FirstFootprint(ctx, st.DB())
	if err != nil {
		return err
	}
	since := "none has ended yet that the daemon or a node noted"
	if !first.IsZero() {
		since = "the first job that is known ended at " + first.Local().Format(time.DateTime)
	}
	return fmt.Errorf("%w of %s from %s to %s: %s", httpapi.ErrNoUsage, of, q.From.Local().Format(time.DateTime),
		q.To.Local().Format(time.DateTime), since)
}

// errNoBilling: no partition charges for GPUs.
var errNoBilling = errors.New("no partition has a weight for gres/gpu in its TRESBillingWeights: GPUs are charged " +
	"nothing")

func loadWeights(ctx context.Context, cfg *config.Config) (map[string]usage.Weights, error) {
	cl, err := client(cfg, nil)
	if err != nil {
		return nil, err
	}
	out, err := cl.Show(ctx, "scontrol", "show", "partitions", "--oneliner", "--all")
	if err != nil {
		return nil, fmt.Errorf("what GPUs are charged isn't known: %w", err)
	}
	all := map[string]usage.Weights{}
	for _, p := range text.ParsePartitions([]byte(out)) {
		weight := func(of string) float64 {
			if v, there := text.TRESValue(p.Billing, of); there && v > 0 { // nor NaN
				return v
			}
			return 0
		}
		w := usage.Weights{GPU: weight("gres/gpu"), Share: max(weight("gres/mps"), weight("gres/shard"))}
		if w.GPU > 0 {
			all[p.Name] = w
		}
	}
	if len(all) == 0 {
		return nil, errNoBilling
	}
	return all, nil
}
