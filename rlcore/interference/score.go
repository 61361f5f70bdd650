package interference

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Pair is one measured slowdown: Victim's run time with Aggressor, and any more, ÷ its run time alone.
type Pair struct {
	Victim, Aggressor string
	More              []string // aggressors of a group of three and more
	Slowdown          float64
}

// Members are the profiles of a measurement, the victim's first; nil where one is missing.
func (p *Pair) Members(profiles map[string]*rlcore.Profile) []*rlcore.Profile {
	out := make([]*rlcore.Profile, 0, 2+len(p.More))
	for _, app := range append([]string{p.Victim, p.Aggressor}, p.More...) {
		if profiles[app] == nil {
			return nil
		}
		out = append(out, profiles[app])
	}
	return out
}

// Scored is a measurement and what the model predicted of it.
type Scored struct {
	Victim     string   `json:"victim"`
	Aggressors []string `json:"aggressors"`
	Slowdown   float64  `json:"slowdown"`
	Predicted  float64  `json:"predicted"`
	SD         float64  `json:"sd"`
}

// Report is how well a model predicts measured pairs, and groups.
type Report struct {
	N int `json:"n"` // measurements scored
	// MAE is the mean absolute error of the slowdown, in units of the slowdown.
	MAE float64 `json:"mae"`
	// Spearman is the rank correlation of predicted and measured slowdowns, −1..1; 0 where either is constant.
	Spearman float64 `json:"spearman"`
	// MedianRelError is the median of |predicted ÷ measured − 1|.
	MedianRelError float64 `json:"median_rel_error"`
	// WithinSD is the part of the pairs that differ from the prediction by at most its
	// standard deviation, 0..1: about 0.68 where the model knows how well it knows.
	WithinSD float64 `json:"within_sd"`
	// BaselineConstant predicts one slowdown for all, the median of the model's predictions.
	BaselineConstant Baseline `json:"baseline_constant"`
	// BaselineSumUtil predicts max(1, the sum of both mean utilisations).
	BaselineSumUtil Baseline `json:"baseline_sum_util"`
	// Missing counts the pairs left out because an application has no profile or the
	// slowdown isn't a positive finite number.
	Missing int `json:"missing"`
	// Rows are the measurements, in their order.
	Rows []Scored `json:"rows,omitempty"`
}

// Baseline is the score of a simpler prediction.
type Baseline struct {
	MAE      float64 `json:"mae"`
	Spearman float64 `json:"spearman"`
}

// Score compares the model's prediction for each pair with the measured slowdown. With
// nothing to score all figures are 0.
func Score(m *Model, spec *rlcore.GPUSpec, profiles map[string]*rlcore.Profile, pairs []Pair) Report {
	var r Report
	var truth, model, sum []float64
	within := 0.0
	for i := range pairs {
		p := &pairs[i]
		members := p.Members(profiles)
		if members == nil || !known(p.Slowdown) {
			r.Missing++
			continue
		}
		dst := make([]rlcore.Prediction, len(members))
		m.Predict(dst, spec, members)
		if math.Abs(dst[0].Slowdown-max(1, p.Slowdown)) <= dst[0].SD {
			within++
		}
		truth = append(truth, p.Slowdown)
		model = append(model, dst[0].Slowdown)
		busy := 0.0
		for _, q := range members {
			busy += q.Mean().GPU
		}
		sum = append(sum, max(1, busy))
		r.Rows = append(r.Rows, Scored{
			p.Victim, append([]string{p.Aggressor}, p.More...), p.Slowdown, dst[0].Slowdown,
			dst[0].SD,
		})
	}
	r.N = len(truth)
	if r.N == 0 {
		return r
	}
	constant := slices.Repeat([]float64{median(slices.Clone(model))}, r.N)
	off := make([]float64, r.N)
	for i := range off {
		off[i] = math.Abs(model[i]/truth[i] - 1)
	}
	r.MAE, r.Spearman, r.MedianRelError = mae(model, truth), Spearman(model, truth), median(off)
	r.WithinSD = within / float64(r.N)
	r.BaselineConstant = Baseline{mae(constant, truth), Spearman(constant, truth)}
	r.BaselineSumUtil = Baseline{mae(sum, truth), Spearman(sum, truth)}
	return r
}

// median sorts v, which isn't empty.
func median(v []float64) float64 {
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func mae(x, truth []float64) float64 { return floats.Distance(x, truth, 1) / float64(len(x)) }

// Spearman returns the rank correlation of x and y, equally long; ties share the mean of
// their ranks. It is 0 where x or y is constant.
func Spearman(x, y []float64) float64 {
	if len(x) < 2 {
		return 0
	}
	r := stat.Correlation(ranks(x), ranks(y), nil)
	if math.IsNaN(r) {
		return 0
	}
	return max(-1, min(1, r))
}

func ranks(v []float64) []float64 {
	by := make([]int, len(v))
	for i := range by {
		by[i] = i
	}
	slices.SortFunc(by, func(a, b int) int { return cmp.Compare(v[a], v[b]) })
	out := make([]float64, len(v))
	for from := 0; from < len(by); {
		to := from + 1 // NaN ties with nothing, not even itself
		for to < len(by) && v[by[to]] == v[by[from]] {
			to++
		}
		for _, i := range by[from:to] {
			out[i] = float64(from+to-1)/2 + 1
		}
		from = to
	}
	return out
}
