package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/relative"
)

// maxKin bounds the relatives that a profile is made from; the newest count.
const maxKin = 256

// SetFamily stores the family and sizes of a user's application, if it has a family.
func (s *Store) SetFamily(ctx context.Context, user string, a appid.App) error {
	if a.Key == "" || a.Family == "" {
		return nil
	}
	_, err := s.db.ExecContext(ctx, `INSERT INTO applications (user, app, family, name, sizes, seen) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (user, app) DO UPDATE SET family = excluded.family, name = excluded.name, sizes = excluded.sizes, seen = excluded.seen`,
		user, a.Key, a.Family, a.Name, database.JSON(&a.Sizes), s.now().UnixNano())
	return database.Wrap(err, "write family of %s", a.Key)
}

// Family returns the stored family and sizes of a user's application; Family "" = none.
func (s *Store) Family(ctx context.Context, user, app string) (appid.App, error) {
	a := appid.App{Key: app}
	err := s.db.QueryRowContext(ctx,
		`SELECT family, name, sizes FROM applications WHERE app = ? AND user IN (?, '') ORDER BY user = '' LIMIT 1`,
		app, user).Scan(&a.Family, &a.Name, database.JSON(&a.Sizes))
	if errors.Is(err, sql.ErrNoRows) {
		return a, nil
	}
	if err != nil {
		return appid.App{}, fmt.Errorf("find family of %s: %w", app, err)
	}
	return a, nil
}

// Relative makes a profile for a user's application on a card ("" = any) from its relatives: the user's own and the
// site's, never another user's. The error is ErrNotFound if there are none, or none near enough; see package relative.
func (s *Store) Relative(ctx context.Context, user, app, card string) (*rlcore.Profile, error) {
	a, err := s.Family(ctx, user, app)
	if err != nil {
		return nil, err
	}
	if a.Family == "" {
		return nil, fmt.Errorf("%w of %s", ErrNotFound, app)
	}
	type relation struct {
		sizes   []appid.Size
		profile rlcore.Profile
	}
	columns := func(r *relation) []any { return []any{database.JSON(&r.sizes), database.JSON(&r.profile)} }
	relatives, err := database.Intact(ctx, s.db, columns, `SELECT f.sizes, p.body FROM applications f
		JOIN profiles p ON p.app = f.app AND p.user = f.user
		WHERE f.family = ? AND f.user IN (?, '') AND (? = '' OR p.card IN (?, ''))
		ORDER BY p.updated DESC LIMIT ?`, a.Family, user, card, card, maxKin)
	if err != nil {
		return nil, fmt.Errorf("find relatives of %s: %w", app, err)
	}
	var known []relative.Known
	for i := range relatives {
		known = append(known, relative.Known{Sizes: values(relatives[i].sizes), Profile: &relatives[i].profile})
	}
	p, err := relative.Of(app, values(a.Sizes), known)
	if err != nil {
		return nil, fmt.Errorf("%w of %s: %w", ErrNotFound, app, err)
	}
	p.Owner = user
	p.Model = card
	for i := range known { // the application may need as much as any relative
		p.HeldMiB = max(p.HeldMiB, known[i].Profile.HeldMiB)
	}
	return p, nil
}

func values(sizes []appid.Size) []float64 {
	out := make([]float64, len(sizes))
	for i, s := range sizes {
		out[i] = s.Value
	}
	return out
}

// Import stores profiles as the site's, all or none. Profiles learned from a user's own runs take precedence.
func (s *Store) Import(ctx context.Context, profiles []*rlcore.Profile) error {
	err := database.Tx(ctx, s.db, func(tx *sql.Tx) error {
		for _, p := range profiles {
			if err := errors.Join(p.Validate(), put(ctx, tx, "", p, s.now())); err != nil {
				return err
			}
		}
		return nil
	})
	return database.Wrap(err, "import profiles")
}

// leastBoth is the number of a user's applications, or else of users, that must have run on both of two cards before
// their times compare the cards. With fewer the spread is unknown (an assumption).
const leastBoth = 3

