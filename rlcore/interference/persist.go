package interference

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrBadModel marks a saved model that can't be used.
var ErrBadModel = errors.New("bad interference model")

// savedVersion changes with the file's form and with what its figures mean: the
// laws' constants, floor and surpriseN.
const savedVersion = 1

// saved is the model as JSON: what was seen, from which what was learned follows.
type saved struct {
	Version   int         `json:"version"`
	Law       string      `json:"law"`
	Cells     []savedCell `json:"cells"`
	Forbidden [][2]string `json:"forbidden,omitempty"`
}

type savedCell struct {
	Card   string   `json:"card"`
	Victim string   `json:"victim"`
	With   []string `json:"with"`
	N      int      `json:"n"`
	// SumLog, MinLog and MaxLog are of the logarithms of what was seen over what
	// the law foretold, of the slowdowns' excess over 1 plus floor.
	SumLog float64 `json:"sum_log"`
	MinLog float64 `json:"min_log"`
	MaxLog float64 `json:"max_log"`
	// SumSlowdown is of the slowdowns that were seen.
	SumSlowdown float64 `json:"sum_slowdown"`
}

func (c *savedCell) compare(b *savedCell) int {
	return cmp.Or(cmp.Compare(c.Card, b.Card), cmp.Compare(c.Victim, b.Victim), slices.Compare(c.With, b.With))
}

// MarshalJSON writes what the model learned and which applications it keeps
// apart. The same observations give the same text in whatever order they came,
// but for the rounding of sums.
func (m *Model) MarshalJSON() ([]byte, error) {
	if m.law == nil {
		return nil, fmt.Errorf("save interference model: %w: it has no law", ErrBadModel)
	}
	out := saved{Version: savedVersion, Law: m.law.Name, Cells: []savedCell{}}
	for _, c := range m.learned.cells {
		s := savedCell{
			Card: m.learned.names[c.key[0]], Victim: m.learned.names[c.key[1]],
			N: c.n, SumLog: c.sum, MinLog: c.lo, MaxLog: c.hi, SumSlowdown: c.slow,
		}
		for _, at := range c.key[2:] {
			if at >= 0 {
				s.With = append(s.With, m.learned.names[at])
			}
		}
		slices.Sort(s.With)
		out.Cells = append(out.Cells, s)
	}
	slices.SortFunc(out.Cells, func(a, b savedCell) int { return a.compare(&b) })
	for p := range m.bad {
		out.Forbidden = append(out.Forbidden, [2]string{p.a, p.b})
	}
	slices.SortFunc(out.Forbidden, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	return json.Marshal(out)
}

// UnmarshalJSON replaces what the model learned by what MarshalJSON wrote. The
// model must be of the same law. The error wraps ErrBadModel where the text is
// JSON but not such a model, and the model is then as it was.
func (m *Model) UnmarshalJSON(text []byte) error {
	var in saved
	if err := json.Unmarshal(text, &in); err != nil {
		return fmt.Errorf("read interference model: %w", err)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("read interference model: %w: %s", ErrBadModel, fmt.Sprintf(format, args...))
	}
	switch {
	case m.law == nil:
		return bad("it is read into a model without a law")
	case in.Version != savedVersion:
		return bad("version %d, this program reads %d", in.Version, savedVersion)
	case in.Law != m.law.Name:
		return bad("it was learned under the law %q, not %q", in.Law, m.law.Name)
	}
	l := newLearned()
	var all [][]term
	slices.SortFunc(in.Cells, func(a, b savedCell) int { return a.compare(&b) })
	for i := range in.Cells {
		c := &in.Cells[i]
		slices.Sort(c.With)
		if what := c.wrong(); what != "" {
			return bad("%q with %q: %s", c.Victim, c.With, what)
		}
		x := []term{{card, c.Card, -1, 1}, {victim, c.Victim, -1, 1}}
		for _, a := range c.With {
			x = append(x, term{aggressor, a, -1, 1 / float64(len(c.With))})
		}
		if !l.room(x) {
			return bad("more than %d cells or about %d applications", maxCells, maxParams/2)
		}
		l.meet(x)
		l.look(x)
		if k, _ := keyOf(x); l.cells[k] != nil {
			return bad("%q with %q is there twice", c.Victim, c.With)
		}
		l.record(x, cell{n: c.N, sum: c.SumLog, lo: c.MinLog, hi: c.MaxLog, slow: c.SumSlowdown})
		all = append(all, x)
	}
	if err := l.solve(all); err != nil {
		return fmt.Errorf("read interference model: %w: %w", ErrBadModel, err)
	}
	forbidden := map[pair]bool{}
	for _, p := range in.Forbidden {
		forbidden[ordered(p[0], p[1])] = true
	}
	m.learned, m.bad, m.kept = l, forbidden, nil
	return nil
}

// wrong says what in the cell can't be true; "" = nothing.
func (c *savedCell) wrong() string {
	n := float64(c.N)
	// What rounding may have done to a sum.
	slack := 1e-6 * n
	switch {
	case len(c.With) < 1 || len(c.With) > maxOthers:
		return fmt.Sprintf("%d others", len(c.With))
	case c.N < 1 || c.N > math.MaxInt32:
		return fmt.Sprintf("n is %d", c.N)
	case !(c.MinLog >= -surpriseN && c.MaxLog <= surpriseN && c.MinLog <= c.MaxLog):
		return fmt.Sprintf("min_log is %v, max_log %v", c.MinLog, c.MaxLog)
	case !(c.SumLog >= n*c.MinLog-slack && c.SumLog <= n*c.MaxLog+slack):
		return fmt.Sprintf("sum_log is %v", c.SumLog)
	case !(c.SumSlowdown > 0 && c.SumSlowdown <= n*mostSlow+slack):
		return fmt.Sprintf("sum_slowdown is %v", c.SumSlowdown)
	}
	return ""
}
