package store

import (
	"context"
	"errors"
	"log/slog"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

// Identify names a job's application from its script (nil = not read), its terms and its arguments, and stores the name
// with the application's family; "" = it has none.
func (s *Store) Identify(ctx context.Context, j *job.Job, t job.Terms, script []byte) (string, error) {
	a := appid.Identify(&appid.Evidence{Named: t.App, Name: j.Name, Script: script, Args: j.Note.Args, Dir: j.WorkDir})
	if script == nil && t.App == "" {
		// Recognised before a restart.
		known, err := s.AppOf(ctx, j.Ref, j.User)
		if err != nil || known == "" {
			return "", err
		}
		a.Key = known
	}
	// Stored without a name, too: an earlier job of this number may have had one.
	return a.Key, errors.Join(s.SetApp(ctx, j.Ref, j.User, a.Key), s.SetFamily(ctx, j.User, a))
}

// Profile is Estimate for the loop: nil = nothing is known.
func (s *Store) Profile(ctx context.Context, user, app, card string) (*rlcore.Profile, error) {
	p, _, err := s.Estimate(ctx, user, app, card)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return p, err
}

// Estimate returns the profile of a user's application on a card ("" = the one where it is fastest), or else one made
// from its relatives of other sizes; unseen says that it is made. The error is ErrNotFound if there is neither.
func (s *Store) Estimate(ctx context.Context, user, app, card string) (p *rlcore.Profile, unseen bool, err error) {
	p, err = s.Lookup(ctx, user, app, card)
	if unseen = errors.Is(err, ErrNotFound); unseen {
		p, err = s.Relative(ctx, user, app, card)
	}
	return p, unseen, err
}

// LastCards returns a function that reads Cards, and after a failure returns what it read before.
func (s *Store) LastCards(log *slog.Logger) func(context.Context) (map[job.GPUAddr]string, map[string]bool) {
	var cards map[job.GPUAddr]string
	var noLimits map[string]bool
	return func(ctx context.Context) (map[job.GPUAddr]string, map[string]bool) {
		now, no, err := s.Cards(ctx)
		switch {
		case err == nil:
			cards = now
			noLimits = no
		case ctx.Err() == nil:
			log.Warn("GPU models", "err", err)
		}
		return cards, noLimits
	}
}
