package interference

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// measuredSet is one publication's slowdowns of pairs, and of groups of three where there are any.
type measuredSet struct {
	name           string
	law            *contention.Law
	profiles       map[string]*rlcore.Profile
	pairs, triples []Pair
}

const worlds = "../../slurmbridge/lab/experiment/worlds/"

// open opens one of the published tables.
func open(t testing.TB, name string) io.Reader {
	t.Helper()
	text := must.Get(os.ReadFile(name))(t)
	return bytes.NewReader(text)
}

func readSet(t testing.TB, name string, law *contention.Law, steps bool) measuredSet {
	t.Helper()
	s := measuredSet{name: name, law: law, profiles: map[string]*rlcore.Profile{}}
	profiles := must.Get(table.ReadProfiles(open(t, worlds+name+"_solo.csv"), name, &table.ProfileRules{}))(t)
	for _, p := range profiles {
		if !steps {
			p.StepS = 0
		}
		s.profiles[p.App] = p
	}
	pairs := func(name string) (out []Pair) {
		err := table.ReadCSV(open(t, name), name, []string{"victim", "aggressor", "slowdown"}, func(r *table.Row) {
			p := Pair{Victim: r.Name("victim"), Aggressor: r.Name("aggressor"), Slowdown: r.Number("slowdown", 0.5, 1000)}
			if third := r.Text("aggressor2"); third != "" {
				p.More = []string{third}
			}
			out = append(out, p)
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	s.pairs = pairs(worlds + name + "_pairs.csv")
	if name == "miso" {
		s.triples = pairs("testdata/miso_threes.csv")
	}
	if !steps {
		s.name += ", no iteration times"
	}
	return s
}

func measuredSets(t testing.TB) (out []measuredSet) {
	for _, steps := range []bool{true, false} {
		for _, s := range []struct {
			name string
			law  *contention.Law
		}{
			{"alnair", &contention.MPS},
			{"miso", &contention.MPS},
			{"gavel_p100", &contention.TimeSlice},
			{"gavel_k80", &contention.TimeSlice},
		} {
			out = append(out, readSet(t, s.name, s.law, steps))
		}
	}
	return out
}

// observe shows the model rows of a table.
func (s *measuredSet) observe(m *Model, rows []Pair) {
	for i := range rows {
		m.Observe(anyCard, rows[i].Members(s.profiles), rows[i].Slowdown, math.NaN(), 1)
	}
}

// scores are those of several seeds.
type scores struct{ mae, rank, bias, one, two, above []float64 }

func (c *scores) add(r Report) {
	two, above, predicted, truth := 0.0, 0.0, 0.0, 0.0
	for _, row := range r.Rows {
		predicted, truth = predicted+row.Predicted, truth+row.Slowdown
		if math.Abs(row.Predicted-max(1, row.Slowdown)) <= 2*row.SD {
			two++
		}
		if row.Slowdown > row.Predicted+row.SD {
			above++
		}
	}
	c.mae, c.rank, c.bias = append(c.mae, r.MAE), append(c.rank, r.Spearman), append(c.bias, predicted/truth)
	c.one, c.two = append(c.one, r.WithinSD), append(c.two, two/float64(r.N))
	c.above = append(c.above, above/float64(r.N))
}

func (c *scores) String() string {
	var b strings.Builder
	for i, v := range [][]float64{c.mae, c.rank, c.bias, c.one, c.two} {
		form, by := " %6.3f ± %.3f |", 1.0
		if i > 2 {
			form, by = " %3.0f ± %.0f |", 100
		}
		sd := 0.0
		if len(v) > 1 {
			sd = stat.StdDev(v, nil)
		}
		fmt.Fprintf(&b, form, by*stat.Mean(v, nil), by*sd)
	}
	return b.String()
}

// sure fails where predictions of pairs are much less sure, or much surer, than they may be: 68 and 95 % of what is
// measured should be within one and two standard deviations. Of time slices the law predicts too little before any
// co-run: there 16 % should be above one standard deviation, which is what the guard allows for. LEARNING.md says which
// sets are off before any co-run, and why.
func (c *scores) sure(t *testing.T, set string, seen int, law *contention.Law) {
	one, two, above := stat.Mean(c.one, nil), stat.Mean(c.two, nil), stat.Mean(c.above, nil)
	switch {
	case seen > 0 && (one < 0.6 || one > 0.8 || two < 0.89 || two > 0.98), seen == 0 && (one < 0.45 || two < 0.83),
		seen == 0 && law == &contention.TimeSlice && (above < 0.08 || above > 0.35):
		t.Errorf("%s after %d pairs: %.2f within one standard deviation, %.2f within two, %.2f above one", set, seen, one,
			two, above)
	}
}

// TestMeasured scores predictions of what was measured: cold, after 10, 50 and 100 pairs, and of groups of three after
// all pairs. Seeds 0 to 9 draw which pairs are seen; they are scored on the others.
func TestMeasured(t *testing.T) {
	t.Logf("| %-32s | seen | mean error | rank | predicted ÷ measured | %% in 1 SD | in 2 |", "set")
	for _, s := range measuredSets(t) {
		for _, seen := range []int{0, 10, 50, 100} {
			if 2*seen > len(s.pairs) {
				continue
			}
			var c, three scores
			for seed := range uint64(10) {
				var saw, rest []Pair
				for k, i := range rand.New(rand.NewPCG(seed, 29)).Perm(len(s.pairs)) {
					if k < seen {
						saw = append(saw, s.pairs[i])
					} else {
						rest = append(rest, s.pairs[i])
					}
				}
				m := New(s.law)
				s.observe(m, saw)
				r := Score(m, anyCard, s.profiles, rest)
				measuredUse := strings.HasPrefix(s.name, "alnair")
				if (measuredUse || seen >= 50) && r.MAE >= min(r.BaselineSumUtil.MAE, r.BaselineConstant.MAE) {
					t.Errorf("%s after %d pairs, seed %d: mean error %.3f, of a constant %.3f, of the sum of both uses %.3f", s.name, seen,
						seed, r.MAE, r.BaselineConstant.MAE, r.BaselineSumUtil.MAE)
				}
				c.add(r)
				if s.triples != nil {
					three.add(Score(m, anyCard, s.profiles, s.triples))
				}
				if seen == 0 {
					break
				}
			}
			t.Logf("| %-32s | %4d |%v", s.name, seen, &c)
			c.sure(t, s.name, seen, s.law)
			if s.triples != nil {
				t.Logf("| %-32s | %4d |%v", s.name+", threes", seen, &three)
			}
		}
		if s.triples != nil {
			var c scores
			m := New(s.law)
			s.observe(m, s.pairs)
			c.add(Score(m, anyCard, s.profiles, s.triples))
			t.Logf("| %-32s |  all |%v", s.name+", threes", &c)
		}
	}
}
