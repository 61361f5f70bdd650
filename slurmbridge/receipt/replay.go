package receipt

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/replay"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// World is a cluster on which jobs are replayed twice: as they were, and in another way.
type World struct {
	Nodes []job.Node
	// Card returns the settings of a GPU type.
	Card func(gpuType string) (rlcore.GPUSpec, bool)
	// Cut returns the MIG instance with so many slices of a GPU type, false = it can't be cut so; nil = none can be cut.
	Cut func(gpuType string, slices int) (rlcore.GPUSpec, bool)
	// Decider makes the decider of the shared world. Its guard's predictor also gives the slowdowns there.
	Decider func() *rlcore.Decider
	// WhatIf compares the jobs' own requests with a world in which jobs that used little of a whole GPU share. Without
	// WhatIf a world of whole GPUs is compared with the jobs' own requests.
	WhatIf bool
	// Rule returns the rule that would have adopted a whole-GPU run, nil = none. Without Rule WhatIf assumes that these
	// jobs had requested gpu:shared.
	Rule func(j *history.Run) *adopt.Rule
	// Limit is the maximum number of jobs; the latest are replayed. Default 20,000.
	Limit int
}

// Replay compares two simulated worlds with the same arrivals. Times are in hours.
type Replay struct {
	Jobs    int            `json:"jobs"`
	LeftOut map[string]int `json:"left_out,omitempty"`
	GPUs    int            `json:"gpus"`
	Policy  string         `json:"policy"`
	// Base is the first world: each job on a GPU of its own, or with WhatIf the jobs as requested. Shared is the second.
	Base   Lot `json:"base"`
	Shared Lot `json:"shared"`
	// RecordedWait is the real mean wait of these jobs. Its distance from the replayed waits shows the replay's realism.
	RecordedWait float64 `json:"recorded_mean_wait_h"`
	All          Change  `json:"all"`
	// Users and Apps cover all jobs, with WhatIf the jobs that would share. Users with the most jobs come first, and
	// applications with the most idle GPU-hours; with WhatIf users, too, are sorted by idle GPU-hours.
	Users []Change `json:"users"`
	Apps  []Change `json:"applications"`
	OOM   int      `json:"memory_failures"` // in the shared world
	// Slowed counts the jobs that run longer by more than a hundredth, Late the jobs that end later than on plain Slurm
	// by more than a tenth of their time alone.
	Slowed int     `json:"jobs_slowed"`
	Slow   float64 `json:"mean_slowdown"`
	Worst  float64 `json:"worst_slowdown"`
	Late   int     `json:"jobs_late"`
	// VetoCounts are the guard's reasons in the shared world for which jobs waited next to a GPU with room, the longest
	// wait first.
	VetoCounts []history.VetoCount `json:"guard,omitempty"`
	Would      *Would              `json:"would_share,omitempty"` // with WhatIf
}

// Would sums up the jobs that share in the second world, but not in the first.
type Would struct {
	Change // of these jobs
	// Adopted: rules adopt the jobs; otherwise they request gpu:shared.
	Adopted bool `json:"adopted,omitempty"`
	// Unknown counts whole-GPU jobs without a profile, so with unknown use of their GPU.
	Unknown int `json:"jobs_without_profile"`
	// Cores is the mean number of cores that each of these jobs used, HostGiB the most memory that one used on a node.
	// Both are known for HostOf jobs.
	Cores   float64 `json:"host_cores_mean,omitempty"`
	HostGiB float64 `json:"host_memory_peak_gib,omitempty"`
	HostOf  int     `json:"host_known_of_jobs"`
}

// Lot sums up the jobs in one world.
type Lot struct {
	GPUHours   float64 `json:"gpu_hours"`
	Wait       float64 `json:"mean_wait_h"`
	Turnaround float64 `json:"mean_turnaround_h"`
	Span       float64 `json:"makespan_h"`
}

