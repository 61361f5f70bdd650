package usage

import (
	"context"
	"database/sql"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// KeptFor is how long footprints are kept: a month can be compared with the same of a year ago.
const KeptFor = 400 * 24 * time.Hour

// Store sums up the footprints of runs.
type Store struct{ DB *sql.DB }

// sums of runs. Times are in ms; those of GPUs, such as held, in hundredths of a GPU by ms.
type sums [len(figures)]float64

const (
	held = iota
	computed
	computedOf
	split
	memory
	memoryOf
	peak
	idle
	idleOf
	sharing
	saved
	lost
	energy
	energyOf
	cpu
	cpuOf
	host
)

// weight is how a figure of runs that each hold so many shares adds to their sum.
type weight int8

const (
	once   weight = iota
	shares        // for each share
	gpus          // the same, as if they held a GPU at least
	most          // it is a maximum
)

// figures are the columns of bridge_used that are summed up; {took} is how long a run took, {part} the factor by which
// it counts.
var figures = [...]struct {
	sql string
	weight
}{
	held:       {"{took}{part}", shares},
	computed:   {"computed{part}", gpus},
	computedOf: {"known{part}", shares},
	split:      {"split{part}", gpus},
	memory:     {"1.0 * {took} * mean / card{part}", shares}, // nothing where card is 0
	memoryOf:   {"{took} * (card > 0){part}", shares},
	peak:       {"1.0 * peak / card", most},
	idle:       {"idle{part}", shares},
	idleOf:     {"idleknown{part}", shares},
	sharing:    {"shared{part}", shares},
	saved:      {"saved{part}", once},
	lost:       {"lost{part}", once},
	energy:     {"energy{part}", once},
	energyOf:   {"(energy > 0) * {took}{part}", shares},
	cpu:        {"cpu{part}", once},
	cpuOf:      {"(cpu > 0) * {took}{part}", shares},
	host:       {"host", most},
}

// add adds a sum of runs, or sums, that hold so many shares each.
func (s *sums) add(o *sums, held int64) {
	for i := range s {
		switch figures[i].weight {
		case once:
			s[i] += o[i]
		case shares:
			s[i] += float64(held) * o[i]
		case gpus:
			s[i] += float64(max(job.Units, held)) * o[i]
		case most:
			s[i] = max(s[i], o[i])
		}
	}
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
		_, err = tx.ExecContext(ctx,
			`DELETE FROM bridge_labels WHERE id NOT IN (SELECT who FROM bridge_used UNION SELECT place FROM bridge_used)`)
		return err
	}))
}
