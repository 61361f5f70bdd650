package gpuprof

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// readings draws what an adaptive agent reads: uneven steps, gaps, figures that are missing now and then.
func readings(t *rapid.T, add func(from, to float64, r Reading)) {
	at := rapid.SampledFrom([]float64{0, 0, 0.3, 40}).Draw(t, "start")
	for range rapid.IntRange(1, 1500).Draw(t, "readings") {
		dt := rapid.SampledFrom([]float64{0.1, 0.125, 0.5, 1, 3.3, 10}).Draw(t, "dt")
		pcie := rapid.SampledFrom([]float64{0, 7, 40000}).Draw(t, "pcie")
		r := reading(map[Fig]float64{
			FigGPU:   rapid.SampledFrom([]float64{0, 0.3, 0.31, 1}).Draw(t, "gpu"),
			FigCore:  rapid.SampledFrom([]float64{0, 0.25, 1}).Draw(t, "core"),
			FigMem:   rapid.SampledFrom([]float64{0, 100.5, 9000.3}).Draw(t, "mem"),
			FigPCIe:  pcie,
			FigPower: rapid.SampledFrom([]float64{10, 250}).Draw(t, "power"),
		})
		all := r.Known
		r.Known &= rapid.SampledFrom([]Figures{all, all, all, all, all &^ Of(FigGPU), Of(FigMem), 0}).Draw(t, "has")
		add(at, at+dt, r)
		at += dt
		if rapid.IntRange(0, 50).Draw(t, "gap") == 0 {
			at += 25
		}
	}
}

func unix(s int64) time.Time          { return time.Unix(s, 0) }
func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

func reading(of map[Fig]float64) (r Reading) {
	for f, v := range of {
		r.Set(f, v)
	}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(1, math.Abs(a), math.Abs(b)) }

// Whatever the readings: at most MaxPoints points, no peak lost, no total changed, and a record that Validate believes.
func TestTallyKeepsPeaksAndTotals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ta := NewTally(rapid.SampledFrom([]float64{0.02, 0.1, 1}).Draw(t, "period"))
		var sum, top, time [MaxFigures]float64
		var end float64
		readings(t, func(from, to float64, r Reading) {
			ta.Add(from, to, r)
			end = to
			for f := range r.Known.Each {
				sum[f] += r.Value[f] * (to - from)
				time[f] += to - from
				top[f] = max(top[f], r.Value[f])
			}
		})
		energy := sum[FigPower]
		for f := range Of(FigGPU, FigCore, FigMem, FigPCIe).Each {
			got := ta.of(f).total()
			for _, p := range ta.of(f) {
				if p.Time > ta.PeriodS*(1+1e-9) || p.Sum > p.Top*p.Time*(1+1e-9) {
					t.Fatalf("point %+v of %v s", p, ta.PeriodS)
				}
			}
			if !near(got.Sum, sum[f]) || !near(got.Time, time[f]) || got.Top != top[f] {
				t.Fatalf("%s: %+v; want %v over %v, %v", Recorded[f].Name, got, sum[f], time[f], top[f])
			}
		}
		start := unix(1000)
		r := &Record{JobID: 1, Node: "n", Start: start, End: start.Add(seconds(end))}
		ta.Fill(r)
		must.OK(t, r.Validate())
		if len(r.Series) > MaxPoints ||
			(rlcore.Use{GPU: top[FigGPU], Core: top[FigCore], MemMiB: top[FigMem], PCIeMBps: top[FigPCIe]}) != r.Peak {
			t.Fatalf("%d points, peak %+v", len(r.Series), r.Peak)
		}
		most := 0.0
		for _, u := range r.Series {
			most = max(most, u.MemMiB)
		}
		if most < top[FigMem] {
			t.Fatalf("the record's series holds %v MiB at most, the readings %v", most, top[FigMem])
		}
		if r.Power != nil && (!near(r.Power.EnergyJ, energy) || r.Power.PeakW < r.Power.MeanW) {
			t.Fatalf("%+v, want %v J", r.Power, energy)
		}
	})
}

// A figure that was never read is unknown, not 0; a point without it repeats the one before.
func TestUnknownIsNotZero(t *testing.T) {
	ta := NewTally(1)
	ta.Add(0, 5, reading(map[Fig]float64{FigMem: 50}))
	ta.Add(5, 10, reading(map[Fig]float64{FigGPU: 0.4, FigMem: 70}))
	r := &Record{JobID: 1, Node: "n", Start: time.Unix(0, 0), End: time.Unix(20, 0)}
	ta.Fill(r)
	if !slices.Equal(r.Unknown, []string{"gpu", "core", "pcie", "power"}) || r.MissedS != 10 || r.Mean.GPU != 0.4 ||
		r.Series[0].GPU != 0.4 {
		t.Errorf("unknown %v, missed %v s, %+v", r.Unknown, r.MissedS, r.Series)
	}
	must.Fail(t, must.Err(ProfileOf("a", r)), "", "half a run")
	r.MissedS = 0
	must.Fail(t, must.Err(ProfileOf("a", r)), "", "a run whose GPU use wasn't seen")
	r.Unknown = nil
	must.Equal(t, must.Get(ProfileOf("a", r))(t).StepS, 0)
}
