package slurmbridge

import "slices"

// split gives n jobs equal parts of free shares; the first ones get what is left
// over, so that the parts sum to free and nothing else slips in beside them.
func split(free, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = free / n
		if i < free%n {
			out[i]++
		}
	}
	return out
}

// heavy gives the last n−1 jobs small shares each and the first one the rest.
func heavy(free, n, small int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = small
	}
	out[0] = free - small*(n-1)
	return out
}

// lands reports whether requests of the given shares, served in this order, all
// end up on GPU target of a node whose GPUs have the given free shares. Slurm
// gives each the first GPU, in gres.conf's order, that has as much.
func lands(free []int, target int, shares []int) bool {
	free = slices.Clone(free)
	for _, s := range shares {
		g := slices.IndexFunc(free, func(f int) bool { return f >= s })
		if g != target {
			return false
		}
		free[g] -= s
	}
	return true
}

// shares finds parts of the free shares for n jobs, such that Slurm puts all of
// them on GPU g. On a node with one GPU any parts do. false: no such parts.
func (r *round) shares(g, free, n int, kind GroupKind) ([]int, bool) {
	if n < 1 || free < n {
		return nil, false
	}
	even := split(free, n)
	ref := r.b.gpus[g]
	if ref.node.GPUs == 1 {
		return even, true
	}
	if kind == Next {
		return nil, false
	}
	node := make([]int, ref.node.GPUs)
	for i, x := range r.b.gpus {
		if x.node == ref.node {
			node[x.index] = r.b.State.GPUs[i].FreeShares()
		}
	}
	// Any order of service must do: members of one release may have any
	// priority among themselves.
	try := func(s []int) bool {
		rev := slices.Clone(s)
		slices.Reverse(rev)
		if ref := node[r.b.gpus[g].index]; n == 1 && ref == Units && s[0] == Units {
			return true // a whole GPU's shares: any GPU that is free will do
		}
		return lands(node, r.b.gpus[g].index, s) && lands(node, r.b.gpus[g].index, rev)
	}
	if try(even) {
		return even, true
	}
	for _, small := range []int{20, 10, 5, 2, 1} {
		if free > small*n {
			if s := heavy(free, n, small); try(s) {
				return s, true
			}
		}
	}
	return nil, false
}
