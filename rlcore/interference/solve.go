package interference

import (
	"errors"

	"gonum.org/v1/gonum/mat"
)

// solve computes the posterior of all recorded cells at once, from the prior; x
// are their terms. It is what add comes to one by one, in less time.
func (l *learned) solve(x [][]term) error {
	n := len(l.names)
	if n == 0 {
		return nil
	}
	prior := mat.NewSymDense(n, nil)
	for i, row := range l.cov {
		for j := i; j < n; j++ {
			prior.SetSym(i, j, row[j])
		}
	}
	var chol mat.Cholesky
	var precision, cov mat.SymDense
	if !chol.Factorize(prior) || chol.InverseTo(&precision) != nil {
		return errors.New("the prior can't be inverted")
	}
	for _, terms := range x {
		k, _ := keyOf(terms)
		c := l.cells[k]
		w := 1 / c.variance()
		for _, a := range terms {
			l.shift[a.at] += a.weight * c.value() * w
			for _, b := range terms {
				if a.at <= b.at { // the other half follows
					precision.SetSym(a.at, b.at, precision.At(a.at, b.at)+a.weight*b.weight*w)
				}
			}
		}
	}
	if !chol.Factorize(&precision) || chol.InverseTo(&cov) != nil {
		return errors.New("what was learned can't be inverted")
	}
	for i := range n {
		mean := 0.0
		for j := range n {
			l.cov[i][j] = cov.At(i, j)
			mean += l.cov[i][j] * l.shift[j]
		}
		l.mean[i] = mean
	}
	return nil
}
