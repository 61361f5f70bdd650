package history

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Footprint is a summary of a run: what it held of GPUs, what it did with them, and what sharing
// saved or cost it. It is kept far longer than the run, with a record a hundred times as large.
type Footprint struct {
	Ref, User, Account, Partition, App, Node string
	Start, End                               time.Time // by the controller's clock; End zero: it still runs
	// GPUs is what it held at a time: whole ones, or the part of one that its shares are; 0 = not known.
	GPUs  float64
	Whole bool // whole GPUs

	// Use is nil without a record.
	Use *Use
	// Judged: it is known whether sharing did harm. Timed: plain Slurm's schedule has it, by which it waited
	// SavedS less, s; below 0 it waited longer. LostS is by how much sharing made it run longer, s.
	Judged, Timed bool
	SavedS, LostS float64
	Harm          []Harm
	// Suspect: it failed, perhaps for having shared. Cleared: it failed alone, too.
	Suspect, Cleared bool
}

// Footprint is the run in short, ended or not.
func (r *Run) Footprint() Footprint {
	f := Footprint{
		Ref: r.Ref, User: r.User, Account: r.Account, Partition: r.Partition, App: r.App, Node: r.Node,
		Start: r.Start, End: r.End, Use: r.Use,
	}
	if r.Shown() && !r.Allotted.After(r.Start) {
		// What accounting counts: from the start that Slurm gives, in whole seconds.
		if f.End = f.End.Truncate(time.Second); !r.Allotted.IsZero() {
			f.Start = r.Allotted
		}
	}
	switch {
	case r.WholeGPUs > 0:
		// A request may be for each of several nodes or tasks; what it got is more certain.
		f.GPUs, f.Whole = float64(max(r.WholeGPUs, len(r.GPUs))), true
	case r.Shares > 0:
		f.GPUs = float64(r.Shares) / job.Units
	}
	o := r.Outcome
	if o == nil {
		return f
	}
	f.Judged, f.Harm, f.Suspect, f.Cleared = true, o.Harm(), o.Suspect != "", o.Cleared
	solo, basis := r.Solo()
	if basis == Lost || r.Mode != job.Active {
		return f
	}
	if o.Shared() {
		f.LostS = r.DurationS() - solo
	}
	if !o.PlainEnd.IsZero() && ranToEnd(o.State) {
		f.Timed, f.SavedS = true, o.PlainEnd.Sub(r.Start).Seconds()-solo
	}
	return f
}

// Footprints keeps footprints.
type Footprints interface {
	// Settled returns up to when, and up to which record, footprints were made; zero = never.
	Settled(ctx context.Context) (at time.Time, record int64, err error)
	SetSettled(ctx context.Context, at time.Time, record int64) error
	// Save keeps footprints of runs that ended in [from, to), in place of earlier ones of the same runs.
	Save(ctx context.Context, from, to time.Time, all []Footprint) error
	// Drop removes the footprint of a job's run that was taken to have ended then, in its second or the millisecond.
	Drop(ctx context.Context, ref string, end time.Time) error
}

// settledBy is the span for which footprints are made at a time.
const settledBy = time.Hour

// Settle makes the footprints of runs that have ended since its last call, and again of runs with
// records or outcomes that have arrived since. It takes the time to read those records.
func (h *History) Settle(ctx context.Context, to Footprints, now time.Time) error {
	last, record, err := to.Settled(ctx)
	if err != nil {
		return err
	}
	judged, err := h.Journal.LastOutcome(ctx)
	if err != nil {
		return err
	}
	if last.IsZero() {
		if last, err = h.Journal.FirstEnd(ctx); err != nil {
			return err
		}
		if last.IsZero() {
			last = now
		}
	}
	from := now.Add(-KeptFor)
	if last.After(from) {
		from = last.Add(-sameTime)
	}
	again := map[time.Time]bool{}
	for t := from.Truncate(settledBy); t.Before(now); t = t.Add(settledBy) {
		again[t] = true
	}
	ends, err := h.Records.Ends(ctx, record, judged)
	if err != nil {
		return err
	}
	far, err := h.Journal.FarEnds(ctx, record, judged, shownLate)
	if err != nil {
		return err
	}
	for i := range far {
		if err := to.Drop(ctx, far[i].Ref, far[i].Polled); err != nil {
			return err
		}
		if err := h.Journal.SetEnd(ctx, &far[i]); err != nil {
			return err
		}
	}
	for _, end := range ends {
		for _, t := range []time.Time{end.Add(-sameTime), end, end.Add(sameTime)} {
			again[t.Truncate(settledBy)] = true
		}
	}
	hours := make([]time.Time, 0, len(again))
	for t := range again {
		if !t.Before(now.Add(-KeptFor)) {
			hours = append(hours, t)
		}
	}
	slices.SortFunc(hours, time.Time.Compare)
	for _, t := range hours {
		all, err := h.footprints(ctx, t, t.Add(settledBy))
		if err != nil {
			return err
		}
		if err := to.Save(ctx, t, t.Add(settledBy), all); err != nil {
			return err
		}
	}
	return to.SetSettled(ctx, now, judged)
}

// footprints are the footprints of runs that ended in [from, to).
func (h *History) footprints(ctx context.Context, from, to time.Time) ([]Footprint, error) {
	past, err := h.Journal.Outcomes(ctx, from.Add(-sameTime), to.Add(sameTime))
	if err != nil {
		return nil, err
	}
	known := h.known(ctx)
	runs, err := h.joined(ctx, from, to, past, func(rec *Record, r *Run) error {
		var own *rlcore.Profile
		if len(rec.Neighbours) > 0 {
			if own, err = known(rec.User, rec.App, rec.Card()); err != nil {
				return err
			}
		}
		with, err := h.coRunners(ctx, rec, known)
		if err != nil {
			return err
		}
		others := make([]*rlcore.Profile, len(with))
		for i := range with {
			others[i] = with[i].Profile
		}
		r.Use = useOf(rec, own, others)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("runs that ended from %s on: %w", from.UTC().Format(time.RFC3339), err)
	}
	out := make([]Footprint, 0, len(runs))
	for i := range runs {
		if r := &runs[i]; !r.Shown() && len(r.GPUs) == 0 {
			continue // no job with GPUs
		}
		if f := runs[i].Footprint(); f.End.After(f.Start) {
			out = append(out, f)
		}
	}
	return out, nil
}