// Change compares some jobs in the two worlds.
type Change struct {
	Name       string  `json:"name"`
	User       string  `json:"user,omitempty"` // of an application
	Jobs       int     `json:"jobs"`
	Base       float64 `json:"mean_wait_base_h"`
	Shared     float64 `json:"mean_wait_shared_h"`
	Shorter    int     `json:"shorter"` // jobs that wait less, by a tenth of a minute or more
	Longer     int     `json:"longer"`
	ShorterH   float64 `json:"shorter_h"` // by how much in all
	LongerH    float64 `json:"longer_h"`
	Turnaround float64 `json:"turnaround_change_h"` // mean; below 0 = done earlier
	Hours      float64 `json:"gpu_h"`               // of these jobs
	Use        float64 `json:"use"`                 // the mean fraction of Hours in which kernels ran, by profile
}

// same is the difference below which two waits count as equal, s.
const same = 6.0

// ErrReplay means that a replay is impossible; the text says why.
var ErrReplay = errors.New("no replay")

// Replay replays jobs in both worlds. It doesn't change the slice.
func (w *World) Replay(jobs []history.Run) (*Replay, error) {
	r := &Replay{LeftOut: map[string]int{}, All: Change{Name: "all"}}
	p, err := w.prepare(w.cluster(nil), jobs, r.LeftOut)
	if err != nil {
		return nil, err
	}
	first := alone()
	then := p.cfg.Jobs
	if w.WhatIf {
		first = w.Decider()
		if then, err = w.would(p, r); err != nil {
			return nil, err
		}
	}
	base, err := p.play(first, p.cfg.Jobs)
	if err != nil {
		return nil, err
	}
	shared, err := p.play(p.decider, then)
	if err != nil {
		return nil, err
	}
	r.Jobs = len(p.in)
	r.GPUs = len(p.cfg.GPUs)
	r.Policy = p.decider.Policy.Name()
	r.OOM = shared.OOM
	for _, k := range shared.VetoCosts {
		r.VetoCounts = append(r.VetoCounts, history.VetoCount{Reason: k.Reason.String(), Jobs: k.Jobs, WaitH: k.WaitS / 3600})
	}
	r.compare(p, base, shared)
	return r, nil
}

// alone returns a decider that never makes jobs share.
func alone() *rlcore.Decider {
	g := sim.Bare()
	g.MaxMembers = 1
	return &rlcore.Decider{Policy: baseline.Exclusive{}, Guard: g, M: 1}
}

// would returns the arrivals of the second world, in which some whole-GPU jobs share.
func (w *World) would(p *prepared, r *Replay) ([]sim.Arrival, error) {
	out := slices.Clone(p.cfg.Jobs)
	r.Would = &Would{Adopted: w.Rule != nil, Change: Change{Name: "theirs"}}
	p.share = make([]bool, len(p.in))
	for i, j := range p.in {
		might, known := wouldShare(j)
		if !known {
			r.Would.Unknown++
		}
		if might && w.Rule != nil {
			rule := w.Rule(j)
			might = rule != nil
			if might {
				out[i].Job.MaxSlowdown = cmp.Or(j.Terms.MaxSlowdown, rule.MaxSlowdown)
				out[i].Job.Grace = rule.Grace
			}
		}
		p.share[i] = might
		out[i].Job.NoShare = out[i].Job.NoShare && !might
	}
	if !slices.Contains(p.share, true) {
		return nil, fmt.Errorf("%w: of %d jobs none requested one whole GPU and is known to use less than half of it (of "+
			"%d there is no profile)",
			ErrReplay, len(p.in), r.Would.Unknown)
	}
	return out, nil
}

// wouldShare reports whether a job requested a whole GPU and used little of it; known is false without a profile.
func wouldShare(j *history.Run) (yes, known bool) {
	switch {
	case j.WholeGPUs != 1 || len(j.GPUs) > 1 || j.Terms.NoShare:
		return false, true
	case j.Profile == nil:
		return false, false
	}
	return adopt.Leaves(j.Profile, j.CardMemMiB()), true
}

