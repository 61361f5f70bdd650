package text

import (
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// Gres is one item of a list of generic resources.
type Gres struct {
	Name, Type string // Type "" = none
	Count      int
}

// ofGPU reports whether the item is GPUs or shares of a GPU.
func (g Gres) ofGPU() bool { return g.Name == "gpu" || g.Name == "mps" || g.Name == "shard" }

// parseGresItem reads [gres:|gres/]name[[:=]type][[:=]count], and ignores parentheses after it.
func parseGresItem(item string) (g Gres, ok bool) {
	item = strings.TrimSpace(item)
	if cut, had := strings.CutPrefix(item, "gres"); had && cut != "" && (cut[0] == ':' || cut[0] == '/') {
		item = cut[1:]
	}
	item, _, _ = strings.Cut(item, "(")
	name, rest := cutAny(item)
	first, second := cutAny(rest)
	g = Gres{Name: name, Type: first, Count: 1}
	if second != "" {
		g.Count, ok = parseCount(second)
		return g, ok && name != ""
	}
	if n, isCount := parseCount(first); isCount {
		g.Type = ""
		g.Count = n
	}
	return g, name != ""
}

// cutAny cuts at the first ':' or '='.
func cutAny(s string) (before, after string) {
	if i := strings.IndexAny(s, ":="); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// parseCount reads a count as Slurm writes it: digits, perhaps with K (1,024) or M (1,024²).
func parseCount(s string) (int, bool) {
	scale := uint64(1)
	if n := len(s); n > 1 {
		switch s[n-1] {
		case 'K', 'k':
			scale = 1 << 10
			s = s[:n-1]
		case 'M', 'm':
			scale = 1 << 20
			s = s[:n-1]
		}
	}
	n, err := strconv.ParseUint(s, 10, 31)
	return int(min(n*scale, maxCount)), err == nil
}

// TRES is a job's request for generic resources in sbatch's four forms, each as squeue prints it.
type TRES struct {
	PerNode   string // --gres, --gpus-per-node
	PerJob    string // --gpus
	PerSocket string // --gpus-per-socket
	PerTask   string // --gpus-per-task, and from 23.11 on CPUs as well
}

// ParseRequest reads a request. Count is per node, job, socket or task, as requested.
//
// The kinds job.SharedGPU and job.Shares imply that `scontrol update Gres=` can rewrite the whole request. It can't if
// the request is per job, socket or task (slurmctld refuses), or includes another resource (which would be lost). Such
// a request counts as whole GPUs: the bridge leaves the job alone and puts no job on its GPU.
func ParseRequest(t TRES) job.GPURequest {
	r := parseRequestList(t.PerNode)
	for _, s := range [...]string{t.PerJob, t.PerSocket, t.PerTask} {
		more := WholeGPUs(parseRequestList(s))
		switch {
		case more.Kind == job.NoGPU:
		case r.Kind == job.NoGPU:
			r = more
			r.PerNode = false
		default: // both lists describe the same GPUs
			r = WholeGPUs(r)
			r.PerNode = false
			r.Count = max(r.Count, more.Count)
			r.Raw += "," + more.Raw
		}
	}
	return r
}

// WholeGPUs turns a request that can't be rewritten into a request for whole GPUs.
func WholeGPUs(r job.GPURequest) job.GPURequest {
	if r.Kind == job.Shares {
		r.Count = 1 // at least
		r.Type = ""
	}
	if r.Kind != job.NoGPU {
		r.Kind = job.WholeGPU
		r.Sharing = ""
	}
	return r
}

// parseRequestList reads one of a request's lists. Raw keeps the whole list, with other resources.
func parseRequestList(list string) job.GPURequest {
	var r job.GPURequest
	if IsNone(list) {
		return r
	}
	n := 0
	for item := range hostlist.Items(list) {
		n++
		g, ok := parseGresItem(item)
		if !ok || !g.ofGPU() {
			continue
		}
		one := job.GPURequest{Kind: job.Shares, Sharing: job.Sharing(g.Name), Type: g.Type, Count: g.Count}
		switch {
		case g.Name == "gpu" && g.Type == "shared":
			one.Kind, one.Sharing = job.SharedGPU, ""
		case g.Name == "gpu":
			one.Kind, one.Sharing = job.WholeGPU, ""
		}
		if r.Kind == job.NoGPU {
			r = one
			continue
		}
		r = WholeGPUs(r)
		r.Count += WholeGPUs(one).Count
		r.Type = ""
	}
	if r.Kind != job.NoGPU {
		r.Raw = list
		r.PerNode = n == 1 && r.Kind == job.WholeGPU
	}
	if n > 1 {
		r = WholeGPUs(r)
	}
	return r
}

// ParseDependencies reads a job's unmet dependencies as squeue prints them:
// "after:12+5(unfulfilled),afterok:7_2(unfulfilled)". A list separated by "?" sets Or. An unreadable condition stays in
// the list, with its text in Rest, so it isn't taken for met.
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
			// Slurm prints a dependency on all of array 12 as "12_*", perhaps followed by a delay.
			if all, ok := strings.CutPrefix(more, "_*"); ok && (all == "" || all[0] == '+') {
				more = all
			}
			d.List = append(d.List, job.Dependency{Type: typ, Job: id, Rest: more})
		}
	}
	d.List = d.List[:len(d.List):len(d.List)] // jobs share it: appending must copy
	return d
}

// refLen returns the length of the job or array task number at the beginning of s.
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
