package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// What counts as idle: a GPU under idleBelow of its time, for longer than idleAfter. Every job has
// shorter breaks, to read files or write a checkpoint.
const (
	idleBelow = 0.01
	idleAfter = 10 * time.Minute
)

// Use is what a run did with its GPUs, by its record. Times are in s of the run: they count once,
// regardless of the number of GPUs.
type Use struct {
	// KnownS is the time for which it is known whether the run computed, and ComputedS the computing part: the time in
	// which its kernels ran, or its own part of the SMs if there were co-runners and the record has processes. SplitS is
	// the part of ComputedS that profiles attribute to it, of what all jobs on the GPU did together.
	KnownS    float64 `json:"known_s"`
	ComputedS float64 `json:"computed_s"`
	SplitS    float64 `json:"computed_by_profile_s,omitempty"`
	// IdleKnownS is the time for which it is known whether the run did anything, and IdleS the time
	// in which it did nothing.
	IdleKnownS float64 `json:"idle_known_s"`
	IdleS      float64 `json:"idle_s"`
	SharedS    float64 `json:"shared_s"` // with another job on its GPU
	// MeanMiB and PeakMiB are its memory on its GPUs, which have CardMiB together; 0 = not known.
	MeanMiB float64 `json:"memory_mean_mib,omitempty"`
	PeakMiB float64 `json:"memory_peak_mib,omitempty"`
	CardMiB float64 `json:"memory_of_gpus_mib,omitempty"`
	EnergyJ float64 `json:"energy_j,omitempty"` // that its GPUs took; 0 = not known
}

// and is the use of a run with that many GPUs on some of its nodes, and b's on another; nil = neither is known.
func (u *Use) and(b *Use, gpus, bGPUs int) *Use {
	if u == nil || b == nil {
		return cmp.Or(u, b)
	}
	n := float64(max(1, gpus+bGPUs))
	mean := func(x, y float64) float64 { return (x*float64(gpus) + y*float64(bGPUs)) / n }
	return &Use{
		KnownS: mean(u.KnownS, b.KnownS), ComputedS: mean(u.ComputedS, b.ComputedS), SplitS: mean(u.SplitS, b.SplitS),
		IdleKnownS: mean(u.IdleKnownS, b.IdleKnownS), IdleS: mean(u.IdleS, b.IdleS), SharedS: mean(u.SharedS, b.SharedS),
		MeanMiB: u.MeanMiB + b.MeanMiB, PeakMiB: u.PeakMiB + b.PeakMiB, CardMiB: u.CardMiB + b.CardMiB,
		EnergyJ: u.EnergyJ + b.EnergyJ,
	}
}

// useOf summarises what a record says of what its run did with its GPUs. What sharers did together is divided by their
// profiles, where all are known; neighbours are in the record's order.
func useOf(rec *Record, own *rlcore.Profile, neighbours []CoRunner) *Use {
	took := rec.DurationS()
	if rec.Samples == 0 || !(took > 0) {
		return nil
	}
	u := &Use{}
	series, period := rec.Series, rec.PeriodS
	if len(series) == 0 || !(period > 0) {
		series, period = []rlcore.Use{rec.Mean}, took // it was cut
	}
	read := 1 - min(1, rec.MissedS/took) // the part of the run that was sampled
	idle := 0.0                          // how long it has done nothing by now, s
	rest := func() {
		if idle > idleAfter.Seconds() {
			u.IdleS += idle
		}
		idle = 0
	}
	for i := range series {
		from, to := float64(i)*period, min(took, float64(i+1)*period)
		if i == len(series)-1 {
			to = took
		}
		if !(to > from) {
			break
		}
		p := point{rec: rec, use: series[i], from: from, to: to, own: own, others: neighbours}
		did, how := p.computed()
		long := (to - from) * read
		if how != unknown {
			u.KnownS += long
			u.ComputedS += did * long
			if how == split {
				u.SplitS += did * long
			}
		}
		u.SharedS += p.shared()
		nothing, known := p.idle(did, how)
		if known {
			u.IdleKnownS += long
		}
		if !nothing {
			rest()
			continue
		}
		idle += long
	}
	rest()
	for i := range rec.GPUs {
		u.CardMiB += rec.GPUs[i].MemMiB
	}
	if u.MeanMiB, u.PeakMiB = rec.Mean.MemMiB, rec.Peak.MemMiB; !rec.tells(gpuprof.FigMem) ||
		slices.Contains(rec.Mixed, nameOf(gpuprof.FigMem)) {
		u.MeanMiB, u.PeakMiB, u.CardMiB = 0, 0, 0
	}
	if rec.Power != nil && rec.Solo() && rec.tells(gpuprof.FigPower) {
		u.EnergyJ = rec.Power.EnergyJ
	}
	return u
}

func nameOf(f gpuprof.Fig) string { return gpuprof.Recorded[f].Name }

// tells reports whether a figure was read: otherwise a 0 is no value.
func (r *Record) tells(f gpuprof.Fig) bool { return !slices.Contains(r.Unknown, nameOf(f)) }

// told is the source of what is known of a run at a point.
type told int

const (
	unknown told = iota
	measured
	split // by profiles
)

// point is one point of a run's series, from and to in s since its start.
type point struct {
	rec      *Record
	use      rlcore.Use
	from, to float64
	own      *rlcore.Profile
	others   []CoRunner
}

// overlap is the part of the point in which a neighbour was there.
func (p *point) overlap(n *gpuprof.Neighbour) float64 {
	from, to := n.From.Sub(p.rec.Start).Seconds(), n.To.Sub(p.rec.Start).Seconds()
	return max(0, min(to, p.to)-max(from, p.from)) / (p.to - p.from)
}

// shared is for how long of the point any neighbour was there, s.
func (p *point) shared() float64 {
	total, end := 0.0, p.from
	for i := range p.rec.Neighbours { // in the order of their coming
		n := &p.rec.Neighbours[i]
		from, to := max(end, n.From.Sub(p.rec.Start).Seconds()), min(p.to, n.To.Sub(p.rec.Start).Seconds())
		if to > from {
			total += to - from
			end = to
		}
	}
	return total
}

// computed is the part of the point's time in which the run computed.
func (p *point) computed() (part float64, how told) {
	company := p.shared() > 0
	switch {
	case !company && p.rec.tells(gpuprof.FigGPU):
		return p.use.GPU, measured
	case !company:
		return 0, unknown
	case p.rec.tells(gpuprof.FigCore) && !slices.Contains(p.rec.Mixed, nameOf(gpuprof.FigCore)):
		return p.use.Core, measured
	case !p.rec.tells(gpuprof.FigGPU):
		return 0, unknown
	case p.use.GPU == 0:
		return 0, measured // no job did anything
	case p.own == nil:
		return 0, unknown
	}
	mine := p.own.Mean().GPU
	all := mine
	for i := range p.rec.Neighbours {
		over := p.overlap(&p.rec.Neighbours[i])
		switch {
		case over == 0:
		case p.others[i].Profile == nil:
			return 0, unknown
		default:
			all += p.others[i].Profile.Mean().GPU * over
		}
	}
	if !(all > 0) {
		return 0, unknown
	}
	return p.use.GPU * mine / all, split
}

// idle reports whether the run did nothing at the point, given what computed said, and whether that is known: a part
// by profiles says nothing of it, unless the whole GPU did nothing.
func (p *point) idle(did float64, how told) (nothing, known bool) {
	switch {
	case how == measured:
		return did < idleBelow, true
	case p.rec.tells(gpuprof.FigGPU) && p.use.GPU < idleBelow:
		return true, true
	}
	return false, false
}
