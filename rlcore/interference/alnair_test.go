package interference

import (
	"encoding/csv"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// rows reads one of the contention law's tables without comment and header.
func rows(t testing.TB, name string) [][]string {
	t.Helper()
	f, err := os.Open("../contention/testdata/" + name)
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

// alnair returns what CentaurusInfra/alnair measured: see the tables.
func alnair(t testing.TB, steps bool) (map[string]*rlcore.Profile, []Pair) {
	t.Helper()
	solo := map[string]*rlcore.Profile{}
	for _, r := range rows(t, "alnair_profiles.csv") {
		p := &rlcore.Profile{App: r[0], DurationS: 60, PeriodS: 60, Series: []rlcore.Use{{GPU: number(t, r[1]) / 100}}}
		if steps {
			p.StepS = number(t, r[2]) / 1000
		}
		solo[r[0]] = p
	}
	var pairs []Pair
	for _, r := range rows(t, "alnair_pairs.csv") {
		pairs = append(pairs, Pair{Victim: r[0], Aggressor: r[1], Slowdown: number(t, r[2])})
	}
	return solo, pairs
}

// duo is victim and aggressor.
type duo struct{ a, b string }

// show lets the model observe the co-run of two applications, and returns the
// cells it has seen by that.
func show(m *Model, solo map[string]*rlcore.Profile, truth map[duo]float64, a, b string) []duo {
	m.Observe(nil, []*rlcore.Profile{solo[a], solo[b]}, []float64{truth[duo{a, b}], truth[duo{b, a}]})
	return []duo{{a, b}, {b, a}}
}

// TestLearnsAlnair shows the model co-runs of alnair's seven applications, drawn
// at random, until each has been in k of them, and scores it on the others.
func TestLearnsAlnair(t *testing.T) {
	for _, steps := range []bool{false, true} {
		solo, pairs := alnair(t, steps)
		truth := map[duo]float64{}
		var runs []duo
		for _, p := range pairs {
			truth[duo{p.Victim, p.Aggressor}] = p.Slowdown
		}
		for _, p := range pairs {
			// Only co-runs of which both sides were measured.
			if p.Victim <= p.Aggressor && truth[duo{p.Aggressor, p.Victim}] > 0 {
				runs = append(runs, duo{p.Victim, p.Aggressor})
			}
		}
		for _, k := range []int{0, 1, 3} {
			var medians, ranks, maes []float64
			for seed := range uint64(20) {
				r := rand.New(rand.NewPCG(seed, 1))
				m := New(&contention.MPS)
				times, seen := map[string]int{}, map[duo]bool{}
				for _, i := range r.Perm(len(runs)) {
					a, b := runs[i].a, runs[i].b
					if times[a] >= k || times[b] >= k {
						continue
					}
					times[a]++
					if a != b {
						times[b]++
					}
					for _, c := range show(m, solo, truth, a, b) {
						seen[c] = true
					}
				}
				var rest []Pair
				for _, p := range pairs {
					if !seen[duo{p.Victim, p.Aggressor}] {
						rest = append(rest, p)
					}
				}
				rep := Score(m, nil, solo, rest)
				if rep.N != 49-len(seen) || rep.MAE >= rep.BaselineSumUtil.MAE || rep.MAE >= rep.BaselineConstant.MAE {
					t.Errorf("steps %v, %d co-runs, seed %d: %+v", steps, k, seed, rep)
				}
				medians, ranks, maes = append(medians, rep.MedianRelError), append(ranks, rep.Spearman), append(maes, rep.MAE)
			}
			slices.Sort(medians)
			mean := stat.Mean(medians, nil)
			t.Logf("iteration times %v, at most %d co-runs an application: median error %.1f %% (%.1f to %.1f over 20 "+
				"splits), MAE %.2f, rank correlation %.2f",
				steps, k, 100*mean, 100*medians[0], 100*medians[19], stat.Mean(maes, nil), stat.Mean(ranks, nil))
			if k == 3 && mean > 0.10 {
				t.Errorf("steps %v: median error %.3f after 3 co-runs", steps, mean)
			}
		}
	}
}
