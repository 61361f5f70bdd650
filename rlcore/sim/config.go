// Package sim runs jobs on simulated GPUs, event by event.
//
// It fills the same rlcore.State that the bridge fills and queries the same Decider. The consequences of a decision
// follow from a Truth: the contention law, or measured slowdowns of pairs. Nothing is random here: the same Config
// gives the same Result to the last bit.
package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
	"github.com/slurmbridge/slurmbridge/rlcore/sim/site"
)

// Arrival is a job to simulate. The embedded Job is what a decision may know of it. A foreign job starts without a
// decision, on whole GPUs, when its turn has come. Deadlines end no job.
type Arrival struct {
	rlcore.Job
	// Truth is what the job really does when it runs alone; nil = as Profile says.
	Truth *rlcore.Profile
}

// Config is what to simulate.
type Config struct {
	Jobs []Arrival // in order of priority among jobs that arrive together
	GPUs []rlcore.GPUSpec
	// Nodes names each GPU's node, for foreign jobs, which take whole GPUs of one node or several; nil = all GPUs are on
	// one node.
	Nodes []string
	// Cards names each GPU's model, and On is what a job of a profile is on one of them, where models differ; nil = it is
	// the same everywhere. Jobs' profiles are of the model on which they are fastest.
	Cards []string
	On    func(p *rlcore.Profile, card string) *rlcore.Profile
	// Truth is how sharers slow each other.
	Truth Truth
	// Predictor is what the site believes about slowdowns. Decisions see a running job's progress as predicted by it,
	// since a real job's progress can't be observed. nil: they see the truth.
	Predictor rlcore.Predictor
	// Observer, if set, learns from the runs that have ended. MaxSlowdown is the site's contract, as rlcore.Rules has it.
	Observer    site.Observer
	MaxSlowdown float64
	// Foretell: of a job is expected what the runs of its application that have ended foretell; its Profile is what is
	// known without them. See rlcore.Profile.Foretold.
	Foretell bool
	// M is the window of decisions: an arrival behind it triggers none. Default
	// rlcore.DefaultWindow; Run takes it from its Decider.
	M int
	// ExtendLimit: a job gets back what sharing has cost it, so it is ended at its limit after that
	// much solo work, except for jobs with LimitFixed. As rlcore.Guard's.
	ExtendLimit bool
	// MaxDelayS is the guard's: where a decision left a GPU idle, another one is due when a job of its window has been
	// delayed that long. Default rlcore.DefaultMaxDelayS; Run takes it from its Decider.
	MaxDelayS float64
}

// ErrBadConfig marks a Config that can't be simulated.
var ErrBadConfig = errors.New("can't simulate")

// ErrStuck marks a simulation in which jobs are left that neither an event nor a decision moves.
var ErrStuck = errors.New("simulation is stuck")

