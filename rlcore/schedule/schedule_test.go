package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// slowly is List.start with each GPU looked at for each job.
func slowly(free []float64, node []int, j Request) (at float64, gpus []int) {
	perNode, nodes := max(1, j.PerNode), max(1, j.Nodes)
	var fits []nodeFit
	on := map[int][]int{}
	for k := range slices.Max(node) + 1 {
		var all []int
		for g := range free {
			if node[g] == k && !math.IsInf(free[g], 1) && j.GPUs.Has(g) {
				all = append(all, g)
			}
		}
		slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(free[a], free[b]) })
		if len(all) >= perNode {
			on[k] = all[:perNode]
			fits = append(fits, nodeFit{k, free[all[perNode-1]]})
		}
	}
	if len(fits) < nodes {
		return math.Inf(1), nil
	}
	slices.SortStableFunc(fits, func(a, b nodeFit) int { return cmp.Compare(a.at, b.at) })
	for _, f := range fits[:nodes] {
		at, gpus = max(at, f.at), append(gpus, on[f.node]...)
	}
	return at, gpus
}

// Each job gets the GPUs that are free first, whatever sets, nodes and numbers of GPUs the jobs ask for, and a
// copy changes nothing of its original.
func TestScheduleIsListScheduling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var names []string
		var node []int
		for k := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			for range rapid.IntRange(1, 4).Draw(t, "GPUs") {
				names, node = append(names, fmt.Sprint("n", k)), append(node, k)
			}
		}
		n := len(node)
		sets := []*GPUSet{nil, nil, NewGPUSet(0), NewGPUSet(), NewGPUSet(n-1, -1, n+3)}
		for range 2 {
			var some []int
			for g := range n {
				if rapid.Bool().Draw(t, "listed") {
					some = append(some, g)
				}
			}
			sets = append(sets, NewGPUSet(some...))
		}
		free := make([]float64, n)
		for g := range free {
			free[g] = rapid.SampledFrom([]float64{0, 0, 10, 33, math.Inf(1)}).Draw(t, "free")
		}
		var jobs []Request
		for range rapid.IntRange(1, 30).Draw(t, "jobs") {
			jobs = append(jobs, Request{
				rapid.SampledFrom(sets).Draw(t, "set"), rapid.SampledFrom([]int{0, 0, 1, 2, 4}).Draw(t, "per node"),
				rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(t, "on nodes"),
			})
		}
		var k Cluster
		k.Divide(n, func(g int) string { return names[g] }, len(jobs), func(i int) Request { return jobs[i] })
		var f, before List
		before.Reset(&k, free)
		f.Copy(&before)
		was := slices.Clone(free)
		for i, j := range jobs {
			takes := rapid.SampledFrom([]float64{5, 20, 21}).Draw(t, "takes")
			want, _ := slowly(free, node, j)
			at, gpus := f.Run(j, takes)
			if at != want {
				t.Fatalf("job %d, %+v, starts at %v, want %v", i, j, at, want)
			}
			for _, g := range gpus {
				free[g] = at + takes
			}
			if !slices.Equal(free, f.free) {
				t.Fatalf("GPUs are free at %v, want %v", f.free, free)
			}
			for c, all := range f.order {
				if !slices.IsSortedFunc(all, f.compare) {
					t.Fatalf("class %d isn't in order: %v of %v", c, all, f.free)
				}
			}
		}
		if !slices.Equal(before.free, was) {
			t.Fatalf("the copied schedule has changed: %v, not %v", before.free, was)
		}
		most := 0.0
		for c := range k.classes {
			var a, b []float64
			for g := range free {
				if k.class[g] == c {
					a, b = append(a, was[g]), append(b, free[g])
				}
			}
			slices.Sort(a)
			slices.Sort(b)
			for i := range a {
				if b[i] > a[i] {
					most = max(most, b[i]-a[i])
				}
			}
		}
		if times := before.Times(nil); f.NoLater(times, times) != (most <= Rounding) {
			t.Fatalf("GPUs are free later by %v, and that it keeps these times is %v", most, f.NoLater(times, times))
		}
	})
}

// A set divides GPUs into classes if it was given, or if a twentieth of the jobs come with it.
func TestWhichSetsDivideGPUs(t *testing.T) {
	given, often, rare := NewGPUSet(0), NewGPUSet(1), NewGPUSet(2)
	jobs := slices.Repeat([]*GPUSet{nil}, 40)
	jobs[3], jobs[7], jobs[8] = often, often, rare
	k := Cluster{Sets: []*GPUSet{given}}
	k.Divide(5, func(int) string { return "n" }, len(jobs), func(i int) Request { return Request{GPUs: jobs[i]} })
	if want := []int{0, 1, 2, 2, 2}; !slices.Equal(k.class, want) {
		t.Errorf("classes %v, want %v", k.class, want)
	}
}
