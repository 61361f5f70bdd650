package rlcore

import (
	"cmp"
	"math"
	"slices"
)

// Past is a run of an application that has ended by itself: how long it took alone, and what was known of it when it
// was submitted.
type Past struct {
	SoloS  float64 `json:"solo_s"`            // > 0
	LimitS float64 `json:"limit_s,omitempty"` // its time limit; 0 = none
	User   string  `json:"user,omitempty"`    // "" = the profile's owner
	// Shared: the run shared its GPU, and SoloS is what was predicted of it: where a slowdown is predicted too low, all
	// runs that it slowed look longer than they are.
	Shared bool `json:"shared,omitempty"`
}

// MostPast bounds a profile's Past.
const MostPast = 100

// AddPast adds the latest runs to Past; the oldest make room.
func (p *Profile) AddPast(runs ...Past) {
	all := slices.Concat(p.Past, runs)
	p.Past = all[max(0, len(all)-MostPast):]
}

// The constants of Foretold. Each of them halved or doubled changes turnarounds by about 1 % (LEARNING.md).
const (
	usualSigma   = 0.7  // the logarithms' standard deviation where nothing is known of it
	appHalfLife  = 50.0 // after so many later runs of the application, a run counts half
	slopePrior   = 0.5  // a limit twice as long says √2 times as long a run, until runs say otherwise
	userHalfLife = 10.0 // after so many later runs of the user, a run counts half for the user's own offset
	otherLimit   = 0.5  // a run with another limit counts so much for that offset
	userPrior    = 2.0  // the offset is 0 as if so many runs had said so
	spreadPrior  = 3.0  // the application's spread is the profile's as if so many runs had said so
	ownPrior     = 4.0  // the user's spread is the application's as if so many runs had said so
	mostVariance = 4.0  // of the logarithm of a length
)

// Foretold returns the profile that a run is expected to have by past runs, p's Past and further ones, the oldest
// first: p with another length and spread. user is the run's, limitS its time limit, 0 = none. It is p itself where
// there are none, and where all runs take equally long.
//
// The logarithm of a length is normal around c₀ + c₁x + u: x is the logarithm of the time limit, c₀ and c₁ are found by
// ridge regression over the application's runs, and u is the mean of what is left for the user's own runs, drawn
// towards 0. Later runs count more in all of them: a user's last runs say most (Tsafrir, Etsion, Feitelson, Backfilling
// Using System-Generated Predictions, IEEE TPDS 18, 2007). The spread is that of the residuals, and includes what isn't
// known of u.
func (p *Profile) Foretold(user string, limitS float64, further ...Past) *Profile {
	runs := slices.Concat(p.Past, further)
	if len(runs) == 0 || p.Runs == 0 && p.DurationSD == 0 {
		return p
	}
	slices.Reverse(runs)
	prior, sigma := p.priorSigma(), p.sigma()
	line := fit(runs, math.Log(p.DurationS)-prior*prior/2)
	// Residuals of all runs; of those alone, one of which is the profile's mean; and of the user's own.
	all := sums{weight: spreadPrior, squares: spreadPrior * prior * prior}
	alone := sums{weight: 1, sum: math.Log(p.DurationS) - sigma*sigma/2 - line.intercept}
	var own sums
	rank := 0.0 // of the user's runs
	for i := range runs {
		weight := ageWeight(i)
		residual := math.Log(runs[i].SoloS) - line.at(runs[i].LimitS)
		all.add(weight, residual)
		if !runs[i].Shared {
			alone.add(weight, residual)
		}
		if cmp.Or(runs[i].User, p.Owner) == user {
			weight = math.Exp2(-rank / userHalfLife)
			rank++
			if runs[i].LimitS != limitS {
				weight *= otherLimit
			}
			own.add(weight, residual)
		}
	}
	offset := own.sum / (userPrior + own.weight)
	variance := (ownPrior*all.squares/all.weight + own.squares - offset*own.sum) / (ownPrior + own.weight)
	variance = min(mostVariance, variance*(1+1/(userPrior+own.weight)))

	mean := math.Exp(min(line.at(limitS)+offset+variance/2, math.Log(mostAmount)))
	if limitS > 0 {
		mean = min(mean, limitS)
	}
	q := *p.Stretched(max(mean, leastLengthS))
	q.DurationSD = q.DurationS * math.Sqrt(math.Expm1(variance))
	q.Past = nil
	q.aloneS = q.DurationS * math.Exp(alone.sum/alone.weight)
	return &q
}

