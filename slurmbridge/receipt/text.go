package receipt

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/jedib0t/go-pretty/v6/table"
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
	if len(r.Failures) > 0 {
		p("")
		for i, f := range r.Failures {
			if i == limit {
				p("  and %d more", len(r.Failures)-limit)
				break
			}
			p("  job %s (%s) failed at %s next to %s: %s%s", f.Ref, f.User, f.At.Local().Format(time.DateTime), strings.Join(f.With, ", "), f.Why, f.Then())
		}
	}
	if len(r.Contracts.List) > 0 {
		p("")
		for i, c := range r.Contracts.List {
			if i == limit {
				p("  and %d more", len(r.Contracts.List)-limit)
				break
			}
			p("  job %s (%s): slowed %.2f times, %.2f allowed, %.2f predicted, next to %s", c.Ref, c.User, c.Seen, c.Limit, c.Predicted, strings.Join(c.With, ", "))
		}
	}
	if len(r.Refused) > 0 {
		t := newTable(w, "guard", "jobs", "rounds")
		for _, x := range r.Refused {
			t.AppendRow(table.Row{x.Reason, x.Jobs, x.Looks})
		}
		t.Render()
	}
	if r.Replay != nil {
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
			c.name(), c.Jobs, span(c.Alone), span(c.Shared), fmt.Sprintf("%s, %s", job.Count(c.Shorter, "job"), span(c.ShorterH)),
			fmt.Sprintf("%s, %s", job.Count(c.Longer, "job"), span(c.LongerH)), span(-c.Turnaround),
		})
	}
	t.Render()
}

func (c *Change) name() string {
	if c.Name == "" {
		return "(not known)"
	}
	return c.Name
}

// clean takes from a text what a terminal would act on, and what would turn its
// words around.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
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
		say("Grouped: %s in %s; %s shared a GPU.", job.Count(r.Grouped, "job"), job.Count(r.Groups, "group"), job.Count(r.Shared, "job"))
	}
	h := r.Hours
	if h.Saved != 0 && (h.ByProfile+h.ByGuess > 0 || h.Lost > 0) {
		say("GPU-hours: %.1f used; one by one about %.1f: %s. Of those %.1f were measured, %.1f are profiles' solo durations, %.1f are by slowdown; %.1f were lost to failures.",
			h.Used, h.OneByOne, saved(h.Saved, h.OneByOne), h.Measured, h.ByProfile, h.ByGuess, h.Lost)
	} else {
		say("GPU-hours: %.1f used, one by one.", h.Used)
	}
	if r.Modes[string(job.Shadow)] > 0 || r.Intended > 0 {
		say("Shadow changed nothing. It would have made %s share.", job.Count(r.Intended, "job"))
	}
	if x := r.Replay; x != nil {
		say("Replayed (estimate): %.1f GPU-hours one by one, %.1f sharing: %s; mean wait %s, sharing %s; %s would wait less (%s in all), %d longer (%s).",
			x.Alone.GPUHours, x.Shared.GPUHours, saved(x.Alone.GPUHours-x.Shared.GPUHours, x.Alone.GPUHours), span(x.All.Alone), span(x.All.Shared),
			job.Count(x.All.Shorter, "job"), span(x.All.ShorterH), x.All.Longer, span(x.All.LongerH))
	}
	if p := r.Predicted; p.Jobs > 0 {
		say("Predicted slowdown: %.2f on average over %s, %.2f at worst (job %s).", p.Mean, job.Count(p.Jobs, "job"), p.Worst, p.Of)
	}
	if s := r.Seen; s.Jobs > 0 {
		say("Measured slowdown: %.2f on average over %s, %.2f or less for 95 %%, %.2f at worst (job %s).", s.Mean, job.Count(s.Jobs, "run"), s.P95, s.Worst, s.Of)
	}
	say("Contracts: %d kept, %d broken. Failures that may be due to co-runners: %d.", r.Contracts.Kept, r.Contracts.Broken, len(r.Failures))
	say("Harm: %s.", r.Harm)
	say("Turnaround: %s.", r.Turn)
	if r.Lent.Jobs > 0 {
		say("Time given back: the limits of %s were raised because of sharing, by %s in all.", job.Count(r.Lent.Jobs, "job"), span(r.Lent.Hours))
	}
	return out
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
func saved(v, of float64) string {
	what := "saved"
	if v < 0 {
		what, v = "more used:", -v
	}
	if !(of > 0) {
		return fmt.Sprintf("%s %.1f", what, v)
	}
	return fmt.Sprintf("%s %.1f, %.0f %%", what, v, 100*v/of)
}