// New prepares a simulation. Errors wrap ErrBadConfig and name the job or GPU.
func New(cfg Config) (*Sim, error) {
	cfg.M, cfg.MaxDelayS = cmp.Or(cfg.M, rlcore.DefaultWindow), cmp.Or(cfg.MaxDelayS, rlcore.DefaultMaxDelayS)
	if cfg.Truth == nil {
		return nil, fmt.Errorf("%w: no law of contention is given", ErrBadConfig)
	}
	if len(cfg.GPUs) == 0 {
		return nil, fmt.Errorf("%w: there is no GPU", ErrBadConfig)
	}
	s := &Sim{
		cfg: cfg, left: len(cfg.Jobs), stateS: -1, segs: map[*rlcore.Profile][]segment{},
		byID: map[string]int{}, onCard: map[onCard]*rlcore.Profile{},
		site: site.Site{Observer: cfg.Observer, MaxSlowdown: cfg.MaxSlowdown, Foretell: cfg.Foretell, On: cfg.On},
	}
	for i, spec := range cfg.GPUs {
		if !(spec.MemMiB > 0) {
			return nil, fmt.Errorf("%w: GPU %d has %v MiB of memory", ErrBadConfig, i, spec.MemMiB)
		}
		s.devs = append(s.devs, device{spec: spec, nextS: math.Inf(1), wakeS: math.Inf(1)})
		s.names = append(s.names, fmt.Sprintf("%s:%d", cfg.node(i), i))
		s.state.GPUs = append(s.state.GPUs, rlcore.GPU{
			ID: s.names[i], Node: cfg.node(i), Model: cfg.card(i), Spec: spec, FreeCPUs: -1, FreeHostMemMiB: -1,
		})
	}
	for i := range cfg.Jobs {
		j, err := cfg.admit(cfg.Jobs[i])
		if _, twice := s.byID[j.ID]; err == nil && twice {
			err = errors.New("there are two of this ID")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: job %s: %w", ErrBadConfig, j.ID, err)
		}
		s.jobs = append(s.jobs, jobState{Arrival: j, known: j.Profile, started: -1, ended: -1})
		s.order = append(s.order, i)
		s.byID[j.ID] = i
		if j.GPUs != nil && !slices.Contains(s.state.Sets, j.GPUs) {
			s.state.Sets = append(s.state.Sets, j.GPUs)
		}
		s.state.Several = s.state.Several || j.WholeGPUs() > 1
		s.choosy = s.choosy || j.GPUs != nil
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(s.jobs[a].SubmitS, s.jobs[b].SubmitS) })
	s.vetoes, s.waited = make([]waiting, len(s.devs)), make([]float64, len(s.jobs)*rlcore.Vetoes)
	s.plain, s.truly = schedule.NewSlurmAlone(s.names...), schedule.NewSlurmAlone(s.names...)
	s.plain.DoneS = s.done
	return s, nil
}

// admit validates a job and fills in its Truth. A job that doesn't fit on some of its GPUs may use
// only the rest, since alone no guard would keep it from failing there.
func (cfg *Config) admit(j Arrival) (Arrival, error) {
	if j.Truth = cmp.Or(j.Truth, j.Profile); j.Truth == nil {
		return j, errors.New("it has no profile")
	}
	for _, p := range []*rlcore.Profile{j.Truth, j.Profile} {
		if p == nil {
			continue
		}
		if err := p.Validate(); err != nil {
			return j, err
		}
	}
	if !(j.SubmitS >= 0) || math.IsInf(j.SubmitS, 0) {
		return j, fmt.Errorf("it arrives at %v s", j.SubmitS)
	}
	if !(j.LimitS >= 0) || math.IsInf(j.LimitS, 0) {
		return j, fmt.Errorf("its limit is %v s", j.LimitS)
	}
	if j.GPUs != nil && j.GPUs.Len(math.MaxInt) > j.GPUs.Len(len(cfg.GPUs)) {
		return j, fmt.Errorf("it may use GPUs beyond the %d there are", len(cfg.GPUs))
	}
	mem := j.Truth.Peak().MemMiB
	fits := slices.Collect(j.GPUs.Of(len(cfg.GPUs)))
	may := len(fits)
	fits = slices.DeleteFunc(fits, func(g int) bool { return mem > cfg.GPUs[g].MemMiB })
	switch n := j.WholeGPUs(); {
	case len(fits) == 0:
		return j, fmt.Errorf("it needs %.0f MiB, more than any GPU it may use has", mem)
	case n > 1 && !j.Foreign:
		return j, fmt.Errorf("it takes %d GPUs and isn't foreign", n)
	case j.Foreign && !cfg.Room(&j):
		return j, fmt.Errorf("it takes %d GPUs of each of %d nodes, more than there are", max(1, j.PerNode), max(1, j.Nodes))
	case len(fits) < may:
		j.GPUs = rlcore.NewGPUSet(fits...)
	}
	j.NoShare = j.NoShare || j.Foreign
	return j, nil
}
