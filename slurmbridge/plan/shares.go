package plan

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// On a node with several GPUs Slurm gives a request for shares the first GPU, in the order
// of gres.conf, that has as many free; the bridge can't name one. A group is released
// there only with shares that put every member on one GPU alone.

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

// lands reports whether requests of the given shares, served in this order, all end up on
// GPU target of a node whose GPUs have the given free shares.
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

// smallest are the parts that all but the first job may get where equal parts would start
// on another GPU.
var smallest = []int{20, 10, 5, 2, 1}

// sharesFor finds parts of GPU g's free shares for the chosen jobs with which Slurm puts
// all of them there. On a node with one GPU any parts do. false: there are no such parts.
func (a *allotter) sharesFor(g int, kind job.GroupKind, chosen []int) ([]int, bool) {
	n, free := len(chosen), a.view.State.GPUs[g].FreeShares()
	if n < 1 || free < n {
		return nil, false
	}
	room := split(a.withRoom(g, free, kind, chosen), n)
	node := a.view.gpus[g].node
	if node.GPUs == 1 {
		if a.bulk && a.view.State.GPUs[g].Spec.SameUser {
			return a.bulky(free, chosen), true
		}
		return room, true
	}
	if kind == job.Next {
		return nil, false
	}
	candidates := [][]int{room, split(free, n)}
	for _, small := range smallest {
		if free > small*n {
			candidates = append(candidates, heavy(free, n, small))
		}
	}
	onNode := make([]int, node.GPUs)
	for i, at := range a.view.nodes[node.Name] {
		onNode[i] = a.view.State.GPUs[at].FreeShares()
	}
	for _, shares := range candidates {
		if a.certain(g, onNode, chosen, shares) {
			return shares, true
		}
	}
	return nil, false
}

// certain reports whether the chosen jobs with these shares start on GPU g alone, whatever
// their priorities among themselves.
func (a *allotter) certain(g int, onNode, chosen, shares []int) bool {
	target := a.view.gpus[g].index
	if len(chosen) == 1 && onNode[target] == job.Units && shares[0] == job.Units {
		return true // a whole GPU's shares: any GPU that is free will do
	}
	reversed := slices.Clone(shares)
	slices.Reverse(reversed)
	return lands(onNode, target, shares) && lands(onNode, target, reversed) && a.safe(g, chosen, shares)
}

// mostRunning is up to how many jobs on another GPU all subsets are checked.
const mostRunning = 12

// safe reports whether the guard allows the chosen jobs wherever on the node Slurm might
// put them. Between the poll and the start any job may end; a member that then fits on
// another GPU may land there.
func (a *allotter) safe(target int, chosen, shares []int) bool {
	for _, g := range a.view.nodes[a.view.gpus[target].node.Name] {
		if g == target || len(a.view.State.GPUs[g].Running) > mostRunning {
			continue
		}
		for rest := 1; rest < 1<<len(a.view.State.GPUs[g].Running); rest++ {
			if !a.safeNextTo(a.subset(g, rest), chosen, shares) {
				return false
			}
		}
	}
	return true
}

// subset is GPU g with some of its running jobs, a bit each.
func (a *allotter) subset(g, rest int) rlcore.GPU {
	card := a.view.State.GPUs[g]
	running := card.Running
	card.Running = nil
	for i := range running {
		if rest>>i&1 == 1 {
			card.Running = append(card.Running, running[i])
		}
	}
	return card
}

// safeNextTo reports whether the guard allows every part of the chosen jobs that finds
// room on a card.
func (a *allotter) safeNextTo(card rlcore.GPU, chosen, shares []int) bool {
	st := rlcore.State{NowS: a.view.State.NowS, GPUs: []rlcore.GPU{card}, Pending: a.view.State.Pending}
	free := card.FreeShares()
	for some := 1; some < 1<<len(chosen); some++ {
		w := rlcore.Window{State: &st}
		sum := 0
		for i, j := range chosen {
			if some>>i&1 == 1 {
				w.Jobs = append(w.Jobs, j)
				sum += shares[i]
			}
		}
		if sum <= free && a.guard.Check(&w, 1<<len(w.Jobs)-1) != rlcore.Allowed {
			return false
		}
	}
	return true
}
