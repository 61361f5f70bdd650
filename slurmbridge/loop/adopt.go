package loop

import (
	"os"

	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
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
		b.Adopt = &next
		b.optedOut = true
	case !b.optedOut:
		b.Adopt = nil
	}
}
