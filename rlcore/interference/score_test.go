package interference

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Groups are scored as groups, and each measurement is listed.
func TestScoreOfGroups(t *testing.T) {
	profiles := map[string]*rlcore.Profile{}
	for _, p := range append(pairOf("a", "b", 0.9, 0.9), pairOf("c", "d", 0.9, 0.9)...) {
		profiles[p.App] = p
	}
	r := Score(New(&contention.MPS), anyCard, profiles, []Pair{
		{Victim: "a", Aggressor: "b", Slowdown: 1.7},
		{Victim: "a", Aggressor: "b", More: []string{"c", "d"}, Slowdown: 3.4},
		{Victim: "a", Aggressor: "b", More: []string{"x"}, Slowdown: 2},
	})
	if r.N != 2 || r.Missing != 1 || len(r.Rows) != 2 || len(r.Rows[1].Aggressors) != 3 ||
		r.Rows[1].Predicted < 1.5*r.Rows[0].Predicted || r.MAE > 0.2 {
		t.Errorf("%+v", r)
	}
}

func TestSpearman(t *testing.T) {
	for _, c := range []struct {
		name string
		x, y []float64
		want float64
	}{
		{"equal order", []float64{1, 2, 3}, []float64{10, 100, 1000}, 1},
		{"opposite", []float64{1, 2, 3}, []float64{3, 2, 1}, -1},
		// Ranks 1 2.5 2.5 4 and 1 3 2 4: cov 4.5/4, variances 4.5/4 and 5/4.
		{"ties share their mean rank", []float64{1, 2, 2, 3}, []float64{1, 3, 2, 4}, 4.5 / math.Sqrt(4.5*5)},
		{"constant", []float64{1, 1, 1}, []float64{1, 2, 3}, 0},
		{"no number, which is below all", []float64{math.NaN(), 1, 2}, []float64{1, 2, 3}, 1},
		{"one", []float64{1}, []float64{1}, 0},
		{"none", nil, nil, 0},
	} {
		must.Near(t, Spearman(c.x, c.y), c.want, 1e-12, c.name)
	}
}

func TestScore(t *testing.T) {
	solo := map[string]*rlcore.Profile{}
	for _, p := range append(pairOf("idle", "half", 0.1, 0.5), pairOf("full", "none", 1, 0)...) {
		solo[p.App] = p
	}
	m := New(&contention.MPS)
	of := func(v, a string) float64 {
		return predictions(m, corun{anyCard, []*rlcore.Profile{solo[v], solo[a]}, nil})[0].Slowdown
	}
	pair := func(v, a string, slowdown float64) Pair { return Pair{Victim: v, Aggressor: a, Slowdown: slowdown} }
	pairs := []Pair{
		pair("half", "full", of("half", "full")), pair("full", "full", of("full", "full")),
		pair("half", "idle", 2*of("half", "idle")),
	}
	strange := []Pair{pair("half", "stranger", 2), pair("half", "full", math.NaN()), pair("half", "full", 0)}
	r := Score(m, anyCard, solo, append(pairs, strange...))
	near := func(what string, got, want float64) {
		t.Helper()
		must.Near(t, got, want, 1e-9, what)
	}
	must.Equal(t, r.N, 3, r)
	must.Equal(t, r.Missing, 3, r)
	near("mae", r.MAE, of("half", "idle")/3)
	near("median relative error", r.MedianRelError, 0)
	near("within an SD", r.WithinSD, 2./3)
	// 1.5, 2 and 1 where the utilisations sum to less.
	near("sum of utilisations", r.BaselineSumUtil.MAE,
		(math.Abs(1.5-pairs[0].Slowdown)+math.Abs(2-pairs[1].Slowdown)+math.Abs(1-pairs[2].Slowdown))/3)
	// The median of the predictions.
	c := of("full", "full")
	near("constant", r.BaselineConstant.MAE, (math.Abs(c-pairs[0].Slowdown)+math.Abs(c-pairs[2].Slowdown))/3)
	near("a constant's rank correlation", r.BaselineConstant.Spearman, 0)

	text, err := json.Marshal(Score(m, anyCard, solo, nil))
	want := `{"n":0,"mae":0,"spearman":0,"median_rel_error":0,"within_sd":0,"baseline_constant":{"mae":0,"spearman":0},"baseline_sum_util":{"mae":0,"spearman":0},"missing":0}`
	if err != nil || string(text) != want {
		t.Errorf("nothing to score: %s, %v", text, err)
	}
}
