package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// OpenStore opens the database of the settings, which is the daemon's.
func OpenStore(ctx context.Context, cfg *config.Config) (*store.Store, error) {
	st, err := store.Open(ctx, cfg.Database)
	return st, explain(cfg, err)
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
		return fmt.Errorf("%s: %w; it belongs to the user that slurmbridge runs as (SlurmUser): run this as that user",
			cfg.Where("database"), err)
	case err != nil:
		return fmt.Errorf("%s: %w", cfg.Where("database"), err)
	}
	return nil
}

// WithStore does something with the database of the settings.
func (e *Env) WithStore(c *cobra.Command, do func(st *store.Store) error) error {
	cfg, err := e.Load(c)
	if err != nil {
		return err
	}
	st, err := OpenStore(c.Context(), cfg)
	if err != nil {
		return err
	}
	defer st.Close()
	return do(st)
}

// Profile is one profile with what is known around it.
type Profile struct {
	User     string          `json:"user"`
	Relative bool            `json:"relative"` // made from relatives: it was never seen
	Family   string          `json:"family,omitempty"`
	Sizes    []appid.Size    `json:"sizes,omitempty"`
	Profile  *rlcore.Profile `json:"profile"`
	// Foretelling is how well its runs' lengths are foretold.
	Foretelling rlcore.Foretelling `json:"foretelling"`
}

// FindProfile looks a profile on a card up as the bridge would, without a card on the one where it is fastest. Without
// a user, an application that one user alone has a profile of is that user's.
func FindProfile(ctx context.Context, st *store.Store, user, app, card string) (*Profile, error) {
	out := &Profile{User: user}
	p, err := st.Lookup(ctx, user, app, card)
	if errors.Is(err, store.ErrNotFound) && user == "" {
		entries, lerr := st.List(ctx)
		if lerr != nil {
			return nil, lerr
		}
		var users []string
		for _, e := range entries {
			if e.Profile.App == app && !slices.Contains(users, e.User) {
				users = append(users, e.User)
			}
		}
		switch len(users) {
		case 0:
		case 1:
			out.User = users[0]
			p, err = st.Lookup(ctx, out.User, app, card)
		default:
			return nil, Usage(fmt.Errorf("%s is an application of %s: say whose with --user", app, strings.Join(users, ", ")))
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		p, err = st.Relative(ctx, user, app, card)
		out.Relative = err == nil
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w; slurmbridge profiles list says what is known", err)
	}
	if err != nil {
		return nil, err
	}
	a, err := st.Family(ctx, out.User, app)
	if err != nil {
		return nil, err
	}
	out.Profile, out.Family, out.Sizes, out.Foretelling = p, a.Family, a.Sizes, p.Foretelling()
	return out, nil
}
