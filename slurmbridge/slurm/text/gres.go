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

// ofGPU reports whether it is GPUs or shares of one.
func (g Gres) ofGPU() bool { return g.Name == "gpu" || g.Name == "mps" || g.Name == "shard" }

// parseGresItem reads [gres:|gres/]name[[:=]type][[:=]count], which something in parentheses may follow.
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
		g.Type, g.Count = "", n
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

// parseCount reads a count as Slurm writes it: digits, which K or M may follow for powers of 1,024.
func parseCount(s string) (int, bool) {
	scale := uint64(1)
	if n := len(s); n > 1 {
		switch s[n-1] {
		case 'K', 'k':
			scale, s = 1<<10, s[:n-1]
		case 'M', 'm':
			scale, s = 1<<20, s[:n-1]
		}
	}
	n, err := strconv.ParseUint(s, 10, 31)
	return int(min(n*scale, maxCount)), err == nil
}

// TRES is a job's request for generic resources in the four forms that sbatch has for it, each as squeue prints it.
type TRES struct {
	PerNode   string // --gres, --gpus-per-node
	PerJob    string // --gpus
	PerSocket string // --gpus-per-socket
	PerTask   string // --gpus-per-task, and from 23.11 CPUs too
}

// ParseRequest reads a request.
//
// job.SharedGPU and job.Shares say that `scontrol update Gres=` can rewrite the whole request. It can't where the
// request is per job, socket or task (slurmctld refuses), and where it holds another resource too (which would be
// lost): such a request counts as one of whole GPUs, so that the bridge leaves the job alone and puts nothing on its
// GPU. Count is per node, job, socket or task, as requested.
func ParseRequest(t TRES) job.GPURequest {
	r := parseRequestList(t.PerNode)
	for _, s := range [...]string{t.PerJob, t.PerSocket, t.PerTask} {
		more := WholeGPUs(parseRequestList(s))
		switch {
		case more.Kind == job.NoGPU:
		case r.Kind == job.NoGPU:
			r = more
			r.PerNode = false
		default: // the same GPUs seen from two sides
			r = WholeGPUs(r)
			r.PerNode = false
			r.Count = max(r.Count, more.Count)
			r.Raw += "," + more.Raw
		}
	}
	return r
}

// WholeGPUs turns a request that can't be rewritten into one of whole GPUs.
func WholeGPUs(r job.GPURequest) job.GPURequest {
	if r.Kind == job.Shares {
		r.Count, r.Type = 1, "" // at least
	}
	if r.Kind != job.NoGPU {
		r.Kind, r.Sharing = job.WholeGPU, ""
	}
	return r
}

// parseRequestList reads one of a request's lists. What is no GPU stays in Raw.
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
		r.Count, r.Type = r.Count+WholeGPUs(one).Count, ""
	}
	if r.Kind != job.NoGPU {
		r.Raw, r.PerNode = list, n == 1 && r.Kind == job.WholeGPU
	}
	if n > 1 {
		r = WholeGPUs(r)
	}
	return r
}

// ParseDependencies reads a job's unmet dependencies as squeue prints them:
// "after:12+5(unfulfilled),afterok:7_2(unfulfilled)". A list separated by "?" sets Or. A condition that can't be read
// keeps its place, with its text in Rest, so that it isn't taken for met.
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
