package interference

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Cell sums up the lessons of one application beside the same co-runners on one model of card, for storage. A model
// that learns the cell believes what it would believe after the single lessons, up to rounding.
type Cell struct {
	Card    string            `json:"card"`
	Sharing string            `json:"sharing,omitempty"` // see Lesson
	Victim  rlcore.Identity   `json:"victim"`
	Others  []rlcore.Identity `json:"others"` // in ascending order
	// N is the sum of the lessons' weights, Sum that of their z_seen − z_law times their weights. Lo and Hi are the
	// lowest and the highest z_seen − z_law.
	N      float64 `json:"n"`
	Sum    float64 `json:"sum"`
	Lo     sight   `json:"lo"`
	Hi     sight   `json:"hi"`
	Traits traits  `json:"traits"` // their mean
	// Miss is the first lesson's distance from the prediction in standard deviations; 0 = unknown.
	Miss float64 `json:"miss,omitempty"`
}

// Cell returns the cell of a single lesson; false: the lesson is impossible.
func (l *Lesson) Cell() (Cell, bool) {
	f, ok := l.traits()
	ok = ok && known(l.Slowdown) && l.Weight >= hardly*hardly && l.Weight <= 1
	if !ok || len(l.Others) == 0 || len(l.Others) > maxOthers {
		return Cell{}, false
	}
	one := seen(l.Off, l.Weight, &f)
	c := Cell{
		Card: l.Card, Sharing: l.Sharing, Victim: rlcore.Identity{App: l.Victim, Owner: l.Owner},
		N: one.n, Sum: one.sum, Lo: one.lo, Hi: one.hi, Traits: f, Miss: l.Miss,
	}
	for i, app := range l.Others {
		other := rlcore.Identity{App: app}
		if i < len(l.Owners) {
			other.Owner = l.Owners[i]
		}
		c.Others = append(c.Others, other)
	}
	slices.SortFunc(c.Others, rlcore.Identity.Compare)
	return c, !math.IsNaN(one.sum)
}

// Key returns the cell's identity as JSON.
func (c *Cell) Key() string {
	key, _ := json.Marshal([]any{c.Sharing, c.Card, c.Victim, c.Others}) // of texts alone
	return string(key)
}

// Add adds the lessons of a later cell with the same key.
func (c *Cell) Add(later *Cell) {
	all, more := c.seen(), later.seen()
	all.add(&more)
	c.N, c.Sum, c.Lo, c.Hi, c.Traits = all.n, all.sum, all.lo, all.hi, all.x
	c.Miss = cmp.Or(c.Miss, later.Miss)
}

func (c *Cell) seen() cell {
	return cell{n: c.N, sum: c.Sum, lo: c.Lo, hi: c.Hi, x: c.Traits, miss: c.Miss}
}

// Restore learns stored cells. Their order is the order of their first lessons. Impossible cells are ignored.
func (m *Model) Restore(cells []Cell) {
	for i := range cells {
		if c := &cells[i]; c.N > 0 && len(c.Others) > 0 && len(c.Others) <= maxOthers {
			m.restore(c)
		}
	}
}

func (m *Model) restore(c *Cell) {
	members := []*rlcore.Profile{{App: c.Victim.App, Owner: c.Victim.Owner}}
	for _, other := range c.Others {
		members = append(members, &rlcore.Profile{App: other.App, Owner: other.Owner})
	}
	spec := &rlcore.GPUSpec{Model: c.Card, Sharing: c.Sharing}
	m.learn(m.way(spec), spec, members, c.seen(), true)
}
