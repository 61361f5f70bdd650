package soak

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

// Limits are 1.1 to 3 times the solo time, and profiles at most 30 % wrong.
func TestLives(t *testing.T) {
	known := catalogue()
	said := map[string]float64{}
	for _, p := range known {
		said[p.App] = p.DurationS
	}
	rnd, again := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	for n := range 5000 {
		l := drawLife(rnd, n, known, false)
		if other := drawLife(again, n, known, false); !reflect.DeepEqual(l, other) {
			t.Fatalf("the same seed gives %+v and %+v", l, other)
		}
		if part := 60 * float64(l.LimitMin) / l.SoloS; part < 1.1-1e-9 || part > 3 {
			t.Errorf("life %d: %v min for %.0f s", n, l.LimitMin, l.SoloS)
		}
		if s, ok := said[l.App]; ok && (l.SoloS < 0.7*s-1e-9 || l.SoloS > 1.3*s+1e-9) {
			t.Errorf("life %d takes %.0f s, its profile says %.0f", n, l.SoloS, s)
		}
		if l.After >= n || len(l.names()) != max(1, l.Tasks) {
			t.Errorf("%+v", l)
		}
		for _, name := range l.Traits {
			seen[name]++
		}
	}
	for _, x := range traits {
		if seen[x.name] == 0 {
			t.Errorf("no life has %s", x.name)
		}
	}
	// The mixed world: a third of a whole GPU, a tenth of two.
	if whole, several := seen["whole GPU"], seen["several GPUs"]; whole < 1500 || whole > 1850 || several < 400 ||
		several > 600 {
		t.Errorf("of 5000 %d ask for a whole GPU, %d for several", whole, several)
	}
}
