package receipt

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// World is where jobs are replayed, once each with a GPU of its own and once
// sharing.
type World struct {
	Nodes []job.Node
	// Card is what the settings say of GPUs of a type.
	Card func(gpuType string) (rlcore.GPUSpec, bool)
	// Decider makes what decides in the shared world; its guard's predictor also says
	// how sharers slow each other there.
	Decider func() *rlcore.Decider
	// Limit is how many jobs are replayed at most, the latest. Default 20,000.
	Limit int
}

// Replay compares two simulated worlds with the same arrivals. Times are in hours.
type Replay struct {
	Jobs    int            `json:"jobs"`
	LeftOut map[string]int `json:"left_out,omitempty"`
	GPUs    int            `json:"gpus"`
	Policy  string         `json:"policy"`
	Alone   Lot            `json:"alone"`
	Shared  Lot            `json:"shared"`
	// RecordedWait is the mean wait that the same jobs really had: how far the
	// replayed worlds are from it shows how far they can be believed.
	RecordedWait float64  `json:"recorded_mean_wait_h"`
	All          Change   `json:"all"`
	Users        []Change `json:"users"` // those with the most jobs first
	Accounts     []Change `json:"accounts"`
	OOM          int      `json:"memory_failures"` // in the shared world
	Worst        float64  `json:"worst_slowdown"`
	Slow         float64  `json:"mean_slowdown"`
}

// Lot is how the jobs fared in one world.
type Lot struct {
	GPUHours   float64 `json:"gpu_hours"`
	Wait       float64 `json:"mean_wait_h"`
	Turnaround float64 `json:"mean_turnaround_h"`
	Span       float64 `json:"makespan_h"`
}

// Change is what sharing does to the waits of some jobs.
type Change struct {
	Name       string  `json:"name"`
	Jobs       int     `json:"jobs"`
	Alone      float64 `json:"mean_wait_alone_h"`
	Shared     float64 `json:"mean_wait_shared_h"`
	Shorter    int     `json:"shorter"` // jobs that wait less, by a tenth of a minute or more
	Longer     int     `json:"longer"`
	ShorterH   float64 `json:"shorter_h"` // by how much in all
	LongerH    float64 `json:"longer_h"`
	Turnaround float64 `json:"turnaround_change_h"` // mean; below 0 = done earlier
}

// same is up to which difference two waits are the same, s.
const same = 6.0

// ErrReplay says why there is nothing to replay.
var ErrReplay = errors.New("no replay")

// Run replays jobs. It leaves the slice as it is.
func (w *World) Run(jobs []history.Run) (*Replay, error) {
	r := &Replay{LeftOut: map[string]int{}}
	p, err := w.prepare(jobs, r)
	if err != nil {
		return nil, err
	}
	alone, err := sim.Run(p.cfg, &rlcore.Decider{Policy: baseline.Exclusive{}, Guard: oneByOne(), M: 1})
	if err != nil {
		return nil, fmt.Errorf("%w: one by one: %w", ErrReplay, err)
	}
	p.cfg.Predictor = p.decider.Guard.Predictor
	shared, err := sim.Run(p.cfg, p.decider)
	if err != nil {
		return nil, fmt.Errorf("%w: shared: %w", ErrReplay, err)
	}
	r.Jobs, r.GPUs, r.Policy, r.OOM = len(p.in), len(p.cfg.GPUs), p.decider.Policy.Name(), shared.OOM
	r.compare(p.in, alone, shared)
	return r, nil
}

// prepared are the jobs of a replay, in the order of cfg.Jobs, and what decides.
type prepared struct {
	cfg     sim.Config
	in      []*history.Run
	decider *rlcore.Decider
}

// prepare makes the simulator's jobs and GPUs; r counts what is left out.
func (w *World) prepare(jobs []history.Run, r *Replay) (*prepared, error) {
	cfg := sim.Config{}
	places := map[string][]int{} // GPUs by partition
	for i := range w.Nodes {
		n := &w.Nodes[i]
		spec, ok := w.Card(n.GPUType)
		if !ok {
			spec = rlcore.GPUSpec{Model: n.GPUType, MemMiB: 1 << 20, MaxClients: 1} // nothing shares it
		}
		for range n.GPUs {
			for _, p := range n.Partitions {
				places[p] = append(places[p], len(cfg.GPUs))
			}
			cfg.GPUs = append(cfg.GPUs, spec)
		}
	}
	if len(cfg.GPUs) == 0 {
		return nil, fmt.Errorf("%w: no look at the nodes was kept", ErrReplay)
	}
	kept := w.pick(jobs, r)
	if len(kept) == 0 {
		return nil, fmt.Errorf("%w: for no job is it known since when it waited", ErrReplay)
	}
	d := w.Decider()
	// What decides believes the same as the replayed world: the replay knows no surprises.
	truth := history.NewTruth(d.Guard.Predictor, nil)
	first := kept[0].Ready
	room := 0.0
	for g := range cfg.GPUs {
		room = max(room, cfg.GPUs[g].MemMiB)
	}
	var in []*history.Run
	for i, j := range kept {
		s := simulated(j, truth)
		s.ID = fmt.Sprint(i) // a requeued job is there twice
		s.SubmitS = max(0, j.Ready.Sub(first).Seconds())
		for p := range strings.SplitSeq(j.Partition, ",") {
			s.GPUs = append(s.GPUs, places[p]...)
		}
		if len(s.GPUs) == len(cfg.GPUs) {
			s.GPUs = nil
		}
		if s.Truth.Peak().MemMiB > room {
			r.LeftOut["more memory than any GPU has"]++
			continue
		}
		in = append(in, j)
		cfg.Jobs = append(cfg.Jobs, s)
	}
	cfg.Truth = truth.On(&cfg.GPUs[0])
	return &prepared{cfg, in, d}, nil
}

