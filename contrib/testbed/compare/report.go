package compare

import "github.com/slurmbridge/slurmbridge/rlcore/policy"

// report is build/compare.json: figures by workload and variant.
type report map[string]map[string]*figures

// collect gathers what the cells measured; failed cells are missing.
func collect(cells []*cell) report {
	r := report{}
	for _, c := range cells {
		if c.figures == nil {
			continue
		}
		if r[c.workload] == nil {
			r[c.workload] = map[string]*figures{}
		}
		r[c.workload][c.variant.name] = c.figures
	}
	for _, byVariant := range r {
		plain := byVariant["whole"]
		for name, f := range byVariant {
			if plain != nil && name != "whole" {
				f.againstWhole = f.against(plain)
			}
		}
	}
	return r
}

// shortest is the variant with the shortest makespan, or mean turnaround, among variants without
// failed jobs, "" = none. Of equal ones: the first.
func shortest(order []variant, byVariant map[string]*figures, by policy.Objective) string {
	best := ""
	for i := range order {
		f := byVariant[order[i].name]
		if f == nil || f.JobsFailed > 0 {
			continue
		}
		if best == "" || f.of(by) < byVariant[best].of(by) {
			best = order[i].name
		}
	}
	return best
}
