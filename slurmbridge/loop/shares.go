package loop

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

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

// leaves returns how much of the free shares n jobs get if one more is to find room
// beside them: each the same part that is left over. All of it, where nobody could
// join: the GPU serves no more, or one of them wants no company or isn't known. All
// of it for one job that waits alone, too: it isn't bound to the node, and would find
// room elsewhere, beside somebody nobody asked about.
func (r *planPass) leaves(g, free int, chosen []int, kind job.GroupKind) int {
	card := &r.b.State.GPUs[g]
	n := len(chosen)
	on := n
	if kind == job.Join {
		on += len(card.Running)
	}
	if !r.p.Room || !rlcore.Shares(r.p.Decider.Policy) || kind == job.Next && n == 1 || on >= r.p.Decider.Guard.Members(&card.Spec) || free < n+1 {
		return free
	}
	for _, at := range chosen {
		if j := &r.b.State.Pending[at]; j.NoShare || j.Profile == nil {
			return free
		}
	}
	return free / (n + 1) * n
}

// shares finds parts of the free shares for n jobs, such that Slurm puts all of
// them on GPU g. On a node with one GPU any parts do. false: no such parts.
func (r *planPass) shares(g, free int, chosen []int, kind job.GroupKind) ([]int, bool) {
	n := len(chosen)
	if n < 1 || free < n {
		return nil, false
	}
	even := split(free, n)
	ref := r.b.gpus[g]
	if ref.node.GPUs == 1 {
		return split(r.leaves(g, free, chosen, kind), n), true
	}
	if kind == job.Next {
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
		if ref := node[r.b.gpus[g].index]; n == 1 && ref == job.Units && s[0] == job.Units {
			return true // a whole GPU's shares: any GPU that is free will do
		}
		return lands(node, r.b.gpus[g].index, s) && lands(node, r.b.gpus[g].index, rev) && r.safe(g, chosen, s)
	}
	if room := split(r.leaves(g, free, chosen, kind), n); try(room) {
		return room, true
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

// safe reports whether the guard allows the chosen jobs wherever Slurm might put
// them. Between the look and the start any job of the node may end; a member that
// then fits beside the rest on another GPU may land there.
func (r *planPass) safe(target int, chosen, shares []int) bool {
	st := &r.b.State
	tmp := rlcore.State{NowS: st.NowS, GPUs: make([]rlcore.GPU, 1), Pending: st.Pending}
	for g := range st.GPUs {
		card := st.GPUs[g]
		if g == target || r.b.gpus[g].node != r.b.gpus[target].node || len(card.Running) > 12 {
			continue
		}
		running := card.Running
		for rest := 1; rest < 1<<len(running); rest++ {
			card.Running = card.Running[:0:0]
			for i := range running {
				if rest>>i&1 == 1 {
					card.Running = append(card.Running, running[i])
				}
			}
			tmp.GPUs[0] = card
			free := card.FreeShares()
			for some := 1; some < 1<<len(chosen); some++ {
				w := rlcore.Window{State: &tmp}
				sum := 0
				for i, j := range chosen {
					if some>>i&1 == 1 {
						w.Jobs = append(w.Jobs, j)
						sum += shares[i]
					}
				}
				if sum <= free && r.p.Decider.Guard.Check(&w, 1<<len(w.Jobs)-1) != rlcore.Allowed {
					return false
				}
			}
		}
	}
	return true
}