// oneByOne is the guard under which no job shares.
func oneByOne() *rlcore.Guard {
	g := sim.Bare()
	g.MaxMembers = 1
	return g
}

// pick returns the jobs that can be replayed, in the order they came.
func (w *World) pick(jobs []history.Run, r *Replay) []*history.Run {
	var kept []*history.Run
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.Ready.IsZero():
			r.LeftOut["its wait was not seen"]++
		case !j.Took():
			r.LeftOut["its run time is not known"]++
		case j.WholeGPUs > 1 || len(j.GPUs) > 1:
			r.LeftOut["more than one GPU"]++
		default:
			kept = append(kept, j)
		}
	}
	limit := cmp.Or(w.Limit, 20_000)
	slices.SortStableFunc(kept, func(a, b *history.Run) int { return cmp.Or(a.Ready.Compare(b.Ready), cmp.Compare(a.Ref, b.Ref)) })
	if n := len(kept) - limit; n > 0 {
		r.LeftOut[fmt.Sprintf("the latest %d are enough", limit)] = n
		kept = kept[n:]
	}
	return kept
}

// simulated is a job as the simulator runs it.
func simulated(j *history.Run, truth *history.Truth) sim.Arrival {
	seconds, basis := j.Solo()
	if basis == history.Lost {
		seconds = j.DurationS() // at least: it failed before its end
		if j.Outcome.SoloS > 0 {
			seconds = j.Outcome.SoloS
		}
	}
	return sim.Arrival{Job: j.Job(), Truth: truth.Alone(j.Profile, max(1, seconds))}
}

// compare fills in what the two worlds differ by.
func (r *Replay) compare(in []*history.Run, alone, shared *sim.Result) {
	r.Alone, r.Shared = lot(alone), lot(shared)
	r.All.Name = "all"
	users, accounts := map[string]*Change{}, map[string]*Change{}
	n := 0
	for i, j := range in {
		a, s := &alone.Jobs[i], &shared.Jobs[i]
		for _, c := range []*Change{&r.All, entry(users, j.User), entry(accounts, j.Account)} {
			c.add(a, s)
		}
		r.RecordedWait += max(0, j.Start.Sub(j.Ready).Hours())
		if s.Slowdown > 1+1e-9 {
			n++
			r.Slow += s.Slowdown
		}
		r.Worst = max(r.Worst, s.Slowdown)
	}
	r.RecordedWait /= float64(len(in))
	if n > 0 {
		r.Slow /= float64(n)
	}
	r.All.mean()
	r.Users, r.Accounts = ordered(users), ordered(accounts)
}

func entry(m map[string]*Change, name string) *Change {
	if m[name] == nil {
		m[name] = &Change{Name: name}
	}
	return m[name]
}

// add counts one job, in its two worlds.
func (c *Change) add(a, s *sim.Outcome) {
	const h = 3600
	wa, ws := a.StartS-a.SubmitS, s.StartS-s.SubmitS
	c.Jobs++
	c.Alone += wa / h
	c.Shared += ws / h
	c.Turnaround += (s.EndS - a.EndS) / h
	switch d := ws - wa; {
	case d <= -same:
		c.Shorter++
		c.ShorterH -= d / h
	case d >= same:
		c.Longer++
		c.LongerH += d / h
	}
}

func (c *Change) mean() {
	n := float64(max(1, c.Jobs))
	c.Alone, c.Shared, c.Turnaround = c.Alone/n, c.Shared/n, c.Turnaround/n
}

func ordered(m map[string]*Change) []Change {
	out := make([]Change, 0, len(m))
	for _, c := range m {
		c.mean()
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Change) int { return cmp.Or(cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.Name, b.Name)) })
	return out
}

// lot sums a world up.
func lot(r *sim.Result) Lot {
	l := Lot{Turnaround: r.MeanTurnaroundS / 3600, Span: r.MakespanS / 3600}
	runs := slices.Clone(r.Jobs)
	slices.SortFunc(runs, func(a, b sim.Outcome) int { return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.StartS, b.StartS)) })
	gpu, end := -1, 0.0
	for i := range runs {
		o := &runs[i]
		if o.GPU != gpu {
			gpu, end = o.GPU, 0
		}
		l.GPUHours += max(0, o.EndS-max(end, o.StartS)) / 3600
		end = max(end, o.EndS)
		l.Wait += (o.StartS - o.SubmitS) / 3600 / float64(len(runs))
	}
	return l
}

func (r *Replay) method() []string {
	out := []string{fmt.Sprintf("Waits are estimated: %d jobs are run again on a simulator of the %d GPUs, at the times at which they really began to wait, once each with a GPU of its own in the order of arrival, once with %s deciding under the guard's rules as it is set today. How long each takes alone is known as above; how sharers slow each other is what the bridge believes today. Slurm's own delays, priorities, reservations and jobs without GPUs are not in it: the two worlds compare well with each other, less well with what happened (mean wait recorded: %s).",
		r.Jobs, r.GPUs, r.Policy, span(r.RecordedWait))}
	return out
}

// span prints hours for people.
func span(hours float64) string {
	d := time.Duration(math.Abs(hours) * float64(time.Hour))
	sign := ""
	if hours < 0 && d >= time.Second {
		sign = "-"
	}
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%s%.0f s", sign, d.Seconds())
	case d < 3*time.Hour:
		return fmt.Sprintf("%s%.0f min", sign, d.Minutes())
	default:
		return fmt.Sprintf("%s%.1f h", sign, d.Hours())
	}
}
