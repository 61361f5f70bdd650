package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
)

// Register keeps in the controller's database which networks were trained, how they
// were judged, and which of them decides. Several processes may work on it at once: the
// daemon, a retraining, and an admin.
type Register struct {
	db  *sql.DB
	now func() time.Time
}

// NewRegister returns the register of a database that package database opened.
func NewRegister(db *sql.DB) *Register { return &Register{db: db, now: time.Now} }

// List returns all models, oldest first.
func (r *Register) List(ctx context.Context) ([]Model, error) { return list(ctx, r.db) }

func list(ctx context.Context, db database.Querier) ([]Model, error) {
	columns := func(m *Model) []any { return []any{database.JSON(m), &m.ID} }
	out, err := database.List(ctx, db, columns, `SELECT body, id FROM bridge_models ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read models: %w", err)
	}
	return out, nil
}

// Get returns a model. Errors wrap ErrNoModel where there is none.
func (r *Register) Get(ctx context.Context, id int64) (*Model, error) { return get(ctx, r.db, id) }

func get(ctx context.Context, db database.Querier, id int64) (*Model, error) {
	m := &Model{}
	err := db.QueryRowContext(ctx, `SELECT body, id FROM bridge_models WHERE id = ?`, id).Scan(database.JSON(m), &m.ID)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("model %d: %w", id, ErrNoModel)
	case err != nil:
		return nil, fmt.Errorf("read model %d: %w", id, err)
	}
	return m, nil
}

// Use returns which model decides.
func (r *Register) Use(ctx context.Context) (Use, error) { return use(ctx, r.db) }

func use(ctx context.Context, db database.Querier) (u Use, err error) {
	err = db.QueryRowContext(ctx, `SELECT model, pinned, since FROM bridge_model_use WHERE id = 1`).
		Scan(&u.Model, &u.Pinned, database.Millis(&u.Since))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return u, fmt.Errorf("read which model decides: %w", err)
	}
	return u, nil
}

// desk is what one change of the models works on.
type desk struct {
	ctx context.Context
	tx  *sql.Tx
	at  time.Time
	use Use
}

// change lets f change the models; nothing of it is done if it fails.
func (r *Register) change(ctx context.Context, f func(d *desk) error) error {
	return database.Tx(ctx, r.db, func(tx *sql.Tx) (err error) {
		d := &desk{ctx: ctx, tx: tx, at: r.now()}
		if d.use, err = use(ctx, tx); err != nil {
			return err
		}
		return f(d)
	})
}

func (d *desk) put(m *Model) error {
	if m.ID != 0 {
		if _, err := d.tx.ExecContext(d.ctx, `UPDATE bridge_models SET body = ? WHERE id = ?`, database.JSON(m), m.ID); err != nil {
			return fmt.Errorf("write model %d: %w", m.ID, err)
		}
		return nil
	}
	res, err := d.tx.ExecContext(d.ctx, `INSERT INTO bridge_models (made, body) VALUES (?, ?)`, m.Made.UnixMilli(), database.JSON(m))
	if err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	if m.ID, err = res.LastInsertId(); err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	return nil
}

// become notes a model's new state and why.
func (d *desk) become(m *Model, s State, why string) error {
	m.State = s
	m.History = append(m.History, Event{At: d.at.UTC(), To: s, Why: why})
	return d.put(m)
}

// decide puts a model in use.
func (d *desk) decide(id int64, pinned bool) error {
	if id != d.use.Model || d.use.Since.IsZero() {
		d.use.Since = d.at
	}
	d.use.Model, d.use.Pinned = id, pinned
	if _, err := d.tx.ExecContext(d.ctx, `INSERT INTO bridge_model_use (id, model, pinned, since) VALUES (1, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET model = excluded.model, pinned = excluded.pinned, since = excluded.since`,
		id, pinned, d.use.Since.UnixMilli()); err != nil {
		return fmt.Errorf("write which model decides: %w", err)
	}
	return nil
}

// back takes the model in use out of it and its former in.
func (d *desk) back(why string) error {
	m, err := get(d.ctx, d.tx, d.use.Model)
	if err != nil {
		return err
	}
	if err := d.become(m, RolledBack, why); err != nil {
		return err
	}
	former := m.Former
	if former != BuiltIn {
		// Its row may be too old to be kept.
		if _, err := get(d.ctx, d.tx, former); errors.Is(err, ErrNoModel) {
			former = BuiltIn
		} else if err != nil {
			return err
		}
	}
	return d.decide(former, false)
}

// Conclude writes down the result of a round that began while the model base was in
// use, with the network of the model from, which is another where the file of base
// can't be used. The one in use is rolled back, and the candidate promoted, where the
// finding says so and no admin has put another one in use meanwhile, or pinned it. sum
// and mix name the files. Returns the candidate as it was kept.
func (r *Register) Conclude(ctx context.Context, base, from int64, f *Finding, sum, mix string) (*Model, error) {
	var out *Model
	err := r.change(ctx, func(d *desk) error {
		stopped := ""
		switch {
		case d.use.Pinned:
			stopped = fmt.Sprintf("model %d is pinned", d.use.Model)
		case d.use.Model != base:
			stopped = fmt.Sprintf("model %d was put in use meanwhile", d.use.Model)
		}
		if f.Former != nil && f.Former.Better {
			// Training began with the one before.
			was, err := get(d.ctx, d.tx, base)
			if err != nil {
				return err
			}
			from = was.Former
			if stopped == "" {
				if err := d.back("the one before it is " + f.Former.Why()); err != nil {
					return err
				}
			}
		}
		out = &Model{
			Made: d.at.UTC(), Base: from, Former: d.use.Model, SHA256: sum, Mix: mix, Trained: f.Trained, Verdict: f.Verdict,
		}
		switch {
		case f.Verdict == nil:
			return d.become(out, Rejected, "training found nothing better than what it began with")
		case !f.Verdict.Better:
			return d.become(out, Rejected, f.Verdict.Why())
		case stopped != "":
			return d.become(out, Candidate, f.Verdict.Why()+"; "+stopped)
		}
		if err := d.become(out, Promoted, f.Verdict.Why()); err != nil {
			return err
		}
		return d.decide(out.ID, false)
	})
	return out, err
}

// Promote puts a model in use and pins it: no round changes that.
func (r *Register) Promote(ctx context.Context, id int64, why string) error {
	return r.change(ctx, func(d *desk) error {
		if id != BuiltIn {
			one, err := get(ctx, d.tx, id)
			if err != nil {
				return err
			}
			if one.SHA256 == "" {
				return fmt.Errorf("model %d: %w: training found nothing better than what it began with, and kept nothing", id, ErrUnusable)
			}
			before, err := line(ctx, d.tx)
			if err != nil {
				return err
			}
			// One that the present one would fall back on keeps its own former.
			if !slices.ContainsFunc(before, func(b Model) bool { return b.ID == id }) {
				one.Former = d.use.Model
			}
			if err := d.become(one, Promoted, why); err != nil {
				return err
			}
		}
		return d.decide(id, true)
	})
}

// Rollback takes the model in use out of it, in favour of the one before, and unpins.
// Errors wrap ErrNoModel where the built-in one decides.
func (r *Register) Rollback(ctx context.Context, why string) error {
	return r.change(ctx, func(d *desk) error {
		if d.use.Model == BuiltIn {
			return fmt.Errorf("nothing to roll back: the built-in network decides, and %w before it", ErrNoModel)
		}
		return d.back(why)
	})
}

// Auto leaves the choice to the rounds again.
func (r *Register) Auto(ctx context.Context) error {
	return r.change(ctx, func(d *desk) error { return d.decide(d.use.Model, false) })
}

// Line returns the model in use and those that it would fall back on, in their order;
// the built-in one, which comes last, is not among them.
func (r *Register) Line(ctx context.Context) ([]Model, error) { return line(ctx, r.db) }

func line(ctx context.Context, db database.Querier) ([]Model, error) {
	u, err := use(ctx, db)
	if err != nil {
		return nil, err
	}
	var out []Model
	seen := map[int64]bool{}
	for id := u.Model; id != BuiltIn && !seen[id]; {
		seen[id] = true
		one, err := get(ctx, db, id)
		if errors.Is(err, ErrNoModel) {
			break
		}
		if err != nil {
			return nil, err
		}
		out = append(out, *one)
		id = one.Former
	}
	return out, nil
}

// keepModels is how many of the latest models keep their files.
const keepModels = 10

// Keep names, by their SHA-256, the files that are still wanted: those of the model
// in use and the ones before it, and of the latest. Rows of other models that were
// made before the given time are removed.
func (r *Register) Keep(ctx context.Context, before time.Time) (map[string]bool, error) {
	keep := map[string]bool{}
	err := r.change(ctx, func(d *desk) error {
		wanted, err := line(ctx, d.tx)
		if err != nil {
			return err
		}
		all, err := list(ctx, d.tx)
		if err != nil {
			return err
		}
		old := all[:max(0, len(all)-keepModels)]
		wanted = append(wanted, all[len(old):]...)
		rows := map[int64]bool{}
		for i := range wanted {
			keep[wanted[i].SHA256], keep[wanted[i].Mix], rows[wanted[i].ID] = true, true, true
		}
		for i := range old {
			if old[i].Made.Before(before) && !rows[old[i].ID] {
				if _, err := d.tx.ExecContext(ctx, `DELETE FROM bridge_models WHERE id = ?`, old[i].ID); err != nil {
					return fmt.Errorf("forget model %d: %w", old[i].ID, err)
				}
			}
		}
		return nil
	})
	return keep, err
}
