package main

import (
	"testing"
)

func TestFillS(t *testing.T) {
	r := &ran{takenS: 100, starts: []start{
		{"n1", "0", 1}, {"n1", "1", 2}, {"n1", "0", 4}, {"n1", "1", 3}, {"n2", "0", 5}, {"n2", "1", 6}, {"n2", "1", 7},
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
