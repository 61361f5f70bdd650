package slurm

import (
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge"
)

// ParseDependencies takes a job's unmet dependencies apart, as squeue prints
// them: "after:12+5(unfulfilled),afterok:7_2(unfulfilled)". A list separated by
// "?" sets Or. Terms it can't read keep their place, with the text in Rest, so
// that nobody takes them for met.
func ParseDependencies(raw string) slurmbridge.Dependencies {
	d := slurmbridge.Dependencies{}
	if isNone(raw) {
		return d
	}
	d.Raw = raw
	d.Or = strings.Contains(raw, "?")
	for term := range strings.FieldsFuncSeq(raw, func(r rune) bool { return r == ',' || r == '?' }) {
		if i := strings.IndexByte(term, '('); i >= 0 {
			term = term[:i] // "(unfulfilled)", "(failed)"
		}
		typ, rest, _ := strings.Cut(strings.TrimSpace(term), ":")
		if typ == "" {
			continue
		}
		if rest == "" {
			d.List = append(d.List, slurmbridge.Dependency{Type: typ})
			continue
		}
		for job := range strings.SplitSeq(rest, ":") { // sbatch takes afterok:1:2
			n := 0
			for n < len(job) && (job[n] >= '0' && job[n] <= '9' || job[n] == '_') {
				n++
			}
			d.List = append(d.List, slurmbridge.Dependency{Type: typ, Job: job[:n], Rest: job[n:]})
		}
	}
	d.List = d.List[:len(d.List):len(d.List)] // jobs share it: appending must copy
	return d
}
