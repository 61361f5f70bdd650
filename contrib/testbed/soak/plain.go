package soak

import (
	"cmp"
	"math"
	"slices"
)

// plainJob is a job as plain Slurm would have it. Times are seconds on one clock.
type plainJob struct {
	// Queued is when it was submitted, and Arrival when it may start at the earliest.
	Queued, Arrival float64
	// RunS is how long it runs alone.
	RunS float64
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
// first GPU that is free. pauseS is what Slurm and a job's start take before it computes. It
// ends when nothing is left that can start.
func plain(jobs []plainJob, gpus int, outages []outage, pauseS float64) []span {
	out := make([]span, len(jobs))
	waiting := make([]int, len(jobs))
	for i := range jobs {
		out[i] = span{math.NaN(), math.NaN()}
		waiting[i] = i
	}
	slices.SortStableFunc(waiting, func(a, b int) int { return cmp.Compare(jobs[a].queued(), jobs[b].queued()) })
	busy := make([]bool, gpus)
	type run struct{ job, gpu int }
	var running []run
	now := math.Inf(-1)
	for {
		next := math.Inf(1)
		later := func(t float64) {
			if t > now {
				next = min(next, t)
			}
		}
		running = slices.DeleteFunc(running, func(r run) bool {
			if out[r.job].End > now {
				later(out[r.job].End)
				return false
			}
			busy[r.gpu] = false
			return true
		})
		var closed []outage
		for _, o := range outages {
			later(o.To)
			if o.has(now) {
				closed = append(closed, o)
			}
		}
		waiting = slices.DeleteFunc(waiting, func(i int) bool {
			j := &jobs[i]
			if j.Until <= now {
				return true
			}
			if j.Arrival > now {
				later(j.Arrival)
				return false
			}
			if !ready(j, jobs, out, now, later) {
				return false
			}
			g := idleGPU(j, busy, closed)
			if g < 0 {
				return false
			}
			busy[g] = true
			end := endOf(min(now+pauseS+j.RunS, j.Until), outages, g)
			out[i] = span{now, end}
			running = append(running, run{i, g})
			later(end)
			return true
		})
		if math.IsInf(next, 1) || len(waiting)+len(running) == 0 {
			return out
		}
		now = next
	}
}

// ready reports whether nothing but a GPU keeps a job that is there; later is called with
// the times at which that changes.
func ready(j *plainJob, jobs []plainJob, out []span, now float64, later func(float64)) bool {
	for _, h := range j.Held {
		if h.has(now) {
			later(h.To)
			return false
		}
	}
	for _, a := range j.After {
		switch end := out[a].End; {
		case end <= now, math.IsNaN(end) && jobs[a].Until <= now:
		default:
			if math.IsNaN(end) {
				end = jobs[a].Until
			}
			later(end)
			return false
		}
	}
	return true
}

// idleGPU is the first GPU that takes the job, -1 = none; closed are the outages of now.
func idleGPU(j *plainJob, busy []bool, closed []outage) int {
	for g := range busy {
		if !busy[g] && !slices.ContainsFunc(closed, func(o outage) bool {
			return (o.GPU < 0 || o.GPU == g) && (o.Partition == "" || o.Partition == j.Partition)
		}) {
			return g
		}
	}
	return -1
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
