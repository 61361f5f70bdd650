// Package relative makes a profile for an unknown problem size from profiles of the same application at other sizes.
//
// It errs on the high side: the group that a relative joins must fit even if the guess is wrong. Known profiles are
// sorted by size. The rules:
//
//   - At a known size: the profile with that size (the jobs differ in a seed or an output folder, say). If several have
//     it, the profile with the most memory.
//   - Between two known sizes: the memory of the larger; the duration by a power law through both, plus the fitted
//     exponent's error, at most the duration of the larger.
//   - Above the largest: memory grows by the steeper of two exponents, the steepest between neighbours and the one
//     fitted over all, 0 to 3, plus 10 %; duration by the fitted exponent, 0 to 3, plus its error.
//   - Below the smallest: its memory; duration by the fitted exponent minus its error.
//   - One known size: duration grows by exponent 1 ± 0.5; memory by exponent 3, as a cube's volume grows with its edge,
//     since the size may measure anything.
//   - Memory is constant over the run: only its amount can be predicted.
//   - A larger problem never holds less memory than the largest seen at a smaller size.
//
// DurationS is the late end of the estimate, DurationSD its distance from the best guess: the guard relies on a
// member's memory being free after DurationS. If the late end is more than twice the best guess, there is no profile
// (ErrTooFar): such a job runs alone, and the bridge learns from it.
package relative

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Known is a profile with its sizes, each > 0, in the family's order.
type Known struct {
	Profile *rlcore.Profile
	Sizes   []float64
}

// Exponents and bounds; see the package's comment.
const (
	oneExponent = 1.0 // of the duration, with one known size
	oneError    = 0.5
	leastError  = 0.1 // of a fitted exponent: two points always lie on a line
	maxExponent = 3.0
	memMargin   = 1.1
	tooFar      = 2.0 // late end over best guess
)

// Errors of Of.
var (
	ErrNone   = errors.New("no relative is known")
	ErrTooFar = errors.New("too far from every known size")
)

// Of returns a profile for app at these sizes, or ErrNone or ErrTooFar. Known profiles need as many sizes to count.
func Of(app string, sizes []float64, known []Known) (*rlcore.Profile, error) {
	known = slices.DeleteFunc(slices.Clone(known), func(k Known) bool { return !comparable(k, sizes) })
	if len(known) == 0 || !positive(sizes) {
		return nil, ErrNone
	}
	line := along(sizes, known)
	from := line.nearest()
	src := from.k.Profile
	if from.s == 1 {
		p := *src
		p.App = app
		p.Runs = 0
		p.Source = fmt.Sprintf("relative of %s, of the same size", src.App)
		return &p, nil
	}
	mib := line.memory()
	best, late := line.duration()
	if late > tooFar*best {
		return nil, fmt.Errorf("%w: nearest is %s", ErrTooFar, src.App)
	}
	count := "one size"
	if n := len(line); n > 1 {
		count = fmt.Sprintf("%d sizes", n)
	}
	p := &rlcore.Profile{
		App: app, DurationS: late, DurationSD: late - best, PeriodS: src.PeriodS * late / src.DurationS,
		Series: make([]rlcore.Use, len(src.Series)), Processes: src.Processes,
		ProcessMiB: min(mib, src.ProcessMiB*max(1, mib/src.Peak().MemMiB)),
		Source: fmt.Sprintf("relative of %s at %.3g times its size, %s known; %.0f to %.0f s, at most %.0f MiB", src.App,
			1/from.s, count, best, late, mib),
	}
	copy(p.Series, src.Series)
	for i := range p.Series {
		p.Series[i].MemMiB = mib
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTooFar, err)
	}
	return p, nil
}

func comparable(k Known, sizes []float64) bool {
	return k.Profile != nil && k.Profile.Validate() == nil && len(k.Sizes) == len(sizes) && len(sizes) <= 64 &&
		positive(k.Sizes)
}

// positive reports whether all sizes are positive, and within bounds for computing ratios and powers.
func positive(sizes []float64) bool {
	return !slices.ContainsFunc(sizes, func(v float64) bool { return !(v > 1e-30 && v < 1e30) })
}

// point is a known profile on a line through the wanted sizes.
type point struct {
	s    float64 // its size over the wanted size
	k    *Known
	mib  float64 // the most memory at s
	late float64 // the longest duration at s, s
}

// line holds one or more points of different s, ascending.
type line []point

