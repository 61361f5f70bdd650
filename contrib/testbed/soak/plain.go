package soak

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// plainJob is a job as plain Slurm would have it. Times are seconds on one clock.
type plainJob struct {
	// Queued is when it was submitted, and Arrival when it may start at the earliest.
	Queued, Arrival float64
	// RunS is how long it runs alone, LimitS its limit.
	RunS, LimitS float64
	// GPUs are how many it takes, all of one node. Urgent: it is in front of all that aren't.
	GPUs   int
	Urgent bool
	// After are the jobs, by position, that must have ended.
	After []int
	// Held are the times in which its owner holds it.
	Held []interval
	// Until is when its owner cancels it, running or not; +Inf = never.
	Until     float64
	Partition string
}

type interval struct{ From, To float64 }

func (i interval) has(t float64) bool { return i.From <= t && t < i.To }

// slot is a GPU: its node and that node's partitions.
type slot struct {
	Node       int
	Partitions []string
}

// outage is a time in which Slurm starts nothing on a GPU, and where Ends is set hears of
// no end.
type outage struct {
	interval
	GPU       int    // -1 = all
	Partition string // "" = all
	Ends      bool
}

// span is when a job starts and ends; both are NaN where it never starts.
type span struct{ Start, End float64 }

// queued is when the job got its place in the queue: Slurm puts one that is released at the end.
func (j *plainJob) queued() float64 {
	at := j.Queued
	for _, h := range j.Held {
		if !math.IsInf(h.To, 1) {
			at = max(at, h.To)
		}
	}
	return at
}

// plain is the schedule of plain Slurm: whole GPUs, jobs in the order of the queue, each on the
// first GPU that is free. A job of several GPUs keeps the GPUs of the node that has them first, and what lies behind it
// runs there only if its limit ends before. Nothing is preempted. pauseS is what Slurm and a job's start take before it
// computes. It ends when nothing is left that can start.
func plain(jobs []plainJob, slots []slot, outages []outage, pauseS float64) []span {
	out, waiting := make([]span, len(jobs)), make([]int, len(jobs))
	var events []float64 // at which something may start, without ends of jobs
	for i := range jobs {
		out[i], waiting[i] = span{math.NaN(), math.NaN()}, i
		events = append(events, jobs[i].Arrival, jobs[i].Until)
		for _, h := range jobs[i].Held {
			events = append(events, h.To)
		}
	}
	for _, o := range outages {
		events = append(events, o.To)
	}
	slices.Sort(events)
	slices.SortStableFunc(waiting, func(a, b int) int {
		if jobs[a].Urgent != jobs[b].Urgent {
			return map[bool]int{true: -1, false: 1}[jobs[a].Urgent]
		}
		return cmp.Compare(jobs[a].queued(), jobs[b].queued())
	})
	free := make([]float64, len(slots)) // when each is
	for now := math.Inf(-1); len(waiting) > 0 && !math.IsInf(now, 1); now = next(now, events, free) {
		closed := slices.DeleteFunc(slices.Clone(outages), func(o outage) bool { return !o.has(now) })
		kept := map[int]float64{} // GPUs for a job of several, and when it has them all
		waiting = slices.DeleteFunc(waiting, func(i int) bool {
			j := &jobs[i]
			if j.Until <= now || !ready(j, jobs, out, now) {
				return j.Until <= now
			}
			at, gpus := first(j, slots, free, now, func(g int) bool {
				until, taken := kept[g]
				return taken && now+pauseS+j.LimitS > until || slices.ContainsFunc(closed, func(o outage) bool {
					return (o.GPU < 0 || o.GPU == g) && (o.Partition == "" || o.Partition == j.Partition)
				})
			})
			if gpus == nil || at > now {
				for _, g := range gpus {
					if j.GPUs > 1 {
						kept[g] = at
					}
				}
				return false
			}
			out[i] = span{now, endOf(min(now+pauseS+j.RunS, j.Until), outages, gpus[0])}
			for _, g := range gpus {
				free[g] = out[i].End
			}
			return true
		})
	}
	return out
}

// next is the first time after now at which something may start, +Inf = there is none; events are sorted.
func next(now float64, events, free []float64) float64 {
	at := math.Inf(1)
	if i, _ := slices.BinarySearch(events, math.Nextafter(now, math.Inf(1))); i < len(events) {
		at = events[i]
	}
	for _, t := range free {
		if t > now {
			at = min(at, t)
		}
	}
	return at
}

// first is when a job has all its GPUs at the earliest, and which they are; nil = no node has them.
func first(j *plainJob, slots []slot, free []float64, now float64, shut func(gpu int) bool) (at float64, gpus []int) {
	nodes := map[int][]int{}
	for g := range slots {
		if slices.Contains(slots[g].Partitions, j.Partition) && !shut(g) {
			nodes[slots[g].Node] = append(nodes[slots[g].Node], g)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		if all := nodes[n]; len(all) >= j.GPUs {
			slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(max(now, free[a]), max(now, free[b])) })
			if has := max(now, free[all[j.GPUs-1]]); gpus == nil || has < at {
				at, gpus = has, all[:j.GPUs]
			}
		}
	}
	return at, gpus
}

// ready reports whether nothing but a GPU keeps a job from starting.
func ready(j *plainJob, jobs []plainJob, out []span, now float64) bool {
	held := slices.ContainsFunc(j.Held, func(h interval) bool { return h.has(now) })
	return j.Arrival <= now && !held && !slices.ContainsFunc(j.After, func(a int) bool {
		ended := out[a].End <= now || math.IsNaN(out[a].End) && jobs[a].Until <= now
		return !ended
	})
}

// endOf is when Slurm hears of an end.
func endOf(t float64, outages []outage, gpu int) float64 {
	for _, o := range outages {
		if o.Ends && o.has(t) && (o.GPU < 0 || o.GPU == gpu) {
			t = o.To
		}
	}
	return t
}
