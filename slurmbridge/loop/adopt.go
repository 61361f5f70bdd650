package loop

import (
	"context"
	"os"

	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
)

// adoptLines returns the gate file's lines about the jobs that the site's rules adopt.
func (b *Bridge) adoptLines(snap *job.Snapshot) string {
	if snap.GivesUsedGPUs || b.Adopt == nil {
		return ""
	}
	lines, err := b.Adopt.Lines(func(r *adopt.Rule) bool { return b.tracker.Stops.Stopped(r, snap.At) }, snap.Unbilled)
	b.complain("adopt", err)
	return lines
}

// decide makes the plan of a poll.
func (b *Bridge) decide(ctx context.Context, in *plan.Input) *job.Plan {
	b.apps.identify(ctx, in)
	started := b.Now()
	p := b.Planner.Plan(in)
	b.Metrics.planTime.Observe(b.Now().Sub(started).Seconds())
	return p
}

// readOptOut reads who has opted out. If the file can't be read the last answer holds; before a first answer no job is
// adopted.
func (b *Bridge) readOptOut() {
	if b.rules == nil {
		b.rules = b.Adopt
	}
	if b.rules == nil || b.rules.OutFile == "" {
		return
	}
	text, err := os.ReadFile(b.rules.OutFile)
	b.complain("adopt_opt_out", err)
	switch {
	case err == nil:
		next := *b.rules
		next.OutUsers, next.OutAccounts = adopt.ParseOptOut(string(text))
		b.Adopt, b.optedOut = &next, true
	case !b.optedOut:
		b.Adopt = nil
	}
}
