package slurmlimit

import (
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Budget is what one plan may send in spite of the limits: of each class at a limit as many jobs as it has credit for.
type Budget struct {
	limits *Limits
	at     time.Time
	left   map[*Limit]int // how many more jobs of the class may be sent
	shut   []string       // nodes that are closed to some class, or have been lately
}

// Budget returns the budget of a plan for a poll at the given time.
func (ls *Limits) Budget(at time.Time) *Budget {
	b := &Budget{limits: ls, at: at, left: map[*Limit]int{}}
	for c, l := range ls.byClass {
		switch {
		case c.node == "":
			b.left[l] = l.credit
		default:
			b.shut = append(b.shut, c.node)
		}
	}
	slices.Sort(b.shut)
	b.shut = slices.Compact(b.shut)
	return b
}

// of are the limits of the classes that a job is in.
func (b *Budget) of(j *job.Job) (all []*Limit) {
	for _, c := range [...]class{arrayOf(j), classOf(j)} {
		if l := b.limits.byClass[c]; l != nil {
			all = append(all, l)
		}
	}
	return all
}

// Starts counts a job that is on its way to a GPU.
func (b *Budget) Starts(j *job.Job) {
	for _, l := range b.of(j) {
		b.left[l]--
	}
}

// Pass counts the next job of the queue and returns nil, or the limit that keeps it from starting: the first jobs of
// each class pass, as many as may be tried.
func (b *Budget) Pass(j *job.Job) *Limit {
	for _, l := range b.of(j) {
		if b.left[l] <= 0 {
			return l
		}
	}
	b.Starts(j)
	return nil
}

// Closed lists the nodes that are closed to a job, sorted by name, and what closes the last of them.
func (b *Budget) Closed(j *job.Job) (nodes []string, by *Limit) {
	for _, node := range b.shut {
		if l := b.limits.byClass[classOf(j).on(node)]; l != nil && !l.over(b.at) {
			nodes, by = append(nodes, node), l
		}
	}
	return nodes, by
}

// Again lists the nodes that were closed to a job and are to be tried again, sorted by name.
func (b *Budget) Again(j *job.Job) (nodes []string) {
	for _, node := range b.shut {
		if l := b.limits.byClass[classOf(j).on(node)]; l != nil && l.over(b.at) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