// along picks the known profiles to fit. Profiles that differ from the wanted sizes in one size (or in several by the
// same factor, as when a file is named after a size) lie on a line; along picks the line with the most points. If there
// is none, it picks the nearest profile, with its ratios multiplied. If that profile is smaller in some size, only
// ratios below 1 count, so that a shrinking size can't hide a growing one.
func along(sizes []float64, known []Known) line {
	lines := map[uint64]line{} // by a bit mask of the sizes in which their points differ
	near := line{}
	nearest := math.Inf(1)
	for _, pt := range distinct(known) {
		axes := uint64(0)
		straight := true
		far := 0.0
		grows := 1.0
		shrinks := 1.0
		for c, v := range pt.k.Sizes {
			r := v / sizes[c]
			far += math.Abs(math.Log(r))
			grows *= max(1, r)
			shrinks *= min(1, r)
			switch {
			case r == 1:
			case axes == 0:
				axes = 1 << c
				pt.s = r
			default:
				axes |= 1 << c
				straight = straight && math.Abs(r/pt.s-1) < 1e-9
			}
		}
		switch {
		case axes == 0:
			return line{pt}
		case straight:
			lines[axes] = lines[axes].insert(pt)
		case shrinks < 1:
			pt.s = shrinks
		default:
			pt.s = grows
		}
		if far < nearest {
			near = line{pt}
			nearest = far
		}
	}
	best := near
	for _, axes := range slices.Sorted(maps.Keys(lines)) {
		if len(lines[axes]) > len(best) {
			best = lines[axes]
		}
	}
	return best
}

// distinct joins known profiles of the same sizes into one point.
func distinct(known []Known) []point {
	var out []point
	for i := range known {
		k := &known[i]
		p := point{s: 1, k: k, mib: k.Profile.Peak().MemMiB, late: k.Profile.DurationS}
		j := slices.IndexFunc(out, func(q point) bool { return slices.Equal(q.k.Sizes, k.Sizes) })
		if j >= 0 {
			out[j].join(p)
		} else {
			out = append(out, p)
		}
	}
	return out
}

// join merges another point of the same size into p.
func (p *point) join(q point) {
	if q.mib > p.mib {
		p.k = q.k
	}
	p.mib = max(p.mib, q.mib)
	p.late = max(p.late, q.late)
}

// insert adds a point, or joins it to the point of the same size.
func (l line) insert(p point) line {
	i, found := slices.BinarySearchFunc(l, p.s, func(q point, s float64) int { return cmp.Compare(q.s, s) })
	if !found {
		return slices.Insert(l, i, p)
	}
	l[i].join(p)
	return l
}

func (l line) nearest() point {
	far := func(p point) float64 { return math.Abs(math.Log(p.s)) }
	return slices.MinFunc(l, func(p, q point) int { return cmp.Compare(far(p), far(q)) })
}

// memory returns the most memory that the wanted size may hold, MiB.
func (l line) memory() float64 {
	most := 0.0
	for i := range l {
		most = max(most, l[i].mib)
		if l[i].s > 1 {
			return most // of the smaller sizes and the next larger one
		}
	}
	e := maxExponent
	if len(l) > 1 {
		e, _ = l.fit(func(p point) float64 { return p.mib })
		for i := 1; i < len(l); i++ {
			if l[i-1].mib > 0 && l[i].mib > 0 {
				e = max(e, math.Log(l[i].mib/l[i-1].mib)/math.Log(l[i].s/l[i-1].s))
			}
		}
		e = min(e, maxExponent)
	}
	return most * math.Pow(1/l[len(l)-1].s, e) * memMargin
}

// duration returns the best guess and the late end, s.
func (l line) duration() (best, late float64) {
	e, off := oneExponent, oneError
	if len(l) > 1 {
		e, off = l.fit(func(p point) float64 { return p.late })
	}
	first := l[0]
	last := l[len(l)-1]
	switch {
	case last.s < 1:
		// A larger size takes no less time than any smaller one.
		d := slices.MaxFunc(l, func(a, b point) int { return cmp.Compare(a.late, b.late) }).late
		return d * math.Pow(1/last.s, e), d * math.Pow(1/last.s, e+off)
	case first.s > 1:
		return first.late * math.Pow(1/first.s, e), first.late * math.Pow(1/first.s, max(e-off, 0))
	}
	// Between two sizes: the power law through both, with durations that never decrease with size.
	i := slices.IndexFunc(l, func(p point) bool { return p.s > 1 })
	a := slices.MaxFunc(l[:i], func(p, q point) int { return cmp.Compare(p.late, q.late) }).late
	b := max(a, l[i].late)
	part := math.Log(1/l[i-1].s) / math.Log(l[i].s/l[i-1].s)
	d := a * math.Pow(b/a, part)
	return d, min(b, d*math.Pow(1/l[i-1].s, off))
}

// fit returns the exponent of the power law fitted to the points, 0 to 3, and its standard error, at least leastError.
func (l line) fit(of func(point) float64) (exponent, standardError float64) {
	var x, y []float64
	for _, p := range l {
		if v := of(p); v > 0 {
			x = append(x, math.Log(p.s))
			y = append(y, math.Log(v))
		}
	}
	if len(x) < 2 {
		return 0, oneError
	}
	a, b := stat.LinearRegression(x, y, nil, false)
	standardError = 2 * leastError
	if n := float64(len(x)); n > 2 {
		var rest, spread float64
		mean := stat.Mean(x, nil)
		for i := range x {
			rest += math.Pow(y[i]-a-b*x[i], 2)
			spread += math.Pow(x[i]-mean, 2)
		}
		standardError = max(math.Sqrt(rest/(n-2)/spread), leastError)
	}
	return min(max(b, 0), maxExponent), standardError
}
