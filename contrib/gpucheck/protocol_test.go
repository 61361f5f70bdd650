package main

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

func FuzzParseLine(f *testing.F) {
	for _, s := range []string{
		`{"ready":true}`, `{"work":7,"rate":12.5}`, `{"n":3,"at":1.5,"busy_s":0.2}`, `{"done":true,"n":3,"at":9,"busy_s":1,"moved_mb":5,"held_mib":6}`,
		`{"n":-1}`, `{"at":1e300}`, `{"n":1e3}`, `null`, `[]`, ``, `{"at":"x"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLine(text)
		if err != nil {
			if !errors.Is(err, errLine) || l != (line{}) {
				t.Fatalf("%v %+v", err, l)
			}
			return
		}
		var tr track
		if err := tr.add(l); err != nil {
			t.Fatal(err)
		}
		if n, busy := tr.at(l.At); n != float64(l.N) || busy != l.BusyS {
			t.Fatalf("%v %v of %+v", n, busy, l)
		}
	})
}

func TestTrack(t *testing.T) {
	var tr track
	if _, _, _, err := rates(tr); !errors.Is(err, errEarly) {
		t.Errorf("an empty track: %v", err)
	}
	for _, l := range []line{{N: 0, At: 10}, {N: 10, At: 12, BusyS: 1}, {N: 40, At: 14, BusyS: 3, Done: true}} {
		if err := tr.add(l); err != nil {
			t.Fatal(err)
		}
	}
	for moment, want := range map[float64][2]float64{9: {0, 0}, 10: {0, 0}, 11: {5, 0.5}, 12: {10, 1}, 13: {25, 2}, 14: {40, 3}, 15: {40, 3}} {
		if n, busy := tr.at(moment); n != want[0] || busy != want[1] {
			t.Errorf("at %v: %v %v, want %v", moment, n, busy, want)
		}
	}
	other := track{{N: 0, At: 11.5}, {N: 30, At: 13}}
	if r, from, to, err := rates(tr, other); err != nil || from != 11.65 || to != 13 || math.Abs(r[0]-(25-8.25)/1.35) > 1e-9 || math.Abs(r[1]-20) > 1e-9 {
		t.Errorf("rates %v from %v to %v, %v", r, from, to, err)
	}
	if _, _, _, err := rates(tr, track{{N: 0, At: 14}, {N: 5, At: 20}}); !errors.Is(err, errEarly) {
		t.Errorf("rates of no time: %v", err)
	}
	for _, l := range []line{{N: 39, At: 15, BusyS: 3}, {N: 41, At: 13, BusyS: 3}, {N: 41, At: 15, BusyS: 2}} {
		if err := tr.add(l); !errors.Is(err, errLine) {
			t.Errorf("%+v went backwards: %v", l, err)
		}
	}
}

func TestSteadyLeavesTheEndsOut(t *testing.T) {
	rec := &gpuprof.Record{PeriodS: 0.5}
	for i := range 8 {
		u := rlcore.Use{GPU: 0.5, Core: 0.25, MemMiB: 100, PCIeMBps: 10}
		if i < 2 || i == 7 {
			u = rlcore.Use{GPU: 1, MemMiB: 900}
		}
		rec.Series = append(rec.Series, u)
	}
	if u := steady(rec); u != (rlcore.Use{GPU: 0.5, Core: 0.25, MemMiB: 100, PCIeMBps: 10}) {
		t.Errorf("%+v", u)
	}
	rec.Series = rec.Series[:2]
	if u := steady(rec); u.GPU != 1 {
		t.Errorf("too short to cut: %+v", u)
	}
	if u := steady(&gpuprof.Record{}); u != (rlcore.Use{}) {
		t.Errorf("no series: %+v", u)
	}
}

func TestTells(t *testing.T) {
	c := &card{Device: nvml.Device{PCIeMBps: 32000, MemMiB: 16000}}
	asked := rlcore.Use{GPU: 0.5, Core: 0.25, MemMiB: 4000, PCIeMBps: 10000}
	if got := c.tells(asked, rlcore.Use{GPU: 0.54, Core: 0.21, MemMiB: 4600, PCIeMBps: 8600}); got != (Tells{true, true, true, true}) {
		t.Errorf("%+v", got)
	}
	if got := c.tells(asked, rlcore.Use{GPU: 0.56, Core: 0.5, MemMiB: 4700, PCIeMBps: 8400}); got != (Tells{}) {
		t.Errorf("%+v", got)
	}
}

// A program that doesn't end on request is killed.
func TestStubbornProgram(t *testing.T) {
	p, err := startProcess(t.Context(), []string{"sh", "-c", `trap '' TERM; while :; do sleep 0.05; done`}, environ(), 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.stop(); err == nil {
		t.Error("it ended well?")
	}
	p, err = startProcess(t.Context(), []string{"sh", "-c", "echo nonsense; echo why >&2; exit 7"}, environ(), stopWithin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.next(); !errors.Is(err, errLine) {
		t.Errorf("%v", err)
	}
	if err := p.stop(); err == nil || err.Error() != "exit status 7: why" {
		t.Errorf("%v", err)
	}
}
