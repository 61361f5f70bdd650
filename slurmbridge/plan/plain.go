package plan

import (
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
)

// plainly brings plain Slurm's schedule up to date with the poll and writes into the State
// what it promises. Jobs that Slurm would keep waiting for another reason than a GPU (held,
// at a limit, not before its begin time) aren't in it, and come in when that is over.
func (r *pass) plainly() {
	p, now := r.in.Tracker.Plain.Clone(), r.State.NowS
	names := make([]string, len(r.State.GPUs))
	for g := range r.State.GPUs {
		names[g] = r.State.GPUs[g].ID
	}
	p.SetGPUs(names, now)
	here := r.run(p, now)
	waits := r.waiting(p, now, here)
	var gone []string
	p.Each(func(id string) {
		ref, _, _ := strings.Cut(id, ofSeveral)
		if j := r.jobs[ref]; !here[id] && (j == nil || j.State == job.Pending && !r.changing(p, ref)) {
			gone = append(gone, id)
		}
	})
	slices.Sort(gone)
	p.Remove(now, gone...)
	p.Wait(waits, now)
	r.promise(p)
	r.plan.Plain = p
}

// changing reports whether a job keeps its place that isn't in the queue for now: it is being
// restored, say, after another job took its GPU.
func (r *pass) changing(p *rlcore.Plain, ref string) bool {
	held := r.jobs[ref].Priority == 0
	return (r.in.Touched[ref] || r.seats[ref].Group != nil) && !held && !p.Requeued(ref)
}

// ofSeveral separates a job's ref from the GPU, where it has several.
const ofSeveral = "@"

// run tells the plain schedule which jobs run, and returns those and the ones about to start.
func (r *pass) run(p *rlcore.Plain, now float64) map[string]bool {
	here := map[string]bool{}
	for g := range r.State.GPUs {
		card := &r.State.GPUs[g]
		for i := range card.Running {
			x := card.Running[i]
			if r.starting[x.ID] {
				here[x.ID] = true
				continue
			}
			if here[x.ID] {
				x.ID += ofSeveral + card.ID
			}
			here[x.ID] = true
			p.Runs(&x.Job, g, now-x.ElapsedS, now)
		}
	}
	return here
}

// waiting returns the jobs that wait for nothing but a GPU, and notes them in here. One that
// has run before, and was requeued, comes anew.
func (r *pass) waiting(p *rlcore.Plain, now float64, here map[string]bool) []rlcore.Job {
	limited := map[int]bool{}
	r.walkLimits(nil, "", func(at int, by *limit.Limit) bool {
		limited[at] = by != nil
		return true
	})
	waits := make([]rlcore.Job, 0, len(r.State.Pending))
	for i := range r.State.Pending {
		j := &r.State.Pending[i]
		if limited[i] {
			continue
		}
		if p.Requeued(j.ID) {
			p.Remove(now, j.ID)
		}
		here[j.ID] = true
		waits = append(waits, *j)
	}
	return waits
}

// promise writes the plain ends into the State.
func (r *pass) promise(p *rlcore.Plain) {
	for i := range r.State.Pending {
		j := &r.State.Pending[i]
		j.PlainEndS = p.EndS(j.ID)
	}
	for g := range r.State.GPUs {
		for i := range r.State.GPUs[g].Running {
			x := &r.State.GPUs[g].Running[i]
			x.PlainEndS = p.EndS(x.ID)
		}
	}
	r.State.PlainFreeS = p.FreeS(nil, r.State.NowS)
}
