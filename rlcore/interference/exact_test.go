package interference

import (
	"fmt"
	"math"
	"testing"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// covariance of two cells' terms before anything was seen.
func covariance(x, y []term, f, g *traits, sameCell bool) float64 {
	sum := floats.Dot(f[:], g[:])
	for _, a := range x {
		for _, b := range y {
			sum += a.weight * b.weight * prior(a, b)
		}
	}
	if sameCell {
		sum += cellSD * cellSD
	}
	return sum
}

// The posterior equals that of a Gaussian process with the same covariances, conditioned on all observations at once.
func TestPosteriorIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		apps := drawApps(t)
		m := New(&contention.MPS)
		asks := []corun{drawCorun(t, apps)}
		for range rapid.IntRange(1, 8).Draw(t, "seen") {
			c := drawCorun(t, apps)
			m.all(c.spec, c.members, c.slow...)
			asks = append(asks, c) // observed co-runs are predicted as well
		}
		ask := rapid.SampledFrom(asks).Draw(t, "ask")
		law := make([]rlcore.Prediction, len(ask.members))
		m.byLaw(law, ask.spec, ask.members)
		learned, f := &m.way(ask.spec).learned, traitsOf(m.sketch(ask.members), 0, excess(law[0].Slowdown))
		x := append([]term{}, m.terms(learned, (*rlcore.Profile).Identity, ask.spec, ask.members, 0)...)
		mean, sd := learned.predict(x, &f)
		if c := learned.cellOf(x); c != nil {
			f = c.x
		}

		name := func(x []term) string {
			s := ""
			for _, t := range x {
				s += fmt.Sprint(t.role, t.name, ",")
			}
			return s
		}
		role := func(at int) role {
			n := learned.names[at]
			switch v, ok := learned.apps[n]; {
			case ok && at == v:
				return victim
			case ok && at == v+1:
				return aggressor
			}
			return card
		}
		var cells []*cell
		var xs [][]term
		var fs []traits
		for k, c := range learned.cells {
			var x []term
			for _, at := range k {
				if at >= 0 {
					x = append(x, term{role: role(int(at)), name: learned.names[at], weight: 1})
				}
			}
			for i := range x[2:] {
				x[2+i].weight = 1 / float64(len(x)-2)
			}
			cells, xs, fs = append(cells, c), append(xs, x), append(fs, c.x)
		}
		n := len(cells)
		wantMean, wantVar := 0.0, covariance(x, x, &f, &f, true)
		if n > 0 {
			k := mat.NewSymDense(n, nil)
			seen, with := mat.NewVecDense(n, nil), mat.NewVecDense(n, nil)
			for i := range cells {
				for j := range i {
					k.SetSym(i, j, covariance(xs[i], xs[j], &fs[i], &fs[j], false))
				}
				k.SetSym(i, i, covariance(xs[i], xs[i], &fs[i], &fs[i], true)+noiseSD*noiseSD/cells[i].n)
				seen.SetVec(i, cells[i].value())
				with.SetVec(i, covariance(x, xs[i], &f, &fs[i], name(x) == name(xs[i])))
			}
			var chol mat.Cholesky
			if !chol.Factorize(k) {
				t.Fatal("covariance isn't positive")
			}
			var w mat.VecDense
			must.OK(t, chol.SolveVecTo(&w, with))
			wantMean, wantVar = mat.Dot(&w, seen), wantVar-mat.Dot(&w, with)
		}
		if len(learned.mean) > 0 && math.Abs(floats.Dot(f[:], learned.mean[:len(f)])) > mostShared {
			mean = wantMean // bounded
		}
		if math.Abs(mean-wantMean) > 1e-8 || math.Abs(sd-math.Sqrt(wantVar)) > 1e-8 {
			t.Fatalf("%v ± %v, want %v ± %v", mean, sd, wantMean, math.Sqrt(wantVar))
		}
	})
}

// An application that slows more than predicted has shorter kernels than predicted, and slows others less.
func TestRolesAreOpposed(t *testing.T) {
	m := New(&contention.MPS)
	for i := range 6 {
		m.all(anyCard, pairOf("a", fmt.Sprint("o", i), 0.8, 0.8), 3)
	}
	withA, stranger := predicted(m, pairOf("new", "a", 0.8, 0.8)), predicted(m, pairOf("new", "stranger", 0.8, 0.8))
	if withA.Slowdown >= stranger.Slowdown {
		t.Errorf("with one that slows much: %+v, with one never observed %+v", withA, stranger)
	}
}

// predict returns mean and SD of z − z_law; 0 and the prior's before any observation. A cell
// that was observed is taken as it was then.
func (l *learned) predict(x []term, f *traits) (mean, sd float64) {
	mean, v := l.fromFactors(x, f)
	return l.withCell(x, mean, v)
}
