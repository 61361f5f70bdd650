package slurmlimit

import (
	"fmt"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// GPUs counts the whole GPUs that jobs have under accounting's limits. An adopted job counts for one, whatever shares
// it holds, as on plain Slurm.
type GPUs struct {
	limits []job.GPULimit
	held   map[scope]int // by jobs that run, or are adopted and about to
	wanted map[scope]int // by pending jobs that Slurm starts by its own count
}

// scope is the jobs that one limit counts together.
type scope struct {
	limit         int
	user, account string
}

// CountGPUs counts the jobs of a poll. shares reports whether a job is adopted and holds, or will hold, shares; waits
// whether it is pending behind the gate.
func CountGPUs(s *job.Snapshot, shares, waits func(j *job.Job) bool) *GPUs {
	g := &GPUs{s.GPULimits, map[scope]int{}, map[scope]int{}}
	if len(g.limits) == 0 {
		return g
	}
	for i := range s.Jobs {
		switch j := &s.Jobs[i]; {
		case j.State == job.Completing: // Slurm no longer counts it
		case shares(j):
			g.count(j, 1, g.held)
		case j.Request.Kind != job.WholeGPU || waits(j):
		case j.State == job.Pending:
			g.count(j, wholeGPUs(j), g.wanted)
		default:
			g.count(j, wholeGPUs(j), g.held)
		}
	}
	return g
}

func (g *GPUs) count(j *job.Job, n int, in map[scope]int) {
	for i := range g.limits {
		if s, is := g.scope(i, j); is {
			in[s] += n
		}
	}
}

// wholeGPUs is how many GPUs a job of whole ones has or requests.
func wholeGPUs(j *job.Job) int {
	if j.Request.PerNode {
		return j.Request.Count * max(1, j.NumNodes)
	}
	return max(j.Request.Count, len(j.GPUs))
}

func (g *GPUs) scope(i int, j *job.Job) (scope, bool) {
	l, s := &g.limits[i], scope{limit: i}
	if l.EachUser {
		s.user = j.User
	}
	if l.EachAccount {
		s.account = j.Account
	}
	return s, l.Counts(j)
}

// Pass counts the next adopted job of the queue. It returns the limit that keeps it from sharing, "" = none does, and
// whether plain Slurm would keep the job waiting for that limit, too. Otherwise the job is Slurm's: pending jobs that
// count may have what the limit leaves.
func (g *GPUs) Pass(j *job.Job) (limit string, waits bool) {
	for i := range g.limits {
		l := &g.limits[i]
		s, is := g.scope(i, j)
		switch {
		case !is:
		case l.Uncounted:
			return l.Of, false
		case g.held[s]+1 > l.Most:
			return fmt.Sprintf("%s is %d GPUs, and its jobs have them", l.Of, l.Most), true
		case g.held[s]+g.wanted[s]+1 > l.Most:
			return fmt.Sprintf("%s is %d GPUs, and jobs that don't share may take them", l.Of, l.Most), false
		}
	}
	g.count(j, 1, g.held)
	return "", false
}
