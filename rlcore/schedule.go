package rlcore

import (
	"cmp"
	"math"
	"slices"
)

// schedule is a list schedule: each job in turn gets the GPUs that it may use and that are free first, as
// plain Slurm hands them out. It holds when each GPU is free, in seconds on any clock.
//
// A segment tree finds the GPU that is free first. GPUs that the same jobs may use form a class, and those of a
// class are neighbours in the tree, so a job that may use some classes queries as many ranges. Changes are
// logged, so that a trial costs what it changes.
type schedule struct {
	free    []float64 // by GPU
	node    []int     // by GPU: the number of its node
	nodes   int
	class   []int // by GPU
	classes int
	order   []int // position in the tree → GPU
	pos     []int // GPU → position in the tree
	tree    []int // tree[i] is the GPU below node i that is free first; the leaves begin at len(free)
	lists   []gpuList
	undo    []undoing

	mark []uint64
	fits []nodeFit
	got  []int
}

// asks is what a job takes of the GPUs: on each of its nodes, 0 = 1, as many of these at once as perNode says, 0 = 1.
type asks struct {
	gpus           []int // indexes, nil = all
	perNode, nodes int
}

func (j *Job) asks() asks { return asks{j.GPUs, j.PerNode, j.Nodes} }

func (a asks) same(b asks) bool {
	return a.perNode == b.perNode && a.nodes == b.nodes && (sameList(a.gpus, b.gpus) || (a.gpus == nil) == (b.gpus == nil) && slices.Equal(a.gpus, b.gpus))
}

// several reports whether the job takes more than one GPU.
func (a asks) several() bool { return max(1, a.perNode)*max(1, a.nodes) > 1 }

// gpuList is a list of GPUs that a notable part of the jobs may use, and its positions in the tree.
type gpuList struct {
	gpus   []int
	jobs   int
	ranges [][2]int // from, to
}

// undoing is the earlier value of a GPU's free time.
type undoing struct {
	gpu  int
	free float64
}

// nodeFit is when a node has as many free GPUs as a job takes there.
type nodeFit struct {
	node int
	at   float64
}

// mostLists bounds the lists that make classes: a list counts where it is that of one job in mostLists.
const mostLists = 20

// shape sets which GPUs there are, the node of each, and which of them are interchangeable for the jobs, by the
// list of GPUs that each job may use.
func (f *schedule) shape(node []int, jobs int, list func(i int) []int) {
	n := len(node)
	f.node, f.nodes = node, 0
	for _, at := range node {
		f.nodes = max(f.nodes, at+1)
	}
	f.countLists(jobs, list)
	f.mark = slices.Grow(f.mark[:0], n)[:n]
	clear(f.mark)
	for i := range f.lists {
		for _, g := range f.lists[i].gpus {
			if g >= 0 && g < n {
				f.mark[g] |= 1 << i
			}
		}
	}
	f.order = slices.Grow(f.order[:0], n)[:n]
	for g := range f.order {
		f.order[g] = g
	}
	if len(f.lists) > 0 {
		slices.SortStableFunc(f.order, func(a, b int) int { return cmp.Compare(f.mark[a], f.mark[b]) })
	}
	f.pos, f.class = slices.Grow(f.pos[:0], n)[:n], slices.Grow(f.class[:0], n)[:n]
	f.classes = 0
	from := 0
	for p, g := range f.order {
		f.pos[g] = p
		if p > 0 && f.mark[g] != f.mark[f.order[p-1]] {
			f.addRange(from, p)
			from = p
			f.classes++
		}
		f.class[g] = f.classes
	}
	f.addRange(from, n)
	f.classes++
}

// countLists finds the lists that a notable part of the jobs has.
func (f *schedule) countLists(jobs int, list func(i int) []int) {
	f.lists = f.lists[:0]
	at := -1
	for i := range jobs {
		gpus := list(i)
		if gpus == nil {
			continue
		}
		if at < 0 || !sameList(f.lists[at].gpus, gpus) { // neighbours often share one
			at = slices.IndexFunc(f.lists, func(l gpuList) bool { return sameList(l.gpus, gpus) })
		}
		if at < 0 {
			if len(f.lists) == 4*mostLists {
				continue
			}
			at = len(f.lists)
			f.lists = append(f.lists, gpuList{gpus: gpus})
		}
		f.lists[at].jobs++
	}
	f.lists = slices.DeleteFunc(f.lists, func(l gpuList) bool { return l.jobs*mostLists < jobs || len(l.gpus) == 0 })
}

func (f *schedule) addRange(from, to int) {
	if from == to {
		return
	}
	for i := range f.lists {
		if f.mark[f.order[from]]>>i&1 == 1 {
			f.lists[i].ranges = append(f.lists[i].ranges, [2]int{from, to})
		}
	}
}

// sameList reports whether a and b are one list; many jobs share one.
func sameList(a, b []int) bool {
	return len(a) == len(b) && (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0])
}

// listOf returns the ranges of the GPUs that a job may use; false = it is no list that makes classes.
func (f *schedule) listOf(gpus []int) ([][2]int, bool) {
	for i := range f.lists {
		if sameList(f.lists[i].gpus, gpus) {
			return f.lists[i].ranges, true
		}
	}
	return nil, false
}

