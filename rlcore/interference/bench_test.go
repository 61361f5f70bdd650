package interference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// taught has learned of some of four applications.
func taught(b *testing.B) (*Model, []*rlcore.Profile) {
	b.Helper()
	m := New(&contention.MPS)
	ps := of(b, "gromacs", "alexnet", "hoomd", "googlenet")
	m.Observe(&rlcore.TitanXp, ps[:3], []float64{1.2, 1.3, 1.4})
	m.Observe(&rlcore.TitanXp, ps, []float64{1.2, 1.3, 1.4, 1.5})
	m.Observe(&rlcore.TitanXp, ps[:2], []float64{1.2, 1.3})
	return m, ps
}

// BenchmarkPredict predicts groups that it has predicted before, and groups that are new: of
// profiles with phases, and of constant ones.
func BenchmarkPredict(b *testing.B) {
	b.Run("kept", func(b *testing.B) {
		m, ps := taught(b)
		dst := make([]rlcore.Prediction, 4)
		b.ReportAllocs()
		for b.Loop() {
			m.Predict(dst, &rlcore.TitanXp, ps)
		}
	})
	fresh := func(n int, constant bool) func(*testing.B) {
		return func(b *testing.B) {
			m, ps := taught(b)
			ps = ps[:n]
			if constant {
				for i, p := range ps {
					q := *p
					q.Series = q.Series[:1]
					ps[i] = &q
				}
			}
			dst := make([]rlcore.Prediction, n)
			b.ReportAllocs()
			for b.Loop() {
				m.predict(dst, &rlcore.TitanXp, ps, m.beliefs(n))
			}
		}
	}
	b.Run("new/2", fresh(2, false))
	b.Run("new/4", fresh(4, false))
	b.Run("new/constant/2", fresh(2, true))
	b.Run("new/constant/4", fresh(4, true))
}

func BenchmarkPace(b *testing.B) {
	m, ps := taught(b)
	dst := make([]rlcore.Prediction, 4)
	at := []float64{1, 2, 3, 4}
	b.ReportAllocs()
	for b.Loop() {
		m.Pace(dst, &rlcore.TitanXp, ps, at)
	}
}

// BenchmarkTake learns the lessons of 60 applications' pairs.
func BenchmarkTake(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	from := New(&contention.MPS)
	var lessons []Lesson
	for range 500 {
		p := pairOf(fmt.Sprint("a", r.IntN(60)), fmt.Sprint("a", r.IntN(60)), r.Float64(), r.Float64())
		l, _ := from.Lesson(nil, p, 1+r.Float64(), math.NaN())
		lessons = append(lessons, l)
	}
	for b.Loop() {
		m := New(&contention.MPS)
		for i := range lessons {
			m.Take(&lessons[i])
		}
	}
}
