package limit

import (
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Budget is what one plan may send in spite of the limits: of each class at a limit as
// many jobs as it has credit for.
type Budget struct {
	limits *Limits
	at     time.Time
	jobs   map[string]*job.Job
	left   map[*Limit]int      // how many more jobs of the class may be sent
	byRef  map[string][]*Limit // of the classes that a pending job is in
	shut   []string            // nodes that are closed to some class
}

// Budget returns the budget of a plan for the jobs of a poll.
func (ls *Limits) Budget(s *job.Snapshot, jobs map[string]*job.Job) *Budget {
	b := &Budget{limits: ls, at: s.At, jobs: jobs, left: map[*Limit]int{}, byRef: map[string][]*Limit{}}
	for c, l := range ls.byClass {
		switch {
		case c.node == "":
			b.left[l] = l.credit
		case !l.over(s.At):
			b.shut = append(b.shut, c.node)
		}
	}
	slices.Sort(b.shut)
	b.shut = slices.Compact(b.shut)
	if len(b.left) == 0 {
		return b
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if j.State != job.Pending {
			continue
		}
		for _, c := range [...]class{classOf(j), arrayOf(j)} {
			if l := ls.byClass[c]; l != nil {
				b.byRef[j.Ref] = append(b.byRef[j.Ref], l)
			}
		}
	}
	return b
}

// Starts counts a job that is on its way to a GPU.
func (b *Budget) Starts(ref string) {
	for _, l := range b.byRef[ref] {
		b.left[l]--
	}
}

// Pass counts the next job of the queue and returns nil, or the limit that keeps it from starting: the first jobs of
// each class pass, as many as may be tried.
func (b *Budget) Pass(ref string) *Limit {
	for _, l := range slices.Backward(b.byRef[ref]) {
		if b.left[l] <= 0 {
			return l
		}
	}
	b.Starts(ref)
	return nil
}

// Shut lists the nodes that are closed to some class.
func (b *Budget) Shut() []string { return b.shut }

// ClosedTo is what keeps a job off one node alone, nil = nothing.
func (b *Budget) ClosedTo(ref, node string) *Limit {
	j := b.jobs[ref]
	if j == nil || !slices.Contains(b.shut, node) {
		return nil
	}
	if l := b.limits.byClass[classOf(j).on(node)]; l != nil && !l.over(b.at) {
		return l
	}
	return nil
}
