package cluster

import (
	"slices"
	"testing"
)

func TestQuantile(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	for q, want := range map[float64]float64{0: 1, 0.25: 1, 0.5: 2, 0.75: 3, 0.76: 4, 0.95: 4, 1: 4} {
		if got := Quantile(q, v); got != want {
			t.Errorf("quantile %g is %g, want %g", q, got, want)
		}
	}
	if Quantile(0.5, nil) != 0 || !slices.Equal(v, []float64{4, 1, 3, 2}) {
		t.Error("of none, or it sorts what it was given")
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		done, total int
		want        string
	}{{0, 4, "····"}, {1, 4, "█···"}, {4, 4, "████"}, {5, 4, "████"}, {0, 0, "····"}} {
		if got := Bar(4, c.done, c.total); got != c.want {
			t.Errorf("%d of %d: %s, want %s", c.done, c.total, got, c.want)
		}
	}
}
