// Package relative makes a profile for a size of problem that was never seen, from
// profiles of the same application at other sizes.
//
// It errs towards more: the group that a relative joins must fit even if the guess
// is wrong. The rules, with s a size, and known ones sorted by it:
//
//   - At a known size the profile is that one (they differ in what changes no work: a
//     seed, where output goes). Where several have it, the one that holds the most
//     memory.
//   - Between two known sizes: the memory of the larger; the duration by a power law
//     through the two, plus the fitted exponent's error, at most that of the larger.
//   - Above the largest: memory grows by the steepest exponent seen between two
//     neighbours or fitted over all, whichever is more, 0 to 3, and 10 % on top;
//     duration by the fitted exponent, 0 to 3, plus its error.
//   - Below the smallest: its memory; duration by the fitted exponent less its error.
//   - One known size: duration grows by exponent 1 ± 0.5; memory by exponent 3, what
//     a cube's volume does to its edge, since nothing tells what the size measures.
//   - Memory is flat: when it is held isn't foreseen, only how much.
//   - Where it isn't known, a larger problem never holds less memory than the largest
//     of the smaller ones was seen to hold.
//
// DurationS is the late end of what is thought, DurationSD how far it lies above the best guess: the guard counts on a
// member's memory being free once its DurationS is over. What is so uncertain that the late end is more than twice the
// best guess is no profile (ErrTooFar): such a job runs alone, and is learned from.
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

// What there is to go by without anything to fit; see the package's comment.
const (
	oneExponent = 1.0
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

// Of returns a profile named app for the given sizes. Known profiles with another
// number of sizes are passed over. Errors wrap ErrNone or ErrTooFar.
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
		p.App, p.Runs, p.Source = app, 0, fmt.Sprintf("relative of %s, of the same size", src.App)
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

// positive reports whether all sizes are, within what ratios and their powers of can be computed.
func positive(sizes []float64) bool {
	return !slices.ContainsFunc(sizes, func(v float64) bool { return !(v > 1e-30 && v < 1e30) })
}

// point is a known profile on a line through the wanted sizes: s is its size over the wanted one.
type point struct {
	s    float64
	k    *Known
	mib  float64 // the largest of those at s
	late float64 // the longest duration of those at s, s
}

// line holds points of different s, ascending; at least one.
type line []point

// along picks the known profiles to go by. Profiles that differ from the wanted sizes in a single one (or in several by
// the same factor, as when a file is named after a size) lie on a line; the line with the most points is taken. If
// there is none, it is the nearest profile alone, its differences multiplied; one that is larger in one size and
// smaller in another counts as smaller by the former's factor alone, so that no growth hides behind a shrinkage.
func along(sizes []float64, known []Known) line {
	lines := map[uint64]line{} // by the sizes in which their points differ, a bit each
	near, nearest := line{}, math.Inf(1)
	for _, pt := range distinct(known) {
		axes, straight, far := uint64(0), true, 0.0
		grows, shrinks := 1.0, 1.0
		for c, v := range pt.k.Sizes {
			r := v / sizes[c]
			far += math.Abs(math.Log(r))
			grows, shrinks = grows*max(1, r), shrinks*min(1, r)
			switch {
			case r == 1:
			case axes == 0:
				axes, pt.s = 1<<c, r
			default:
				axes |= 1 << c
				straight = straight && math.Abs(r/pt.s-1) < 1e-9
			}
		}
		switch {
		case axes == 0:
			return line{pt}
		case straight:
			lines[axes] = lines[axes].with(pt)
		case shrinks < 1:
			pt.s = shrinks
		default:
			pt.s = grows
		}
		if far < nearest {
			near, nearest = line{pt}, far
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

// distinct joins the known profiles of the same sizes.
func distinct(known []Known) []point {
	var out []point
	for i := range known {
		k := &known[i]
		p := point{s: 1, k: k, mib: k.Profile.Peak().MemMiB, late: k.Profile.DurationS}
		if j := slices.IndexFunc(out, func(q point) bool { return slices.Equal(q.k.Sizes, k.Sizes) }); j >= 0 {
			out[j].join(p)
		} else {
			out = append(out, p)
		}
	}
	return out
}

// join makes the point stand for another one, too.
func (p *point) join(q point) {
	if q.mib > p.mib {
		p.k = q.k
	}
	p.mib, p.late = max(p.mib, q.mib), max(p.late, q.late)
}

// with adds a point, or joins it with the one that has its size.
func (l line) with(p point) line {
	i, there := slices.BinarySearchFunc(l, p.s, func(q point, s float64) int { return cmp.Compare(q.s, s) })
	if !there {
		return slices.Insert(l, i, p)
	}
	l[i].join(p)
	return l
}

// nearest is the point with the size nearest to the wanted one.
func (l line) nearest() point {
	far := func(p point) float64 { return math.Abs(math.Log(p.s)) }
	return slices.MinFunc(l, func(p, q point) int { return cmp.Compare(far(p), far(q)) })
}

// memory returns what the wanted size may hold, MiB.
func (l line) memory() float64 {
	most, above := 0.0, false
	for i := range l {
		most = max(most, l[i].mib)
		if l[i].s > 1 {
			above = true
			break // the next larger one counts; what is beyond doesn't
		}
	}
	if above {
		return most
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
	first, last := l[0], l[len(l)-1]
	switch {
	case last.s < 1:
		// What a smaller size took is a lower bound for a larger one.
		d := slices.MaxFunc(l, func(a, b point) int { return cmp.Compare(a.late, b.late) }).late
		return d * math.Pow(1/last.s, e), d * math.Pow(1/last.s, e+off)
	case first.s > 1:
		return first.late * math.Pow(1/first.s, e), first.late * math.Pow(1/first.s, max(e-off, 0))
	}
	// Between two: through both; neither is shorter than one before it.
	i := slices.IndexFunc(l, func(p point) bool { return p.s > 1 })
	a := slices.MaxFunc(l[:i], func(p, q point) int { return cmp.Compare(p.late, q.late) }).late
	b := max(a, l[i].late)
	part := math.Log(1/l[i-1].s) / math.Log(l[i].s/l[i-1].s)
	d := a * math.Pow(b/a, part)
	return d, min(b, d*math.Pow(1/l[i-1].s, off))
}

// fit returns the exponent of the power law nearest to the points, 0 to 3, and its
// standard error, at least 0.1 for two points lie on any line.
func (l line) fit(of func(point) float64) (exponent, standardError float64) {
	var x, y []float64
	for _, p := range l {
		if v := of(p); v > 0 {
			x, y = append(x, math.Log(p.s)), append(y, math.Log(v))
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
