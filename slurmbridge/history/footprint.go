package history

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Footprint is a summary of a run: what it held of GPUs, what it did with them, and what sharing
// saved or cost it. It is kept far longer than the run, with a record a hundred times as large.
type Footprint struct {
	Ref, User, Account, Partition, App, Node string
	Start, End                               time.Time // by the controller's clock; End zero = it still runs
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
	f.Judged, f.Harm = true, o.Harm()
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

// counted is the run's footprint; false: it has none, since it never ran, or had no GPU.
func (r *Run) counted() (Footprint, bool) {
	if r.Start.IsZero() || !r.Shown() && len(r.GPUs) == 0 {
		return Footprint{}, false
	}
	f := r.Footprint()
	return f, f.End.IsZero() || f.Start.UnixMilli() < f.End.UnixMilli()
}

// ended is the key of a footprint among those of its job.
func (f *Footprint) ended() int64 {
	if f.End.IsZero() {
		return 0
	}
	return f.End.UnixMilli()
}

// Flags of a footprint in the database; a kind of harm is FlagHarm shifted by its place in Harms.
const (
	FlagWhole = 1 << iota
	FlagRecorded
	FlagJudged
	FlagTimed
	FlagHarm
)

// label returns the number of what runs are summed up by.
func label(ctx context.Context, q database.Querier, user, account, partition, app, node string) (id int64, err error) {
	err = q.QueryRowContext(ctx, `INSERT INTO bridge_labels (user, account, partition, app, node) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET user = excluded.user RETURNING id`, user, account, partition, app, node).Scan(&id)
	return id, err
}

// Write writes the footprint into the database. What counts nowhere is written as 0.
func (f *Footprint) Write(ctx context.Context, q database.Querier) error {
	who, err := label(ctx, q, f.User, f.Account, f.Partition, f.App, "")
	if err != nil {
		return database.Wrap(err, "write footprint of job %s", f.Ref)
	}
	place, err := label(ctx, q, "", "", f.Partition, "", f.Node)
	if err != nil {
		return database.Wrap(err, "write footprint of job %s", f.Ref)
	}
	var u Use
	flags, savedS, lostS := 0, 0.0, 0.0
	shares := int64(math.Round(f.GPUs * job.Units))
	if shares > 0 {
		set := func(flag int, yes bool) {
			if yes {
				flags |= flag
			}
		}
		set(FlagWhole, f.Whole)
		set(FlagRecorded, f.Use != nil)
		set(FlagJudged, f.Judged)
		set(FlagTimed, f.Timed)
		if f.Use != nil {
			u = *f.Use
		}
		if f.Judged {
			lostS = f.LostS
			for i, kind := range Harms() {
				set(FlagHarm<<i, slices.Contains(f.Harm, kind))
			}
		}
		if f.Timed {
			savedS = f.SavedS
		}
	}
	if !(u.KnownS > 0) {
		u.ComputedS, u.SplitS = 0, 0
	}
	if !(u.IdleKnownS > 0) {
		u.IdleS = 0
	}
	ms := func(s float64) int64 { return int64(math.Round(s * 1000)) }
	kib := func(mib float64) int64 { return int64(math.Round(mib * 1024)) }
	_, err = q.ExecContext(ctx, `INSERT OR REPLACE INTO bridge_used
		(ended, ref, who, place, took, shares, flags, known, computed, split, idleknown, idle, shared,
		mean, peak, card, energy, saved, lost, cpu, host)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		f.ended(), f.Ref, who, place, f.ended()-f.Start.UnixMilli(), shares, flags,
		ms(u.KnownS), ms(u.ComputedS), ms(u.SplitS), ms(u.IdleKnownS), ms(u.IdleS), ms(u.SharedS),
		kib(u.MeanMiB), kib(u.PeakMiB), kib(u.CardMiB), int64(math.Round(u.EnergyJ)), ms(savedS), ms(lostS), ms(u.CPUS),
		kib(u.HostMiB))
	return database.Wrap(err, "write footprint of job %s", f.Ref)
}