// reset begins with GPUs that are free at the given times.
func (f *schedule) reset(free []float64) {
	n := len(free)
	f.free, f.undo = append(f.free[:0], free...), f.undo[:0]
	f.tree = slices.Grow(f.tree[:0], 2*n)[:2*n]
	for p, g := range f.order {
		f.tree[n+p] = g
	}
	for i := n - 1; i > 0; i-- {
		f.tree[i] = f.first(f.tree[2*i], f.tree[2*i+1])
	}
}

// first returns the GPU of two that is free first, of equals the one of the lower index.
func (f *schedule) first(a, b int) int {
	if x, y := f.free[a], f.free[b]; x < y || x == y && a < b {
		return a
	}
	return b
}

// set changes when GPU g is free.
func (f *schedule) set(g int, at float64) {
	f.undo = append(f.undo, undoing{g, f.free[g]})
	f.put(g, at)
}

func (f *schedule) put(g int, at float64) {
	f.free[g] = at
	for i := (len(f.free) + f.pos[g]) / 2; i > 0; i /= 2 {
		f.tree[i] = f.first(f.tree[2*i], f.tree[2*i+1])
	}
}

// back undoes what was set since the log had n entries.
func (f *schedule) back(n int) {
	for len(f.undo) > n {
		last := f.undo[len(f.undo)-1]
		f.undo = f.undo[:len(f.undo)-1]
		f.put(last.gpu, last.free)
	}
}

// firstIn returns the GPU that is free first in a range of positions; −1 = the range is empty.
func (f *schedule) firstIn(from, to int) int {
	n, at := len(f.free), -1
	take := func(i int) {
		if at < 0 {
			at = f.tree[i]
		} else {
			at = f.first(at, f.tree[i])
		}
	}
	for from, to = from+n, to+n; from < to; from, to = from/2, to/2 {
		if from&1 == 1 {
			take(from)
			from++
		}
		if to&1 == 1 {
			to--
			take(to)
		}
	}
	return at
}

// firstFor returns the GPU that is free first among those that a job may use; −1 = none ever is.
func (f *schedule) firstFor(gpus []int) int {
	at := -1
	better := func(g int) {
		if g >= 0 && g < len(f.free) && !math.IsInf(f.free[g], 1) && (at < 0 || f.first(g, at) == g) {
			at = g
		}
	}
	if gpus == nil {
		better(f.firstIn(0, len(f.free)))
		return at
	}
	if ranges, ok := f.listOf(gpus); ok {
		for _, r := range ranges {
			better(f.firstIn(r[0], r[1]))
		}
		return at
	}
	for _, g := range gpus {
		better(g)
	}
	return at
}

// start returns when the job starts, and its GPUs, valid until the next call; +Inf = never.
func (f *schedule) start(j asks) (at float64, gpus []int) {
	f.got = f.got[:0]
	if j.several() {
		return f.startSeveral(j)
	}
	g := f.firstFor(j.gpus)
	if g < 0 {
		return math.Inf(1), nil
	}
	f.got = append(f.got, g)
	return f.free[g], f.got
}

// startSeveral is start for a job that takes several GPUs at once: on each of its nodes as many as it asks for,
// on the nodes that have them first.
func (f *schedule) startSeveral(j asks) (at float64, gpus []int) {
	perNode, nodes := max(1, j.perNode), max(1, j.nodes)
	byNode := make([][]int, f.nodes)
	use := func(g int) {
		if g >= 0 && g < len(f.free) && !math.IsInf(f.free[g], 1) {
			byNode[f.node[g]] = append(byNode[f.node[g]], g)
		}
	}
	for _, g := range j.gpus {
		use(g)
	}
	for g := 0; j.gpus == nil && g < len(f.free); g++ {
		use(g)
	}
	f.fits = f.fits[:0]
	for k, all := range byNode {
		if len(all) >= perNode {
			slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(f.free[a], f.free[b]) })
			f.fits = append(f.fits, nodeFit{k, f.free[all[perNode-1]]})
		}
	}
	if len(f.fits) < nodes {
		return math.Inf(1), nil
	}
	slices.SortStableFunc(f.fits, func(a, b nodeFit) int { return cmp.Compare(a.at, b.at) })
	for _, fit := range f.fits[:nodes] {
		f.got = append(f.got, byNode[fit.node][:perNode]...)
		at = max(at, fit.at)
	}
	return at, f.got
}

// run gives the job its GPUs for so many seconds, and returns when it starts; +Inf = never.
func (f *schedule) run(j asks, takes float64) (at float64, gpus []int) {
	at, gpus = f.start(j)
	for _, g := range gpus {
		f.set(g, at+takes)
	}
	return at, gpus
}

// nodeNumbers numbers the nodes of GPUs by their names.
func nodeNumbers(dst []int, gpus int, name func(g int) string) []int {
	dst = dst[:0]
	number, last := map[string]int{}, ""
	for g := range gpus {
		at := name(g)
		if g > 0 && at == last {
			dst = append(dst, dst[g-1])
			continue
		}
		last = at
		k, ok := number[at]
		if !ok {
			k = len(number)
			number[at] = k
		}
		dst = append(dst, k)
	}
	return dst
}
