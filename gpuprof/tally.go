package gpuprof

import (
	"cmp"
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Tally gathers all readings of one run. Its size doesn't grow with the run's
// length. Its fields are exported for the agent's state file only.
type Tally struct {
	Series Series
	Bins   [flows]Sketch
	Sum    [flows]float64 // integrals over time
	Max    [flows]float64
	Time   [flows]float64 // s with a reading, each figure's own
	Any    float64        // s with a reading of anything
	Last   float64        // up to when, s since the job's start

	Rx, Tx   Flow    // Mean is the integral until it is asked for
	RxTxS    float64 // s with both
	EnergyJ  float64 // over PowerS
	PowerS   float64
	PowerMax float64
}

// NewTally returns an empty tally. periodS is the length of the series's first
// points, s; memMiB and pcieMBps what the job's GPUs have in all, 0 = unknown.
func NewTally(periodS, memMiB, pcieMBps float64) *Tally {
	t := &Tally{Series: Series{PeriodS: periodS}}
	// PCIe 3.0 x16 where the link isn't known; the sketch widens by itself.
	for k, most := range Values(rlcore.Use{GPU: 1, Core: 1, MemMiB: cmp.Or(memMiB, 16384), PCIeMBps: cmp.Or(pcieMBps, 32000)}) {
		t.Bins[k].Width = most / sketchBins
	}
	return t
}

// Add adds a reading that holds between two moments, in seconds since the job's
// start. What lies before the last one's end counts once.
func (t *Tally) Add(from, to float64, r Reading) {
	from = max(from, t.Last)
	if !(to > from) || math.IsInf(to, 0) || r.Has == 0 {
		return
	}
	dt := to - from
	t.Last = to
	t.Any += dt
	t.Series.Add(from, to, r)
	for k, v := range Values(r.Use) {
		if r.Has&(1<<k) == 0 {
			continue
		}
		t.Sum[k] += v * dt
		t.Time[k] += dt
		t.Max[k] = max(t.Max[k], v)
		t.Bins[k].Add(v, dt)
	}
	if r.Has&FigPCIe != 0 && r.Directions {
		t.RxTxS += dt
		t.Rx.Mean += r.RxMBps * dt
		t.Tx.Mean += r.TxMBps * dt
		t.Rx.Peak, t.Tx.Peak = max(t.Rx.Peak, r.RxMBps), max(t.Tx.Peak, r.TxMBps)
	}
	if r.Has&FigPower != 0 {
		t.EnergyJ += cmp.Or(r.MeanW, r.PowerW) * dt
		t.PowerS += dt
		t.PowerMax = max(t.PowerMax, r.PowerW, r.MeanW)
	}
}

// unknownBelow is the part of a run that a figure must have been read in.
const unknownBelow = 0.9

// Fill writes what was gathered into a record whose Start and End are set.
func (t *Tally) Fill(r *Record) {
	var mean [flows]float64
	unknown := Figures(0)
	for k := range mean {
		if t.Time[k] > 0 {
			mean[k] = min(t.Max[k], t.Sum[k]/t.Time[k]) // sums round
		}
		if t.Time[k] < unknownBelow*t.Any {
			unknown |= 1 << k
		}
	}
	if t.PowerS < unknownBelow*t.Any {
		unknown |= FigPower
	}
	if t.Any == 0 {
		unknown = AllFigures
	}
	r.Mean, r.Peak = useOf(mean), useOf(t.Max)
	r.Unknown = unknown.Names()
	r.MissedS = max(0, r.DurationS()-t.Any)
	r.PeriodS, r.Series = t.Series.PeriodS, rounded(t.Series.Points())
	r.Peaks = peaks(r.Series, rounded(t.Series.Peaks()))
	if t.Any > 0 {
		q := &Quantiles{}
		for k, dst := range []*Quantile{&q.GPU, &q.Core, &q.MemMiB, &q.PCIeMBps} {
			b := &t.Bins[k]
			*dst = Quantile{P50: b.Quantile(0.5), P90: b.Quantile(0.9), P95: b.Quantile(0.95), P99: b.Quantile(0.99), Max: t.Max[k]}
			dst.cap(t.Max[k])
		}
		r.Quantiles = q
	}
	if s := t.RxTxS; s > 0 {
		r.Rx, r.Tx = &Flow{min(t.Rx.Peak, t.Rx.Mean/s), t.Rx.Peak}, &Flow{min(t.Tx.Peak, t.Tx.Mean/s), t.Tx.Peak}
	}
	if t.PowerS > 0 {
		r.Power = &Power{MeanW: min(t.PowerMax, t.EnergyJ/t.PowerS), PeakW: t.PowerMax, EnergyJ: t.EnergyJ}
	}
}

// rounded shortens figures to what NVML can tell, so that a record stays small:
// use to 1/1000, traffic to 0.1 MB/s, memory up to the next MiB.
func rounded(us []rlcore.Use) []rlcore.Use {
	for i, u := range us {
		us[i] = rlcore.Use{
			GPU: math.Round(u.GPU*1e3) / 1e3, Core: math.Round(u.Core*1e3) / 1e3,
			MemMiB: math.Ceil(u.MemMiB), PCIeMBps: math.Round(u.PCIeMBps*10) / 10,
		}
	}
	return us
}

// peaks returns the peaks as columns, nil where they say no more than the series.
func peaks(series, tops []rlcore.Use) *Peaks {
	p, more := &Peaks{}, false
	for i, u := range tops {
		s := series[i]
		more = more || u.GPU > s.GPU+0.005 || u.Core > s.Core+0.005 || u.PCIeMBps > s.PCIeMBps+0.5
		// Never under the mean beside them, which was rounded too.
		p.GPU, p.Core, p.PCIeMBps = append(p.GPU, max(u.GPU, s.GPU)), append(p.Core, max(u.Core, s.Core)), append(p.PCIeMBps, max(u.PCIeMBps, s.PCIeMBps))
	}
	if !more {
		return nil
	}
	return p
}
