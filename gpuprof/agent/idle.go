package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// Reports of idle jobs: jobs that have done nothing for toldAfter, every toldEvery.
const (
	toldAfter = 5 * time.Minute
	toldEvery = time.Minute
)

// works reports whether a reading shows that a job does something, or may: what isn't known is no idleness. own says
// that the reading's core use is the job's own, which then decides.
func works(r *gpuprof.Reading, own bool) bool {
	f := gpuprof.FigGPU
	if own {
		f = gpuprof.FigCore
	}
	return !r.Has(f) || r.Value[f] >= gpuprof.IdleBelow
}

// showIdle publishes which jobs do nothing.
func (a *Agent) showIdle(now time.Time) {
	list := []gpuprof.Idle{}
	for r, t := range a.jobs {
		if t.runs() && !t.idle.IsZero() && now.Sub(t.idle) >= toldAfter {
			list = append(list, gpuprof.Idle{JobID: r.ID, IdleS: now.Sub(t.idle).Seconds()})
		}
	}
	slices.SortFunc(list, func(x, y gpuprof.Idle) int { return cmp.Compare(x.JobID, y.JobID) })
	a.idle.Store(&list)
}

// Idle returns the jobs that have done nothing for some minutes, as the last sample showed them. It may be called at any time.
func (a *Agent) Idle() []gpuprof.Idle {
	if list := a.idle.Load(); list != nil {
		return *list
	}
	return nil
}

// TellIdle reports idle jobs while there are any, and once after the last one, until ctx ends. A
// failed report is followed by the next.
func (a *Agent) TellIdle(ctx context.Context, send func(context.Context, *gpuprof.IdleReport) error) error {
	tick := time.NewTicker(toldEvery)
	defer tick.Stop()
	told := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		jobs := a.Idle()
		if len(jobs) == 0 && !told {
			continue
		}
		if err := send(ctx, &gpuprof.IdleReport{Node: a.Node, Jobs: jobs}); err != nil {
			a.Log.Debug("idle jobs not reported", "err", err)
			continue
		}
		told = len(jobs) > 0
	}
}