// prepared is a replay, ready to play. in and share are in the order of cfg.Jobs.
type prepared struct {
	cfg     sim.Config
	in      []*history.Run
	decider *rlcore.Decider
	share   []bool // with WhatIf: the jobs that would share
}

// play simulates arrivals with a decider.
func (p *prepared) play(d *rlcore.Decider, jobs []sim.Arrival) (*sim.Result, error) {
	cfg := p.cfg
	cfg.Jobs = jobs
	cfg.Predictor = d.Guard.Predictor
	res, err := sim.Run(cfg, d)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReplay, err)
	}
	return res, nil
}

// Reasons why a job can't be replayed.
const (
	noMemory = "more memory than any GPU has"
	noGPUs   = "more GPUs than its partition has"
)

// prepare makes the simulator's jobs for a cluster, which may have instances: a job's time on an instance is from its
// profile. Jobs of several GPUs get whole GPUs only. left counts the jobs left out, by reason.
func (w *World) prepare(c *cluster, jobs []history.Run, left map[string]int) (*prepared, error) {
	cfg := sim.Config{Foretell: true, GPUs: c.gpus, Nodes: c.nodes}
	part := 0.0  // the largest fraction of a GPU
	least := 1.0 // the smallest
	for _, p := range c.parts {
		part = max(part, p)
		least = min(least, p)
	}
	if len(c.parts) > 1 {
		cfg.Cards = c.cards
		cfg.On = func(p *rlcore.Profile, card string) *rlcore.Profile { return p.OnPart(c.parts[card] / part) }
	}
	if len(cfg.GPUs) == 0 {
		return nil, fmt.Errorf("%w: no look at the nodes was kept", ErrReplay)
	}
	kept := w.pick(jobs, left)
	if len(kept) == 0 {
		return nil, fmt.Errorf("%w: for no job is it known since when it waited", ErrReplay)
	}
	d := w.Decider()
	cfg.ExtendLimit = d.Guard.ExtendLimit
	// The decider predicts exactly what the simulator does: a replay has no surprises.
	believed := &truth{d.Guard.Predictor, &c.gpus[0], map[*rlcore.Profile]*rlcore.Profile{}, nil, nil}
	cfg.Truth = believed
	first := kept[0].Ready
	var in []*history.Run
	type reach struct {
		partition string
		whole     bool
	}
	sets := map[reach]*rlcore.GPUSet{}
	// The decider gets profiles without the lengths of these runs. Each run's length is added when it ends.
	before := map[*rlcore.Profile]*rlcore.Profile{nil: nil}
	for i, j := range kept {
		s := simulated(j, first, believed)
		if before[s.Profile] == nil && s.Profile != nil {
			p := *s.Profile.OnPart(part)
			p.Past = nil
			before[s.Profile] = &p
		}
		s.Profile = before[s.Profile]
		s.LimitS *= s.Truth.OnPart(least).DurationS / s.Truth.DurationS // on slower GPUs users request more time
		s.Truth = s.Truth.OnPart(part)
		s.ID = fmt.Sprint(i) // not the ref, which requeued jobs share
		of := reach{j.Partition, s.Foreign}
		s.GPUs = sets[of]
		if s.GPUs == nil {
			var gpus []int
			for p := range strings.SplitSeq(j.Partition, ",") {
				gpus = append(gpus, c.places[p]...)
			}
			s.GPUs = rlcore.NewGPUSet(slices.DeleteFunc(gpus, func(g int) bool { return s.Foreign && c.cards[g] != whole })...)
			sets[of] = s.GPUs
		}
		if s.GPUs.Len(len(cfg.GPUs)) == len(cfg.GPUs) {
			s.GPUs = nil
		}
		if !cfg.Room(&s) {
			why := noMemory
			if s.Foreign || s.GPUs.Len(len(cfg.GPUs)) == 0 {
				why = noGPUs
			}
			left[why]++
			continue
		}
		in = append(in, j)
		cfg.Jobs = append(cfg.Jobs, s)
	}
	return &prepared{cfg: cfg, in: in, decider: d}, nil
}

