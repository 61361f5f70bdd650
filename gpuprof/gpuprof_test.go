package gpuprof

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

func TestSeriesKeepsPeaksAndTotals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Series{PeriodS: rapid.Float64Range(0.02, 2).Draw(t, "period")}
		at, peak, gpu := 0.0, 0.0, 0.0
		for range rapid.IntRange(1, 3000).Draw(t, "samples") {
			dt := rapid.SampledFrom([]float64{0.1, 0.5, 1}).Draw(t, "dt")
			u := rlcore.Use{
				GPU:    rapid.SampledFrom([]float64{0, 0.3, 1}).Draw(t, "gpu"),
				MemMiB: rapid.SampledFrom([]float64{0, 100, 9000}).Draw(t, "mem"),
			}
			s.Add(at, at+dt, u)
			at += dt
			peak = max(peak, u.MemMiB)
			gpu += u.GPU * dt
		}
		pts := s.Points()
		if len(pts) > MaxPoints {
			t.Fatalf("%d points", len(pts))
		}
		got := 0.0
		sum := 0.0
		for i, p := range pts {
			got = max(got, p.MemMiB)
			sum += p.GPU * min(s.PeriodS, at-float64(i)*s.PeriodS)
		}
		if got != peak || s.Peak().MemMiB != peak {
			t.Fatalf("peak %v, want %v", got, peak)
		}
		if math.Abs(sum-gpu) > 1e-6*max(1, gpu) {
			t.Fatalf("integral %v, want %v", sum, gpu)
		}
	})
}

func TestMerge(t *testing.T) {
	start := time.Unix(1000, 0)
	rec := func(s, mem float64) *Record {
		return &Record{
			JobID: 1, Node: "n", Start: start, End: start.Add(time.Duration(s * 1e9)), PeriodS: s / 2,
			Series: []rlcore.Use{{GPU: 0.2, MemMiB: 100}, {GPU: 0.4, MemMiB: mem}},
		}
	}
	var p *rlcore.Profile
	for _, d := range []float64{90, 100, 110} {
		run, err := ProfileOf("a", rec(d, d*10))
		if err != nil {
			t.Fatal(err)
		}
		p = Merge(p, run)
	}
	if p.Runs != 3 || math.Abs(p.DurationS-100) > 1e-9 || math.Abs(p.DurationSD-10) > 1e-9 {
		t.Errorf("%d runs, %v ± %v s; want 3, 100 ± 10", p.Runs, p.DurationS, p.DurationSD)
	}
	if p.Peak().MemMiB != 1100 || p.Validate() != nil {
		t.Errorf("peak %v, %v", p.Peak().MemMiB, p.Validate())
	}
	if _, err := ProfileOf("a", &Record{}); err == nil {
		t.Error("a record without a series made a profile")
	}
}

func TestValidate(t *testing.T) {
	good := func() *Record {
		return &Record{JobID: 7, Node: "n1", Start: time.Unix(1, 0), End: time.Unix(9, 0), PeriodS: 1, Series: []rlcore.Use{{GPU: 1}}}
	}
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	for name, breakIt := range map[string]func(*Record){
		"no job":     func(r *Record) { r.JobID = 0 },
		"no node":    func(r *Record) { r.Node = "" },
		"backwards":  func(r *Record) { r.End = time.Unix(0, 0) },
		"NaN":        func(r *Record) { r.Series[0].GPU = math.NaN() },
		"over 1":     func(r *Record) { r.Series[0].Core = 1.5 },
		"too long":   func(r *Record) { r.Series = make([]rlcore.Use, MaxPoints+1) },
		"no period":  func(r *Record) { r.PeriodS = 0 },
		"infinity":   func(r *Record) { r.Peak.MemMiB = math.Inf(1) },
		"long words": func(r *Record) { r.Comment = string(make([]byte, 1025)) },
	} {
		r := good()
		breakIt(r)
		if r.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if got := (&Record{JobID: 130, ArrayJobID: 120, ArrayTaskID: 4}).Ref(); got != "120_4" {
		t.Errorf("ref %s", got)
	}
}
