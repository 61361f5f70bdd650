package agent

import (
	"log/slog"
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// Each figure of the simulated driver fails or lies in turn, while an application
// runs: the record can be true, and what was told before is told or said not to be
// known.
func TestDriverThatLies(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	driverThatLies(t, "titanxp", "utilization", "memory", "pcie-throughput", "power", "processes", "process-utilization")
}

func TestDriverOfNewCardsThatLies(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	driverThatLies(t, "h200", "energy", "gpm", "samples", "mps-processes")
}

// TestEnergyReadSlowly takes the CPU away between the counter and the clock: no power
// is made of a time that isn't known.
func TestEnergyReadSlowly(t *testing.T) {
	lib, _ := simulated(t, "2", "--model", "h200")
	a := &Agent{
		Dir: prolog.Dir(t.TempDir()), Devices: lib.Devices(), Node: "n1", Period: 100 * time.Millisecond, Keep: new(kept).keep, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	g := a.gpus[0]
	power := func(pause time.Duration) float64 {
		calls := 0
		var l look
		g.energy(&l, func() time.Time {
			if calls++; calls == 2 {
				time.Sleep(pause)
			}
			return time.Now()
		})
		time.Sleep(20 * time.Millisecond)
		return l.reading.Value[gpuprof.FigMeanPower]
	}
	truth := 0.0
	for range 100 {
		if truth = power(0); truth > 0 {
			break
		}
	}
	for range 5 {
		for _, pause := range []time.Duration{40 * time.Millisecond, 0, 0} {
			if w := power(pause); w != 0 && math.Abs(w-truth) > 0.4*truth {
				t.Errorf("%v W, an idle card draws %v", w, truth)
			}
		}
	}
	for range 100 {
		if power(0) > 0 {
			return
		}
	}
	t.Error("the card's power isn't told any more")
}

// of says which of a record's figures come from one of the driver's.
var of = map[string][]string{
	"utilization": {"gpu", "core"}, "memory": {"mem"}, "pcie-throughput": {"pcie"}, "power": {"power"},
	"process-utilization": {"core"}, "gpm": {"core"},
}

func driverThatLies(t *testing.T, model string, figures ...string) {
	t.Helper()
	lib, program := simulated(t, "2", "--model", model)
	state, err := gpusim.Open(os.Getenv(gpusim.StateEnv))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	app := exec.Command(program, "run", "vgg16")
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = app.Process.Kill(); _ = app.Wait() }()
	var k kept
	a := &Agent{
		Dir: prolog.Dir(t.TempDir()), Devices: lib.Devices(), Node: "n1", Period: 100 * time.Millisecond, Keep: k.keep, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	dev := state.Device(0)
	id := int64(0)
	record := func(fault func(), passes int) *gpuprof.Record {
		id++
		begin(t, a.Dir, id, 0)
		a.scan()
		a.sample() // one that is honest
		fault()
		for range passes {
			time.Sleep(15 * time.Millisecond)
			a.sample()
		}
		end(t, a.Dir, id)
		a.scan()
		r := k.recs[len(k.recs)-1]
		if err := r.Validate(); err != nil || r.JobID != id {
			t.Fatal(err, r)
		}
		return r
	}
	for range 500 { // until the application computes
		if s, err := lib.Devices()[0].Sample(); err == nil && s.GPU > 0.3 && s.MemMiB > 1000 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	base := record(func() {}, 10)
	if base.Mean.GPU < 0.2 || base.Power == nil || base.Rx == nil {
		t.Fatalf("the application doesn't show: %+v %+v", base.Mean, base.Power)
	}
	for _, figure := range figures {
		for _, mode := range []string{"zero", "huge", "backwards", "return=999", "return=3"} {
			r := record(func() {
				if err := dev.SetFault(figure, mode); err != nil {
					t.Fatal(err)
				}
			}, 5)
			if err := dev.SetFault(figure, "none"); err != nil {
				t.Fatal(err)
			}
			told := func(f string) bool { return !slices.Contains(r.Unknown, f) && r.Samples > 0 }
			for _, f := range []string{"gpu", "core", "mem", "pcie", "power"} {
				if !told(f) && !slices.Contains(of[figure], f) {
					t.Errorf("%s %s took %s along: dropped %v, %d of %d failed", figure, mode, f, r.Dropped, r.Failed, r.Samples)
				}
			}
			near := func(f string, got, want, slack float64) {
				if told(f) && math.Abs(got-want) > slack {
					t.Errorf("%s %s: %s is %v, was %v (dropped %v, unknown %v, %d of %d failed)", figure, mode, f, got, want, r.Dropped, r.Unknown, r.Failed, r.Samples)
				}
			}
			if figure != "utilization" || mode != "zero" { // that can't be told from an idle GPU
				near("gpu", r.Mean.GPU, base.Mean.GPU, 0.35)
			}
			near("mem", r.Peak.MemMiB, base.Peak.MemMiB, 0.3*base.Peak.MemMiB)
			if r.Power != nil {
				near("power", r.Power.MeanW, base.Power.MeanW, 0.5*base.Power.MeanW)
			}
			if r.Mean.PCIeMBps > lib.Devices()[0].PCIeMBps {
				t.Errorf("%s %s: %+v", figure, mode, r.Mean)
			}
			t.Logf("%s %s: dropped %v, unknown %v, core %v from %s, %d failed of %d", figure, mode, r.Dropped, r.Unknown, r.Mean.Core, r.CoreFrom, r.Failed, r.Samples+r.Failed)
		}
	}
	r := record(func() { _ = dev.SetLost(true) }, 3)
	if r.Failed == 0 {
		t.Errorf("lost: %+v", r)
	}
	if err := dev.SetLost(false); err != nil {
		t.Fatal(err)
	}
}
