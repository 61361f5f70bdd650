package receipt

import (
	"math"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// Kind sums up the jobs of one kind: adopted by a rule of the site, with sharing requested, or untouched.
type Kind struct {
	Name string `json:"kind"`
	Jobs int    `json:"jobs"`
	// Would is the number of jobs that shadow mode would have made share, or that rules in shadow match.
	Would    int  `json:"would_share"`
	Waited   Mean `json:"waited_h"`
	Slowdown Mean `json:"slowdown"` // of runs that shared a GPU
	Saved    Mean `json:"saved_h"`  // of the turnaround, against plain Slurm
	Harmed   int  `json:"harmed"`
}

// Mean is a mean over some jobs.
type Mean struct {
	Jobs int     `json:"jobs"`
	Mean float64 `json:"mean"`
}

func (m *Mean) add(v float64) {
	m.Jobs++
	m.Mean += (v - m.Mean) / float64(m.Jobs)
}

// text prints the mean with f, "" if there is no job.
func (m *Mean) text(f func(v float64) string) string {
	if m.Jobs == 0 {
		return ""
	}
	return f(m.Mean)
}

func kindOf(j *history.Run) string {
	switch {
	case j.Decided.Rule != "", j.Rule() != "":
		return "adopted"
	case j.WholeGPUs > 0:
		return "untouched"
	}
	return "asked"
}

// add adds a run. would counts it in Would.
func (k *Kind) add(j *history.Run, would bool) {
	k.Jobs++
	if would {
		k.Would++
	}
	if !j.Ready.IsZero() && !j.Start.IsZero() {
		k.Waited.add(max(0, j.Start.Sub(j.Ready).Hours()))
	}
	o := j.Outcome
	if o == nil {
		return
	}
	if j.Shared() && o.Slowdown > 0 && !math.IsInf(o.Slowdown, 0) {
		k.Slowdown.add(o.Slowdown)
	}
	if s, plain, ok := j.Turnaround(); ok {
		k.Saved.add((plain - s) / 3600)
	}
	if len(j.Harm()) > 0 {
		k.Harmed++
	}
}
