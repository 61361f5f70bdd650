package slurm

import (
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// ParseDependencies takes a job's unmet dependencies apart, as squeue prints
// them: "after:12+5(unfulfilled),afterok:7_2(unfulfilled)". A list separated by
// "?" sets Or. Terms it can't read keep their place, with the text in Rest, so
// that nobody takes them for met.
func ParseDependencies(raw string) job.Dependencies {
	d := job.Dependencies{}
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
			d.List = append(d.List, job.Dependency{Type: typ})
			continue
		}
		for one := range strings.SplitSeq(rest, ":") { // sbatch takes afterok:1:2
			n := refLen(one)
			id, more := one[:n], one[n:]
			// "12_*" is how Slurm prints a dependency on all of array 12.
			if tail, all := strings.CutPrefix(more, "_*"); all {
				more = tail
			}
			d.List = append(d.List, job.Dependency{Type: typ, Job: id, Rest: more})
		}
	}
	d.List = d.List[:len(d.List):len(d.List)] // jobs share it: appending must copy
	return d
}

// refLen is how many bytes of s are a job's or an array task's number.
func refLen(s string) int {
	n := digitsLen(s)
	if n > 0 && n < len(s) && s[n] == '_' {
		if task := digitsLen(s[n+1:]); task > 0 {
			return n + 1 + task
		}
	}
	return n
}

func digitsLen(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
