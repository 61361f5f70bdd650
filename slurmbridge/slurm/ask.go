package slurm

import (
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Tres is a job's request for generic resources in the four forms that sbatch has
// for it, each as squeue prints it ("" or "N/A" for none).
type Tres struct {
	PerNode   string // --gres, --gpus-per-node
	PerJob    string // --gpus
	PerSocket string // --gpus-per-socket
	PerTask   string // --gpus-per-task, and from 23.11 CPUs too
}

// ParseAsk takes a request apart. It understands both spellings of a gres,
// "gres:mps:50" (to 23.02) and "gres/mps:50" (later), with or without a type, and
// the bare "mps:50" that scontrol update takes.
//
// AskShared and AskShares say that `scontrol update Gres=` can rewrite the whole
// request. It can't where the request is per job, socket or task (slurmctld
// refuses), and where it is for something else too (that would be lost): such a
// request is called one of whole GPUs, so that the bridge leaves the job alone
// and puts nothing beside it. Count is per node, job, socket or task, as asked.
func ParseAsk(t Tres) job.GPURequest {
	ask := parseGres(t.PerNode)
	for _, s := range [...]string{t.PerJob, t.PerSocket, t.PerTask} {
		more := whole(parseGres(s))
		switch {
		case more.Kind == job.NoGPU:
		case ask.Kind == job.NoGPU:
			ask = more
		default: // the same GPUs seen from two sides
			ask = whole(ask)
			ask.Count = max(ask.Count, more.Count)
			ask.Raw += "," + more.Raw
		}
	}
	return ask
}

// whole calls a request that can't be rewritten one of whole GPUs.
func whole(a job.GPURequest) job.GPURequest {
	if a.Kind == job.Shares {
		a.Count = 1 // at least
	}
	if a.Kind != job.NoGPU {
		a.Kind, a.Sharing = job.WholeGPU, ""
	}
	return a
}

// parseGres reads one comma-separated list. Anything that is no GPU is passed
// over, but stays in Raw.
func parseGres(list string) job.GPURequest {
	var ask job.GPURequest
	if isNone(list) {
		return ask
	}
	items := 0
	for item := range splitOutside(list) {
		items++
		name, typ, count, ok := parseGresItem(item)
		if !ok {
			continue
		}
		one := job.GPURequest{Kind: job.Shares, Sharing: job.Sharing(name), Count: count}
		switch {
		case name == "gpu" && typ == "shared":
			one = job.GPURequest{Kind: job.SharedGPU, Count: count}
		case name == "gpu":
			one = job.GPURequest{Kind: job.WholeGPU, Count: count}
		}
		if ask.Kind == job.NoGPU {
			ask = one
		} else {
			more := whole(one).Count
			ask = whole(ask)
			ask.Count += more
		}
	}
	if ask.Kind != job.NoGPU {
		ask.Raw = list
	}
	if items > 1 {
		ask = whole(ask)
	}
	return ask
}

// parseGresItem reads one gres of a list: [gres:|gres/]name[[:=]type][[:=]count],
// with something in parentheses behind it perhaps. false: it is no GPU.
func parseGresItem(item string) (name, typ string, count int, ok bool) {
	item = strings.TrimSpace(item)
	if cut, had := strings.CutPrefix(item, "gres"); had && cut != "" && (cut[0] == ':' || cut[0] == '/') {
		item = cut[1:]
	}
	if i := strings.IndexByte(item, '('); i >= 0 {
		item = item[:i]
	}
	name, rest := cutAny(item)
	switch name {
	case "gpu", "mps", "shard":
	default:
		return "", "", 0, false
	}
	first, second := cutAny(rest)
	switch {
	case first == "":
		return name, "", 1, true
	case second != "":
		n, ok := parseCount(second)
		return name, first, n, ok
	}
	if n, isCount := parseCount(first); isCount {
		return name, "", n, true
	}
	return name, first, 1, true
}

// cutAny cuts at the first ':' or '='.
func cutAny(s string) (before, after string) {
	if i := strings.IndexAny(s, ":="); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// maxCount bounds a gres count, so that no sum of a few overflows.
const maxCount = 1 << 30

// parseCount reads a count as Slurm writes it: digits, with K, M… for powers of
// 1,024 perhaps.
func parseCount(s string) (int, bool) {
	scale := 1
	if n := len(s); n > 1 {
		switch s[n-1] {
		case 'K', 'k':
			scale, s = 1<<10, s[:n-1]
		case 'M', 'm':
			scale, s = 1<<20, s[:n-1]
		}
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, false
	}
	return int(min(n*uint64(scale), maxCount)), true
}

// splitOutside yields the parts of a list separated by commas that are not in
// parentheses or brackets.
func splitOutside(list string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		depth, from := 0, 0
		for i := range len(list) {
			switch list[i] {
			case '(', '[':
				depth++
			case ')', ']':
				depth = max(0, depth-1)
			case ',':
				if depth == 0 {
					if !yield(list[from:i]) {
						return
					}
					from = i + 1
				}
			}
		}
		yield(list[from:])
	}
}

// isNone reports whether Slurm prints a value that isn't there.
func isNone(s string) bool {
	switch s {
	case "", "N/A", "(null)", "None", "NONE", "n/a", "Unknown":
		return true
	}
	return false
}
