package receipt

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
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
	// Rule returns the rule that would have adopted a run of a whole GPU, nil = none; without it WhatIf assumes that all
	// had asked for gpu:shared.
	Rule func(j *history.Run) *adopt.Rule
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
	sets := map[string]*rlcore.GPUSet{} // by partition
	for i, j := range kept {
		s := simulated(j, truth)
		s.ID = fmt.Sprint(i) // a requeued job is there twice
		s.SubmitS = max(0, j.Ready.Sub(first).Seconds())
		if s.GPUs = sets[j.Partition]; s.GPUs == nil {
			var gpus []int
			for p := range strings.SplitSeq(j.Partition, ",") {
				gpus = append(gpus, places[p]...)
			}
			s.GPUs = rlcore.NewGPUSet(gpus...)
			sets[j.Partition] = s.GPUs
		}
		if s.GPUs.Len(len(cfg.GPUs)) == len(cfg.GPUs) {
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
		r.Jobs, r.GPUs, r.Policy, job.Span(r.RecordedWait))}
	return out
}

// mostGains is how many users, and applications, are named.
const mostGains = 20

// WhatIf compares the recorded days with the same days replayed, in which jobs that requested a
// whole GPU and used little of it request gpu:shared. Times are in hours.
type WhatIf struct {
	Jobs int `json:"jobs"` // that would have asked for gpu:shared, or of which a rule would have made sharers
	// Adopted: rules would have.
	Adopted bool `json:"adopted,omitempty"`
	// Unknown are jobs with a whole GPU each and no profile that says how much of it they used.
	Unknown int     `json:"jobs_without_profile"`
	Asked   Lot     `json:"as_asked"`
	Shared  Lot     `json:"sharing"`
	Freed   float64 `json:"freed_gpu_h"`
	Theirs  Change  `json:"their_waits"`
	All     Change  `json:"all_waits"`
	// Slowed are the jobs that run longer, by more than a hundredth; Late the jobs that end after
	// plain Slurm would have ended them, by more than a tenth of their time alone.
	Slowed    int     `json:"jobs_slowed"`
	SlowMean  float64 `json:"mean_slowdown"`
	SlowWorst float64 `json:"worst_slowdown"`
	Late      int     `json:"jobs_late"`
	Users     []Gain  `json:"users"`
	Apps      []Gain  `json:"applications"`
	// Cores are those of their nodes that the jobs which would share used on average, each, and HostGiB the most
	// memory that one had there; HostOf is of how many jobs that is known.
	Cores    float64        `json:"host_cores_mean,omitempty"`
	HostGiB  float64        `json:"host_memory_peak_gib,omitempty"`
	HostOf   int            `json:"host_known_of_jobs"`
	Replayed int            `json:"jobs_replayed"`
	LeftOut  map[string]int `json:"left_out,omitempty"`
	GPUs     int            `json:"gpus"`
	Policy   string         `json:"policy"`
}

// Gain is what one user, or one application of a user, has to do with it.
type Gain struct {
	User  string  `json:"user"`
	App   string  `json:"app,omitempty"`
	Jobs  int     `json:"jobs"`
	Hours float64 `json:"gpu_h"` // that these jobs held whole
	Use   float64 `json:"use"`   // the mean part of that time in which their GPUs computed, by profile
	Waits Change  `json:"waits"`
	// Line is what they would have to write.
	Line string `json:"line"`
}

// line is what a job's owner has to change.
const line = "#SBATCH --gres=gpu:shared  (in place of --gres=gpu:1 or --gpus=1)"

// wouldShare reports whether a job requested a whole GPU and used little of it; known is false
// without a profile.
func wouldShare(j *history.Run) (yes, known bool) {
	switch {
	case j.WholeGPUs != 1 || len(j.GPUs) > 1 || j.Terms.NoShare:
		return false, true
	case j.Profile == nil:
		return false, false
	}
	card := 0.0
	for i := range j.Devices {
		card = max(card, j.Devices[i].MemMiB)
	}
	return adopt.Leaves(j.Profile, card), true
}

