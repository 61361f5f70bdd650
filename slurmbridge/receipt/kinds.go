package receipt

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Kind is how the jobs of one kind fared: a rule of the site adopted them, they asked to share, or they are untouched.
type Kind struct {
	Name string `json:"kind"`
	Jobs int    `json:"jobs"`
	// Would is how many of them would have shared a GPU if the bridge hadn't been in shadow, or that rules in shadow
	// match.
	Would    int      `json:"would_share"`
	Waited   Estimate `json:"waited_h"`
	Slowdown Estimate `json:"slowdown"` // of runs that shared a GPU
	Saved    Estimate `json:"saved_h"`  // of the time from submission to end, against plain Slurm's
	Harmed   Estimate `json:"harmed"`   // the part of the jobs
}

// Estimate is a mean with its 95 % confidence interval: by Student's t, of a part by Clopper and Pearson (Biometrika
// 26, 1934). Low and High are 0 for fewer than two jobs.
type Estimate struct {
	Jobs int     `json:"jobs"`
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

func meanOf(v []float64) Estimate {
	e := Estimate{Jobs: len(v)}
	if e.Jobs == 0 {
		return e
	}
	if e.Mean = stat.Mean(v, nil); e.Jobs > 1 {
		half := stat.StdErr(stat.StdDev(v, nil), float64(e.Jobs)) * distuv.StudentsT{
			Mu: 0, Sigma: 1,
			Nu: float64(e.Jobs - 1),
		}.Quantile(0.975)
		e.Low, e.High = e.Mean-half, e.Mean+half
	}
	return e
}

func partOf(k, n int) Estimate {
	e := Estimate{Jobs: n}
	if n == 0 {
		return e
	}
	a, b := float64(k), float64(n-k)
	e.Mean, e.High = a/float64(n), 1
	if k > 0 {
		e.Low = distuv.Beta{Alpha: a, Beta: b + 1}.Quantile(0.025)
	}
	if k < n {
		e.High = distuv.Beta{Alpha: a + 1, Beta: b}.Quantile(0.975)
	}
	return e
}

// text prints an estimate, each value by f.
func (e Estimate) text(f func(v float64) string) string {
	switch {
	case e.Jobs == 0:
		return ""
	case e.Low == 0 && e.High == 0:
		return f(e.Mean)
	}
	return fmt.Sprintf("%s (%s to %s)", f(e.Mean), f(e.Low), f(e.High))
}

// row is the kind as a table shows it.
func (k *Kind) row() []any {
	factor := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	percent := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
	return []any{
		k.Name, k.Jobs, k.Would, k.Waited.text(job.Span), k.Slowdown.text(factor), k.Saved.text(job.Span),
		k.Harmed.text(percent),
	}
}

// kinds tells the kinds of jobs apart; a kind without jobs is left out.
func kinds(in *Input, would map[string]bool) []Kind {
	of := map[string][]*history.Run{}
	for i := range in.Jobs {
		switch j := &in.Jobs[i]; {
		case j.Decided.Rule != "", j.Outcome != nil && j.Outcome.Rule != "":
			of["adopted"] = append(of["adopted"], j)
		case j.WholeGPUs > 0:
			of["untouched"] = append(of["untouched"], j)
		default:
			of["asked"] = append(of["asked"], j)
		}
	}
	var out []Kind
	for _, name := range []string{"adopted", "asked", "untouched"} {
		if len(of[name]) == 0 {
			continue
		}
		k := Kind{Name: name, Jobs: len(of[name])}
		var waited, slowed, saved []float64
		var outcomes []*history.Outcome
		for _, j := range of[name] {
			if would[j.Ref] {
				k.Would++
			}
			if !j.Ready.IsZero() && !j.Start.IsZero() {
				waited = append(waited, max(0, j.Start.Sub(j.Ready).Hours()))
			}
			o := j.Outcome
			if o == nil {
				continue
			}
			outcomes = append(outcomes, o)
			if o.Shared() && o.Slowdown > 0 && !math.IsInf(o.Slowdown, 0) {
				slowed = append(slowed, o.Slowdown)
			}
			if s, plain, ok := o.Turnaround(); ok {
				saved = append(saved, (plain-s)/3600)
			}
		}
		k.Waited, k.Slowdown, k.Saved = meanOf(waited), meanOf(slowed), meanOf(saved)
		k.Harmed = partOf(min(history.CountHarm(outcomes).Jobs, len(outcomes)), len(outcomes))
		out = append(out, k)
	}
	return out
}
