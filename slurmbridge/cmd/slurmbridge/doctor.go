package main

import (
	"context"
	"fmt"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
)

// exitError ends the program with a status of its own.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func newDoctor(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "What this cluster still lacks, with the lines to add",
		Long: `doctor reads Slurm's configuration and says what is missing or risky, why, and
which lines to write where. Run it on the controller, as SlurmUser or root.

Exit status: 0 nothing to do, 1 warnings, 2 errors.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := s.load(c)
			if err != nil {
				return err
			}
			cl, err := client(cfg, nil)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
			defer cancel()
			name := ""
			if u, err := user.Current(); err == nil {
				name = u.Username
			}
			facts, err := doctor.Collect(ctx, cl.Show, cfg, name)
			if err != nil {
				return err
			}
			findings := doctor.Examine(facts)
			write := doctor.WriteText
			if s.json {
				write = doctor.WriteJSON
			}
			if err := write(s.out, findings); err != nil {
				return err
			}
			if n := doctor.Exit(findings); n != 0 {
				return exitError(n)
			}
			return nil
		},
	}
}
