package limit

import (
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

// Limited reports whether the job is in a class that is at a limit.
func (b *Budget) Limited(ref string) bool { return len(b.byRef[ref]) > 0 }

// Send counts a job that goes to a GPU now.
func (b *Budget) Send(ref string) {
	for _, c := range b.byRef[ref] {
		c.sent++
	}
}

// MaySend reports whether the limits let the job start on the node at once.
func (b *Budget) MaySend(ref, node string) bool {
	if b.ClosedTo(ref, node) != nil {
		return false
	}
	for _, c := range b.byRef[ref] {
		if c.room() <= 0 {
			return false
		}
	}
	return true
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

// Binds reports whether any limit could keep a job from the node, "" = from all nodes.
func (b *Budget) Binds(node string) bool { return len(b.counts) > 0 || b.shut[node] }

// Walk calls f with each of the n jobs of a queue, in order, and the limit that keeps it
// from starting, nil = none: the first jobs of each class pass, as many as may be tried.
// On a node, "" = any, jobs that it is closed to don't pass either. leaving are jobs that
// will have ended by then. The walk ends when f returns false.
func (b *Budget) Walk(n int, ref func(i int) string, leaving []string, node string, f func(i int, by *Limit) (more bool)) {
	if !b.Binds(node) {
		return
	}
	for _, c := range b.counts {
		c.left = c.room()
		for _, gone := range leaving {
			if j := b.jobs[gone]; j != nil {
				c.left += c.limit.frees(holderOf(j))
			}
		}
	}
	for i := range n {
		if !f(i, b.pass(ref(i), node)) {
			return
		}
	}
}

// pass is the limit that keeps a job of a walk from starting; where there is none the job
// is counted.
func (b *Budget) pass(ref, node string) *Limit {
	counts := b.byRef[ref]
	by := b.ClosedTo(ref, node)
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
