package plan

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// promise updates plain Slurm's schedule with the poll, writes what it promises into the State, and returns it. A job
// that Slurm keeps waiting for another reason than a GPU (held, at a limit, before its begin time) enters the schedule
// once that is over.
func (v *view) promise() *rlcore.Plain {
	p, now := v.in.Tracker.Plain.Clone(), v.State.NowS
	p.SetClock(now)
	names := make([]string, len(v.State.GPUs))
	for g := range v.State.GPUs {
		names[g] = v.State.GPUs[g].ID
	}
	p.SetGPUs(names, now)
	here := v.run(p, now)
	for i := range v.State.Pending {
		j := &v.State.Pending[i]
		if p.Requeued(j.ID) { // it comes again
			p.Remove(now, j.ID)
		}
		here[j.ID] = true
	}
	var gone []string
	p.Each(func(id string) {
		if j := v.jobs[id]; !here[id] && (j == nil || j.State == job.Pending && !v.changing(p, id)) {
			gone = append(gone, id)
		}
	})
	slices.Sort(gone)
	p.Remove(now, gone...)
	p.Wait(v.State.Pending, now)
	for i := range v.State.Pending {
		v.State.Pending[i].PlainEndS = p.EndS(v.State.Pending[i].ID)
	}
	for g := range v.State.GPUs {
		for i := range v.State.GPUs[g].Running {
			x := &v.State.GPUs[g].Running[i]
			x.PlainEndS = p.EndS(x.ID)
		}
	}
	v.State.PlainFreeS = p.FreeS(nil, now)
	return p
}

// changing reports whether a job that is not in the queue now keeps its place: it is being restored, say, because
// another job took its GPU.
func (v *view) changing(p *rlcore.Plain, ref string) bool {
	held := v.jobs[ref].Priority == 0
	return (v.in.Touched[ref] || v.seats[ref].Group != nil) && !held && !p.Requeued(ref)
}

// run adds the running jobs to the plain schedule, and returns them and the jobs about to start.
func (v *view) run(p *rlcore.Plain, now float64) map[string]bool {
	here, on := map[string]bool{}, map[string][]int{}
	each := func(f func(g int, x *rlcore.Running)) {
		for g := range v.State.GPUs {
			for i := range v.State.GPUs[g].Running {
				f(g, &v.State.GPUs[g].Running[i])
			}
		}
	}
	each(func(g int, x *rlcore.Running) { on[x.ID] = append(on[x.ID], g) })
	each(func(_ int, x *rlcore.Running) {
		if !here[x.ID] && !v.starting[x.ID] {
			p.Runs(&x.Job, on[x.ID], now-x.ElapsedS, now)
		}
		here[x.ID] = true
	})
	return here
}
