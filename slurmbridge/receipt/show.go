package receipt

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// Text writes the receipt, at most limit lines a list. It has text of users: out must remove control characters.
func (r *Receipt) Text(out io.Writer, limit int) {
	p := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
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
		j := r.Failures[i]
		then := ""
		switch o := j.Outcome; {
		case o.Excused:
			then = "; run again alone it failed, too"
		case o.Again:
			then = "; run again alone"
		}
		p("  job %s (%s) failed at %s next to %s: %s%s", j.Ref, j.User, j.End.Local().Format(time.DateTime),
			strings.Join(j.With(), ", "), j.Outcome.Suspect, then)
	})
	lines(len(r.Contracts.List), func(i int) {
		j := r.Contracts.List[i]
		p("  job %s (%s): slowed %.2f times, %.2f allowed, %.2f predicted, next to %s", j.Ref, j.User, j.Outcome.Slowdown,
			j.Outcome.Contract, j.Predicted(), strings.Join(j.With(), ", "))
	})
	if len(r.Kinds) > 1 {
		t := newTable(out, "kind", "jobs", "would share", "waited", "slowed", "done earlier by", "harmed")
		factor := func(v float64) string { return fmt.Sprintf("%.2f", v) }
		for i := range r.Kinds {
			k := &r.Kinds[i]
			t.AppendRow(table.Row{
				k.Name, k.Jobs, k.Would, k.Waited.text(job.Span), k.Slowdown.text(factor), k.Saved.text(job.Span), k.Harmed,
			})
		}
		t.Render()
	}
	if len(r.VetoCounts) > 0 {
		t := newTable(out, "guard", "jobs", "polls", "waited")
		for _, x := range r.VetoCounts {
			t.AppendRow(table.Row{x.Reason, x.Jobs, x.Looks, job.Span(x.WaitH)})
		}
		t.Render()
	}
	if r.Replay != nil {
		p("")
		r.Replay.Text(out, limit)
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

func newTable(w io.Writer, head ...any) table.Writer {
	fmt.Fprintln(w)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row(head))
	return t
}

// Lines returns the receipt in a few sentences.
func (r *Receipt) Lines() (out []string) {
	say := func(when bool, format string, args ...any) {
		if when {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	if r.Jobs == 0 {
		return []string{"No job with a GPU is known to have ended in this time."}
	}
	ended := fmt.Sprintf("%s of %s ended", job.Count(r.Jobs, "job"), job.Count(r.Users, "user"))
	for _, mode := range slices.Sorted(maps.Keys(r.Modes)) {
		if mode == unseen {
			ended += fmt.Sprintf(", %d that the daemon didn't see", r.Modes[mode])
		} else {
			ended += fmt.Sprintf(", %d in mode %s", r.Modes[mode], mode)
		}
	}
	if len(r.Policies) > 0 {
		ended += ", decided by " + strings.Join(r.Policies, ", ")
	}
	say(true, "%s.", ended)
	active := r.Modes[string(job.Active)] > 0 || r.Groups > 0
	together := r.Grouped+r.Shared > 0
	say(active && !together, "No jobs were put together.")
	grouped := "none" // jobs may share without a group: both sent to one GPU before a poll saw either run
	if r.Grouped > 0 {
		grouped = job.Count(r.Grouped, "job") + " in " + job.Count(r.Groups, "group")
	}
	say(active && together, "Grouped: %s; %s shared a GPU.", grouped, job.Count(r.Shared, "job"))
	h := r.Hours
	p := r.Predicted
	s := r.Seen
	u := usage.HoursFor(max(h.Used, h.OneByOne))
	var parts []string
	for _, part := range []struct {
		hours float64
		of    string
	}{
		{h.Measured, "measured"},
		{h.ByProfile, "profiles' solo durations"},
		{h.ByGuess, "by slowdown"},
		{h.Lost, "lost to failures"},
	} {
		if part.hours != 0 {
			parts = append(parts, u.Text(part.hours)+" "+part.of)
		}
	}
	gained := h.Saved != 0 && (h.ByProfile+h.ByGuess > 0 || h.Lost > 0)
	say(gained, "%s: %s used; one by one about %s: %s. Of those: %s.", u.Noun, u.Text(h.Used), u.Text(h.OneByOne),
		saved(u, h.Saved, h.OneByOne), strings.Join(parts, ", "))
	say(!gained, "%s: %s used, one by one.", u.Noun, u.Text(h.Used))
	say(r.Modes[string(job.Shadow)] > 0 || r.Intended > 0,
		"Shadow changed nothing. It would have made %s share.", job.Count(r.Intended, "job"))
	say(r.Eligible > 0, "The rules of adopt are in shadow. They match %s that used less than half of a GPU; slurmbridge "+
		"adopt preview replays what would have come of it.", job.Count(r.Eligible, "job"))
	say(p.Jobs > 0, "Predicted slowdown: %.2f on average over %s, %.2f at worst (job %s).", p.Mean,
		job.Count(p.Jobs, "job"), p.Worst, p.Of)
	say(s.Jobs > 0, "Measured slowdown: %.2f on average over %s, %.2f or less for 95 %%, %.2f at worst (job %s).", s.Mean,
		job.Count(s.Jobs, "run"), s.P95, s.Worst, s.Of)
	say(r.Shared+r.Contracts.Kept+r.Contracts.Broken+len(r.Failures) > 0,
		"Contracts: %d kept, %d broken. Failures that may be due to co-runners: %d.", r.Contracts.Kept, r.Contracts.Broken,
		len(r.Failures))
	say(true, "Harm: %s.", r.Harm)
	say(true, "Turnaround: %s.", r.Turn)
	say(r.Apps.Telling(), "Applications: %s.", r.Apps)
	say(r.Lent.Jobs > 0, "Time given back: the limits of %s were raised because of sharing, by %s in all.",
		job.Count(r.Lent.Jobs, "job"), job.Span(r.Lent.Hours))
	return out
}

// saved says how much of a total was saved, or used in excess.
func saved(u usage.Unit, v, of float64) string {
	what := "saved"
	if v < 0 {
		what = "more used:"
		v = -v
	}
	if !(of > 0) {
		return what + " " + u.Text(v)
	}
	return fmt.Sprintf("%s %s, %.0f %%", what, u.Text(v), 100*v/of)
}
