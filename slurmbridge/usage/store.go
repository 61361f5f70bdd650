package usage

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
)

// KeptFor is how long footprints are kept: a month can be compared with the same of a year ago.
const KeptFor = 400 * 24 * time.Hour

// longMS is how long a run takes to be in the index of long runs, ms.
const longMS = 2 * 24 * 3600 * 1000

// Store sums up the footprints of runs.
type Store struct{ DB *sql.DB }

// sums of runs, by the figures below. Shares count as hundredths of a GPU and times as ms, peak and host are maxima.
type sums [len(figures)]float64

const (
	runs = iota
	unheld
	held
	heldWhole
	computed
	computedOf
	split
	memory
	memoryOf
	peak
	idle
	idleOf
	sharing
	sharingOf
	saved
	savedOf
	lost
	lostOf
	energy
	energyOf
	cpu
	cpuOf
	host
)

// figures are how a row of bridge_used adds to each sum; {took} and {part} are its span's.
var figures = [...]string{
	runs:       "1",
	unheld:     "(shares = 0)",
	held:       "shares * {took}{part}",
	heldWhole:  "(flags & 1) * shares * {took}{part}",
	computed:   "max(100, shares) * computed{part}",
	computedOf: "shares * known{part}",
	split:      "max(100, shares) * split{part}",
	memory:     "1.0 * shares * {took} * mean / card{part}", // nothing where card is 0
	memoryOf:   "shares * {took} * (card > 0){part}",
	peak:       "1.0 * peak / card",
	idle:       "shares * idle{part}",
	idleOf:     "shares * idleknown{part}",
	sharing:    "shares * shared{part}",
	sharingOf:  "(flags & 2 > 0) * shares * {took}{part}",
	saved:      "saved{part}",
	savedOf:    "(flags & 8 > 0)",
	lost:       "lost{part}",
	lostOf:     "(flags & 4 > 0)",
	energy:     "energy{part}",
	energyOf:   "(energy > 0) * shares * {took}{part}",
	cpu:        "(shares > 0) * cpu{part}",
	cpuOf:      "(cpu > 0) * shares * {took}{part}",
	host:       "(shares > 0) * host",
}

// figures are what a run adds to the sums, as SQL; sum: what runs add together.
func (s *span) figures(sum bool) string {
	of := strings.NewReplacer("{took}", s.took, "{part}", s.part)
	all := make([]string, len(figures))
	for i, f := range figures {
		f = of.Replace(f)
		switch {
		case !sum:
			all[i] = "ifnull(" + f + ", 0)"
		case i == peak || i == host:
			all[i] = "coalesce(max(" + f + "), 0)"
		default:
			all[i] = "total(" + f + ")"
		}
	}
	return strings.Join(all, ", ")
}

func (s *sums) add(o *sums) {
	mostOfCard, mostOfHost := max(s[peak], o[peak]), max(s[host], o[host])
	for i := range s {
		s[i] += o[i]
	}
	s[peak], s[host] = mostOfCard, mostOfHost
}

// label is what runs are summed up by.
type label struct{ user, account, partition, app, node string }

func wrap(what string, err error) error { return database.Wrap(err, "%s footprints", what) }

// First is when the first run with a footprint ended; zero = there is none.
func (s Store) First(ctx context.Context) (first time.Time, err error) {
	err = s.DB.QueryRowContext(ctx, `SELECT min(ended) FROM bridge_used WHERE ended > 0`).Scan(database.Millis(&first))
	return first, wrap("read", err)
}

// Forget removes footprints of runs that ended before the given day (UTC).
func (s Store) Forget(ctx context.Context, before time.Time) error {
	before = before.Truncate(24 * time.Hour)
	return wrap("forget", database.Tx(ctx, s.DB, func(tx *sql.Tx) error {
		gone, err := tx.ExecContext(ctx, `DELETE FROM bridge_used WHERE ended > 0 AND ended < ?`, before.UnixMilli())
		if err != nil {
			return err
		}
		if n, err := gone.RowsAffected(); err != nil || n == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM bridge_labels WHERE id NOT IN (SELECT who FROM bridge_used UNION SELECT place FROM bridge_used)`)
		return err
	}))
}
