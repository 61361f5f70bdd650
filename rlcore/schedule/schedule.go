package schedule

import (
	"cmp"
	"math"
	"slices"
)

// List is a list schedule. It holds when each GPU is free, in seconds on any clock.
//
// GPUs that the same jobs may use form a class. The schedule keeps the GPUs of each class in the order in which they
// are free, so that two schedules of one Cluster can be compared class by class.
type List struct {
	*Cluster
	free  []float64 // by GPU
	order [][]int   // by class: its GPUs, the one that is free first first, of equals the one of the lower index

	// Scratch: the first nodes that fit a job of several GPUs, one node's GPUs, and what a job got.
	fits   []nodeFit
	onNode []int
	got    []int
}

// Cluster is the fixed part of a schedule: the node and the class of each GPU, and the classes of each common set of
// GPUs.
type Cluster struct {
	// Sets are sets of GPUs that jobs may come with, such as the partitions'. They divide GPUs into classes even if no
	// present job uses them. At most mostGiven of them count.
	Sets []*GPUSet
	// ByNode: GPUs of two nodes are never of one class, since jobs come that need several GPUs of one node. Divide sets it
	// where there are such jobs.
	ByNode bool

	class   []int // by GPU
	classes int
	onNode  [][]int // by node: its classes, where ByNode is set
	common  []commonSet
}

// mark is what the GPUs of a class have in common: the common sets that they are in, as bits, and their node if GPUs
// are divided by node.
type mark struct {
	sets uint64
	node int
}

// commonSet is a set of GPUs that many jobs share.
type commonSet struct {
	*GPUSet
	classes []int
}

// nodeFit is when a node has enough free GPUs for a job.
type nodeFit struct {
	node int
	at   float64
}

// Request is a job's request: PerNode GPUs of a set at once on each of Nodes nodes; 0 = 1.
type Request struct {
	GPUs    *GPUSet `json:"gpus"`
	PerNode int     `json:"per_node,omitempty"`
	Nodes   int     `json:"nodes,omitempty"`
}

func (r *Request) several() bool { return r.PerNode > 1 || r.Nodes > 1 }

// mostSets bounds the sets of the jobs that divide GPUs into classes: a set counts if one job in mostSets has it.
// mostGiven bounds Cluster.Sets: with the set of all GPUs, each has a bit in a mark.
const (
	mostSets  = 20
	mostGiven = 64 - 1 - mostSets
)

// Divide divides n GPUs into classes, by Sets and the jobs' requests. name is the name of a GPU's node.
func (k *Cluster) Divide(n int, name func(g int) string, jobs int, request func(i int) Request) {
	k.findCommon(jobs, request)
	marks := make([]mark, n)
	nodes := map[string]int{}
	for g := range n {
		if k.ByNode {
			marks[g].node = number(nodes, name(g))
		}
	}
	for i, set := range k.common {
		for g := range set.Of(n) {
			marks[g].sets |= 1 << i
		}
	}
	k.class = make([]int, n)
	k.onNode = make([][]int, len(nodes))
	classes := map[mark]int{}
	for g, mark := range marks {
		known := len(classes)
		class := number(classes, mark)
		k.class[g] = class
		if class < known {
			continue
		}
		if k.ByNode {
			k.onNode[mark.node] = append(k.onNode[mark.node], class)
		}
		for i := range k.common {
			if mark.sets>>i&1 == 1 {
				k.common[i].classes = append(k.common[i].classes, class)
			}
		}
	}
	k.classes = len(classes)
}

// number returns the number of a key; a new key gets the next one.
func number[K comparable](numbers map[K]int, key K) int {
	n, known := numbers[key]
	if !known {
		n = len(numbers)
		numbers[key] = n
	}
	return n
}

// Rounding is the tolerance of sums of times, s.
const Rounding = 1e-6

// findCommon finds the sets of a notable part of the jobs, which the given Sets and the set of all GPUs always are, and
// whether a job takes several GPUs.
func (k *Cluster) findCommon(jobs int, request func(i int) Request) {
	of := map[*GPUSet]int{}
	for i := range jobs {
		r := request(i)
		of[r.GPUs]++
		k.ByNode = k.ByNode || r.several()
	}
	k.common = []commonSet{{}}
	for _, set := range k.Sets[:min(len(k.Sets), mostGiven)] {
		delete(of, set)
		k.common = append(k.common, commonSet{GPUSet: set})
	}
	delete(of, nil)
	for set, n := range of {
		if n*mostSets >= jobs {
			k.common = append(k.common, commonSet{GPUSet: set})
		}
	}
}

// Alike reports whether two GPUs are of one class.
func (k *Cluster) Alike(a, b int) bool { return k.class[a] == k.class[b] }

