package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFillS(t *testing.T) {
	r := &ran{takenS: 100, starts: []run{
		{node: "n1", gpu: "0", atS: 1}, {node: "n1", gpu: "1", atS: 2}, {node: "n1", gpu: "0", atS: 4}, {node: "n1", gpu: "1", atS: 3}, {node: "n2", gpu: "0", atS: 5}, {node: "n2", gpu: "1", atS: 6}, {node: "n2", gpu: "1", atS: 7},
	}}
	for _, c := range []struct {
		s    shape
		jobs int
		want float64
	}{
		{shape{2, 2}, 1, 4},   // 2 and 6
		{shape{2, 2}, 2, 52},  // 4, and n2's first GPU never has two
		{shape{4, 2}, 1, 52},  // two nodes have none
		{shape{2, 4}, 1, 100}, // two GPUs of each have none
	} {
		if got := r.fillS(c.s, c.jobs); got != c.want {
			t.Errorf("%v, %d jobs: %v, want %v", c.s, c.jobs, got, c.want)
		}
	}
}

func TestWakeS(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	lines := `time=2026-01-01T00:00:01.000Z level=INFO msg="group released" group=1 kind=start node=n1 gpu=0 jobs=1,2
time=2026-01-01T00:00:10.500Z level=INFO msg="group released" group=2 kind=start node=n1 gpu=0 jobs=3
time=2026-01-01T00:00:30.250Z level=INFO msg="group released" group=3 kind=join node=n1 gpu=1 jobs=4
`
	if err := os.WriteFile(log, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	at, err := released(log, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil || len(at) != 4 || at["3"] != 10.5 {
		t.Fatal(at, err)
	}
	r := &ran{releasedS: at, starts: []run{
		{"1", "n1", "0", 2, 8}, {"2", "n1", "1", 2, 30}, {"3", "n1", "0", 11, 20}, {"4", "n1", "1", 31, 40},
	}}
	if got := r.wakeS(); got != 0.25 { // 2.5 and 0.25, the first two follow nothing
		t.Error(got)
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"--shapes", "2x8,1x1", "--seeds", "7"})
	if err != nil || len(o.shapes) != 2 || o.shapes[0] != (shape{2, 8}) || len(o.seeds) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range [][]string{{"--shapes", "8"}, {"--shapes", "0x8"}, {"--seeds", "x"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
