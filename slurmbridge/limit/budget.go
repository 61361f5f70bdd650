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
	counts []*count
	// byRef holds the counts of the classes that a pending job is in.
	byRef map[string][]*count
	shut  map[string]bool // nodes that are closed to some class
}

// count is the budget of one class.
type count struct {
	limit *Limit
	sent  int // on their way to a GPU
	left  int // that a walk through the queue may still pass
}

// room is how many more jobs of the class may be sent.
func (c *count) room() int { return c.limit.credit - c.sent }

// Budget returns the budget of a plan for the jobs of a poll.
func (ls *Limits) Budget(s *job.Snapshot, jobs map[string]*job.Job) *Budget {
	b := &Budget{limits: ls, at: s.At, jobs: jobs}
	if len(ls.byClass) == 0 {
		return b
	}
	b.shut, b.byRef = map[string]bool{}, map[string][]*count{}
	byClass := map[class]*count{}
	for c, l := range ls.byClass {
		if c.node != "" {
			b.shut[c.node] = b.shut[c.node] || !l.over(s.At)
			continue
		}
		one := &count{limit: l}
		byClass[c] = one
		b.counts = append(b.counts, one)
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if j.State != job.Pending {
			continue
		}
		for _, c := range [...]class{classOf(j), arrayOf(j)} {
			if one := byClass[c]; one != nil {
				b.byRef[j.Ref] = append(b.byRef[j.Ref], one)
			}
		}
	}
	return b
}

// Send counts a job that goes to a GPU now.
func (b *Budget) Send(ref string) {
	for _, c := range b.byRef[ref] {
		c.sent++
	}
}

// Shut lists the nodes that are closed to some class.
func (b *Budget) Shut() []string {
	var out []string
	for node, shut := range b.shut {
		if shut {
			out = append(out, node)
		}
	}
	slices.Sort(out)
	return out
}

// ClosedTo is what keeps a job off one node alone, nil = nothing.
func (b *Budget) ClosedTo(ref, node string) *Limit {
	if !b.shut[node] {
		return nil
	}
	j := b.jobs[ref]
	if j == nil {
		return nil
	}
	if l := b.limits.byClass[classOf(j).on(node)]; l != nil && !l.over(b.at) {
		return l
	}
	return nil
}

// Over returns, for each of the n jobs of a queue, in order, the limit that keeps it from starting, nil = none: the
// first jobs of each class pass, as many as may be tried. A job without a ref always passes. It returns nil where no
// limit is known.
func (b *Budget) Over(n int, ref func(i int) string) []*Limit {
	if len(b.counts) == 0 {
		return nil
	}
	for _, c := range b.counts {
		c.left = c.room()
	}
	over := make([]*Limit, n)
	for i := range over {
		over[i] = b.pass(ref(i))
	}
	return over
}

// pass is the limit that keeps a job of a walk from starting; where there is none the job
// is counted.
func (b *Budget) pass(ref string) *Limit {
	counts := b.byRef[ref]
	var by *Limit
	for _, c := range counts {
		if c.left <= 0 {
			by = c.limit
		}
	}
	if by == nil {
		for _, c := range counts {
			c.left--
		}
	}
	return by
}
