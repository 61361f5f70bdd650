package contention_test

import (
	"encoding/csv"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

type cell struct {
	victim, aggressor string
	slowdown          float64
}

// rows reads one of the published tables without its comment and its header.
func rows(t *testing.T, name string) [][]string {
	t.Helper()
	f, err := os.Open("../../slurmbridge/lab/experiment/worlds/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	r := csv.NewReader(f)
	r.Comment = '#'
	all, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return all[1:]
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func alnair(t *testing.T) (map[string]contention.Demand, []cell) {
	t.Helper()
	solo := map[string]contention.Demand{}
	for _, r := range rows(t, "alnair_solo.csv") {
		solo[r[0]] = contention.Demand{GPU: number(t, r[2]) / 100, StepS: number(t, r[3]) / 1000}
	}
	var cells []cell
	for _, r := range rows(t, "alnair_pairs.csv") {
		cells = append(cells, cell{r[0], r[1], number(t, r[2])})
	}
	return solo, cells
}

// grid is the values the fit chose from.
func grid(steps bool) []contention.Law {
	powers, odds := []float64{0.4, 0.5, 0.6, 0.75}, []float64{0.15, 0.2, 0.25, 0.3}
	if !steps {
		powers, odds = []float64{0}, []float64{0.3, 0.4, 0.5}
	}
	var out []contention.Law
	for _, k := range []float64{1.04, 1.08, 1.12} {
		for _, a := range powers {
			for _, b := range odds {
				l := contention.MPS
				l.Capacity, l.StepPower, l.StepOdds, l.Odds = k, a, b, b
				out = append(out, l)
			}
		}
	}
	return out
}

// The law against the measured pairs: as it stands, and for each victim with the
// parameters found without any pair it is in.
func TestAlnair(t *testing.T) {
	solo, cells := alnair(t)
	if len(cells) != 49 {
		t.Fatalf("%d cells", len(cells))
	}
	for _, c := range []struct {
		name         string
		steps        bool
		median, rank float64
	}{{"with iteration times", true, 0.10, 0.85}, {"without", false, 0.18, 0.75}} {
		predict := func(l *contention.Law, x cell) float64 {
			d := []contention.Demand{solo[x.victim], solo[x.aggressor]}
			if !c.steps {
				d[0].StepS, d[1].StepS = 0, 0
			}
			return l.Slowdowns(nil, d)[0]
		}
		without := map[string]*contention.Law{}
		for app := range solo {
			best, least := contention.Law{}, math.Inf(1)
			for _, l := range grid(c.steps) {
				loss := 0.0
				for _, x := range cells {
					if x.victim != app && x.aggressor != app {
						loss += math.Abs(math.Log(predict(&l, x) / max(1, x.slowdown)))
					}
				}
				if loss < least {
					best, least = l, loss
				}
			}
			without[app] = &best
		}
		for how, law := range map[string]func(string) *contention.Law{
			"fitted":   func(string) *contention.Law { return &contention.MPS },
			"held out": func(app string) *contention.Law { return without[app] },
		} {
			var pred, truth, errs []float64
			for _, x := range cells {
				p := predict(law(x.victim), x)
				pred, truth = append(pred, p), append(truth, x.slowdown)
				errs = append(errs, math.Abs(p/x.slowdown-1))
			}
			slices.Sort(errs)
			median, rank := stat.Quantile(0.5, stat.Empirical, errs, nil), interference.Spearman(pred, truth)
			t.Logf("%s, %s: median error %.1f %%, mean %.1f %%, rank correlation %.2f",
				c.name, how, 100*median, 100*stat.Mean(errs, nil), rank)
			if median > c.median || rank < c.rank {
				t.Errorf("%s, %s: median error %.3f, at most %.2f; rank correlation %.2f, at least %.2f",
					c.name, how, median, c.median, rank, c.rank)
			}
		}
	}
}
