package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// saysFirst begins what the bridge writes into a job's AdminComment. It replaces
// nothing that begins otherwise.
const saysFirst = "slurmbridge: "

// Bounds on what is said in one look: jobs asked after, and updates.
const (
	maxAsked = 500
	maxSaid  = 20
)

// words are what jobs are to be told, by ref: the short form of `why`, for squeue
// and scontrol.
func words(plan *job.Plan, f *PlanInput, said map[string]string) map[string]string {
	out := map[string]string{}
	seats := f.Tracker.seats()
	for i := range plan.State.GPUs {
		card := &plan.State.GPUs[i]
		var here []string
		for k := range card.Running {
			if r := &card.Running[k]; !r.Whole {
				here = append(here, r.ID+expected(seats[r.ID].member))
			}
		}
		where := fmt.Sprintf("on %s gpu %s", card.Node, card.ID[len(card.Node)+1:])
		for k := range card.Running {
			r := &card.Running[k]
			switch {
			case r.Whole:
			case len(here) > 1:
				out[r.ID] = where + " together: " + strings.Join(here, ", ")
			case said[r.ID] != "":
				out[r.ID] = where + ", alone now"
			}
		}
	}
	for _, g := range f.Tracker.Groups {
		if g.Kind != job.Next || g.State != job.Released && g.State != job.Started {
			continue
		}
		refs := g.Refs()
		for i := range g.Members {
			if m := &g.Members[i]; m.Gone == "" && !m.Ran && m.Undo == "" {
				out[m.Ref] = fmt.Sprintf("starts on %s gpu %d when %s ended", g.Node, g.GPU, have(g.After))
				if len(refs) > 1 {
					out[m.Ref] += ", together: " + strings.Join(refs, ", ")
				}
			}
		}
	}
	for i := range f.Snap.Jobs {
		j := &f.Snap.Jobs[i]
		if why := f.Tracker.Unmanaged[j.Ref]; why != "" {
			out[j.Ref] = "left to Slurm: " + why
		}
		if t, ok := f.Terms[j.Ref]; ok && len(t.Ignored) > 0 {
			if out[j.Ref] != "" {
				out[j.Ref] += "; "
			}
			out[j.Ref] += "ignored " + strings.Join(t.Ignored, "; ")
		}
	}
	for ref, text := range out {
		text = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, saysFirst+text)
		if len(text) > 400 {
			text = strings.ToValidUTF8(text[:397], "") + "..."
		}
		out[ref] = text
	}
	return out
}

// expected is the slowdown foreseen for a member, for people; "" = none was.
func expected(m *job.Member) string {
	if m != nil && m.Predicted > 1.005 {
		return fmt.Sprintf(" (x%.2f expected)", m.Predicted)
	}
	return ""
}

func have(refs []string) string {
	if len(refs) == 1 {
		return refs[0] + " has"
	}
	return strings.Join(refs, ", ") + " have"
}

// say writes into jobs' AdminComments what became of them, a few at a time, where
// nobody else has written there. It comes last in a look: nothing waits for it.
func (b *Bridge) say(ctx context.Context, plan *job.Plan, f *PlanInput) {
	if b.Mode != job.Active || plan.State == nil {
		return
	}
	if b.said == nil {
		b.said, b.notOurs = map[string]string{}, map[string]bool{}
	}
	seen := make(map[string]bool, len(f.Snap.Jobs))
	for i := range f.Snap.Jobs {
		seen[f.Snap.Jobs[i].Ref] = true
	}
	for ref := range b.said {
		if !seen[ref] {
			delete(b.said, ref)
			delete(b.notOurs, ref)
		}
	}
	byText := map[string][]string{}
	var ask []string
	for ref, text := range words(plan, f, b.said) {
		if b.notOurs[ref] || b.said[ref] == text || !seen[ref] {
			continue
		}
		if b.said[ref] == "" {
			ask = append(ask, ref)
		}
		byText[text] = append(byText[text], ref)
	}
	if len(byText) == 0 {
		return
	}
	slices.Sort(ask)
	ask = ask[:min(len(ask), maxAsked)]
	there, err := b.Slurm.Describe(ctx, ask)
	if err != nil {
		b.Log.Debug("admin comments not read", "err", err)
		return
	}
	for _, ref := range ask {
		d, ok := there[ref]
		switch {
		case !ok:
			continue
		case d.AdminComment != "" && !strings.HasPrefix(d.AdminComment, saysFirst):
			b.notOurs[ref] = true
		}
		b.said[ref] = d.AdminComment
		if b.said[ref] == "" {
			b.said[ref] = saysFirst
		}
	}
	n := 0
	for _, text := range slices.Sorted(maps.Keys(byText)) {
		refs := slices.DeleteFunc(byText[text], func(ref string) bool {
			return b.notOurs[ref] || b.said[ref] == "" || b.said[ref] == text
		})
		if len(refs) == 0 {
			continue
		}
		if n++; n > maxSaid {
			break // the next look goes on
		}
		slices.Sort(refs)
		err := b.Slurm.Update(ctx, job.Update{Jobs: refs, AdminComment: &text})
		b.Metrics.changed("comment", err)
		if err != nil && !errors.Is(err, job.ErrNoJob) {
			b.Log.Debug("admin comment refused", "jobs", strings.Join(refs, ","), "err", err)
		}
		for _, ref := range refs {
			b.said[ref] = text // refused or not: it isn't worth a second try
		}
	}
}
