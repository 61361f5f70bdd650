package receipt

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// Text writes the receipt for a terminal, at most limit lines a list.
func (r *Receipt) Text(out io.Writer, limit int) {
	w := &strings.Builder{}
	defer func() { fmt.Fprint(out, clean(w.String())) }()
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	p("Receipt, %s to %s", r.From.Local().Format(time.DateTime), r.To.Local().Format(time.DateTime))
	for _, line := range r.Lines() {
		p("%s", line)
	}
	if r.Jobs == 0 {
		return
	}
	lines := func(n int, line func(i int)) {
		for i := range min(n, limit) {
			if i == 0 {
				p("")
			}
			line(i)
		}
		if n > limit {
			p("  and %d more", n-limit)
		}
	}
	lines(len(r.Failures), func(i int) {
		f := &r.Failures[i]
		p("  job %s (%s) failed at %s next to %s: %s%s", f.Ref, f.User, f.At.Local().Format(time.DateTime),
			strings.Join(f.With, ", "), f.Why, f.Then())
	})
	lines(len(r.Contracts.List), func(i int) {
		c := &r.Contracts.List[i]
		p("  job %s (%s): slowed %.2f times, %.2f allowed, %.2f predicted, next to %s", c.Ref, c.User, c.Seen, c.Limit,
			c.Predicted, strings.Join(c.With, ", "))
	})
	if len(r.Kinds) > 1 {
		t := newTable(w, "kind", "jobs", "would share", "waited", "slowed", "done earlier by", "harmed")
		for i := range r.Kinds {
			t.AppendRow(r.Kinds[i].row())
		}
		t.Render()
	}
	if len(r.Refused) > 0 {
		t := newTable(w, "guard", "jobs", "rounds", "waited")
		for _, x := range r.Refused {
			t.AppendRow(table.Row{x.Reason, x.Jobs, x.Looks, job.Span(x.WaitH)})
		}
		t.Render()
	}
	if r.Replay != nil {
		r.Replay.kept(w)
	}
	if r.waitsChange() {
		waits(w, "user", r.Replay.Users, limit)
		waits(w, "account", r.Replay.Accounts, limit)
	}
	p("")
	p("How these figures were computed:")
	for _, m := range r.Method {
		p("- %s", m)
	}
	if r.NoReplay != "" {
		p("- There is no estimate of waits: %s.", strings.TrimPrefix(r.NoReplay, ErrReplay.Error()+": "))
	}
}

// Then says what became of a failed job.
func (f *Failure) Then() string {
	switch {
	case f.Cleared:
		return "; run again alone it failed, too"
	case f.Again:
		return "; run again alone"
	}
	return ""
}

func newTable(w io.Writer, head ...any) table.Writer {
	fmt.Fprintln(w)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row(head))
	return t
}

func waits(w io.Writer, what string, all []Change, limit int) {
	if len(all) == 0 {
		return
	}
	t := newTable(w, what, "jobs", "wait alone", "wait sharing", "shorter", "longer", "done earlier by")
	for i := range all {
		c := &all[i]
		if i == limit {
			t.AppendRow(table.Row{fmt.Sprintf("and %d more", len(all)-limit)})
			break
		}
		t.AppendRow(table.Row{
			c.name(), c.Jobs, job.Span(c.Base), job.Span(c.Shared),
			fmt.Sprintf("%s, %s", job.Count(c.Shorter, "job"), job.Span(c.ShorterH)),
			fmt.Sprintf("%s, %s", job.Count(c.Longer, "job"), job.Span(c.LongerH)), job.Span(-c.Turnaround),
		})
	}
	t.Render()
}

// kept writes which of the guard's reasons cost the most waiting in the shared world.
func (r *Replay) kept(w io.Writer) {
	if len(r.Kept) == 0 {
		return
	}
	t := newTable(w, "guard, replayed", "jobs", "waited")
	for _, x := range r.Kept {
		t.AppendRow(table.Row{x.Reason, x.Jobs, job.Span(x.WaitH)})
	}
	t.Render()
}

func (c *Change) name() string {
	if c.Name == "" {
		return "(not known)"
	}
	return c.Name
}

// clean is usage.Clean line by line.
func clean(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = usage.Clean(lines[i])
	}
	return strings.Join(lines, "\n")
}