// WhatIf replays jobs twice under the same guard and promise: with their own requests, and with
// shared ones.
func (w *World) WhatIf(jobs []history.Run) (*WhatIf, error) {
	r := &Replay{LeftOut: map[string]int{}}
	p, err := w.prepare(jobs, r)
	if err != nil {
		return nil, err
	}
	out := &WhatIf{Adopted: w.Rule != nil, LeftOut: r.LeftOut, Replayed: len(p.in), GPUs: len(p.cfg.GPUs), Policy: p.decider.Policy.Name(), Users: []Gain{}, Apps: []Gain{}}
	yes := make([]bool, len(p.in))
	then := p.cfg
	then.Jobs = slices.Clone(p.cfg.Jobs)
	for i, j := range p.in {
		might, known := wouldShare(j)
		if !known {
			out.Unknown++
		}
		if might && w.Rule != nil {
			rule := w.Rule(j)
			if might = rule != nil; might {
				then.Jobs[i].Job.MaxSlowdown, then.Jobs[i].Job.Grace = cmp.Or(j.Terms.MaxSlowdown, rule.MaxSlowdown), rule.Grace
			}
		}
		if yes[i] = might; might {
			out.Jobs++
			then.Jobs[i].Job.NoShare = false
		}
	}
	if out.Jobs == 0 {
		return nil, fmt.Errorf("%w: of %d jobs none requested one whole GPU and is known to use less than half of it (of %d there is no profile)", ErrReplay, len(p.in), out.Unknown)
	}
	p.cfg.Predictor, then.Predictor = p.decider.Guard.Predictor, p.decider.Guard.Predictor
	asked, err := sim.Run(p.cfg, p.decider)
	if err != nil {
		return nil, fmt.Errorf("%w: as asked: %w", ErrReplay, err)
	}
	sharing, err := sim.Run(then, w.Decider())
	if err != nil {
		return nil, fmt.Errorf("%w: sharing: %w", ErrReplay, err)
	}
	out.compare(p.in, yes, asked, sharing)
	return out, nil
}

func (x *WhatIf) compare(in []*history.Run, yes []bool, asked, sharing *sim.Result) {
	x.Asked, x.Shared = lot(asked), lot(sharing)
	x.Freed = x.Asked.GPUHours - x.Shared.GPUHours
	x.Theirs.Name, x.All.Name = "theirs", "all"
	users, apps := map[string]*Gain{}, map[rlcore.Identity]*Gain{}
	for i, j := range in {
		a, s := &asked.Jobs[i], &sharing.Jobs[i]
		x.All.add(a, s)
		if s.Slowdown > 1.01 {
			x.Slowed++
			x.SlowMean += s.Slowdown
		}
		x.SlowWorst = max(x.SlowWorst, s.Slowdown)
		if s.EndS > s.PlainEndS+0.1*s.SoloS+1e-6 {
			x.Late++
		}
		if !yes[i] {
			continue
		}
		x.Theirs.add(a, s)
		if h := j.Host; h != nil {
			x.HostOf++
			x.Cores += (h.Cores - x.Cores) / float64(x.HostOf)
			x.HostGiB = max(x.HostGiB, h.MemMiB/1024)
		}
		id, hours := rlcore.Identity{App: j.App, Owner: j.User}, j.End.Sub(j.Start).Hours()
		if users[j.User] == nil {
			users[j.User] = &Gain{User: j.User, Line: line}
		}
		if apps[id] == nil {
			apps[id] = &Gain{User: j.User, App: j.App, Line: line}
		}
		for _, g := range []*Gain{users[j.User], apps[id]} {
			g.Jobs++
			g.Hours += hours
			g.Use += hours * j.Profile.Mean().GPU
			g.Waits.add(a, s)
		}
	}
	if x.Slowed > 0 {
		x.SlowMean /= float64(x.Slowed)
	}
	x.All.mean()
	x.Theirs.mean()
	x.Users, x.Apps = gains(users), gains(apps)
}

