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
		if l.After >= n || len(l.keys()) != max(1, l.Tasks) {
			t.Errorf("%+v", l)
		}
		for _, a := range l.Acts {
			seen[a.What]++
		}
		for what, is := range map[string]bool{
			"begin": l.BeginS > 0, "deadline": l.DeadlineS > 0, "array": l.Tasks > 0, "by hand": l.Shares > 0, "unknown": l.App == "" && l.Shares == 0,
			"after": l.After >= 0, "contract": l.Contract > 0, "fails": l.Fails,
		} {
			if is {
				seen[what]++
			}
		}
	}
	for _, what := range []string{cancel, requeue, hold, letGo, gres, timeLimit, dependency, "begin", "deadline", "array", "by hand", "unknown", "after", "contract", "fails"} {
		if seen[what] == 0 {
			t.Errorf("no life has %s", what)
		}
	}
}
