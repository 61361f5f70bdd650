package receipt

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// little is the part of a GPU's time, and of its memory, below which a job uses little of it.
const little = 0.5

// mostGains is how many users, and applications, are named.
const mostGains = 20

// WhatIf compares the recorded days with the same days replayed, in which jobs that requested a
// whole GPU and used little of it request gpu:shared. Times are in hours.
type WhatIf struct {
	Jobs int `json:"jobs"` // that would have asked for gpu:shared
	// Unknown are jobs with a whole GPU each and no profile that says how much of it they used.
	Unknown int     `json:"jobs_without_profile"`
	Asked   Lot     `json:"as_asked"`
	Shared  Lot     `json:"sharing"`
	Freed   float64 `json:"freed_gpu_h"`
	Theirs  Change  `json:"their_waits"`
	All     Change  `json:"all_waits"`
	// Slowed are the jobs that run longer, by more than a hundredth; Late the jobs that end after
	// plain Slurm would have ended them, by more than a tenth of their time alone.
	Slowed    int            `json:"jobs_slowed"`
	SlowMean  float64        `json:"mean_slowdown"`
	SlowWorst float64        `json:"worst_slowdown"`
	Late      int            `json:"jobs_late"`
	Users     []Gain         `json:"users"`
	Apps      []Gain         `json:"applications"`
	Replayed  int            `json:"jobs_replayed"`
	LeftOut   map[string]int `json:"left_out,omitempty"`
	GPUs      int            `json:"gpus"`
	Policy    string         `json:"policy"`
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
	mean, peak := j.Profile.Mean(), j.Profile.Peak()
	return mean.GPU < little && (card == 0 || peak.MemMiB < little*card), true
}

// WhatIf replays jobs twice under the same guard and promise: with their own requests, and with
// shared ones.
func (w *World) WhatIf(jobs []history.Run) (*WhatIf, error) {
	r := &Replay{LeftOut: map[string]int{}}
	p, err := w.prepare(jobs, r)
	if err != nil {
		return nil, err
	}
	out := &WhatIf{LeftOut: r.LeftOut, Replayed: len(p.in), GPUs: len(p.cfg.GPUs), Policy: p.decider.Policy.Name(), Users: []Gain{}, Apps: []Gain{}}
	yes := make([]bool, len(p.in))
	then := p.cfg
	then.Jobs = slices.Clone(p.cfg.Jobs)
	for i, j := range p.in {
		might, known := wouldShare(j)
		if !known {
			out.Unknown++
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

// compare fills in what the two worlds differ by.
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
		u, app := users[j.User], apps[rlcore.Identity{App: j.App, Owner: j.User}]
		if u == nil {
			u = &Gain{User: j.User, Line: line}
			users[j.User] = u
		}
		if app == nil {
			app = &Gain{User: j.User, App: j.App, Line: line}
			apps[rlcore.Identity{App: j.App, Owner: j.User}] = app
		}
		hours := j.End.Sub(j.Start).Hours()
		for _, g := range []*Gain{u, app} {
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
	p("What if %d of %d jobs, which requested a whole GPU and used less than half of it, had requested gpu:shared (estimate):", x.Jobs, x.Replayed)
	p("GPU-hours: %.1f as requested, %.1f sharing: %s.", x.Asked.GPUHours, x.Shared.GPUHours, saved(x.Freed, x.Asked.GPUHours))
	for _, c := range []*Change{&x.Theirs, &x.All} {
		p("Mean wait of %d jobs (%s): %s as requested, %s sharing; %d would wait less (%s in all), %d longer (%s); done %s on average.",
			c.Jobs, c.Name, span(c.Alone), span(c.Shared), c.Shorter, span(c.ShorterH), c.Longer, span(c.LongerH), earlier(c.Turnaround))
	}
	if x.Slowed > 0 {
		p("Slowed: %d jobs, %.2f times on average, %.2f at worst. Later than on plain Slurm by more than a tenth of their time: %d.", x.Slowed, x.SlowMean, x.SlowWorst, x.Late)
	} else {
		p("Slowed: none. Later than on plain Slurm by more than a tenth of their time: %d.", x.Late)
	}
	for _, by := range []struct {
		head []any
		list []Gain
	}{{[]any{"user", "jobs", "GPU-hours", "used", "wait less by"}, x.Users}, {[]any{"application", "jobs", "GPU-hours", "used", "wait less by"}, x.Apps}} {
		t := newTable(out, by.head...)
		for i := range by.list {
			g := &by.list[i]
			name := clean(g.User)
			if by.head[0] == "application" {
				name = clean(cmp.Or(g.App, "(not known)") + " of " + g.User)
			}
			t.AppendRow(table.Row{name, g.Jobs, fmt.Sprintf("%.1f", g.Hours), fmt.Sprintf("%.0f %%", 100*g.Use), span(g.Waits.Alone - g.Waits.Shared)})
		}
		t.Render()
	}
	p("Each of them would write   %s", line)
	p("- %d jobs were run twice on a simulator of the %d GPUs, with %s deciding under the guard's rules and the promise as they are set today; how long each takes alone is known from its run, how sharers slow each other is what the bridge predicts. Without a profile of their use, and left as they were: %s with a whole GPU.", x.Replayed, x.GPUs, x.Policy, job.Count(x.Unknown, "job"))
	for why, n := range x.LeftOut {
		p("- Not replayed: %d jobs (%s).", n, why)
	}
}

func earlier(change float64) string {
	if change > 0 {
		return span(change) + " later"
	}
	return span(-change) + " earlier"
}