// Lines are the receipt in a few sentences.
func (r *Receipt) Lines() []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if r.Jobs == 0 {
		return []string{"No job with a GPU is known to have ended in this time."}
	}
	by := ""
	if len(r.Policies) > 0 {
		by = ", decided by " + strings.Join(r.Policies, ", ")
	}
	say("%s of %s ended, %s%s.", job.Count(r.Jobs, "job"), job.Count(r.Users, "user"), r.modes(), by)
	if r.Modes[string(job.Active)] > 0 || r.Groups > 0 {
		if r.Grouped+r.Shared == 0 {
			say("No jobs were put together.")
		} else {
			say("Grouped: %s in %s; %s shared a GPU.", job.Count(r.Grouped, "job"), job.Count(r.Groups, "group"),
				job.Count(r.Shared, "job"))
		}
	}
	h := r.Hours
	u := usage.HoursFor(max(h.Used, h.OneByOne))
	if h.Saved != 0 && (h.ByProfile+h.ByGuess > 0 || h.Lost > 0) {
		text := fmt.Sprintf("%s: %s used; one by one about %s: %s", u.Noun, u.Text(h.Used), u.Text(h.OneByOne),
			saved(u, h.Saved, h.OneByOne))
		for i, part := range []struct {
			hours float64
			of    string
		}{
			{h.Measured, "measured"},
			{h.ByProfile, "profiles' solo durations"},
			{h.ByGuess, "by slowdown"},
			{h.Lost, "lost to failures"},
		} {
			if part.hours != 0 {
				text += map[bool]string{true: ". Of those: ", false: ", "}[i == 0] + u.Text(part.hours) + " " + part.of
			}
		}
		say("%s.", text)
	} else {
		say("%s: %s used, one by one.", u.Noun, u.Text(h.Used))
	}
	if r.Modes[string(job.Shadow)] > 0 || r.Intended > 0 {
		say("Shadow changed nothing. It would have made %s share.", job.Count(r.Intended, "job"))
	}
	if r.Eligible > 0 {
		say("The rules of adopt are in shadow. They match %s that used less than half of a GPU; slurmbridge adopt preview "+
			"replays what would have come of it.",
			job.Count(r.Eligible, "job"))
	}
	if x := r.Replay; x != nil && !r.waitsChange() {
		say("Replayed (estimate): sharing changes no job's wait, %s on average.", job.Span(x.All.Base))
	} else if x != nil {
		u := usage.HoursFor(max(x.Base.GPUHours, x.Shared.GPUHours))
		say("Replayed (estimate): %s %s one by one, %s sharing: %s; mean wait %s, sharing %s; %s would wait less (%s in "+
			"all), %d longer (%s).",
			u.Text(x.Base.GPUHours), u.Noun, u.Text(x.Shared.GPUHours),
			saved(u, x.Base.GPUHours-x.Shared.GPUHours, x.Base.GPUHours), job.Span(x.All.Base), job.Span(x.All.Shared),
			job.Count(x.All.Shorter, "job"), job.Span(x.All.ShorterH), x.All.Longer, job.Span(x.All.LongerH))
	}
	if p := r.Predicted; p.Jobs > 0 {
		say("Predicted slowdown: %.2f on average over %s, %.2f at worst (job %s).", p.Mean, job.Count(p.Jobs, "job"), p.Worst,
			p.Of)
	}
	if s := r.Seen; s.Jobs > 0 {
		say("Measured slowdown: %.2f on average over %s, %.2f or less for 95 %%, %.2f at worst (job %s).", s.Mean,
			job.Count(s.Jobs, "run"), s.P95, s.Worst, s.Of)
	}
	if r.Shared+r.Contracts.Kept+r.Contracts.Broken+len(r.Failures) > 0 {
		say("Contracts: %d kept, %d broken. Failures that may be due to co-runners: %d.", r.Contracts.Kept,
			r.Contracts.Broken, len(r.Failures))
	}
	say("Harm: %s.", r.Harm)
	say("Turnaround: %s.", r.Turn)
	if r.Apps.Telling() {
		say("Applications: %s.", r.Apps)
	}
	if r.Lent.Jobs > 0 {
		say("Time given back: the limits of %s were raised because of sharing, by %s in all.", job.Count(r.Lent.Jobs, "job"),
			job.Span(r.Lent.Hours))
	}
	return out
}

// waitsChange reports whether the replay has a job that sharing makes wait shorter or longer.
func (r *Receipt) waitsChange() bool {
	return r.Replay != nil && r.Replay.All.Shorter+r.Replay.All.Longer > 0
}

func (r *Receipt) modes() string {
	var parts []string
	for mode, n := range r.Modes {
		parts = append(parts, fmt.Sprintf("%d in mode %s", n, mode))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// saved says how much of a whole was saved; a loss says so.
func saved(u usage.Unit, v, of float64) string {
	what := "saved"
	if v < 0 {
		what, v = "more used:", -v
	}
	if !(of > 0) {
		return what + " " + u.Text(v)
	}
	return fmt.Sprintf("%s %s, %.0f %%", what, u.Text(v), 100*v/of)
}
