package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
)

func newReceipt(s *shared) *cobra.Command {
	var since, until, file string
	limit := 10
	var noReplay, whatIf bool
	c := &cobra.Command{
		Use:   "receipt",
		Short: "What the bridge did lately, or in shadow would have done",
		Long: `receipt says in one page what sharing brought and cost: jobs grouped, GPU-hours
against the GPU-hours that the jobs would have taken one by one, slowdowns predicted and measured,
waits shortened and lengthened by user and account, contracts kept and broken,
failures that may be due to co-runners, and how often the guard gave which reason.

In mode shadow nothing was changed; the receipt then says what sharing would have done. Its
end says what is measured and what is an estimate. Waits are an estimate: the recorded
jobs are run again on a simulator of the cluster's GPUs, once each with a GPU of its own
and once sharing.

--what-if answers another question: what if the jobs that requested a whole GPU and used
less than half of it had requested gpu:shared? The recorded days are replayed both ways,
under the current settings of guard and promise. It needs records of a few days, by the nodes'
agents and a daemon in mode shadow, and names who would gain most.

It reads the database and needs no daemon.`,
		Example: `  slurmbridge receipt                         the last seven days
  slurmbridge receipt --since 30d --html receipt.html
  slurmbridge receipt --since 7d --what-if
  slurmbridge receipt --since 2026-03-01 --until 2026-04-01 --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			now := time.Now()
			from, err := moment(now, since)
			if err != nil {
				return cli.Usage(fmt.Errorf("--since: %w", err))
			}
			to, err := moment(now, until)
			if err != nil {
				return cli.Usage(fmt.Errorf("--until: %w", err))
			}
			if !from.Before(to) {
				return cli.Usage(fmt.Errorf("--since %s is not before --until %s", since, until))
			}
			if whatIf && (noReplay || file != "") {
				return cli.Usage(errors.New("--what-if is a replay, for a terminal or as --json: it goes with neither --no-replay nor --html"))
			}
			if limit < 1 {
				return cli.Usage(fmt.Errorf("--limit is %d: at least 1", limit))
			}
			cfg, err := s.Load(c)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(s.ErrOut, nil))
			st, err := cli.OpenStore(c.Context(), cfg, log)
			if err != nil {
				return err
			}
			defer st.Close()
			in, err := loadReceipt(c.Context(), cfg, st, log, from, to, !noReplay || whatIf)
			if err != nil {
				return err
			}
			if whatIf {
				return s.whatIf(in)
			}
			r := receipt.Make(in)
			if file != "" {
				var b bytes.Buffer
				if err := r.HTML(&b, limit); err != nil {
					return err
				}
				if err := renameio.WriteFile(file, b.Bytes(), 0o644); err != nil {
					return fmt.Errorf("write %s: %w", file, err)
				}
			}
			switch {
			case s.JSON:
				return s.PrintJSON(r)
			case file == "":
				r.Text(s.Out, limit)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&since, "since", "7d", "from when on: how long ago (7d, 36h, 2w) or a `TIME` (2026-03-01, 2026-03-01T12:00)")
	f.StringVar(&until, "until", "0h", "up to when, likewise; 0h = now")
	f.StringVar(&file, "html", "", "write the page to `FILE`: it needs nothing else, and no network")
	f.IntVar(&limit, "limit", limit, "lines a list")
	f.BoolVar(&noReplay, "no-replay", false, "leave the estimate of waits out: it takes seconds where there are many jobs")
	f.BoolVar(&whatIf, "what-if", false, "what if the jobs that requested a whole GPU and used little of it had requested gpu:shared")
	return c
}

// whatIf prints the users that would gain by sharing.
func (s *shared) whatIf(in *receipt.Input) error {
	x, err := in.Replay.WhatIf(in.Jobs)
	if err != nil {
		return err
	}
	if s.JSON {
		return s.PrintJSON(x)
	}
	x.Text(s.Out)
	return nil
}

// errMoment says which forms a time has.
var errMoment = errors.New("it takes how long ago (7d, 36h, 2w) or a time (2026-03-01, 2026-03-01T12:00, 2026-03-01T12:00:00Z)")

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
	for unit, hours := range map[string]float64{"d": 24, "w": 7 * 24} {
		n, ok := strings.CutSuffix(text, unit)
		v, err := strconv.ParseFloat(n, 64)
		if ok && err == nil && v >= 0 && v*hours <= 100*365*24 {
			return now.Add(-time.Duration(math.Round(v * hours * float64(time.Hour)))), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%.40q: %w", text, errMoment)
}
