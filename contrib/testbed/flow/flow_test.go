package flow

import "testing"

func TestFillS(t *testing.T) {
	r := &ran{takenS: 100, runs: []placed{
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
	at := map[string]float64{"1": 1, "2": 1, "3": 10.5, "4": 30.25}
	r := &ran{releasedS: at, runs: []placed{
		{"1", "n1", "0", 2, 8}, {"2", "n1", "1", 2, 30}, {"3", "n1", "0", 11, 20}, {"4", "n1", "1", 31, 40},
	}}
	if got := r.wakeS(); got != 0.25 { // 2.5 and 0.25, the first two follow nothing
		t.Error(got)
	}
}

func TestShapes(t *testing.T) {
	if s, err := parseShape("2x8"); err != nil || s != (shape{2, 8}) {
		t.Errorf("%+v, %v", s, err)
	}
	for _, word := range []string{"8", "0x8", ""} {
		if _, err := parseShape(word); err == nil {
			t.Errorf("%q is taken", word)
		}
	}
}
