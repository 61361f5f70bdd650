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
	// Ran is when it starts and ends: what plain finds.
	Ran interval
}

// interval is a time; of a job that never starts both ends are NaN.
type interval struct{ From, To float64 }

func (i interval) has(t float64) bool { return i.From <= t && t < i.To }

// slot is a GPU: its node and that node's partitions.
type slot struct {
	Node       int
	Partitions []string
}

// outage is a time in which Slurm starts nothing on a GPU, and where Ends is set hears of no end.
type outage struct {
	interval
	GPU       int    // -1 = all
	Partition string // "" = all
	Ends      bool
}

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

// plain sets when each job runs on plain Slurm: whole GPUs, jobs in the order of the queue, each on the
// first GPU that is free. A job of several GPUs keeps the GPUs of the node that has them first, and what lies behind it
// runs there only if its limit ends before. Nothing is preempted. pauseS is what Slurm and a job's start take before it
// computes. It ends when nothing is left that can start.
func plain(jobs []plainJob, slots []slot, outages []outage, pauseS float64) {
	waiting := make([]*plainJob, len(jobs))
	var events []float64 // at which something may start, without ends of jobs
	for i := range jobs {
		j := &jobs[i]
		waiting[i], j.Ran = j, interval{math.NaN(), math.NaN()}
		events = append(events, j.Arrival, j.Until)
		for _, h := range j.Held {
			events = append(events, h.To)
		}
	}
	for _, o := range outages {
		events = append(events, o.To)
	}
	slices.SortStableFunc(waiting, func(a, b *plainJob) int {
		if a.Urgent != b.Urgent {
			return map[bool]int{true: -1, false: 1}[a.Urgent]
		}
		return cmp.Compare(a.queued(), b.queued())
	})
	free := make([]float64, len(slots)) // when each is
	for now := math.Inf(-1); len(waiting) > 0; {
		closed := slices.DeleteFunc(slices.Clone(outages), func(o outage) bool { return !o.has(now) })
		kept := map[int]float64{} // GPUs for a job of several, and when it has them all
		waiting = slices.DeleteFunc(waiting, func(j *plainJob) bool {
			if j.Until <= now || !j.ready(jobs, now) {
				return j.Until <= now
			}
			at, gpus := first(j, slots, free, now, func(g int) bool {
				until, taken := kept[g]
				return taken && now+pauseS+j.LimitS > until || slices.ContainsFunc(closed, func(o outage) bool {
					return (o.GPU < 0 || o.GPU == g) && (o.Partition == "" || o.Partition == j.Partition)
				})
			})
			starts := gpus != nil && at <= now
			if starts {
				j.Ran = interval{now, endOf(min(now+pauseS+j.RunS, j.Until), outages, gpus[0])}
			}
			for _, g := range gpus {
				if starts {
					free[g] = j.Ran.To
				} else if j.GPUs > 1 {
					kept[g] = at
				}
			}
			return starts
		})
		next := math.Inf(1)
		for _, t := range slices.Concat(events, free) {
			if t > now {
				next = min(next, t)
			}
		}
		if now = next; math.IsInf(now, 1) {
			return
		}
	}
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
func (j *plainJob) ready(jobs []plainJob, now float64) bool {
	return j.Arrival <= now && !slices.ContainsFunc(j.Held, func(h interval) bool { return h.has(now) }) &&
		!slices.ContainsFunc(j.After, func(i int) bool {
			a := &jobs[i]
			ended := a.Ran.To <= now || math.IsNaN(a.Ran.To) && a.Until <= now
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
