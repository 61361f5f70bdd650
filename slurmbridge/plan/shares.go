package plan

import (
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// split gives n jobs equal parts of the free shares; the first ones get what is left over,
// so that the parts sum to free and no other job finds room next to them.
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

// heavy gives all but the first job small shares, and the first the rest.
func heavy(free, n, small int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = small
	}
	out[0] = free - small*(n-1)
	return out
}

// allotter chooses the shares of a group's members.
type allotter struct {
	view  *view
	guard *rlcore.Guard
	room  func() bool // leave room for one more job, where one may join
	bulk  bool        // give nearly all shares to the member that ends last
}

// withRoom is how many of the free shares n jobs get if one more job is to find room next
// to them: each the same part, one part left over. All of them where no job could join:
// the GPU serves no more, or one of the jobs doesn't share or has no profile. All of them
// also for one job that waits alone: it isn't bound to the node, and could start on
// another GPU next to jobs that it was never checked with.
func (a *allotter) withRoom(g, free int, kind job.GroupKind, chosen []int) int {
	card := &a.view.State.GPUs[g]
	n := len(chosen)
	there := n
	if kind == job.Join {
		there += len(card.Running)
	}
	if !a.room() || kind == job.Next && n == 1 || there >= a.guard.Members(&card.Spec) || free < n+1 {
		return free
	}
	for _, at := range chosen {
		if j := &a.view.State.Pending[at]; j.NoShare || j.Profile == nil {
			return free
		}
	}
	return free / (n + 1) * n
}

// bulky gives each job one share, and the rest to the one that takes longest: what the others
// free when they end is too little for a job whose owner asks for a part of the shares by hand,
// and whom the MPS server doesn't serve. Before Volta shares limit nothing else.
func (a *allotter) bulky(free int, chosen []int) []int {
	out := heavy(free, len(chosen), 1)
	last := 0
	for i, at := range chosen {
		if p, q := a.view.State.Pending[at].Profile, a.view.State.Pending[chosen[last]].Profile; p != nil && q != nil && p.DurationS > q.DurationS {
			last = i
		}
	}
	out[0], out[last] = out[last], out[0]
	return out
}

// alone are the shares of the chosen jobs on a node with one GPU, where any do.
func (a *allotter) alone(g int, kind job.GroupKind, chosen []int) []int {
	free := a.view.State.GPUs[g].FreeShares()
	if a.bulk && a.view.State.GPUs[g].Spec.SameUser {
		return a.bulky(free, chosen)
	}
	return split(a.withRoom(g, free, kind, chosen), len(chosen))
}
