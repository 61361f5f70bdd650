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

// KeptFor is how long footprints are kept, so a month can be compared with the same month a year ago.
const KeptFor = 400 * 24 * time.Hour

// Make sums up the runs on GPUs in the query's period; runs that have not ended count until now. nil = there are none.
func Make(ctx context.Context, db *sql.DB, q Query, now time.Time) (*Report, error) {
	t := &tally{Query: q, now: now, lines: map[string]*Line{}, total: Line{Name: "all"}}
	err := database.Read(ctx, db, func(r database.Querier) (err error) {
		if q.By == Job && q.Limit > 0 {
			// A year may have millions of jobs. More candidates than lines are needed, since the many runs of a requeued job
			// may add up to more than the largest single runs.
			t.largest, err = history.Largest(ctx, r, &q.Period, 1000+10*q.Limit)
			if err != nil {
				return err
			}
		}
		return history.Footprints(ctx, r, &q.Period, t.add)
	})
	if err != nil || t.total.Runs == 0 {
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

func (t *tally) add(f *history.Footprint) {
	s := stay{Footprint: f, end: f.End, charge: t.Weights[f.Partition]}
	if s.end.IsZero() {
		s.end = t.now
	}
	from := f.Start
	if from.Before(t.From) {
		from = t.From
	}
	to := s.end
	if to.After(t.To) {
		to = t.To
	}
	if !from.Before(to) {
		return
	}
	s.hours = to.Sub(from).Hours()
	s.runS = s.end.Sub(f.Start).Seconds()
	s.ends = !s.end.After(t.To)
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
	hours  float64 // of the run in the period
	runS   float64 // the whole run, s
	ends   bool    // the run ends in the period
	charge Weights // of the run's partition
}

func addTo(sum **float64, v float64) {
	if *sum == nil {
		*sum = new(float64)
	}
	**sum += v
}

// add adds a run. Until finish is called Computed may exceed what was held, and MemoryMean is a sum.
func (l *Line) add(s *stay) {
	l.Runs++
	if s.GPUs == 0 {
		l.Unheld++
		return
	}
	held := s.GPUs * s.hours
	l.Held += held
	h := s.hours / s.runS // hours in the period for each second of the run
	if u := s.Use; u != nil {
		// A record may begin before the run does in accounting, and be longer.
		seen := func(seconds float64) float64 { return h * min(seconds, s.runS) }
		if u.KnownS > 0 {
			gpus := max(1, s.GPUs) // a job with a part of a GPU may compute on all of it
			addTo(&l.Computed, gpus*h*u.ComputedS)
			l.ComputedOf += s.GPUs * seen(u.KnownS)
			l.ComputedSplit += gpus * h * u.SplitS
		}
		if u.CardMiB > 0 {
			addTo(&l.MemoryMean, held*min(1, u.MeanMiB/u.CardMiB))
			l.MemoryOf += held
			peak := min(1, u.PeakMiB/u.CardMiB)
			if l.MemoryPeak == nil || peak > *l.MemoryPeak {
				l.MemoryPeak = &peak
			}
		}
		if u.IdleKnownS > 0 {
			addTo(&l.Idle, s.GPUs*seen(min(u.IdleS, u.IdleKnownS)))
			l.IdleOf += s.GPUs * seen(u.IdleKnownS)
		}
		addTo(&l.Shared, s.GPUs*seen(u.SharedS))
		if u.EnergyJ > 0 {
			addTo(&l.Energy, h*u.EnergyJ/1000)
			l.EnergyOf += held
		}
	}
	if s.Timed {
		addTo(&l.WaitSaved, h*s.SavedS)
	}
	if s.Judged {
		addTo(&l.TimeLost, h*s.LostS)
		if l.Harm == nil {
			l.Harm = map[history.Harm]int{}
		}
		if s.ends {
			for _, kind := range s.Harm {
				l.Harm[kind]++
			}
		}
	}
	w := s.charge
	switch {
	case !(w.GPU > 0):
	case s.Whole:
		addTo(&l.Charged, held)
	default:
		addTo(&l.Charged, held*job.Units*w.Share/w.GPU)
	}
}

// finish turns the sums of a line into figures.
func (l *Line) finish() {
	if l.Computed != nil && *l.Computed > l.ComputedOf {
		beyond := *l.Computed - l.ComputedOf
		l.Beyond = &beyond
		*l.Computed = l.ComputedOf
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
	if t.Limit > 0 && len(r.Lines) > t.Limit {
		r.More = len(r.Lines) - t.Limit
		r.Lines = r.Lines[:t.Limit]
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
