package plan

import "slices"

// rule is how Slurm chooses a GPU of a node for a request for shares, among the GPUs with enough free shares. The
// bridge can't name a GPU, but it can choose the numbers of shares. Slurm considers jobs in order of priority, and
// within one pass each job finds what the earlier ones left.
type rule int

const (
	// firstFit takes the first in gres.conf's order: _pick_specific_topo in
	// src/plugins/select/cons_common/gres_select_filter.c of Slurm 22.05.8, and _pick_shared_gres_topo in
	// src/plugins/select/cons_tres/gres_select_filter.c of 24.11.5 and 26.05.3. GPUs that gres.conf binds to cores of one
	// socket come first for a job with cores there: on such nodes this is a guess.
	firstFit rule = iota
	// leastLoaded takes the GPU with the most free shares, of equals the first, where SelectTypeParameters has
	// LL_SHARED_GRES (from 23.11 on): _get_sorted_topo_by_least_loaded in the same file, with glibc's qsort, which is
	// stable. Every GPU has 100 shares, so the free fraction is the free number.
	leastLoaded
)

// pick returns the GPU that Slurm gives to a request for shares, −1 = none has enough.
func (r rule) pick(free []int, shares int) int {
	at := -1
	for g, f := range free {
		if f >= shares && (at < 0 || r == leastLoaded && f > free[at]) {
			at = g
		}
	}
	return at
}

// lands reports whether each job gets the GPU that it is meant for, if Slurm serves the requests in this order. free
// are the free shares of a node's GPUs, from the given first one on.
func (r rule) lands(free []int, first int, jobs []placement) bool {
	free = slices.Clone(free)
	for i := range jobs {
		g := r.pick(free, jobs[i].Shares)
		if g != jobs[i].gpu-first {
			return false
		}
		free[g] -= jobs[i].Shares
	}
	return true
}

// number chooses the shares of the jobs that have none, so that each lands on its GPU and spare shares stay free there.
// free are the GPUs' free shares before the first request. false: no such numbers were found, and the jobs are
// unchanged. For firstFit the search is complete.
//
// It goes through the requests from the last to the first. When a request is served, its GPU still has the shares of
// the later requests there, plus the spare ones. The request must be larger than what any earlier GPU still has; the
// smallest such number leaves the most freedom to the requests before it. The first request of a GPU gets the rest,
// since only earlier requests see that.
func (r rule) number(free, spare []int, first int, jobs []placement) bool {
	out := slices.Clone(jobs)
	left, opens := slices.Clone(free), make([]int, len(free)) // opens has the first job of each GPU
	for g := range opens {
		opens[g] = -1
	}
	for i, q := range slices.Backward(jobs) {
		if left[q.gpu-first] -= q.Shares; q.Shares == 0 {
			opens[q.gpu-first] = i
		}
	}
	rest := make([]int, len(free)) // for requests without a number
	for g := range left {
		if opens[g] >= 0 {
			rest[g], left[g] = left[g]-spare[g], spare[g]
		}
	}
	for i, q := range slices.Backward(jobs) {
		at, need := q.gpu-first, max(1, q.least)
		for g := range at {
			need = max(need, left[g]+1)
		}
		if q.Shares == 0 {
			if i == opens[at] {
				need = max(need, rest[at])
			}
			rest[at] -= need
			out[i].Shares = need
		}
		if left[at] += out[i].Shares; rest[at] < 0 {
			return false
		}
	}
	if !r.lands(free, first, out) {
		return false
	}
	copy(jobs, out)
	return true
}
