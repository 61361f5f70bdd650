package gpuprof

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The records of testdata/records were written by the agent before recorded figures were
// a table.
func recordOf(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "records", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A record of the same readings is byte for byte what it was: of a run with figures that
// are missing now and then, of one that gives two figures only, of one without a reading.
func TestRecordsStayAsTheyWere(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	long := NewTally(1, map[Fig]float64{FigMem: 12196})
	at := 0.0
	for i := range 1400 {
		dt := []float64{0.1, 0.5, 1, 3.3}[i%4]
		x := float64(i)
		busy, pcie := math.Abs(math.Sin(x/7)), 3000*math.Abs(math.Cos(x/5))
		r := reading(map[Fig]float64{
			FigGPU: busy, FigCore: busy * 0.6, FigMem: 500 + 10*math.Floor(x/9), FigPCIe: pcie, FigRx: pcie * 2 / 3, FigTx: pcie / 3,
			FigPower: 80 + 100*busy,
		})
		if i%3 == 0 {
			r.Set(FigMeanPower, r.Value[FigPower]-5)
		}
		if i%11 == 0 {
			r.Known &^= Of(FigCore)
		}
		if i > 900 && i < 1100 {
			r.Known &^= Of(FigPCIe, FigRx, FigTx)
		}
		long.Add(at, at+dt, r)
		at += dt
		if i%200 == 199 {
			at += 25
		}
	}
	short := NewTally(1, nil)
	short.Add(0, 1, reading(map[Fig]float64{FigGPU: 0.25, FigMem: 100.5}))
	short.Add(1, 2, reading(map[Fig]float64{FigGPU: 0.25, FigMem: 99}))
	for name, c := range map[string]struct {
		tally *Tally
		r     Record
	}{
		"long": {long, Record{
			JobID: 7, Node: "n1", UID: 1000, User: "ann", End: start.Add(time.Duration(math.Ceil(at)) * time.Second), Samples: 1400,
			GPUs: []GPU{{UUID: "GPU-1", Model: "TITAN Xp", MemMiB: 12196}},
		}},
		"short": {short, Record{JobID: 8, Node: "n1", End: start.Add(2 * time.Second)}},
		"empty": {NewTally(1, nil), Record{JobID: 9, Node: "n1", End: start.Add(2 * time.Second)}},
	} {
		c.r.Start = start
		c.tally.Fill(&c.r)
		got, err := json.Marshal(&c.r)
		if want := bytes.TrimSpace(recordOf(t, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\n%.3000s\nwant\n%.3000s", name, err, got, want)
		}
		again := new(Record)
		if err := json.Unmarshal(recordOf(t, name), again); err != nil || again.Validate() != nil {
			t.Errorf("%s: %v, %v", name, err, again.Validate())
		}
	}
}
