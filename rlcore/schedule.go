package rlcore

import (
	"cmp"
	"math"
	"slices"
)

// schedule is a list schedule: each job in turn gets the GPUs that it may use and that are free first, as plain Slurm
// hands them out. It holds when each GPU is free, in seconds on any clock.
//
// GPUs that the same jobs may use form a class. The schedule keeps the GPUs of each class in the order in which they
// are free, so that two schedules of one cluster can be compared class by class.
type schedule struct {
	*cluster
	free  []float64 // by GPU
	order [][]int   // by class: its GPUs, the one that is free first first, of equals the one of the lower index

	// byNode has the GPUs of the last list that a job of several GPUs was started on, nil = all, by node and in order, but
	// for stale nodes.
	byNode [][]int
	listed []int
	known  bool // that there is such a list
	stale  []int
	fits   []nodeFit
	got    []int
}

// cluster is the fixed part of a schedule: the node and the class of each GPU, and the classes of each list of GPUs.
type cluster struct {
	node    []int
	class   []int
	nodes   int
	classes int
	lists   []gpuList

	numbers map[string]int // of nodes
	marks   []uint64       // by GPU: the lists that it is on
}

// gpuList is a list of GPUs that many jobs share.
type gpuList struct {
	gpus    []int // nil = all
	jobs    int
	classes []int
}

// nodeFit is when a node has enough free GPUs for a job.
type nodeFit struct {
	node int
	at   float64
}

// asks is a job's request: perNode GPUs at once on each of its nodes; 0 = 1.
type asks struct {
	gpus           []int // indexes, nil = all
	perNode, nodes int
}

func (j *Job) asks() asks { return asks{j.GPUs, j.PerNode, j.Nodes} }

// mostLists bounds the lists that divide GPUs into classes: a list counts if one job in mostLists has it.
const mostLists = 20

// divide divides n GPUs into classes, by the lists of the jobs. name is the name of a GPU's node.
func (k *cluster) divide(n int, name func(g int) string, jobs int, list func(i int) []int) {
	k.commonLists(jobs, list)
	if k.numbers == nil {
		k.numbers = map[string]int{}
	}
	clear(k.numbers)
	k.node, k.class, k.marks = resize(k.node, n), resize(k.class, n), resize(k.marks, n)
	k.classes = 0
	for g := range n {
		number, known := k.numbers[name(g)]
		if !known {
			number = len(k.numbers)
			k.numbers[name(g)] = number
		}
		k.node[g] = number
	}
	k.nodes = len(k.numbers)
	for i := range k.lists {
		for g := range mayUse(k.lists[i].gpus, n) {
			k.marks[g] |= 1 << i
		}
	}
	for g, m := range k.marks {
		if like := slices.Index(k.marks[:g], m); like >= 0 {
			k.class[g] = k.class[like]
			continue
		}
		k.class[g] = k.classes
		for i := range k.lists {
			if m>>i&1 == 1 {
				k.lists[i].classes = append(k.lists[i].classes, k.classes)
			}
		}
		k.classes++
	}
}

// resize returns n zeros in s's storage.
func resize[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// commonLists sets the lists of a notable part of the jobs, and the list of all GPUs.
func (k *cluster) commonLists(jobs int, list func(i int) []int) {
	all := gpuList{jobs: jobs}
	if len(k.lists) > 0 {
		all.classes = k.lists[0].classes[:0]
	}
	lists, at := append(k.lists[:0], all), 0
	for i := range jobs {
		gpus := list(i)
		if !sameList(lists[at].gpus, gpus) { // neighbours often share one
			at = slices.IndexFunc(lists, func(l gpuList) bool { return sameList(l.gpus, gpus) })
		}
		if at < 0 && len(lists) < 4*mostLists {
			lists = append(lists, gpuList{gpus: gpus})
			at = len(lists) - 1
		}
		if at = max(at, 0); at > 0 {
			lists[at].jobs++
		}
	}
	k.lists = slices.DeleteFunc(lists, func(l gpuList) bool { return l.jobs*mostLists < jobs })
}

// mayUse ranges over the GPUs of a list, nil = all n.
func mayUse(gpus []int, n int) func(func(g int) bool) {
	return func(yield func(int) bool) {
		if gpus == nil {
			for g := range n {
				if !yield(g) {
					return
				}
			}
		}
		for _, g := range gpus {
			if g >= 0 && g < n && !yield(g) {
				return
			}
		}
	}
}

// sameList reports whether a and b are the same list; many jobs share one.
func sameList(a, b []int) bool {
	return len(a) == len(b) && (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0])
}

// reset starts a schedule of a cluster with the given free times.
func (f *schedule) reset(k *cluster, free []float64) {
	f.cluster, f.free, f.known = k, append(f.free[:0], free...), false
	f.order = slices.Grow(f.order[:0], k.classes)[:k.classes]
	for c := range f.order {
		f.order[c] = f.order[c][:0]
	}
	for g, c := range k.class {
		f.order[c] = append(f.order[c], g)
	}
	for _, gpus := range f.order {
		slices.SortFunc(gpus, f.compare)
	}
}

