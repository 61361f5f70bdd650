package mail

import (
	"context"
	"database/sql"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
)

// Book is what was mailed, in the table bridge_mails.
type Book struct{ DB *sql.DB }

const (
	// again is how long after a mail about a job the next one of its kind may follow.
	again = 24 * time.Hour
	// mostADay is how many mails about a user's jobs are sent in that time.
	mostADay = 50
	// noted is how long mails are known; runs are reported for RunsFor at most.
	noted = 7 * 24 * time.Hour
	// RunsFor is how long ago a run may have ended that is reported.
	RunsFor = 2 * again
)

// Due reports whether a mail is to be sent now: its job had none of its kind today, and its user not too many. It takes
// the runs that were reported out of the mail.
func (b *Book) Due(ctx context.Context, m *Mail, now time.Time) (bool, error) {
	return due(ctx, b.DB, m, now)
}

func due(ctx context.Context, q database.Querier, m *Mail, now time.Time) (bool, error) {
	kept := m.Runs[:0:0]
	for i := range m.Runs {
		var known bool
		err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT * FROM bridge_mails WHERE kind = ? AND job = ? AND run = ?)`,
			m.Kind, m.Job, m.Runs[i].Run).Scan(&known)
		if err != nil {
			return false, database.Wrap(err, "read mails")
		}
		if !known {
			kept = append(kept, m.Runs[i])
		}
	}
	if m.Runs = kept; m.Kind == Report && len(kept) == 0 {
		return false, nil
	}
	var ofJob bool
	var ofUser int
	err := q.QueryRowContext(ctx, `SELECT ifnull(max(kind = ?1 AND job = ?2), 0), count(DISTINCT kind || job || at)
		FROM bridge_mails WHERE user = ?3 AND at > ?4`,
		m.Kind, m.Job, m.User, now.Add(-again).UnixMilli()).Scan(&ofJob, &ofUser)
	return err == nil && !ofJob && ofUser < mostADay, database.Wrap(err, "read mails")
}

// Claim notes a mail as sent if it is due, so that no other process sends it, too.
func (b *Book) Claim(ctx context.Context, m *Mail, now time.Time) (claimed bool, err error) {
	err = database.Tx(ctx, b.DB, func(tx *sql.Tx) error {
		if claimed, err = due(ctx, tx, m, now); err != nil || !claimed {
			return err
		}
		runs := []int64{0}
		if m.Kind == Report {
			runs = runs[:0]
			for i := range m.Runs {
				runs = append(runs, m.Runs[i].Run)
			}
		}
		for _, run := range runs {
			if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO bridge_mails (kind, job, run, user, at)
				VALUES (?, ?, ?, ?, ?)`, m.Kind, m.Job, run, m.User, now.UnixMilli()); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM bridge_mails WHERE at < ?`, now.Add(-noted).UnixMilli())
		return err
	})
	return claimed, database.Wrap(err, "note mail about job %s", m.Job)
}

// Drop takes back the claim of a mail that wasn't sent.
func (b *Book) Drop(ctx context.Context, m *Mail, claimed time.Time) error {
	_, err := b.DB.ExecContext(ctx, `DELETE FROM bridge_mails WHERE kind = ? AND job = ? AND user = ? AND at = ?`,
		m.Kind, m.Job, m.User, claimed.UnixMilli())
	return database.Wrap(err, "note mail about job %s", m.Job)
}