// sums are weighted sums over runs' residuals: how far the logarithms of their lengths are from the line.
type sums struct{ weight, sum, squares float64 }

func (s *sums) add(weight, residual float64) {
	s.weight += weight
	s.sum += weight * residual
	s.squares += weight * residual * residual
}

// ageWeight is the weight of a run after which the application had so many others.
func ageWeight(later int) float64 { return math.Exp2(-float64(later) / appHalfLife) }

// leastLengthS is the shortest time that a run is foretold to take, s.
const leastLengthS = 1e-3

// priorSigma is the standard deviation of the logarithm of run times that the profile's own runs alone make likely:
// one run says nothing of it.
func (p *Profile) priorSigma() float64 {
	if p.Runs == 0 {
		return p.sigma()
	}
	n, sigma := float64(p.Runs), p.sigma()
	return math.Sqrt((usualSigma*usualSigma + (n-1)*sigma*sigma) / n)
}

// limitLine is the logarithm of a typical length by time limit.
type limitLine struct {
	intercept, slope float64
	center           float64 // mean logarithm of the limits
}

// at returns the logarithm of a typical length, s, at a limit; 0 = none.
func (l *limitLine) at(limitS float64) float64 { return l.intercept + l.slope*l.x(limitS) }

func (l *limitLine) x(limitS float64) float64 {
	if limitS > 0 {
		return math.Log(limitS) - l.center
	}
	return 0
}

// fit finds the line by ridge regression over runs, the latest first. Before any run it lies at mu.
func fit(runs []Past, mu float64) (l limitLine) {
	limits := 0.0
	for i := range runs {
		if weight := ageWeight(i); runs[i].LimitS > 0 {
			l.center += weight * math.Log(runs[i].LimitS)
			limits += weight
		}
	}
	l.center /= max(limits, math.SmallestNonzeroFloat64)
	n, sumX, sumXX, sumY, sumXY := 1.0, 0.0, 1.0, 0.0, slopePrior
	for i := range runs {
		weight := ageWeight(i)
		x := l.x(runs[i].LimitS)
		y := math.Log(runs[i].SoloS) - mu
		n += weight
		sumX += weight * x
		sumXX += weight * x * x
		sumY += weight * y
		sumXY += weight * x * y
	}
	det := n*sumXX - sumX*sumX
	l.intercept = mu + (sumXX*sumY-sumX*sumXY)/det
	l.slope = (n*sumXY - sumX*sumY) / det
	return l
}

// Foretelling says how well each of a profile's past runs would have been foretold by the runs before it.
type Foretelling struct {
	Runs    int     `json:"runs"`
	Within2 float64 `json:"within_a_factor_of_two"` // part of them
	Longer  float64 `json:"longer_than_foretold"`   // part of them
}

// Foretelling is how well Past's runs would have been foretold from the second on; Runs 0 = there are too few.
func (p *Profile) Foretelling() (f Foretelling) {
	q := *p
	for i := 1; i < len(p.Past); i++ {
		x := &p.Past[i]
		q.Past = p.Past[:i]
		was := q.Foretold(cmp.Or(x.User, p.Owner), x.LimitS).Left(0, x.LimitS)
		f.Runs++
		if was <= 2*x.SoloS && x.SoloS <= 2*was {
			f.Within2++
		}
		if x.SoloS > was {
			f.Longer++
		}
	}
	if f.Runs > 0 {
		f.Within2 /= float64(f.Runs)
		f.Longer /= float64(f.Runs)
	}
	return f
}
