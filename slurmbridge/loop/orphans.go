package loop

import (
	"context"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// mayBeOrphans are the pending jobs of no known group that have less than a GPU's shares, or
// are bound to a node.
func mayBeOrphans(s *job.Snapshot, t *tracker.Tracker) (jobs []*job.Job, refs []string) {
	seats := t.Seats()
	for i := range s.Jobs {
		j := &s.Jobs[i]
		given := j.Request.Kind == job.Shares && (j.Request.Count < job.Units || j.ReqNodes != "")
		if j.State == job.Pending && given && seats[j.Ref].Group == nil && t.Unmanaged[j.Ref] == "" {
			jobs, refs = append(jobs, j), append(refs, j.Ref)
		}
	}
	return jobs, refs
}

// orphans restores jobs that wait with shares and node of a group that the journal doesn't
// know: it was lost or could not be read. Next to other groups they could start on a GPU
// that has no room for them.
func (b *Bridge) orphans(ctx context.Context, in *plan.Input) []job.Change {
	if b.acting() != job.Active {
		return nil
	}
	jobs, refs := mayBeOrphans(in.Snap, b.tracker)
	if unread := b.comments.unread(refs); len(unread) > 0 {
		b.comments.read(ctx, unread)
	}
	var out []job.Change
	tries := b.orphaned
	b.orphaned = map[string]int{}
	for _, j := range jobs {
		c, ok := release.Recover(j, b.comments.text[j.Ref], in.Gate, in.Snap.At)
		switch {
		case !ok:
			continue
		case tries[j.Ref] == tracker.MostTries:
			b.tracker.Unmanaged[j.Ref] = "Slurm does not let it be restored, and its group is not known any more"
			continue
		case tries[j.Ref] == 0:
			b.Log.Warn("a job of a group that the journal doesn't know is restored", "job", j.Ref)
		}
		b.orphaned[j.Ref] = tries[j.Ref] + 1
		out = append(out, c)
		in.Touched[j.Ref] = true
	}
	return out
}
