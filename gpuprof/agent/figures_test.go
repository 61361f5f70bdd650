package agent

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// The same jobs on the same cards make records that are byte for byte those in testdata: sharers, performance
// monitoring, a figure that lies, a restart. SLURMBRIDGE_GOLDEN=1 writes them anew.
func TestRecordsStayAsTheyWere(t *testing.T) {
	want := must.Get(os.ReadFile("testdata/records.jsonl"))(t)
	var got bytes.Buffer
	for _, gpm := range []bool{false, true} {
		b := newBench(t)
		begin := b.now
		x := func() float64 { return b.now.Sub(begin).Seconds() }
		c := b.card(0)
		c.use = func() (float64, error) { return 0.1 + math.Abs(math.Sin(x()))/2, nil }
		c.memory = func() (float64, error) { return 1000 + 100*math.Floor(x()/40), nil }
		c.pcie = func() (float64, error) { return 400 + x(), nil }
		c.power = func() (float64, error) { return 150 + 50*math.Sin(x()/7), nil }
		c.procs = func() ([]nvml.Process, error) {
			return []nvml.Process{{PID: 1, MemMiB: 400}, {PID: 2, MemMiB: 600 + math.Floor(x()/10)}}, nil
		}
		c.uses = func() ([]nvml.ProcessUse, error) {
			return []nvml.ProcessUse{{PID: 1, At: b.now, SM: 0.1}, {PID: 2, At: b.now, SM: math.Abs(math.Sin(x())) / 2}}, nil
		}
		if gpm {
			c.act = func() (nvml.Activity, error) {
				return nvml.Activity{SM: math.Abs(math.Sin(x()/7)) / 2, Graphics: 0.5, PCIeMBps: 210}, nil
			}
			c.memory = func() (float64, error) {
				if int(x())%5 == 0 {
					return -1, nil
				}
				return 700, nil
			}
		}
		b.inProc(map[int]int64{1: 1, 2: 2})
		b.begin(1, 0)
		b.elapse(30 * time.Second)
		b.begin(2, 0)
		b.elapse(60 * time.Second)
		b.ended(1)
		b.elapse(110 * time.Second)
		b.restart()
		b.elapse(500 * time.Second)
		b.ended(2)
		for _, r := range b.kept.recs {
			must.OK(t, json.NewEncoder(&got).Encode(r))
		}
	}
	if os.Getenv("SLURMBRIDGE_GOLDEN") != "" {
		must.OK(t, os.WriteFile("testdata/records.jsonl", got.Bytes(), 0o600))
		return
	}
	must.Equal(t, got.String(), string(want), "records")
}
