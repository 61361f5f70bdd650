package rlcore

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

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

// Believed returns a running job's progress, s of solo work, given its predicted progress. Where runs differ it is
// believed, however long the run is: Left says how long such a run goes on. Else see Believed.
func (p *Profile) Believed(done float64) float64 {
	if p.sigma() > 0 {
		return done
	}
	return Believed(done, p.DurationS)
}

// Left returns the expected remaining solo work of a run after doneS, s: the mean of min(X, limitS) − doneS over the
// runs X > doneS. limitS = 0: no limit. If all runs took equally long it is DurationS − doneS, and beyond that
// overrun · doneS.
func (p *Profile) Left(doneS, limitS float64) float64 {
	m, sigma := p.DurationS, p.sigma()
	doneS = max(0, doneS)
	most := math.Inf(1)
	if limitS > 0 {
		most = max(0, limitS-doneS)
	}
	switch {
	case sigma == 0 && doneS < m:
		return min(most, m-doneS)
	case sigma == 0:
		return min(most, overrun*doneS)
	}
	zd := p.z(doneS)
	longer := phi(-zd)
	if longer < tail {
		// Mills' ratio: far out, what is left is in proportion to what is done.
		return min(most, doneS*sigma/zd)
	}
	left := m*phi(sigma-zd) - doneS*longer
	if limitS > 0 {
		zl := p.z(limitS)
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

// TookS returns what a run would have taken alone, s, that ended after ranS with doneS of solo work done as predicted.
func (p *Profile) TookS(doneS, ranS float64) float64 {
	return schedule.Took(doneS, ranS, p.DurationS, p.sigma())
}

// z is z(x); −∞ for 0. The profile's runs must differ.
func (p *Profile) z(x float64) float64 {
	sigma := p.sigma()
	return (math.Log(x)-math.Log(p.DurationS))/sigma + sigma/2
}

// longer is the probability that a run takes longer than x s that has done doneS, 0..1.
func (p *Profile) longer(x, doneS float64) float64 {
	switch sigma := p.sigma(); {
	case x <= doneS:
		return 1
	case sigma == 0 && x < p.DurationS:
		return 1
	case sigma == 0:
		return 0
	default:
		if doneS <= 0 {
			return phi(-p.z(x))
		}
		if so := phi(-p.z(doneS)); so >= tail {
			return phi(-p.z(x)) / so
		}
		return math.Pow(doneS/x, p.z(doneS)/sigma) // Mills' ratio, as in Left
	}
}

// quantile is the run time that the given part of the runs longer than doneS don't exceed, s.
func (p *Profile) quantile(part, doneS float64) float64 {
	sigma, so := p.sigma(), 1.0
	switch {
	case sigma == 0:
		return doneS + p.Left(doneS, 0)
	case doneS > 0:
		if so = phi(-p.z(doneS)); so < tail {
			return doneS * math.Pow(1-part, -sigma/p.z(doneS)) // Mills' ratio, as in Left
		}
	}
	return max(doneS, p.DurationS*math.Exp(sigma*(math.Sqrt2*math.Erfcinv(2*so*(1-part))-sigma/2)))
}

// mostTold is the largest standard deviation of the logarithm of its length with which a run teaches a slowdown. With a
// larger one, runs that had the same co-runners for most of their time are mostly the short ones, and their mean says
// little.
const mostTold = 0.15

// SlowdownBy returns the solo time that a run's time is divided by to learn its slowdown, s; false = the length isn't
// known well enough. Only runs alone count: the solo times of shared runs follow from predicted slowdowns, so the
// predictions would teach themselves.
func (p *Profile) SlowdownBy() (soloS float64, ok bool) {
	if p.aloneS > 0 {
		return p.aloneS, p.sigma() <= mostTold
	}
	return p.DurationS, p.sigma() <= mostTold
}

// LongS is how long a long run takes alone, s: one in 44 takes longer.
func (p *Profile) LongS() float64 { return p.atSigma(2) }

// ShortS is how long a short run takes alone, s: one in 44 takes less time.
func (p *Profile) ShortS() float64 { return p.atSigma(-2) }

// atSigma is the run time at k standard deviations of the logarithm, s; k = 0 is the median.
func (p *Profile) atSigma(k float64) float64 {
	sigma := p.sigma()
	return p.DurationS * math.Exp(k*sigma-sigma*sigma/2)
}

// phi is the standard normal distribution.
func phi(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
