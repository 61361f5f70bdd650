package release

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Stamp begins the AdminComment of a pending member that was given shares or a node: it says what
// was set and what that replaced. It comes with them, in one update, so that a bridge that has lost
// its journal can restore the member. "" = nothing is set.
//
//	slurmbridge: [mps:50 on n1, was mps:100] …
func Stamp(g *job.Group, m *job.Member) string {
	if m.Shares >= job.Units && nodesOf(g, m) == m.WasNodes {
		return ""
	}
	sharing, _, _ := strings.Cut(m.WasGres, ":")
	return "[" + gresOf(job.Sharing(sharing), m.Shares) + onNode(nodesOf(g, m)) + ", was " + m.WasGres + onNode(m.WasNodes) + "]"
}

func onNode(node string) string {
	if node == "" {
		return ""
	}
	return " on " + node
}

// stampShape is a stamp at the beginning of an AdminComment, where no user's text can be.
// What it replaced can only be a whole GPU's shares.
var stampShape = regexp.MustCompile(`^` + job.CommentPrefix + `\[((?:mps|shard):[0-9]+)(?: on ([A-Za-z0-9_.-]+))?, was ((?:mps|shard):100)(?: on ([A-Za-z0-9_.-]+))?\]`)

// Stamped reports whether a job's AdminComment has a stamp that is true: it may be needed to
// restore the job.
func Stamped(j *job.Job, adminComment string) bool {
	_, adminComment = job.ParseNote(adminComment)
	s := stampShape.FindStringSubmatch(adminComment)
	return s != nil && isStamped(j, s)
}

// Announced is what an AdminComment of the bridge's says besides its stamp, "" = nothing.
func Announced(adminComment string) string {
	_, adminComment = job.ParseNote(adminComment)
	rest := adminComment[len(stampShape.FindString(adminComment)):]
	return strings.TrimSpace(strings.TrimPrefix(rest, job.CommentPrefix))
}

// isStamped reports whether a job looks as its stamp says, or has its shares back and not yet its
// node; see Make.
func isStamped(j *job.Job, stamp []string) bool {
	withdrawn := sameGres(stamp[3], j.Request) && stamp[2] != stamp[4]
	return (sameGres(stamp[1], j.Request) || withdrawn) && stamp[2] == j.ReqNodes
}

// Recover restores a job of no known group that looks as its stamp says. false: it has no
// stamp, or was changed since.
func Recover(j *job.Job, adminComment, gate string, at time.Time) (job.Change, bool) {
	n, adminComment := job.ParseNote(adminComment)
	s := stampShape.FindStringSubmatch(adminComment)
	if s == nil || !isStamped(j, s) {
		return job.Change{}, false
	}
	d := n.Defaults
	u := job.Update{Gres: &s[3], Host: d}
	if j.CPUs >= d.CPUs {
		u.Host.CPUs = 0
	}
	if int64(j.HostMemMiB) >= d.MemMiB {
		u.Host.MemMiB = 0
	}
	if s[4] != s[2] {
		u.ReqNodes = &s[4]
	}
	owners := func(d job.Dependency) bool { return d.Type != afterAny && d.Type != after }
	if !slices.ContainsFunc(j.Dependency.List, owners) {
		dep := ""
		if gate != "" {
			dep = after + ":" + gate
		}
		u.Dependency, u.StartNow = &dep, gate == "" && Startable(j, at)
	}
	return change(job.StepRestore, job.Cause{Kind: job.CauseUnreleased}.String(), u, j), true
}