// pick returns the jobs that can be replayed, in the order in which they became ready.
func (w *World) pick(jobs []history.Run, left map[string]int) []*history.Run {
	var kept []*history.Run
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.Ready.IsZero():
			left["its wait was not seen"]++
		case !j.Took():
			left["its run time is not known"]++
		default:
			if perNode, _ := replay.GPUs(j); perNode == 0 {
				left["several GPUs, not as many on each node"]++
				continue
			}
			kept = append(kept, j)
		}
	}
	limit := cmp.Or(w.Limit, 20_000)
	slices.SortStableFunc(kept,
		func(a, b *history.Run) int { return cmp.Or(a.Ready.Compare(b.Ready), cmp.Compare(a.Ref, b.Ref)) })
	if len(kept) > limit {
		left[fmt.Sprintf("the latest %d are enough", limit)] = len(kept) - limit
		kept = kept[len(kept)-limit:]
	}
	return kept
}

// simulated returns a run as an arrival. Of a run of several GPUs its own length serves as its profile, since the
// application's profile is of runs on one GPU.
func simulated(j *history.Run, first time.Time, t *truth) sim.Arrival {
	seconds, basis := j.Solo()
	if basis == history.Lost {
		seconds = j.DurationS() // a lower bound: the run failed early
		if j.Outcome.SoloS > 0 {
			seconds = j.Outcome.SoloS
		}
	}
	s := replay.Arrival(j, first, t.alone(j.Profile, max(1, seconds)))
	if s.LimitS > 0 {
		s.LimitS = max(s.LimitS, seconds)
	}
	if s.Foreign {
		s.Profile = s.Truth
	}
	return s
}

// truth is the simulator's truth in a replay of a site's runs. A job has its application's profile, stretched to the
// time that the run takes alone. Sharers slow each other as the site's model predicts: the prediction for whole runs
// holds at each instant.
type truth struct {
	learned rlcore.Predictor
	card    *rlcore.GPUSpec
	base    map[*rlcore.Profile]*rlcore.Profile // the application's profile by a job's own
	members []*rlcore.Profile
	taught  []rlcore.Prediction
}

// alone returns a job's profile alone, from its application's profile (nil = unknown) and the job's time.
func (t *truth) alone(app *rlcore.Profile, seconds float64) *rlcore.Profile {
	if app == nil {
		return &rlcore.Profile{DurationS: seconds, PeriodS: seconds, Series: []rlcore.Use{{}}}
	}
	own := *app.Stretched(seconds)
	t.base[&own] = app
	return &own
}

// Slowdowns implements sim.Truth.
func (t *truth) Slowdowns(dst []float64, p []*rlcore.Profile, _ []contention.Demand) []float64 {
	t.members = t.members[:0]
	t.taught = append(t.taught[:0], make([]rlcore.Prediction, len(p))...)
	for _, own := range p {
		t.members = append(t.members, cmp.Or(t.base[own], own))
	}
	if len(p) > 1 {
		t.learned.Predict(t.taught, t.card, t.members)
	}
	dst = dst[:0]
	for _, x := range t.taught {
		if !(x.Slowdown >= 1) || math.IsInf(x.Slowdown, 1) {
			x.Slowdown = 1
		}
		dst = append(dst, x.Slowdown)
	}
	return dst
}