// copy makes f a copy of another schedule.
func (f *schedule) copy(of *schedule) {
	f.cluster, f.free, f.known = of.cluster, append(f.free[:0], of.free...), false
	f.order = slices.Grow(f.order[:0], len(of.order))[:len(of.order)]
	for c := range f.order {
		f.order[c] = append(f.order[c][:0], of.order[c]...)
	}
}

func (f *schedule) compare(a, b int) int { return cmp.Or(cmp.Compare(f.free[a], f.free[b]), a-b) }

// set changes when GPU g is free.
func (f *schedule) set(g int, at float64) {
	if f.known {
		f.stale = append(f.stale, f.node[g])
	}
	gpus := f.order[f.class[g]]
	from, _ := slices.BinarySearchFunc(gpus, g, f.compare)
	f.free[g] = at
	to, _ := slices.BinarySearchFunc(gpus[from+1:], g, f.compare)
	copy(gpus[from:], gpus[from+1:from+1+to])
	if to += from; to == from {
		to, _ = slices.BinarySearchFunc(gpus[:from], g, f.compare)
		copy(gpus[to+1:from+1], gpus[to:from])
	}
	gpus[to] = g
}

// first returns the GPU that is free first among the GPUs of a list; −1 = none ever is.
func (f *schedule) first(gpus []int) int {
	at := -1
	try := func(g int) {
		if !math.IsInf(f.free[g], 1) && (at < 0 || f.compare(g, at) < 0) {
			at = g
		}
	}
	for i := range f.lists {
		if l := &f.lists[i]; sameList(l.gpus, gpus) {
			for _, c := range l.classes {
				try(f.order[c][0])
			}
			return at
		}
	}
	for g := range mayUse(gpus, len(f.free)) {
		try(g)
	}
	return at
}

// start returns when the job starts, and its GPUs, valid until the next call; +Inf = never. A job of several GPUs gets
// them at once, on the first nodes with enough.
func (f *schedule) start(j asks) (at float64, gpus []int) {
	perNode, nodes := max(1, j.perNode), max(1, j.nodes)
	f.got = f.got[:0]
	if perNode*nodes == 1 {
		if g := f.first(j.gpus); g >= 0 {
			f.got = append(f.got, g)
			return f.free[g], f.got
		}
		return math.Inf(1), nil
	}
	f.list(j.gpus)
	f.fits = f.fits[:0]
	for k, all := range f.byNode {
		if len(all) < perNode {
			continue
		}
		fit := nodeFit{k, f.free[all[perNode-1]]}
		switch {
		case math.IsInf(fit.at, 1):
		case nodes == 1 && len(f.fits) == 1:
			if fit.at < f.fits[0].at {
				f.fits[0] = fit
			}
		default:
			f.fits = append(f.fits, fit)
		}
	}
	if len(f.fits) < nodes {
		return math.Inf(1), nil
	}
	slices.SortStableFunc(f.fits, func(a, b nodeFit) int { return cmp.Compare(a.at, b.at) })
	for _, fit := range f.fits[:nodes] {
		f.got = append(f.got, f.byNode[fit.node][:perNode]...)
		at = max(at, fit.at)
	}
	return at, f.got
}

// list brings byNode up to date for a list of GPUs, nil = all.
func (f *schedule) list(gpus []int) {
	if f.known && sameList(f.listed, gpus) {
		for _, k := range f.stale {
			slices.SortFunc(f.byNode[k], f.compare)
		}
		f.stale = f.stale[:0]
		return
	}
	f.known, f.listed, f.stale = true, gpus, f.stale[:0]
	f.byNode = slices.Grow(f.byNode[:0], f.nodes)[:f.nodes]
	for k := range f.byNode {
		f.byNode[k] = f.byNode[k][:0]
	}
	for g := range mayUse(gpus, len(f.free)) {
		f.byNode[f.node[g]] = append(f.byNode[f.node[g]], g)
	}
	for _, all := range f.byNode {
		slices.SortFunc(all, f.compare)
	}
}

// run gives the job its GPUs for so many seconds, and returns when it starts; +Inf = never.
func (f *schedule) run(j asks, takes float64) (at float64, gpus []int) {
	at, gpus = f.start(j)
	for _, g := range gpus {
		f.set(g, at+takes)
	}
	return at, gpus
}

// later returns how much later than in both other schedules the GPUs of a class are free, at most: the first GPU is
// compared with their first ones, and so on.
func (f *schedule) later(a, b *schedule) float64 {
	most := 0.0
	for c, gpus := range f.order {
		for i, g := range gpus {
			if at, by := f.free[g], max(a.free[a.order[c][i]], b.free[b.order[c][i]]); at > by {
				most = max(most, at-by)
			}
		}
	}
	return most
}
