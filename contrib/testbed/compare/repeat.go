package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// errMemory says that a job failed for memory in the simulator.
var errMemory = errors.New("repeat a run: jobs fail for memory")

// repeat lets the simulator carry out the decisions that a real run shows, under
// the law that the simulated GPU computes by. A decision is known by what it
// waited for: a job is started as soon as those jobs have ended that had ended
// before it in the real run. So groups, partners and order are the real run's and
// Slurm's pauses are not. Returns the makespan, s.
//
// Without pauses phases fall together that did not, and a job may find no memory:
// that is errMemory. It isn't if spare is true, which gives the card more.
func repeat(runs []run, spare bool) (float64, error) {
	card := rlcore.TitanXp
	if spare {
		card.MemMiB *= float64(1 + len(runs))
	}
	s, err := replica(runs, card, func(run) float64 { return 0 })
	if err != nil {
		return 0, err
	}
	after := endedBefore(runs)
	for s.Next() {
		st := s.State()
		open := map[string]bool{}
		for i := range st.Pending {
			open[st.Pending[i].ID] = true
		}
		for i := range st.GPUs[0].Running {
			open[st.GPUs[0].Running[i].Job.ID] = true
		}
		var start []int
		for i := range st.Pending {
			if !slices.ContainsFunc(after[st.Pending[i].ID], func(id string) bool { return open[id] }) {
				start = append(start, i)
			}
		}
		s.Start(start)
	}
	return makespan(s)
}

// repeatStarts lets the simulator start every job when the real run did. What
// then differs is neither decision nor pause. Returns the makespan, s.
func repeatStarts(runs []run) (float64, error) {
	s, err := replica(runs, rlcore.TitanXp, func(r run) float64 { return max(0, r.startS) })
	if err != nil {
		return 0, err
	}
	for s.Next() {
		all := make([]int, len(s.State().Pending))
		for i := range all {
			all[i] = i
		}
		s.Start(all)
	}
	return makespan(s)
}

// replica is a simulation of the same jobs.
func replica(runs []run, card rlcore.GPUSpec, arrives func(run) float64) (*sim.Sim, error) {
	cfg := sim.Config{GPUs: []rlcore.GPUSpec{card}, Truth: sim.Law{Law: &contention.MPS}, M: len(runs)}
	for i, r := range runs {
		p, ok := apps.ByName(r.app)
		if !ok {
			return nil, fmt.Errorf("repeat a run: no application %q", r.app)
		}
		cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint(i), User: "one", Profile: p, SubmitS: arrives(r)}})
	}
	s, err := sim.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("repeat a run: %w", err)
	}
	return s, nil
}

// endedBefore lists, by job, the jobs that had ended when it started.
func endedBefore(runs []run) map[string][]string {
	out := map[string][]string{}
	for i := range runs {
		for k := range runs {
			if runs[k].endS <= runs[i].startS {
				out[fmt.Sprint(i)] = append(out[fmt.Sprint(i)], fmt.Sprint(k))
			}
		}
	}
	return out
}

// makespan is when the last job has ended, s.
func makespan(s *sim.Sim) (float64, error) {
	r, err := s.Result()
	if err != nil {
		return 0, fmt.Errorf("repeat a run: %w", err)
	}
	if r.OOM > 0 {
		return 0, errMemory
	}
	last := 0.0
	for i := range r.Jobs {
		last = max(last, r.Jobs[i].EndS)
	}
	return last, nil
}

// addSim compares the figures with the simulator's, or notes why it can't.
func (f *figures) addSim() {
	if f.JobsFailed > 0 {
		return
	}
	var err error
	f.SimMakespanS, err = repeat(f.runs, false)
	if errors.Is(err, errMemory) {
		f.SimNote = "without Slurm's pauses a job would have failed for memory; simulated with more"
		f.SimMakespanS, err = repeat(f.runs, true)
	}
	if err != nil {
		f.SimNote = err.Error()
		return
	}
	f.SimRatio = f.MakespanS / f.SimMakespanS
	if f.SimStartsS, err = repeatStarts(f.runs); err != nil {
		f.SimNote = err.Error()
		return
	}
	f.StartsRatio = f.MakespanS / f.SimStartsS
}
