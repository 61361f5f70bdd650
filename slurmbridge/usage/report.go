package usage

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// KeptFor is how long footprints are kept: a month can be compared with the same of a year ago.
const KeptFor = 400 * 24 * time.Hour

// Make sums up the footprints of runs that were on their GPUs in the query's period; those that still run are taken
// to run until now. It is nil where there is none.
func Make(ctx context.Context, db *sql.DB, q Query, now time.Time) (*Report, error) {
	t := &tally{Query: q, now: now, lines: map[string]*Line{}, total: Line{Name: "all"}}
	if err := database.Read(ctx, db, func(r database.Querier) (err error) {
		if q.By == Job && q.Limit > 0 {
			// Of a year's millions those that may be shown: a job that ran often may be larger than one of the largest runs.
			if t.largest, err = history.Largest(ctx, r, &q.Period, 1000+10*q.Limit); err != nil {
				return err
			}
		}
		return history.Footprints(ctx, r, &q.Period, t.add)
	}); err != nil || t.total.Runs == 0 {
		return nil, err
	}
	return t.report(), nil
}

type tally struct {
	Query
	now     time.Time
	lines   map[string]*Line
	total   Line
	largest map[string]bool // the jobs with lines of their own; nil = all jobs
}

// add adds a run to its line and to all.
func (t *tally) add(f *history.Footprint) {
	s := stay{Footprint: f, end: f.End, charge: t.Weights[f.Partition]}
	if s.end.IsZero() {
		s.end = t.now
	}
	from, to := f.Start, s.end
	if from.Before(t.From) {
		from = t.From
	}
	if to.After(t.To) {
		to = t.To
	}
	if !from.Before(to) {
		return
	}
	s.hours = to.Sub(from).Hours()
	s.long, s.ends = s.end.Sub(f.Start).Seconds(), !s.end.After(t.To)
	t.total.add(&s)
	name := names[t.By](f)
	if t.largest != nil && !t.largest[name] {
		return
	}
	if t.lines[name] == nil {
		t.lines[name] = &Line{Name: name}
		if t.By == Job {
			t.lines[name].Owner = f.User
		}
	}
	t.lines[name].add(&s)
}

// stay is a run's time on its GPUs in the period.
type stay struct {
	*history.Footprint
	end    time.Time
	hours  float64 // in the period
	long   float64 // the run's time, s
	ends   bool    // in the period
	charge Weights // its partition's
}

func plus(sum **float64, v float64) {
	if *sum == nil {
		*sum = new(float64)
	}
	**sum += v
}

// add adds a run. Computed and MemoryMean are sums until the line is finished.
func (l *Line) add(s *stay) {
	l.Runs++
	if s.GPUs == 0 {
		l.Unheld++
		return
	}
	held := s.GPUs * s.hours
	l.Held += held
	h := s.hours / s.long // in the period, of a second of the run
	if u := s.Use; u != nil {
		seen := func(seconds float64) float64 { return h * min(seconds, s.long) } // a record may begin before accounting does
		if u.KnownS > 0 {
			gpus := max(1, s.GPUs) // a part of a GPU's shares may compute on all of it
			plus(&l.Computed, gpus*h*u.ComputedS)
			l.ComputedOf += s.GPUs * seen(u.KnownS)
			l.ComputedSplit += gpus * h * u.SplitS
		}
		if u.CardMiB > 0 {
			plus(&l.MemoryMean, held*min(1, u.MeanMiB/u.CardMiB))
			l.MemoryOf += held
			if peak := min(1, u.PeakMiB/u.CardMiB); l.MemoryPeak == nil || peak > *l.MemoryPeak {
				l.MemoryPeak = &peak
			}
		}
		if u.IdleKnownS > 0 {
			plus(&l.Idle, s.GPUs*seen(min(u.IdleS, u.IdleKnownS)))
			l.IdleOf += s.GPUs * seen(u.IdleKnownS)
		}
		plus(&l.Shared, s.GPUs*seen(u.SharedS))
		if u.EnergyJ > 0 {
			plus(&l.Energy, h*u.EnergyJ/1000)
			l.EnergyOf += held
		}
	}
	if s.Timed {
		plus(&l.WaitSaved, h*s.SavedS)
	}
	if s.Judged {
		plus(&l.TimeLost, h*s.LostS)
		if l.Harm == nil {
			l.Harm = map[history.Harm]int{}
		}
		if s.ends {
			for _, kind := range s.Harm {
				l.Harm[kind]++
			}
		}
	}
	switch w := s.charge; {
	case !(w.GPU > 0):
	case s.Whole:
		plus(&l.Charged, held)
	default:
		plus(&l.Charged, held*job.Units*w.Share/w.GPU)
	}
}

// finish makes figures of a line's sums.
func (l *Line) finish() {
	if l.Computed != nil && *l.Computed > l.ComputedOf {
		beyond := *l.Computed - l.ComputedOf
		*l.Computed, l.Beyond = l.ComputedOf, &beyond
	}
	if l.MemoryMean != nil {
		*l.MemoryMean /= l.MemoryOf
	}
}

func (t *tally) report() *Report {
	r := &Report{From: t.From, To: t.To, By: t.By, Total: t.total}
	r.Total.finish()
	for _, l := range t.lines {
		l.finish()
		r.Lines = append(r.Lines, *l)
	}
	slices.SortFunc(r.Lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(a.Name, b.Name))
	})
	if n := len(r.Lines) - t.Limit; t.Limit > 0 && n > 0 {
		r.Lines, r.More = r.Lines[:t.Limit], n
	}
	if t.By == Job {
		r.More = r.Total.Runs
		for i := range r.Lines {
			r.More -= r.Lines[i].Runs
		}
	}
	r.Notes = r.notes(t.Weights != nil)
	return r
}
