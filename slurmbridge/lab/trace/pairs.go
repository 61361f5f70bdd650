package trace

import (
	"io"
	"strconv"

	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// Pair is one measured slowdown.
type Pair = interference.Pair

// Bounds of a slowdown: measured ones fall below 1 by noise, and what is below a
// half is another quantity (throughput, say).
const minSlowdown, maxSlowdown = 0.5, 1000

// ReadPairs reads CSV with the columns victim, aggressor and slowdown: the
// victim's run time with the aggressor over its run time alone, from 0.5 to
// 1000. Of a group of three or more, the columns aggressor2, aggressor3 and so on up
// to aggressor15 name the others; blank = none. A value below 1 is kept as it was measured. Victim and aggressor may be
// the same application. A pair that was measured more than once stands there as
// often; MeanPairs makes one of them. When known is given, an application that
// isn't among it is an table.ErrUnknownApp. name is the file's name for messages.
func ReadPairs(r io.Reader, name string, known ...string) ([]Pair, error) {
	var pairs []Pair
	err := table.ReadCSV(r, name, []string{"victim", "aggressor", "slowdown"}, func(t *table.Row) {
		p := Pair{
			Victim:    t.OneOf("victim", known),
			Aggressor: t.OneOf("aggressor", known),
			Slowdown:  t.Number("slowdown", minSlowdown, maxSlowdown),
		}
		for k := 2; k <= 15; k++ {
			if col := "aggressor" + strconv.Itoa(k); t.Has(col) && t.Text(col) != "" {
				p.More = append(p.More, t.OneOf(col, known))
			}
		}
		pairs = append(pairs, p)
	})
	if err != nil {
		return nil, err
	}
	return pairs, nil
}

// MeanPairs returns one pair for each victim and aggressor, in the order in which
// they first appear, with the arithmetic mean of their slowdowns. Groups of more are left out.
func MeanPairs(pairs []Pair) []Pair {
	type key struct{ victim, aggressor string }
	at := map[key]int{}
	var out []Pair
	var n []float64
	for _, p := range pairs {
		if p.More != nil {
			continue
		}
		k := key{p.Victim, p.Aggressor}
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			out = append(out, p)
			n = append(n, 1)
			continue
		}
		n[i]++
		out[i].Slowdown += (p.Slowdown - out[i].Slowdown) / n[i]
	}
	return out
}
