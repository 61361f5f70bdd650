package compare

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

// repeat lets the simulator carry out the decisions of a real run, under the law that the simulated
// GPU computes by. A decision is defined by what it waited for: a job starts when the jobs that had
// ended before it in the real run have ended, and the jobs that started before or with it have been
// submitted. So groups, partners and order are the real run's and Slurm's pauses are not. (If jobs
// come over time, jobs that pauses have delayed meet jobs that they would not have met: a group
// that waits for such a partner keeps a part of the delay.)
//
// Without pauses, phases may coincide that did not, and a job may find no memory: that is
// errMemory. It isn't if spare is true, which gives the card more.
func repeat(runs []run, spare bool) (*sim.Result, error) {
	card := rlcore.TitanXp
	if spare {
		card.MemMiB *= float64(1 + len(runs))
	}
	s, err := replica(runs, card, func(r run) float64 { return r.submitS })
	if err != nil {
		return nil, err
	}
	ended, came := map[string][]string{}, map[string]float64{} // by job: the jobs that had ended before its start, and the last submission it waits for
	for i := range runs {
		for k := range runs {
			if runs[k].endS <= runs[i].startS {
				ended[fmt.Sprint(i)] = append(ended[fmt.Sprint(i)], fmt.Sprint(k))
			}
		}
	}
	for i, r := range runs {
		id := fmt.Sprint(i)
		for k, other := range runs {
			// Jobs start together if none ended between their starts and all were there at the first.
			together := other.submitS <= r.startS && slices.Equal(ended[fmt.Sprint(k)], ended[id])
			if k == i || other.startS <= r.startS || together {
				came[id] = max(came[id], other.submitS)
			}
		}
	}
	return play(s, func(st *rlcore.State) []int {
		left := map[string]bool{}
		for i := range st.Pending {
			left[st.Pending[i].ID] = true
		}
		for i := range st.GPUs[0].Running {
			left[st.GPUs[0].Running[i].Job.ID] = true
		}
		var start []int
		for i := range st.Pending {
			id := st.Pending[i].ID
			if s.NowS() >= came[id] && !slices.ContainsFunc(ended[id], func(id string) bool { return left[id] }) {
				start = append(start, i)
			}
		}
		return start
	})
}

// repeatStarts lets the simulator start every job when the real run did. What
// then differs is neither decision nor pause. Returns the makespan, s.
func repeatStarts(runs []run) (float64, error) {
	s, err := replica(runs, rlcore.TitanXp, func(r run) float64 { return max(0, r.startS) })
	if err != nil {
		return 0, err
	}
	r, err := play(s, func(st *rlcore.State) []int {
		all := make([]int, len(st.Pending))
		for i := range all {
			all[i] = i
		}
		return all
	})
	if err != nil {
		return 0, err
	}
	return lastEnd(r), nil
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

// play runs a simulation with decisions by start: which pending jobs begin. It is errMemory if any
// fails for memory.
func play(s *sim.Sim, start func(st *rlcore.State) []int) (*sim.Result, error) {
	began := map[string]bool{}
	for s.Next() {
		st := s.State()
		now := start(st)
		for _, i := range now {
			if began[st.Pending[i].ID] { // it failed; it might do so for ever
				return nil, errMemory
			}
			began[st.Pending[i].ID] = true
		}
		s.Start(now)
	}
	r, err := s.Result()
	if err != nil {
		return nil, fmt.Errorf("repeat a run: %w", err)
	}
	if r.OOM > 0 {
		return nil, errMemory
	}
	return r, nil
}

// lastEnd is when the last job has ended, s.
func lastEnd(r *sim.Result) float64 {
	last := 0.0
	for i := range r.Jobs {
		last = max(last, r.Jobs[i].EndS)
	}
	return last
}

// addSim compares the figures with the simulator's, or notes why it can't.
func (f *figures) addSim() {
	if f.JobsFailed > 0 {
		return
	}
	r, err := repeat(f.runs, false)
	if errors.Is(err, errMemory) {
		f.SimNote = "without Slurm's pauses a job would have failed for memory; simulated with more"
		r, err = repeat(f.runs, true)
	}
	if err != nil {
		f.SimNote = err.Error()
		return
	}
	f.SimMakespanS = lastEnd(r)
	if !slices.ContainsFunc(f.runs, func(r run) bool { return r.submitS > 0 }) {
		n := late(r)
		f.SimJobsLate = &n
	}
	f.SimRatio = f.MakespanS / f.SimMakespanS
	if f.SimStartsS, err = repeatStarts(f.runs); err != nil {
		f.SimNote = err.Error()
		return
	}
	f.StartsRatio = f.MakespanS / f.SimStartsS
}

// late counts the jobs that ended later in a repeat than plain Slurm would have ended them, by
// more than the default grace.
func late(r *sim.Result) int {
	n := 0
	for i := range r.Jobs {
		if j := &r.Jobs[i]; j.EndS > j.PlainEndS+rlcore.DefaultGrace*j.SoloS {
			n++
		}
	}
	return n
}
