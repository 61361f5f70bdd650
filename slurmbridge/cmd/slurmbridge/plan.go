package main

import (
	"context"
	"fmt"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

func newPlan(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use:   "plan",
		Short: "What the bridge would change now, without changing it",
		Long: `plan looks at the queue itself and prints the changes that the bridge would send
to Slurm now, one a line, in their order. It changes nothing, needs no daemon and
disturbs none.

An empty plan is the usual one: all that can start has been released.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := s.Load(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
			defer cancel()
			w, err := wire(ctx, cfg, nil, s.ErrOut, nil)
			if err != nil {
				return err
			}
			defer w.close()
			st, err := w.bridge.Preview(ctx)
			if err != nil {
				return err
			}
			r := httpapi.MakePlanReport(st)
			if s.JSON {
				return s.PrintJSON(r)
			}
			if len(r.Changes) == 0 {
				fmt.Fprintln(s.Out, "nothing to change")
			}
			for _, line := range r.Changes {
				fmt.Fprintln(s.Out, line)
			}
			return nil
		},
	}
	c.Flags().String("policy", "", "policy to plan with, instead of the configured one")
	c.Flags().String("mode", string(job.Active), "active, or shadow: count every job that requests a whole GPU's shares as waiting")
	return c
}
