package comment

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// An expected start is written for the first mostStarts jobs if the wait is longer than leastWait,
// and again after it has moved by leastMove and by a quarter of the remaining wait: a comment costs
// Slurm an update.
const (
	mostStarts = 100
	leastWait  = 2 * time.Minute
	leastMove  = 10 * time.Minute
)

// sayStart and startFormat are how a text says an expected start.
const (
	sayStart    = "expected to start by "
	startFormat = "2006-01-02 15:04"
)

var startShape = regexp.MustCompile(sayStart + `(\d{4}-\d\d-\d\d \d\d:\d\d)`)

// commentStarts writes the expected starts of the first waiting jobs.
func commentStarts(p *job.Plan, written map[string]string) map[string]string {
	first := slices.SortedFunc(maps.Keys(p.Starts), func(a, b string) int {
		return cmp.Or(p.Starts[a].Compare(p.Starts[b]), strings.Compare(a, b))
	})
	out := map[string]string{}
	for _, ref := range first[:min(mostStarts, len(first))] {
		out[ref] = commentStart(p.Starts[ref], p.At, written[ref])
	}
	return out
}

// commentStart says when a job is expected to start, "" = soon. What it says already (written)
// stays where it is still about true.
func commentStart(start, now time.Time, written string) string {
	var said time.Time
	if m := startShape.FindStringSubmatch(written); m != nil {
		said, _ = time.ParseInLocation(startFormat, m[1], time.Local)
	}
	wait := start.Sub(now)
	switch moved := start.Sub(said).Abs(); {
	case said.IsZero() && wait < leastWait:
		return ""
	case said.IsZero() || moved >= max(leastMove, wait/4):
		said = start.Local().Truncate(time.Minute).Add(time.Minute)
	}
	return sayStart + said.Format(startFormat)
}
