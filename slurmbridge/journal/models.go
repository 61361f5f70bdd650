package journal

import (
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
)

//go:embed models.sql
var modelsSchema string

// Models keeps which networks were trained, how they were judged, and which of them
// decides. Several processes may work on it at once: the daemon, a retraining, and an
// admin.
type Models struct {
	db  *sql.DB
	now func() time.Time
}

// NewModels makes the tables where they are missing.
func (j *Journal) NewModels(ctx context.Context) (*Models, error) {
	if _, err := j.db.ExecContext(ctx, modelsSchema); err != nil {
		return nil, fmt.Errorf("make models' tables: %w", err)
	}
	return &Models{db: j.db, now: time.Now}, nil
}

// querier is a database, or a transaction of it.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// List returns all models, oldest first.
func (m *Models) List(ctx context.Context) ([]models.Model, error) { return list(ctx, m.db) }

func list(ctx context.Context, db querier) ([]models.Model, error) {
	rows, err := db.QueryContext(ctx, `SELECT id, body FROM bridge_models ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("read models: %w", err)
	}
	defer rows.Close()
	out := []models.Model{}
	for rows.Next() {
		var id int64
		var body string
		if err := rows.Scan(&id, &body); err != nil {
			return nil, fmt.Errorf("read models: %w", err)
		}
		one, err := unpack(id, body)
		if err != nil {
			return nil, err
		}
		out = append(out, *one)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read models: %w", err)
	}
	return out, nil
}

func unpack(id int64, body string) (*models.Model, error) {
	out := &models.Model{}
	if err := json.Unmarshal([]byte(body), out); err != nil {
		return nil, fmt.Errorf("read model %d: %w", id, err)
	}
	out.ID = id
	return out, nil
}

// Get returns a model. Errors wrap models.ErrNoModel where there is none.
func (m *Models) Get(ctx context.Context, id int64) (*models.Model, error) { return get(ctx, m.db, id) }

func get(ctx context.Context, db querier, id int64) (*models.Model, error) {
	var body string
	err := db.QueryRowContext(ctx, `SELECT body FROM bridge_models WHERE id = ?`, id).Scan(&body)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("model %d: %w", id, models.ErrNoModel)
	case err != nil:
		return nil, fmt.Errorf("read model %d: %w", id, err)
	}
	return unpack(id, body)
}

// Use returns which model decides.
func (m *Models) Use(ctx context.Context) (models.Use, error) { return use(ctx, m.db) }

func use(ctx context.Context, db querier) (u models.Use, err error) {
	var since int64
	err = db.QueryRowContext(ctx, `SELECT model, pinned, since FROM bridge_model_use WHERE id = 1`).Scan(&u.Model, &u.Pinned, &since)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return models.Use{}, nil
	case err != nil:
		return u, fmt.Errorf("read which model decides: %w", err)
	}
	u.Since = time.UnixMilli(since)
	return u, nil
}

// desk is what one change of the models works on.
type desk struct {
	ctx context.Context
	tx  *sql.Tx
	at  time.Time
	use models.Use
}

// change lets f change the models; nothing of it is done if it fails.
func (m *Models) change(ctx context.Context, f func(d *desk) error) error {
	tx, err := m.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("change models: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	d := &desk{ctx: ctx, tx: tx, at: m.now()}
	if d.use, err = use(ctx, tx); err != nil {
		return err
	}
	if err := f(d); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("change models: %w", err)
	}
	return nil
}

func (d *desk) put(m *models.Model) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write model %d: %w", m.ID, err)
	}
	if m.ID != 0 {
		if _, err := d.tx.ExecContext(d.ctx, `UPDATE bridge_models SET body = ? WHERE id = ?`, string(body), m.ID); err != nil {
			return fmt.Errorf("write model %d: %w", m.ID, err)
		}
		return nil
	}
	res, err := d.tx.ExecContext(d.ctx, `INSERT INTO bridge_models (made, body) VALUES (?, ?)`, m.Made.UnixMilli(), string(body))
	if err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	if m.ID, err = res.LastInsertId(); err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	return nil
}

// become notes a model's new state and why.
func (d *desk) become(m *models.Model, s models.State, why string) error {
	m.State = s
	m.History = append(m.History, models.Event{At: d.at.UTC(), To: s, Why: why})
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
	if err := d.become(m, models.RolledBack, why); err != nil {
		return err
	}
	former := m.Former
	if former != models.BuiltIn {
		// Its row may be too old to be kept.
		if _, err := get(d.ctx, d.tx, former); errors.Is(err, models.ErrNoModel) {
			former = models.BuiltIn
		} else if err != nil {
			return err
		}
	}
	return d.decide(former, false)
}

// Conclude writes down what came of a round that began while the model base was in
// use, with the network of the model from, which is another where the file of base
// can't be used. The one in use is rolled back, and the candidate promoted, where the
// finding says so and nobody has put another one in use meanwhile, or pinned it. sum
// and mix name the files. Returns the candidate as it was kept.
func (m *Models) Conclude(ctx context.Context, base, from int64, f *models.Finding, sum, mix string) (*models.Model, error) {
	var out *models.Model
	err := m.change(ctx, func(d *desk) error {
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
		out = &models.Model{
			Made: d.at.UTC(), Base: from, Former: d.use.Model, SHA256: sum, Mix: mix, Trained: f.Trained, Verdict: f.Verdict,
		}
		switch {
		case f.Verdict == nil:
			return d.become(out, models.Rejected, "training found nothing better than what it began with")
		case !f.Verdict.Better:
			return d.become(out, models.Rejected, f.Verdict.Why())
		case stopped != "":
			return d.become(out, models.Candidate, f.Verdict.Why()+"; "+stopped)
		}
		if err := d.become(out, models.Promoted, f.Verdict.Why()); err != nil {
			return err
		}
		return d.decide(out.ID, false)
	})
	return out, err
}

// Promote puts a model in use and pins it: no round changes that.
func (m *Models) Promote(ctx context.Context, id int64, why string) error {
	return m.change(ctx, func(d *desk) error {
		if id != models.BuiltIn {
			one, err := get(ctx, d.tx, id)
			if err != nil {
				return err
			}
			if one.SHA256 == "" {
				return fmt.Errorf("model %d: %w: training found nothing better than what it began with, and kept nothing", id, models.ErrUnusable)
			}
			before, err := line(ctx, d.tx)
			if err != nil {
				return err
			}
			// One that the present one would fall back on keeps its own former.
			if !slices.ContainsFunc(before, func(b models.Model) bool { return b.ID == id }) {
				one.Former = d.use.Model
			}
			if err := d.become(one, models.Promoted, why); err != nil {
				return err
			}
		}
		return d.decide(id, true)
	})
}

// Rollback takes the model in use out of it, in favour of the one before, and unpins.
// Errors wrap models.ErrNoModel where the built-in one decides.
func (m *Models) Rollback(ctx context.Context, why string) error {
	return m.change(ctx, func(d *desk) error {
		if d.use.Model == models.BuiltIn {
			return fmt.Errorf("nothing to roll back: the built-in network decides, and %w before it", models.ErrNoModel)
		}
		return d.back(why)
	})
}

// Auto leaves the choice to the rounds again.
func (m *Models) Auto(ctx context.Context) error {
	return m.change(ctx, func(d *desk) error { return d.decide(d.use.Model, false) })
}

// Line returns the model in use and those that it would fall back on, in their order;
// the built-in one, which comes last, is not among them.
func (m *Models) Line(ctx context.Context) ([]models.Model, error) { return line(ctx, m.db) }

func line(ctx context.Context, db querier) ([]models.Model, error) {
	u, err := use(ctx, db)
	if err != nil {
		return nil, err
	}
	var out []models.Model
	seen := map[int64]bool{}
	for id := u.Model; id != models.BuiltIn && !seen[id]; {
		seen[id] = true
		one, err := get(ctx, db, id)
		if errors.Is(err, models.ErrNoModel) {
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
func (m *Models) Keep(ctx context.Context, before time.Time) (map[string]bool, error) {
	keep := map[string]bool{}
	err := m.change(ctx, func(d *desk) error {
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
