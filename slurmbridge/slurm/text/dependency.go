package text

import (
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// ParseDependencies reads a job's unmet dependencies as squeue prints them:
// "after:12+5(unfulfilled),afterok:7_2(unfulfilled)". A list separated by "?" sets Or.
// A condition that can't be read keeps its place, with its text in Rest, so that it
// isn't taken for met.
func ParseDependencies(raw string) job.Dependencies {
	if IsNone(raw) {
		return job.Dependencies{}
	}
	d := job.Dependencies{Raw: raw, Or: strings.Contains(raw, "?")}
	for term := range strings.FieldsFuncSeq(raw, func(r rune) bool { return r == ',' || r == '?' }) {
		term, _, _ = strings.Cut(term, "(") // "(unfulfilled)", "(failed)"
		typ, rest, _ := strings.Cut(term, ":")
		if typ = strings.TrimSpace(typ); typ == "" {
			continue
		}
		if strings.TrimSpace(rest) == "" {
			d.List = append(d.List, job.Dependency{Type: typ})
			continue
		}
		for one := range strings.SplitSeq(rest, ":") { // sbatch takes afterok:1:2
			one = strings.TrimSpace(one)
			n := refLen(one)
			id, more := one[:n], one[n:]
			// "12_*" is how Slurm prints a dependency on all of array 12; nothing but a delay follows.
			if all, ok := strings.CutPrefix(more, "_*"); ok && (all == "" || all[0] == '+') {
				more = all
			}
			d.List = append(d.List, job.Dependency{Type: typ, Job: id, Rest: more})
		}
	}
	d.List = d.List[:len(d.List):len(d.List)] // jobs share it: appending must copy
	return d
}

// refLen is how many bytes of s are the number of a job or an array task.
func refLen(s string) int {
	n := digitsLen(s)
	if n > 0 && n < len(s) && s[n] == '_' {
		if task := digitsLen(s[n+1:]); task > 0 {
			return n + 1 + task
		}
	}
	return n
}

func digitsLen(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