// Cards returns each recorded GPU's card, and the nodes with a driver too old for MPS to limit its clients' memory.
func (s *Store) Cards(ctx context.Context) (cards map[job.GPUAddr]string, noLimits map[string]bool, err error) {
	cards = map[job.GPUAddr]string{}
	noLimits = map[string]bool{}
	err = database.Each(ctx, s.db, func(rows *sql.Rows) error {
		var at job.GPUAddr
		var card string
		var no bool
		err := rows.Scan(&at.Node, &at.GPU, &card, &no)
		cards[at] = card
		if no {
			noLimits[at.Node] = true
		}
		return err
	}, `SELECT node, gpu, card, no_limits FROM cards`)
	return cards, noLimits, database.Wrap(err, "read cards")
}

func noteCards(ctx context.Context, q database.Querier, r *gpuprof.Record) error {
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if g.Model == "" {
			continue // NVML has lost the GPU: keep the known card
		}
		_, err := q.ExecContext(ctx, `INSERT INTO cards (node, gpu, card, no_limits) VALUES (?, ?, ?, ?)
			ON CONFLICT (node, gpu) DO UPDATE SET card = excluded.card, no_limits = excluded.no_limits
			WHERE card <> excluded.card OR no_limits <> excluded.no_limits`, r.Node, g.Index, g.Model, g.NoMemLimits)
		if err != nil {
			return err
		}
	}
	return nil
}

// choose picks an application's profile for a card from its profiles by card, nil = none. For card "" it picks the
// profile with the shortest duration: a promise made by it holds on all cards.
func choose(
	ctx context.Context, q database.Querier, of map[string]*rlcore.Profile, user, card string,
) (*rlcore.Profile, error) {
	if p := of[card]; p != nil {
		return p, nil
	}
	if card == "" {
		var shortest *rlcore.Profile
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if p := of[name]; shortest == nil || p.DurationS < shortest.DurationS {
				shortest = p
			}
		}
		return shortest, nil
	}
	if p := of[""]; p != nil {
		return p, nil
	}
	for _, from := range slices.Sorted(maps.Keys(of)) {
		if p, err := translate(ctx, q, of[from], user, from, card); p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// madSD is the ratio of a normal distribution's standard deviation to its median absolute deviation.
const madSD = 1.4826

func median(v []float64) float64 {
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// translate turns a profile on one card into a profile on another: memory stays, and times are multiplied by the
// geometric mean of the ratios of applications that ran on both cards. The user's and the site's applications count.
// If they are too few, the median of all users' means does, so that no single user decides. nil = still too few.
func translate(
	ctx context.Context, q database.Querier, p *rlcore.Profile, user, from, to string,
) (*rlcore.Profile, error) {
	logs := map[string][]float64{}
	err := database.Each(ctx, q, func(rows *sql.Rows) error {
		var of string
		var a, b float64
		if err := rows.Scan(&of, &a, &b); err != nil {
			return err
		}
		if of == "" {
			of = user
		}
		logs[of] = append(logs[of], math.Log(b/a))
		return nil
	}, `SELECT a.user, json_extract(a.body, '$.duration_s'), json_extract(b.body, '$.duration_s')
		FROM profiles a JOIN profiles b ON b.user = a.user AND b.app = a.app WHERE a.card = ? AND b.card = ?`, from, to)
	if err != nil {
		return nil, err
	}
	mean, sd := stat.MeanStdDev(logs[user], nil)
	if len(logs[user]) < leastBoth {
		var means []float64
		for _, of := range logs {
			means = append(means, stat.Mean(of, nil))
		}
		if len(means) < leastBoth {
			return nil, nil
		}
		mean = median(means)
		for i, m := range means {
			means[i] = math.Abs(m - mean)
		}
		sd = madSD * median(means)
	}
	ratio := math.Exp(mean)
	out := p.Times(ratio)
	out.DurationSD = math.Hypot(out.DurationSD, sd*out.DurationS)
	out.Model = to
	out.Runs = 0
	out.Source = "its runs on " + from
	return out, nil
}
