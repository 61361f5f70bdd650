package mail

import (
	"context"
	"database/sql"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
)

// Book records the sent mails, in table bridge_mails.
type Book struct{ DB *sql.DB }

const (
	// interval is the minimum time between two mails of a kind about a job.
	interval = 24 * time.Hour
	// mostPerUser bounds the mails about a user's jobs in an interval.
	mostPerUser = 50
	// keepFor is how long sent mails stay recorded. It exceeds RunsFor, so no run is reported twice.
	keepFor = 7 * 24 * time.Hour
	// RunsFor is how long after its end a run may be reported.
	RunsFor = 2 * interval
)

// Due reports whether to send a mail now: within interval its job had no mail of this kind, and its user fewer than
// mostPerUser. Due removes runs from the mail that were reported before.
func Due(ctx context.Context, q database.Querier, m *Mail, now time.Time) (bool, error) {
	unreported := m.Runs[:0:0]
	for i := range m.Runs {
		var known bool
		err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT * FROM bridge_mails WHERE kind = ? AND job = ? AND run = ?)`,
			m.Kind, m.Job, m.Runs[i].ID).Scan(&known)
		if err != nil {
			return false, database.Wrap(err, "read mails")
		}
		if !known {
			unreported = append(unreported, m.Runs[i])
		}
	}
	m.Runs = unreported
	if m.Kind == Report && len(m.Runs) == 0 {
		return false, nil
	}
	var ofJob bool
	var ofUser int
	err := q.QueryRowContext(ctx, `SELECT ifnull(max(kind = ?1 AND job = ?2), 0), count(DISTINCT kind || job || at)
		FROM bridge_mails WHERE user = ?3 AND at > ?4`,
		m.Kind, m.Job, m.User, now.Add(-interval).UnixMilli()).Scan(&ofJob, &ofUser)
	return err == nil && !ofJob && ofUser < mostPerUser, database.Wrap(err, "read mails")
}

// Claim records a mail as sent if it is due, so no other process sends it as well.
func (b *Book) Claim(ctx context.Context, m *Mail, now time.Time) (claimed bool, err error) {
	err = database.Tx(ctx, b.DB, func(tx *sql.Tx) error {
		if claimed, err = Due(ctx, tx, m, now); err != nil || !claimed {
			return err
		}
		runs := []int64{0}
		if m.Kind == Report {
			runs = runs[:0]
			for i := range m.Runs {
				runs = append(runs, m.Runs[i].ID)
			}
		}
		for _, run := range runs {
			if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO bridge_mails (kind, job, run, user, at)
				VALUES (?, ?, ?, ?, ?)`, m.Kind, m.Job, run, m.User, now.UnixMilli()); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM bridge_mails WHERE at < ?`, now.Add(-keepFor).UnixMilli())
		return err
	})
	return claimed, database.Wrap(err, "record mail about job %s", m.Job)
}

// Drop deletes the claim of a mail that could not be sent.
func (b *Book) Drop(ctx context.Context, m *Mail, claimed time.Time) error {
	_, err := b.DB.ExecContext(ctx, `DELETE FROM bridge_mails WHERE kind = ? AND job = ? AND user = ? AND at = ?`,
		m.Kind, m.Job, m.User, claimed.UnixMilli())
	return database.Wrap(err, "delete record of mail about job %s", m.Job)
}
