package store

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// leastBoth is how many applications must have run on two cards before their times there say how the
// cards compare: with fewer the spread is not known (an assumption).
const leastBoth = 3

// Cards returns the card of each GPU that a record has named.
func (s *Store) Cards(ctx context.Context) (map[job.GPUAddr]string, error) {
	out := map[job.GPUAddr]string{}
	err := database.Each(ctx, s.db, func(rows *sql.Rows) error {
		var at job.GPUAddr
		var card string
		err := rows.Scan(&at.Node, &at.GPU, &card)
		out[at] = card
		return err
	}, `SELECT node, gpu, card FROM cards`)
	if err != nil {
		return nil, fmt.Errorf("read cards: %w", err)
	}
	return out, nil
}

// noteCards remembers the cards that a record names.
func noteCards(ctx context.Context, q database.Querier, r *gpuprof.Record) error {
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if _, err := q.ExecContext(ctx, `INSERT INTO cards (node, gpu, card) VALUES (?, ?, ?)
			ON CONFLICT (node, gpu) DO UPDATE SET card = excluded.card WHERE card <> excluded.card`, r.Node, g.Index, g.Card()); err != nil {
			return err
		}
	}
	return nil
}

// choose picks an owner's profile of an application for a card from those of all cards, nil = none. Without a card
// it is the one of the shortest run: what is promised by it is promised on any card.
func choose(ctx context.Context, q database.Querier, of map[string]*rlcore.Profile, card string) (*rlcore.Profile, error) {
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
		if p, err := translate(ctx, q, of[from], from, card); p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// translate makes of a profile on one card the one on another: memory is the same, and times are as many times longer as the
// times of the applications that ran on both, in their geometric mean. nil = too few did.
func translate(ctx context.Context, q database.Querier, p *rlcore.Profile, from, to string) (*rlcore.Profile, error) {
	var logs []float64
	err := database.Each(ctx, q, func(rows *sql.Rows) error {
		var a, b float64
		err := rows.Scan(&a, &b)
		logs = append(logs, math.Log(b/a))
		return err
	}, `SELECT json_extract(a.body, '$.duration_s'), json_extract(b.body, '$.duration_s')
		FROM profiles a JOIN profiles b ON b.user = a.user AND b.app = a.app WHERE a.card = ? AND b.card = ?`, from, to)
	if err != nil || len(logs) < leastBoth {
		return nil, err
	}
	mean, sd := stat.MeanStdDev(logs, nil)
	ratio := math.Exp(mean)
	out := *p
	out.DurationS, out.PeriodS, out.StepS = p.DurationS*ratio, p.PeriodS*ratio, p.StepS*ratio
	out.DurationSD = math.Hypot(p.DurationSD*ratio, sd*out.DurationS)
	out.LengthsS = nil
	out.Card, out.Runs, out.Source = to, 0, "its runs on "+from
	return &out, nil
}
