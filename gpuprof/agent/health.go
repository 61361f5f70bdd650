package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// idlePeriod is the time between two looks at the job files without an event.
const idlePeriod = 10 * time.Second

// Periods after which a missing pass means that the agent is stuck, most likely in the driver.
const (
	stuckSamples = 10
	stuckLooks   = 3
)

// pass is the result of the last pass over job files and GPUs. It is immutable once published.
type pass struct {
	at   time.Time
	busy bool      // jobs ran
	due  time.Time // when the next sample was due, if busy
	err  error     // nil = it read everything
}

func (a *Agent) passed(at time.Time) {
	errs := []error{a.filesErr}
	for _, g := range slices.Sorted(maps.Keys(a.broken)) {
		errs = append(errs, a.broken[g])
	}
	due, busy := a.due()
	a.last.Store(&pass{at: at, busy: busy, due: due, err: errors.Join(errs...)})
}

// Health returns what is wrong with the agent, nil if its last pass is recent and complete. Any goroutine may call it.
func (a *Agent) Health() error {
	p := a.last.Load()
	if p == nil {
		return errors.New("no look at the jobs yet")
	}
	if what := a.stuck(p); what != "" {
		return fmt.Errorf("the last %s was %s ago", what, a.Now().Sub(p.at).Round(time.Millisecond))
	}
	if p.err != nil {
		return fmt.Errorf("the last pass failed: %w", p.err)
	}
	return nil
}

// stuck returns the kind of pass that is long overdue, "" if none.
func (a *Agent) stuck(p *pass) string {
	what := "look at the job files"
	late := p.at.Add(stuckLooks * idlePeriod)
	if p.busy {
		what, late = "sample", p.due.Add(stuckSamples*a.Period)
	}
	if a.Now().After(late) {
		return what
	}
	return ""
}

// retry reads failed GPUs again once their jobs are gone, so that they don't count as broken until the next job. Closed
// GPUs are retried rarely, so that they can be reset in between.
func (a *Agent) retry() error {
	on := a.sharers()
	if len(a.broken) == 0 || a.released && (len(on) > 0 || a.Now().Sub(a.needed) < 2*restAfter) {
		return nil
	}
	if a.released {
		defer a.release()
		if err := a.acquire(); err != nil {
			return err
		}
	}
	for i := range a.broken {
		if len(on[i]) > 0 {
			continue
		}
		if g := a.gpus[i]; !g.missing {
			a.read(g, nil, a.Now())
			continue
		}
		a.forget(i) // a job named it by mistake
	}
	a.passed(a.Now())
	return nil
}

// Jobs idle for toldAfter are reported every toldEvery.
const (
	toldAfter = 5 * time.Minute
	toldEvery = time.Minute
)

// works reports whether a job is active by a reading; unknown figures count as activity. own: the reading's core use is
// the job's own and decides.
func works(r *gpuprof.Reading, own bool) bool {
	f := gpuprof.FigGPU
	if own {
		f = gpuprof.FigCore
	}
	return !r.Has(f) || r.Value[f] >= gpuprof.IdleBelow
}

// showIdle publishes the idle jobs and the sharers without MPS.
func (a *Agent) showIdle(now time.Time) {
	r := &gpuprof.IdleReport{Node: a.Node, Jobs: []gpuprof.Idle{}}
	for id, t := range a.jobs {
		if t.runs() && !t.idle.IsZero() && now.Sub(t.idle) >= toldAfter {
			r.Jobs = append(r.Jobs, gpuprof.Idle{JobID: id.ID, IdleS: now.Sub(t.idle).Seconds()})
		}
		if t.runs() && t.apart {
			r.WithoutMPS = append(r.WithoutMPS, id.ID)
		}
	}
	slices.SortFunc(r.Jobs, func(x, y gpuprof.Idle) int { return cmp.Compare(x.JobID, y.JobID) })
	slices.Sort(r.WithoutMPS)
	a.Metrics.withoutMPS.Set(float64(len(r.WithoutMPS)))
	a.report.Store(r)
}

// Idle returns the jobs that have been idle for some minutes and the sharers without MPS by the last sample, none if
// the agent is stuck. It may be called at any time.
func (a *Agent) Idle() *gpuprof.IdleReport {
	if p := a.last.Load(); p != nil && a.stuck(p) != "" {
		return &gpuprof.IdleReport{Node: a.Node}
	}
	return a.report.Load()
}

// TellIdle sends reports until ctx ends: while there are idle jobs or sharers without MPS, and once after the last of
// them. A failed report is not repeated.
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
		r := a.Idle()
		if r.Empty() && !told {
			continue
		}
		if err := send(ctx, r); err != nil {
			a.Log.Debug("idle jobs not reported", "err", err)
			continue
		}
		told = !r.Empty()
	}
}