func (r *Replay) compare(p *prepared, base, shared *sim.Result) {
	r.Base = lot(base)
	r.Shared = lot(shared)
	users := map[string]*Change{}
	apps := map[rlcore.Identity]*Change{}
	for i, j := range p.in {
		a := &base.Jobs[i]
		s := &shared.Jobs[i]
		r.All.add(j, a, s)
		r.RecordedWait += max(0, j.Start.Sub(j.Ready).Hours()) / float64(len(p.in))
		if s.Slowdown > 1.01 {
			r.Slowed++
			r.Slow += (s.Slowdown - r.Slow) / float64(r.Slowed)
		}
		r.Worst = max(r.Worst, s.Slowdown)
		if _, late := s.Late(); late {
			r.Late++
		}
		if r.Would != nil {
			if !p.share[i] {
				continue
			}
			r.Would.add(j, a, s)
			r.Would.host(j)
		}
		app := rlcore.Identity{App: j.App, Owner: j.User}
		if users[j.User] == nil {
			users[j.User] = &Change{Name: j.User}
		}
		if apps[app] == nil {
			apps[app] = &Change{Name: j.App, User: j.User}
		}
		users[j.User].add(j, a, s)
		apps[app].add(j, a, s)
	}
	idle := func(c *Change) float64 { return c.Hours * (1 - c.Use) }
	most := func(c *Change) float64 { return float64(c.Jobs) }
	if r.Would != nil {
		most = idle
	}
	r.Users = ranked(users, most)
	r.Apps = ranked(apps, idle)
}

func (w *Would) host(j *history.Run) {
	if h := j.Host; h != nil {
		w.HostOf++
		w.Cores += (h.Cores - w.Cores) / float64(w.HostOf)
		w.HostGiB = max(w.HostGiB, h.MemMiB/1024)
	}
}

func (c *Change) add(j *history.Run, a, s *sim.Outcome) {
	const h = 3600
	c.Jobs++
	mean := func(sum *float64, v float64) { *sum += (v - *sum) / float64(c.Jobs) }
	wa := a.StartS - a.SubmitS
	ws := s.StartS - s.SubmitS
	mean(&c.Base, wa/h)
	mean(&c.Shared, ws/h)
	mean(&c.Turnaround, (s.EndS-a.EndS)/h)
	d := ws - wa
	switch {
	case d <= -same:
		c.Shorter++
		c.ShorterH -= d / h
	case d >= same:
		c.Longer++
		c.LongerH += d / h
	}
	took := j.DurationS() / h
	use := 0.0
	if j.Profile != nil {
		use = j.Profile.Mean().GPU
	}
	c.Hours += took
	c.Use += (use - c.Use) * took / c.Hours
}

