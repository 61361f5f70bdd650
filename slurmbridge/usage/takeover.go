package usage

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/gob"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// TakeOver moves footprints that an earlier release kept, all of a day packed into one row, into rows of their own, a
// day at a time: it goes on where it was interrupted. A damaged day is dropped.
func (s Store) TakeOver(ctx context.Context) error {
	for {
		var day int64
		var body []byte
		err := s.DB.QueryRowContext(ctx, `SELECT day, body FROM bridge_footprints ORDER BY day LIMIT 1`).Scan(&day, &body)
		if err == sql.ErrNoRows { //nolint:errorlint // Scan returns it as it is
			return nil
		}
		if err != nil {
			return wrap("take over", err)
		}
		if err := database.Tx(ctx, s.DB, func(tx *sql.Tx) error {
			if all := unpack(body); len(all) > 0 {
				if err := save(ctx, tx, nil, all); err != nil {
					return err
				}
			}
			_, err := tx.ExecContext(ctx, `DELETE FROM bridge_footprints WHERE day = ?`, day)
			return err
		}); err != nil {
			return wrap("take over", err)
		}
	}
}

func unpack(body []byte) (list []history.Footprint) {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil || gob.NewDecoder(z).Decode(&list) != nil {
		return nil
	}
	return list
}
