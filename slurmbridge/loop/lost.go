package loop

import (
	"context"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// lost counts the jobs that were about to start at the last poll, are gone, and that Slurm doesn't
// know. It remembers jobs that have started and ended since, or were cancelled, for MinJobAge:
// after a longer time between two polls nothing is certain.
func (b *Bridge) lost(ctx context.Context, snap *job.Snapshot, events []tracker.Event) {
	since := b.tracker.LastAt
	if since.IsZero() || snap.At.Sub(since) >= snap.Remembers-time.Second {
		return
	}
	var gone []string
	for _, e := range events {
		if e.Kind != tracker.EventEnded {
			continue
		}
		if w := b.tracker.Endings[e.Ref]; w != nil && w.Member != nil && !w.Member.Ran() {
			gone = append(gone, e.Ref)
		}
	}
	if len(gone) == 0 {
		return
	}
	known, err := b.slurm.Describe(ctx, gone)
	if err != nil {
		b.Log.Warn("what became of jobs is not known", "jobs", gone, "err", err)
		return
	}
	for _, ref := range gone {
		if _, ok := known[ref]; !ok {
			b.Metrics.harm(history.HarmLost)
			b.Log.Error("job lost: it waited for a GPU, is gone, and Slurm doesn't know it", "job", ref)
		}
	}
}
