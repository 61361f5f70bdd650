package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// idlePeriod is the time between two looks at the job files where no event calls
// for one.
const idlePeriod = 10 * time.Second

// A pass that is so many periods overdue says that the agent is stuck: in the driver,
// most likely.
const (
	stuckSamples = 10
	stuckLooks   = 3
)

// pass is what the last pass over job files and GPUs led to. It is never changed
// once published.
type pass struct {
	at   time.Time
	busy bool      // jobs ran
	due  time.Time // when the next sample was due, where they did
	err  error     // nil = it read everything
}

// passed publishes a pass.
func (a *Agent) passed(at time.Time) {
	errs := []error{a.filesErr}
	for _, g := range slices.Sorted(maps.Keys(a.broken)) {
		errs = append(errs, a.broken[g])
	}
	due, busy := a.due()
	a.last.Store(&pass{at: at, busy: busy, due: due, err: errors.Join(errs...)})
}

// Health says what is wrong with the agent, nil = nothing: its last pass is
// recent and read all it had to. Any goroutine may call it.
func (a *Agent) Health() error {
	p := a.last.Load()
	if p == nil {
		return errors.New("no look at the jobs yet")
	}
	what, late := "look at the job files", p.at.Add(stuckLooks*idlePeriod)
	if p.busy {
		what, late = "sample", p.due.Add(stuckSamples*a.Period)
	}
	if now := a.Now(); now.After(late) {
		return fmt.Errorf("the last %s was %s ago", what, now.Sub(p.at).Round(time.Millisecond))
	}
	if p.err != nil {
		return fmt.Errorf("the last pass failed: %w", p.err)
	}
	return nil
}

// retry reads the GPUs that failed again once their jobs are gone, so that they
// are not called broken until the next job comes.
func (a *Agent) retry() {
	if a.running() > 0 || len(a.broken) == 0 {
		return
	}
	for i := range a.broken {
		if g := a.gpus[i]; !g.missing {
			a.read(g, nil, a.Now())
			continue
		}
		delete(a.broken, i) // a job's mistake, not the node's
		delete(a.gpus, i)
	}
	a.passed(a.Now())
}
