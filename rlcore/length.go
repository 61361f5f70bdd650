package rlcore

import "math"

// The solo run time of an application is taken to be log-normal, with the profile's DurationS as its mean and
// DurationSD as its standard deviation: run times are positive, and long ones are more common than a normal
// distribution has them. With m the mean, s the standard deviation, σ² = ln(1 + (s/m)²), μ = ln m − σ²/2, z(x) = (ln x
// − μ)/σ and Φ the standard normal distribution, a run is longer than x with probability S(x) = Φ(−z(x)), and
//
//	E[X; X > x] = m·Φ(σ − z(x))
//
// (Johnson, Kotz, Balakrishnan, Continuous Univariate Distributions 1, 1994, chapter 14).

// longestSDs is how many standard deviations beyond its mean a run may go before its progress is doubted.
const longestSDs = 3

// mostSpread is the most that the standard deviation counts, in means.
const mostSpread = 10

// overrun is how much longer a run is taken to go on that takes longer than all before it, which took equally long, as
// a part of what it has done. An assumption: such a run is another one than those, and how much longer it is nothing
// says.
const overrun = 0.1

// tail is the probability below which a run counts as longer than all known ones.
const tail = 1e-4

// LongestS is the longest solo run time that the profile makes likely, s.
func (p *Profile) LongestS() float64 { return p.DurationS + longestSDs*p.DurationSD }

// Believed returns a running job's progress, s of solo work, given its predicted progress. It may pass the mean; beyond
// LongestS, see Believed.
func (p *Profile) Believed(done float64) float64 { return Believed(done, p.LongestS()) }

// MostLengths bounds a profile's LengthsS. If leastLonger of them or more are longer than what a run has done, their
// mean says what is left: run times in two or three clusters, as of a script that trains or only evaluates, are no
// log-normal ones.
const (
	MostLengths = 20
	leastLonger = 4
)

// longer returns the mean of min(X, limitS) − doneS over the known runs X > doneS; false = there are too few.
func (p *Profile) longer(doneS, limitS float64) (float64, bool) {
	sum, n := 0.0, 0
	for _, x := range p.LengthsS {
		if x <= doneS {
			continue
		}
		if limitS > 0 {
			x = min(x, limitS)
		}
		sum, n = sum+max(0, x-doneS), n+1
	}
	return sum / float64(max(n, 1)), n >= leastLonger
}

// Left returns the expected remaining solo work of a run after doneS, s: the mean of min(X, limitS) − doneS over the
// runs X > doneS: of the known ones, else of the distribution. limitS = 0: no limit. If all runs took equally long it
// is DurationS − doneS, and beyond that overrun · doneS.
func (p *Profile) Left(doneS, limitS float64) float64 {
	m, s := p.DurationS, p.DurationSD
	doneS = max(0, doneS)
	most := math.Inf(1)
	if limitS > 0 {
		most = max(0, limitS-doneS)
	}
	if left, known := p.longer(doneS, limitS); known && s > 0 {
		return min(most, left) // a mean rounds
	}
	switch {
	case !(s > 0) && doneS < m:
		return min(most, m-doneS)
	case !(s > 0):
		return min(most, overrun*doneS)
	}
	sigma := p.sigma()
	z := func(x float64) float64 { return (math.Log(x)-math.Log(m))/sigma + sigma/2 } // −∞ for 0
	zd := z(doneS)
	longer := phi(-zd)
	if longer < tail {
		// Mills' ratio: far out, what is left is in proportion to what is done.
		return min(most, doneS*sigma/zd)
	}
	left := m*phi(sigma-zd) - doneS*longer
	if limitS > 0 {
		zl := z(limitS)
		left += limitS*phi(-zl) - m*phi(sigma-zl)
	}
	return min(most, max(0, left/longer))
}

// sigma is σ; 0 = all runs take equally long.
func (p *Profile) sigma() float64 {
	if !(p.DurationSD > 0) {
		return 0
	}
	part := min(p.DurationSD/p.DurationS, mostSpread)
	return math.Sqrt(math.Log1p(part * part))
}

// medianS is the median run time, s: e^μ.
func (p *Profile) medianS() float64 {
	sigma := p.sigma()
	return p.DurationS * math.Exp(-sigma*sigma/2)
}

// phi is the standard normal distribution.
func phi(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