// ranked returns the changes by value, descending, then by name.
func ranked[K comparable](m map[K]*Change, value func(*Change) float64) []Change {
	out := make([]Change, 0, len(m))
	for _, c := range m {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Change) int {
		return cmp.Or(cmp.Compare(value(&b), value(&a)), cmp.Compare(a.User, b.User), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func lot(r *sim.Result) Lot {
	l := Lot{Turnaround: r.MeanTurnaroundS / 3600, Span: r.MakespanS / 3600}
	busy := map[int]spans{}
	for i := range r.Jobs {
		o := &r.Jobs[i]
		l.Wait += (o.StartS - o.SubmitS) / 3600 / float64(len(r.Jobs))
		on := o.On
		if on == nil {
			on = []int{o.GPU}
		}
		for _, gpu := range on {
			busy[gpu] = append(busy[gpu], span{o.StartS / 3600, o.EndS / 3600})
		}
	}
	for _, gpu := range slices.Sorted(maps.Keys(busy)) {
		l.GPUHours += busy[gpu].length()
	}
	return l
}

const line = "#SBATCH --gres=gpu:shared  (in place of --gres=gpu:1 or --gpus=1)"

// Text writes the comparison for a terminal, with at most limit lines in each list.
func (r *Replay) Text(out io.Writer, limit int) {
	p := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	if r.Would == nil && r.All.Shorter+r.All.Longer == 0 {
		p("Replayed (estimate): sharing changes no job's wait, %s on average.", job.Span(r.All.Base))
	} else {
		r.worlds(out, p, limit)
	}
	if len(r.VetoCounts) > 0 {
		t := newTable(out, "guard, replayed", "jobs", "waited")
		for _, x := range r.VetoCounts {
			t.AppendRow(table.Row{x.Reason, x.Jobs, job.Span(x.WaitH)})
		}
		t.Render()
	}
	if r.Would != nil && !r.Would.Adopted {
		p("Each of them would write   %s", line)
	}
	p("- %d jobs were run twice on a simulator of the %d GPUs, at the times at which they really began to wait, with %s "+
		"deciding under the guard's rules and the promise as they are set today. How long each takes alone is known from "+
		"its run, how sharers slow each other is what the bridge predicts. Jobs of several GPUs hold them unshared, in "+
		"their turn. Slurm's own delays, priorities, reservations and jobs without GPUs are not in it: the two worlds "+
		"compare well with each other, less well with what happened (mean wait recorded: %s).",
		r.Jobs, r.GPUs, r.Policy, job.Span(r.RecordedWait))
	if r.Would != nil {
		p("- Without a profile of their use, and left as they were: %s with a whole GPU.", job.Count(r.Would.Unknown, "job"))
	}
	for _, why := range slices.Sorted(maps.Keys(r.LeftOut)) {
		p("- Not replayed: %s (%s).", job.Count(r.LeftOut[why], "job"), why)
	}
}

// worlds writes the comparison of all jobs, and by user and application.
func (r *Replay) worlds(out io.Writer, p func(format string, args ...any), limit int) {
	x := r.Would
	was := "one by one"
	all := []*Change{&r.All}
	if x == nil {
		p("Replayed (estimate), %d jobs:", r.Jobs)
	} else {
		had := "had requested gpu:shared"
		if x.Adopted {
			had = "were adopted by the rules"
		}
		p("What if %d of %d jobs, which requested a whole GPU and used less than half of it, %s (estimate):", x.Jobs, r.Jobs,
			had)
		was = "as requested"
		all = []*Change{&x.Change, &r.All}
	}
	u := usage.HoursFor(max(r.Base.GPUHours, r.Shared.GPUHours))
	p("%s: %s %s, %s sharing: %s.", u.Noun, u.Text(r.Base.GPUHours), was, u.Text(r.Shared.GPUHours),
		saved(u, r.Base.GPUHours-r.Shared.GPUHours, r.Base.GPUHours))
	for _, c := range all {
		p("Mean wait of %d jobs (%s): %s %s, %s sharing; %d would wait less (%s in all), %d longer (%s); done %s on average.",
			c.Jobs, c.Name, job.Span(c.Base), was, job.Span(c.Shared), c.Shorter, job.Span(c.ShorterH), c.Longer,
			job.Span(c.LongerH), earlier(c.Turnaround))
	}
	slowed := "none"
	if r.Slowed > 0 {
		slowed = fmt.Sprintf("%d jobs, %.2f times on average, %.2f at worst", r.Slowed, r.Slow, r.Worst)
	}
	p("Slowed: %s. Later than on plain Slurm by more than a tenth of their time: %d.", slowed, r.Late)
	if x != nil && x.HostOf > 0 {
		p("Of their nodes the jobs that would share used %.1f cores each on average, and %.1f GiB of memory at most "+
			"(known of %d): where a node has fewer for each sharer of its GPUs, they bound sharing.", x.Cores, x.HostGiB,
			x.HostOf)
	}
	for i, list := range [][]Change{r.Users, r.Apps} {
		t := newTable(out, []string{"user", "application"}[i], "jobs", "GPU-hours", "used", "wait", "sharing",
			"done earlier by")
		for k := range list[:min(len(list), limit)] {
			c := &list[k]
			name := cmp.Or(c.Name, "(not known)")
			if c.User != "" {
				name += " of " + c.User
			}
			t.AppendRow(table.Row{
				name, c.Jobs, fmt.Sprintf("%.1f", c.Hours), fmt.Sprintf("%.0f %%", 100*c.Use), job.Span(c.Base),
				job.Span(c.Shared), job.Span(-c.Turnaround),
			})
		}
		if len(list) > limit {
			t.AppendRow(table.Row{fmt.Sprintf("and %d more", len(list)-limit)})
		}
		t.Render()
	}
}

func earlier(change float64) string {
	if change > 0 {
		return job.Span(change) + " later"
	}
	return job.Span(-change) + " earlier"
}
