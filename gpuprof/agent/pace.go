package agent

import (
	"math"
	"time"
)

// How the pace changes.
const (
	// changed is the part of a card by which a figure must differ from the reading
	// before to count as a change.
	changed = 0.05
	// slower is by what the step grows where nothing changes.
	slower = 1.25
	// purse is how many readings a GPU may be ahead of one a period.
	purse = 60
)

// pace says when a GPU is read next. The step is a tenth of the period (0.1 s)
// after a job came and after a reading that differs from the one before; it
// grows by a quarter with each that doesn't, up to ten periods (10 s). However the
// use flickers, a GPU isn't read more often than once a period but for 60 readings
// that it may be ahead: each costs one, and each period that passes earns one.
type pace struct {
	period time.Duration
	step   time.Duration
	due    time.Time
	at     time.Time // of the last reading
	left   float64   // readings in the purse
	last   []float64
	read   bool // last is there
}

func (p *pace) least() time.Duration { return p.period / 10 }
func (p *pace) most() time.Duration  { return 10 * p.period }

// hurry makes the next reading due at once, and those after it fast: a job came or
// went.
func (p *pace) hurry(now time.Time) { p.step, p.due = p.least(), now }

// next sets the next reading after one at now; v are the resources as parts of
// the card, nil where it failed.
func (p *pace) next(now time.Time, v []float64) {
	if p.at.IsZero() {
		p.left = purse
	} else {
		p.left = min(purse, p.left+max(0, now.Sub(p.at).Seconds())/p.period.Seconds())
	}
	p.at = now
	p.left = max(0, p.left-1)
	switch {
	case v == nil:
		p.step = max(p.step, p.period) // a failing GPU isn't read faster
	case p.read && differ(p.last, v):
		p.step = p.least()
	default:
		p.step = time.Duration(slower * float64(p.step))
	}
	if v != nil {
		p.last, p.read = v, true
	}
	p.step = max(p.least(), min(p.most(), p.step))
	if p.left < 1 {
		p.step = max(p.step, p.period)
	}
	p.due = now.Add(p.step)
}

func differ(a, b []float64) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) > changed {
			return true
		}
	}
	return false
}
