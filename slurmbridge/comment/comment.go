// Package comment words the AdminComments of jobs: the short form of `why`, for squeue and scontrol.
package comment

import (
	"fmt"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// mostComment is the longest AdminComment in bytes.
const mostComment = 400

// Texts returns the AdminComments that jobs should have, by ref. written returns a job's present one, "" = none.
func Texts(p *job.Plan, in *plan.Input, written func(ref string) string) map[string]string {
	out := map[string]string{}
	memberships := in.Tracker.Memberships()
	commentSharers(out, p, memberships, written)
	for i := range in.Snap.Jobs {
		j := &in.Snap.Jobs[i]
		ref := j.Ref
		own := j.Request.Kind == job.WholeGPU && memberships[ref].Group == nil // the bridge has not changed it
		if why := in.Tracker.Unmanaged[ref]; why != "" && !own {
			out[ref] = "left to Slurm: " + why
		}
		if t, ok := in.Terms[ref]; ok && len(t.Ignored) > 0 {
			if out[ref] != "" {
				out[ref] += "; "
			}
			out[ref] += "ignored " + strings.Join(t.Ignored, "; ")
		}
		if said := written(ref); out[ref] == "" && release.Announced(said) != "" &&
			(memberships[ref].Group != nil || !release.Stamped(j, said)) {
			out[ref] = nowInstead(j, memberships[ref].Group)
		}
	}
	for ref, text := range out {
		if s := memberships[ref]; s.Group != nil { // even if it runs: it may be requeued
			text = strings.TrimPrefix(release.Stamp(s.Group, s.Member)+" "+text, " ")
		}
		out[ref] = commentText(text)
	}
	return out
}

// nowInstead is a job's comment once its last comment is out of date.
func nowInstead(j *job.Job, g *job.Group) string {
	switch {
	case j.State != job.Pending && j.Nodes != "":
		return "on " + j.Nodes + ", not shared"
	case g != nil && g.Kind == job.Turn:
		return "waits for its turn among the jobs that don't share"
	case g != nil:
		return "about to start " + g.Where()
	}
	return "as it was submitted"
}

// commentSharers adds comments that say which jobs share which GPU now.
func commentSharers(out map[string]string, p *job.Plan, memberships map[string]tracker.Membership,
	written func(ref string) string,
) {
	for i := range p.Running.GPUs {
		card := &p.Running.GPUs[i]
		var sharers, names []string
		for k := range card.Running {
			r := &card.Running[k]
			if r.Whole {
				continue
			}
			sharers = append(sharers, r.ID)
			name := r.ID
			if m := memberships[r.ID].Member; m != nil && m.Predicted > 1.005 {
				name += fmt.Sprintf(" (x%.2f expected)", m.Predicted)
			}
			names = append(names, name)
		}
		where := fmt.Sprintf("on %s gpu %s", card.Node, card.ID[len(card.Node)+1:])
		for _, ref := range sharers {
			m := memberships[ref].Member
			switch {
			case len(sharers) > 1:
				out[ref] = where + " together: " + strings.Join(names, ", ")
			case m != nil && m.Tried:
				out[ref] = fmt.Sprintf("%s alone, with %d MiB of its memory, to test whether that suffices", where, m.MemMiB)
			case written(ref) != "":
				out[ref] = where + ", alone now"
			default:
				continue
			}
			if release.Adopted(m) {
				out[ref] += "; " + Adopted(m)
			}
		}
	}
}

// Adopted says why a member shares that didn't ask to, and how its user opts out.
func Adopted(m *job.Member) string {
	return "by a rule of the site (" + m.Rule + "); --comment=share:no opts out"
}

// commentText turns a text into an AdminComment: the prefix, one line, at most mostComment bytes.
func commentText(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, job.CommentPrefix+text)
	if len(text) > mostComment {
		text = strings.ToValidUTF8(text[:mostComment-3], "") + "..."
	}
	return text
}
