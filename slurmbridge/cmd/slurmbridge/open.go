package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

func newOpen(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "open",
		Short: "Let every waiting job go at once",
		Long: `open lets every waiting job go: the gate is cancelled, jobs prepared for a group
that hasn't started get back their requests, and the gate file names no gate any more.
They are ordinary Slurm jobs from then on, each with a GPU of its own.

It needs no running daemon. A daemon that still runs makes a new gate for jobs
submitted later: stop it first where that isn't wanted.`,
		Args: cobra.NoArgs,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), 2*time.Minute)
			defer cancel()
			cl, err := client(cfg, nil)
			if err != nil {
				return err
			}
			var groups *tracker.Tracker
			st, err := cli.OpenStore(ctx, cfg)
			if err == nil {
				defer st.Close()
				groups, err = journal.New(st.DB()).Load(ctx)
			}
			if err != nil {
				// Jobs behind the gate go all the same.
				fmt.Fprintf(s.ErrOut, "slurmbridge: %v; jobs prepared for a group that can't be read keep their shares\n", err)
			}
			if groups == nil {
				groups = tracker.New()
			}
			n, err := loop.UngateAll(ctx, cl, groups, cfg.GateFile())
			if err != nil {
				return err
			}
			return s.Show(map[string]int{"jobs": n}, func() { fmt.Fprintf(s.Out, "open: %d jobs ungated\n", n) })
		}),
	}
}

// client makes the cluster's client of the settings.
func client(cfg *config.Config, m *loop.Metrics) (*slurm.Client, error) {
	cl := &slurm.Client{Conf: cfg.SlurmConf, Bin: cfg.BinDir}
	cl.Name, _ = os.Hostname() // without one its gates have no owner
	if m != nil {
		cl.Observe = m.Command
	}
	if _, err := os.Stat(cfg.SlurmConf); cfg.SlurmConf != "" && err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Where("slurm_conf"), err)
	}
	if err := cl.Open(); err != nil {
		if cfg.BinDir != "" {
			err = fmt.Errorf("%s: %w", cfg.Where("bin_dir"), err)
		}
		return nil, fmt.Errorf("%w; is Slurm installed here? Else name its folder: bin_dir", err)
	}
	return cl, nil
}
