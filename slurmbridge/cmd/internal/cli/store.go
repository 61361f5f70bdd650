package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// OpenStore opens the database of the settings, which is the daemon's.
func OpenStore(ctx context.Context, cfg *config.Config) (*store.Store, error) {
	st, err := store.Open(ctx, cfg.Database)
	return st, explain(cfg, err)
}

// StoreOrNone opens the database for a command that can ask the daemon instead: nil = the caller can't read it.
func StoreOrNone(ctx context.Context, cfg *config.Config) (*store.Store, error) {
	st, err := OpenStore(ctx, cfg)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return st, err
}

// OwnStore opens it for the daemon: a corrupt file is replaced.
func OwnStore(ctx context.Context, cfg *config.Config, log *slog.Logger) (*store.Store, error) {
	st, err := store.OpenOrReplace(ctx, cfg.Database, log)
	if err == nil && cfg.ShareUnknown {
		st.AssumedUse = job.AssumedUse
	}
	return st, explain(cfg, err)
}

// explain adds to an error of opening the database which setting names the file, and which user owns it.
func explain(cfg *config.Config, err error) error {
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: %w; this command is for admins, as the user that slurmbridge runs as (SlurmUser), on the "+
			"controller; for everybody are why, status, usage --me and profiles list", cfg.Where("database"), err)
	case err != nil:
		return fmt.Errorf("%s: %w", cfg.Where("database"), err)
	}
	return nil
}

// Stored is a command's RunE that is given the settings and their database as well.
func (e *Env) Stored(run func(c *cobra.Command, cfg *config.Config, st *store.Store, args []string) error) func(
	*cobra.Command, []string) error {
	return e.Configured(func(c *cobra.Command, cfg *config.Config, args []string) error {
		st, err := OpenStore(c.Context(), cfg)
		if err != nil {
			return err
		}
		defer st.Close()
		return run(c, cfg, st, args)
	})
}
