package agent

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// A row of gpuprof.Recorded is all it takes to record a figure: it is sampled, summed up
// in the job's record, shown as a metric, called unknown where it wasn't read, and
// dropped where it can't be true.
func TestAFigureIsOneRow(t *testing.T) {
	before := gpuprof.Recorded
	t.Cleanup(func() { gpuprof.Recorded = before })
	gpuprof.Recorded = append(slices.Clone(before), gpuprof.Figure{
		Name: "temperature", Unit: "°C", Source: "temperature", Nonzero: true, Most: 150, Span: 100,
		Metric: gpuprof.Metric{Name: "gpu_temperature_celsius", Help: "Temperature, while the GPU has jobs."}, Scale: 1,
	})
	b := newBench(t)
	c := b.steady()
	begin, hot := b.now, 80.0
	c.temperature = func() (float64, error) {
		if b.now.Sub(begin) < time.Minute {
			return 60, nil
		}
		return hot, nil
	}
	b.gpus[0].card = c
	b.begin(7, 0, 0)
	b.scan()
	b.until(begin.Add(2 * time.Minute))
	const want = `
		# HELP gpuprof_gpu_temperature_celsius Temperature, while the GPU has jobs.
		# TYPE gpuprof_gpu_temperature_celsius gauge
		gpuprof_gpu_temperature_celsius{gpu="0",uuid="GPU-0"} 80
	`
	if err := testutil.GatherAndCompare(b.reg, strings.NewReader(want), "gpuprof_gpu_temperature_celsius"); err != nil {
		t.Error(err)
	}
	b.end(7)
	r := b.closed(7)
	s := r.Figures["temperature"]
	if s.Peak != 80 || s.Mean < 68 || s.Mean > 72 || s.Quantiles == nil || s.Quantiles.P50 != 60 &&
		s.Quantiles.P50 != 80 || slices.Contains(r.Unknown, "temperature") {
		t.Errorf("%+v, unknown %v", s, r.Unknown)
	}
	if body, err := json.Marshal(r); err != nil || !strings.Contains(string(body), `"figures":{"temperature":{"mean":`) {
		t.Errorf("%v\n%s", err, body)
	}

	hot = 4e9
	b.begin(8, 0, 0)
	b.scan()
	b.until(b.now.Add(time.Minute))
	b.end(8)
	if r := b.closed(8); r.Dropped["temperature"] == 0 || !slices.Contains(r.Unknown, "temperature") ||
		len(r.Figures) != 0 || r.Mean.GPU != 0.5 {
		t.Errorf("dropped %v, unknown %v, %+v", r.Dropped, r.Unknown, r.Figures)
	}
}

// The same jobs on the same cards make records that are byte for byte those in testdata: sharers, sources of core use,
// a figure that lies, a restart. SLURMBRIDGE_GOLDEN=1 writes them anew.
func TestRecordsStayAsTheyWere(t *testing.T) {
	want := must.Get(os.ReadFile("testdata/records.jsonl"))(t)
	var got bytes.Buffer
	for _, gpm := range []bool{false, true} {
		b := newBench(t)
		begin := b.now
		x := func() float64 { return b.now.Sub(begin).Seconds() }
		c := &card{
			use:    func() (float64, float64, error) { return 0.1 + math.Abs(math.Sin(x()))/2, 0.2, nil },
			memory: func() (float64, error) { return 1000 + 100*math.Floor(x()/40), nil },
			pcie:   func() (float64, float64, error) { return 300 + x(), 100, nil },
			power:  func() (float64, error) { return 150 + 50*math.Sin(x()/7), nil },
			energy: func() (float64, error) { return 1e6 + 140*x(), nil },
			procs: func() ([]nvml.Process, error) {
				return []nvml.Process{{PID: 1, MemMiB: 400}, {PID: 2, MemMiB: 600 + math.Floor(x()/10)}}, nil
			},
			uses: func(time.Time) ([]nvml.ProcessUse, error) {
				return []nvml.ProcessUse{{PID: 1, At: b.now, SM: 0.1}, {PID: 2, At: b.now, SM: math.Abs(math.Sin(x())) / 2}}, nil
			},
		}
		if gpm {
			c.act = func() (nvml.Activity, error) {
				return nvml.Activity{SM: math.Abs(math.Sin(x()/7)) / 2, Graphics: 0.5, PCIeRx: 200, PCIeTx: 10}, nil
			}
			c.memory = func() (float64, error) {
				if int(x())%5 == 0 {
					return -1, nil
				}
				return 700, nil
			}
		}
		b.gpus[0].card = c
		b.proc(map[int]int64{1: 1, 2: 2})
		b.begin(1, 0, 0)
		b.scan()
		b.until(begin.Add(30 * time.Second))
		b.begin(2, 0, 0)
		b.scan()
		b.until(begin.Add(90 * time.Second))
		b.end(1)
		b.closed(1)
		b.until(begin.Add(200 * time.Second))
		b.restart()
		b.until(begin.Add(700 * time.Second))
		b.end(2)
		b.closed(2)
		for _, r := range b.kept.recs {
			must.OK(t, json.NewEncoder(&got).Encode(r))
		}
	}
	if os.Getenv("SLURMBRIDGE_GOLDEN") != "" {
		must.OK(t, os.WriteFile("testdata/records.jsonl", got.Bytes(), 0o600))
		return
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the records changed:\n%.2000s", &got)
	}
}

// TestEnergyReadSlowly takes the CPU away between the counter and the clock: no power
// is made of a time that isn't known.
func TestEnergyReadSlowly(t *testing.T) {
	lib, _ := simulated(t, "2", "--model", "h200")
	a := &Agent{
		Dir: prolog.Dir(t.TempDir()), Devices: lib.Devices(), Node: "n1", Period: 100 * time.Millisecond,
		Keep: new(kept).keep, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}
	must.OK(t, a.Start())
	g := a.gpus[0]
	power := func(pause time.Duration) float64 {
		calls := 0
		var l observed
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