// gains are the users who would gain most, by the hours in which their GPUs did nothing.
func gains[K comparable](m map[K]*Gain) []Gain {
	out := make([]Gain, 0, len(m))
	for _, g := range m {
		g.Waits.mean()
		if g.Hours > 0 {
			g.Use /= g.Hours
		}
		out = append(out, *g)
	}
	wasted := func(g *Gain) float64 { return g.Hours * (1 - g.Use) }
	slices.SortFunc(out, func(a, b Gain) int {
		return cmp.Or(cmp.Compare(wasted(&b), wasted(&a)), cmp.Compare(a.User, b.User), cmp.Compare(a.App, b.App))
	})
	return out[:min(len(out), mostGains)]
}

// Text writes it for a terminal.
func (x *WhatIf) Text(out io.Writer) {
	p := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	had := "had requested gpu:shared"
	if x.Adopted {
		had = "were adopted by the rules"
	}
	p("What if %d of %d jobs, which requested a whole GPU and used less than half of it, %s (estimate):", x.Jobs, x.Replayed, had)
	u := usage.HoursFor(max(x.Asked.GPUHours, x.Shared.GPUHours))
	p("%s: %s as requested, %s sharing: %s.", u.Noun, u.Text(x.Asked.GPUHours), u.Text(x.Shared.GPUHours), saved(u, x.Freed, x.Asked.GPUHours))
	for _, c := range []*Change{&x.Theirs, &x.All} {
		p("Mean wait of %d jobs (%s): %s as requested, %s sharing; %d would wait less (%s in all), %d longer (%s); done %s on average.",
			c.Jobs, c.Name, job.Span(c.Alone), job.Span(c.Shared), c.Shorter, job.Span(c.ShorterH), c.Longer, job.Span(c.LongerH), earlier(c.Turnaround))
	}
	if x.Slowed > 0 {
		p("Slowed: %d jobs, %.2f times on average, %.2f at worst. Later than on plain Slurm by more than a tenth of their time: %d.", x.Slowed, x.SlowMean, x.SlowWorst, x.Late)
	} else {
		p("Slowed: none. Later than on plain Slurm by more than a tenth of their time: %d.", x.Late)
	}
	if x.HostOf > 0 {
		p("Of their nodes the jobs that would share used %.1f cores each on average, and %.1f GiB of memory at most (known of %d): where a node has fewer for each sharer of its GPUs, they bound sharing.", x.Cores, x.HostGiB, x.HostOf)
	}
	for by, list := range [][]Gain{x.Users, x.Apps} {
		t := newTable(out, []string{"user", "application"}[by], "jobs", "GPU-hours", "used", "wait less by")
		for i := range list {
			g := &list[i]
			name := clean(g.User)
			if by == 1 {
				name = clean(cmp.Or(g.App, "(not known)") + " of " + g.User)
			}
			t.AppendRow(table.Row{name, g.Jobs, fmt.Sprintf("%.1f", g.Hours), fmt.Sprintf("%.0f %%", 100*g.Use), job.Span(g.Waits.Alone - g.Waits.Shared)})
		}
		t.Render()
	}
	if !x.Adopted {
		p("Each of them would write   %s", line)
	}
	p("- %d jobs were run twice on a simulator of the %d GPUs, with %s deciding under the guard's rules and the promise as they are set today; how long each takes alone is known from its run, how sharers slow each other is what the bridge predicts. Without a profile of their use, and left as they were: %s with a whole GPU.", x.Replayed, x.GPUs, x.Policy, job.Count(x.Unknown, "job"))
	for why, n := range x.LeftOut {
		p("- Not replayed: %d jobs (%s).", n, why)
	}
}

func earlier(change float64) string {
	if change > 0 {
		return job.Span(change) + " later"
	}
	return job.Span(-change) + " earlier"
}