// Reset starts a schedule of a Cluster with the given free times.
func (f *List) Reset(k *Cluster, free []float64) {
	f.Cluster = k
	f.free = append(f.free[:0], free...)
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

// Copy makes f a copy of another schedule.
func (f *List) Copy(of *List) {
	f.Cluster = of.Cluster
	f.free = append(f.free[:0], of.free...)
	f.order = slices.Grow(f.order[:0], len(of.order))[:len(of.order)]
	for c := range f.order {
		f.order[c] = append(f.order[c][:0], of.order[c]...)
	}
}

func (f *List) compare(a, b int) int { return cmp.Or(cmp.Compare(f.free[a], f.free[b]), a-b) }

// place returns the place in sorted GPUs of GPU g if it is free at the given time. Plans spend most of their time here.
func (f *List) place(gpus []int, at float64, g int) int {
	from, to := 0, len(gpus)
	for from < to {
		mid := (from + to) / 2
		if x := gpus[mid]; f.free[x] < at || f.free[x] == at && x < g {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from
}

// Set changes when GPU g is free.
func (f *List) Set(g int, at float64) {
	gpus := f.order[f.class[g]]
	from := f.place(gpus, f.free[g], g)
	f.free[g] = at
	to := f.place(gpus[from+1:], at, g)
	copy(gpus[from:], gpus[from+1:from+1+to])
	if to += from; to == from {
		to = f.place(gpus[:from], at, g)
		copy(gpus[to+1:from+1], gpus[to:from])
	}
	gpus[to] = g
}

// first returns the GPU of a set that is free first; −1 = none ever is.
func (f *List) first(set *GPUSet) int {
	at := -1
	try := func(g int) {
		if !math.IsInf(f.free[g], 1) && (at < 0 || f.compare(g, at) < 0) {
			at = g
		}
	}
	for i := range f.common {
		if f.common[i].GPUSet == set {
			for _, c := range f.common[i].classes {
				try(f.order[c][0])
			}
			return at
		}
	}
	for g := range set.Of(len(f.free)) {
		try(g)
	}
	return at
}

// find puts into got the GPUs on which the job starts, none if it never does. A job of several GPUs gets them at once,
// on the first nodes with enough.
func (f *List) find(r Request) {
	f.got = f.got[:0]
	if !r.several() {
		if g := f.first(r.GPUs); g >= 0 {
			f.got = append(f.got, g)
		}
		return
	}
	perNode, nodes := max(1, r.PerNode), max(1, r.Nodes)
	f.fits = f.fits[:0]
	for node := range f.Cluster.onNode {
		all := f.nodeGPUs(node, r.GPUs)
		if len(all) < perNode || math.IsInf(f.free[all[perNode-1]], 1) {
			continue
		}
		fit := nodeFit{node, f.free[all[perNode-1]]}
		i := len(f.fits)
		for i > 0 && f.fits[i-1].at > fit.at {
			i--
		}
		if i < nodes {
			f.fits = slices.Insert(f.fits[:min(len(f.fits), nodes-1)], i, fit)
		}
	}
	if len(f.fits) < nodes {
		return
	}
	for _, fit := range f.fits {
		f.got = append(f.got, f.nodeGPUs(fit.node, r.GPUs)[:perNode]...)
	}
}

// startS is when all GPUs of got are free; +Inf if there are none.
func (f *List) startS() float64 {
	at := math.Inf(1)
	for i, g := range f.got {
		if i == 0 || f.free[g] > at {
			at = f.free[g]
		}
	}
	return at
}

// nodeGPUs returns the GPUs of a set on a node, the one that is free first first, valid until the next call.
func (f *List) nodeGPUs(node int, set *GPUSet) []int {
	f.onNode = f.onNode[:0]
	for _, class := range f.Cluster.onNode[node] {
		for _, g := range f.order[class] {
			if set.Has(g) {
				f.onNode = append(f.onNode, g)
			}
		}
	}
	if len(f.Cluster.onNode[node]) > 1 {
		slices.SortFunc(f.onNode, f.compare)
	}
	return f.onNode
}

// Run gives the job its GPUs for so many seconds, and returns when it starts; +Inf = never.
func (f *List) Run(r Request, takes float64) (at float64, gpus []int) {
	f.find(r)
	return f.take(takes)
}

// take gives the job the GPUs of got.
func (f *List) take(takes float64) (at float64, gpus []int) {
	at = f.startS()
	for _, g := range f.got {
		f.Set(g, at+takes)
	}
	return at, f.got
}

// RunLike is Run on the first free GPUs of the classes of the given ones, if the job starts by byS there. If a job runs
// in the same classes in two schedules, the schedule with the earlier free times stays earlier.
func (f *List) RunLike(on []int, byS float64, r Request, takes float64) (at float64, gpus []int) {
	f.findLike(on, r.GPUs)
	if at := f.startS(); at > byS+Rounding || math.IsInf(at, 1) {
		f.find(r)
	}
	return f.take(takes)
}

// findLike puts into got, for each of the given GPUs, the first one of a set that is free in its class; none at all if
// one of them has no such GPU. Where a class has GPUs of several nodes it finds single ones alone.
func (f *List) findLike(on []int, set *GPUSet) {
	f.got = f.got[:0]
	if len(on) > 1 && !f.ByNode {
		return
	}
	for _, like := range on {
		var of []int
		if like < len(f.class) {
			of = f.order[f.class[like]]
		}
		i := slices.IndexFunc(of, func(g int) bool { return set.Has(g) && !slices.Contains(f.got, g) })
		if i < 0 {
			f.got = f.got[:0]
			return
		}
		f.got = append(f.got, of[i])
	}
}

// GPUs returns how many GPUs there are.
func (f *List) GPUs() int { return len(f.free) }

// Times appends to dst when the GPUs of each class are free, in order.
func (f *List) Times(dst []float64) []float64 {
	for _, gpus := range f.order {
		for _, g := range gpus {
			dst = append(dst, f.free[g])
		}
	}
	return dst
}

// NoLater reports whether no GPU of a class is free later than in both other schedules, given by their times: its first
// GPU is compared with their first ones, and so on.
func (f *List) NoLater(a, b []float64) bool {
	i := 0
	for _, gpus := range f.order {
		for _, g := range gpus {
			if f.free[g] > max(a[i], b[i])+Rounding {
				return false
			}
			i++
		}
	}
	return true
}
