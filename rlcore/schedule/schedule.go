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

	// byNode has the GPUs of the last set on which a job of several GPUs was started, by node and in order, but for the
	// stale nodes.
	byNode [][]int
	last   *GPUSet
	known  bool // that there was such a job
	stale  []int
	fits   []nodeFit
	got    []int
}

// Cluster is the fixed part of a schedule: the node and the class of each GPU, and the classes of each common set of
// GPUs.
type Cluster struct {
	// Sets are sets of GPUs that jobs may come with, such as the partitions'. They divide GPUs into classes even if no
	// present job uses them. At most mostGiven of them count.
	Sets []*GPUSet
	// ByNode: GPUs of two nodes are never of one class, since jobs come that need several GPUs of one node.
	ByNode bool

	node    []int
	class   []int
	nodes   int
	classes int
	common  []commonSet

	numbers map[string]int // of nodes
	marks   []mark         // by GPU
	byMark  map[mark]int   // classes
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
	jobs    int
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

// mostSets bounds the sets of the jobs that divide GPUs into classes: a set counts if one job in mostSets has it.
// mostGiven bounds Cluster.Sets: with the set of all GPUs, each has a bit in a mark.
const (
	mostSets  = 20
	mostGiven = 64 - 1 - mostSets
)

// Divide divides n GPUs into classes, by Sets and the sets of the jobs. name is the name of a GPU's node.
func (k *Cluster) Divide(n int, name func(g int) string, jobs int, set func(i int) *GPUSet) {
	k.findCommon(jobs, set)
	if k.numbers == nil {
		k.numbers, k.byMark = map[string]int{}, map[mark]int{}
	}
	clear(k.numbers)
	clear(k.byMark)
	k.node, k.class, k.marks = resize(k.node, n), resize(k.class, n), resize(k.marks, n)
	for g := range n {
		if k.node[g] = number(k.numbers, name(g)); k.ByNode {
			k.marks[g].node = k.node[g]
		}
	}
	for i, set := range k.common {
		for g := range set.Of(n) {
			k.marks[g].sets |= 1 << i
		}
	}
	for g, mark := range k.marks {
		known := len(k.byMark)
		if k.class[g] = number(k.byMark, mark); k.class[g] < known {
			continue
		}
		for i := range k.common {
			if mark.sets>>i&1 == 1 {
				k.common[i].classes = append(k.common[i].classes, k.class[g])
			}
		}
	}
	k.nodes, k.classes = len(k.numbers), len(k.byMark)
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

// resize returns n zeros in s's storage.
func resize[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// findCommon finds the sets of a notable part of the jobs; the set of all GPUs and the given Sets are among them.
func (k *Cluster) findCommon(jobs int, set func(i int) *GPUSet) {
	all, at := commonSet{jobs: jobs}, 0
	if len(k.common) > 0 {
		all.classes = k.common[0].classes[:0]
	}
	sets := append(k.common[:0], all)
	for _, s := range k.Sets[:min(len(k.Sets), mostGiven)] {
		sets = append(sets, commonSet{GPUSet: s, jobs: jobs})
	}
	most := len(sets) + 4*mostSets
	for i := range jobs {
		s := set(i)
		if sets[at].GPUSet != s { // neighbours often share one
			at = slices.IndexFunc(sets, func(c commonSet) bool { return c.GPUSet == s })
		}
		if at < 0 && len(sets) < most {
			sets = append(sets, commonSet{GPUSet: s})
			at = len(sets) - 1
		}
		if at = max(at, 0); at > 0 {
			sets[at].jobs++
		}
	}
	k.common = slices.DeleteFunc(sets, func(c commonSet) bool { return c.jobs*mostSets < jobs })
}

// Alike reports whether two GPUs are of one class.
func (k *Cluster) Alike(a, b int) bool { return k.class[a] == k.class[b] }

// Reset starts a schedule of a Cluster with the given free times.
func (f *List) Reset(k *Cluster, free []float64) {
	f.Cluster, f.free, f.known = k, append(f.free[:0], free...), false
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
	f.Cluster, f.free, f.known = of.Cluster, append(f.free[:0], of.free...), false
	f.order = slices.Grow(f.order[:0], len(of.order))[:len(of.order)]
	for c := range f.order {
		f.order[c] = append(f.order[c][:0], of.order[c]...)
	}
}

func (f *List) compare(a, b int) int { return cmp.Or(cmp.Compare(f.free[a], f.free[b]), a-b) }

// find returns the place in sorted GPUs of GPU g if it is free at the given time. Plans spend most of their time here.
func (f *List) find(gpus []int, at float64, g int) int {
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
	if f.known {
		f.stale = append(f.stale, f.node[g])
	}
	gpus := f.order[f.class[g]]
	from := f.find(gpus, f.free[g], g)
	f.free[g] = at
	to := f.find(gpus[from+1:], at, g)
	copy(gpus[from:], gpus[from+1:from+1+to])
	if to += from; to == from {
		to = f.find(gpus[:from], at, g)
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

// start returns when the job starts, and its GPUs, valid until the next call; +Inf = never. A job of several GPUs gets
// them at once, on the first nodes with enough.
func (f *List) start(r Request) (at float64, gpus []int) {
	perNode, nodes := max(1, r.PerNode), max(1, r.Nodes)
	f.got = f.got[:0]
	if perNode*nodes == 1 {
		if g := f.first(r.GPUs); g >= 0 {
			f.got = append(f.got, g)
			return f.free[g], f.got
		}
		return math.Inf(1), nil
	}
	f.divideByNode(r.GPUs)
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

// divideByNode brings byNode up to date for a set of GPUs.
func (f *List) divideByNode(set *GPUSet) {
	if f.known && f.last == set {
		for _, k := range f.stale {
			slices.SortFunc(f.byNode[k], f.compare)
		}
		f.stale = f.stale[:0]
		return
	}
	f.known, f.last, f.stale = true, set, f.stale[:0]
	f.byNode = slices.Grow(f.byNode[:0], f.nodes)[:f.nodes]
	for k := range f.byNode {
		f.byNode[k] = f.byNode[k][:0]
	}
	for g := range set.Of(len(f.free)) {
		f.byNode[f.node[g]] = append(f.byNode[f.node[g]], g)
	}
	for _, all := range f.byNode {
		slices.SortFunc(all, f.compare)
	}
}

// Run gives the job its GPUs for so many seconds, and returns when it starts; +Inf = never.
func (f *List) Run(r Request, takes float64) (at float64, gpus []int) {
	at, gpus = f.start(r)
	for _, g := range gpus {
		f.Set(g, at+takes)
	}
	return at, gpus
}

// RunLike is Run on the first free GPUs of the classes of the given ones, if the job starts by byS there. If a job runs
// in the same classes in two schedules, the schedule with the earlier free times stays earlier.
func (f *List) RunLike(on []int, byS float64, r Request, takes float64) (at float64, gpus []int) {
	if !f.like(on, r.GPUs) {
		return f.Run(r, takes)
	}
	for _, g := range f.got {
		at = max(at, f.free[g])
	}
	if at > byS+Rounding || math.IsInf(at, 1) {
		return f.Run(r, takes)
	}
	for _, g := range f.got {
		f.Set(g, at+takes)
	}
	return at, f.got
}

// like puts into got, for each of the given GPUs, the first one of a set that is free in its class, and reports whether
// there are such. Where a class has GPUs of several nodes it finds single ones alone.
func (f *List) like(on []int, set *GPUSet) bool {
	f.got = f.got[:0]
	if len(on) > 1 && !f.ByNode {
		return false
	}
	for _, like := range on {
		if like >= len(f.class) {
			return false
		}
		of := f.order[f.class[like]]
		i := slices.IndexFunc(of, func(g int) bool { return set.Has(g) && !slices.Contains(f.got, g) })
		if i < 0 {
			return false
		}
		f.got = append(f.got, of[i])
	}
	return len(f.got) > 0
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
