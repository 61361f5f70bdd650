package loop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// A site's limits (an association's, a QOS's, an array's %N) can't be seen while a
// job is behind the gate: its Reason is its dependency. That a job is at one shows
// once it was released and Slurm says so instead of starting it. It is taken back
// then, and no more of its class are sent than others have ended, for a minute.
//
// What is closed may be one node, for jobs that would run into its maintenance or go
// before somebody else's: then none of the class are sent there for a while, and that
// grows for as long as the node turns out to be closed still.

// limitLasts is how long a limit is believed to be the same. Of a node that is closed
// it is closedLasts at first, twice that the next time, and closedMost at most.
const (
	limitLasts  = time.Minute
	closedLasts = 15 * time.Second
	closedMost  = 10 * time.Minute
)

// class is what limits tell jobs apart by: whose they are and how much they take.
// One with an array is of that array's tasks. One with a node is of those that were
// sent there.
type class struct {
	user, account, qos, partition string
	cpus                          int
	memMiB                        float64
	time                          time.Duration
	array                         int64
	node                          string
}

// classes are those a job is in.
func classes(j *job.Job) [2]class {
	return [2]class{
		{user: j.User, account: j.Account, qos: j.QOS, partition: j.Partition, cpus: j.CPUs, memMiB: j.HostMemMiB, time: j.TimeLimit},
		{array: j.ArrayID},
	}
}

// limit is what is known of a class that Slurm would start no more of.
type limit struct {
	reason string
	ref    string // the job that Slurm said it of
	at     time.Time
	lasts  time.Duration
	of     class // the key it is kept under
	// credit is how many may be tried: as many as those that have ended made room for,
	// less those that have begun since.
	credit int
}

// over reports whether the limit is to be tried again.
func (l *limit) over(at time.Time) bool { return at.Sub(l.at) >= l.lasts }

// text says it to people.
func (l *limit) text(at time.Time) string {
	if l.of.node != "" {
		return fmt.Sprintf("on %s Slurm said %q of job %s %s ago; it is tried there again in %s",
			l.of.node, l.reason, l.ref, at.Sub(l.at).Round(time.Second), l.at.Add(l.lasts).Sub(at).Round(time.Second))
	}
	return fmt.Sprintf("Slurm's limit %s, which kept job %s from starting %s ago; it is tried again when a job has ended, in %s at the latest",
		l.reason, l.ref, at.Sub(l.at).Round(time.Second), l.at.Add(l.lasts).Sub(at).Round(time.Second))
}

// limitReason reports whether a job's Reason is a limit, and whether it is one that
// this job will never meet, whoever ends. The names are Slurm's (slurm.h, 22.05 to
// 24.11): Assoc…, QOS…, Max…PerAccount, and an array's own. What an operator has
// closed for a while, a partition or a node that is reserved, or will be before the
// job's time limit, is like a limit: the job is none the worse for it.
func limitReason(reason string) (is, forever bool) {
	switch {
	case reason == "JobArrayTaskLimit", closed(reason):
		return true, false
	case reason == "PartitionTimeLimit", reason == "PartitionNodeLimit":
		return true, true
	case strings.HasPrefix(reason, "Assoc"), strings.HasPrefix(reason, "QOS"),
		strings.HasPrefix(reason, "Max") && strings.HasSuffix(reason, "PerAccount"):
	default:
		return false, false
	}
	forever = strings.Contains(reason, "PerJob") || strings.HasSuffix(reason, "PerNode") ||
		strings.HasPrefix(reason, "QOSMin") || reason == "QOSNotAllowed"
	return true, forever
}

// closed reports whether a Reason is what an operator has closed. No job's end opens it.
func closed(reason string) bool {
	return reason == "PartitionDown" || reason == "PartitionInactive" || closedNode(reason)
}

// closedNode reports whether a Reason is of the node that a job was sent to.
func closedNode(reason string) bool {
	return (strings.HasPrefix(reason, "ReqNodeNotAvail") || strings.HasPrefix(reason, "Nodes")) && strings.Contains(reason, "eserved")
}

// onShares reports whether the limit is on gres, such as the shares of GPUs: of them
// each job may have others.
func (l *limit) onShares() bool { return strings.Contains(l.reason, "GRES") }

// mostTogether is how many jobs a GPU's shares may be for.
const mostTogether = 5

// holder is a job that runs.
type holder struct {
	of     [2]class
	shares int
}

func held(j *job.Job) holder {
	h := holder{of: classes(j)}
	if j.Request.Kind == job.Shares {
		h.shares = j.Request.Count
	}
	return h
}

// frees is for how many jobs of its class the end of a job makes room under the limit.
func (l *limit) frees(ended holder) int {
	does := true // a group's limit, and who is in it isn't known
	switch {
	case closed(l.reason):
		does = false
	case l.of.array != 0:
		does = l.of == ended.of[1]
	case strings.Contains(l.reason, "PerUser"), strings.HasPrefix(l.reason, "AssocMax"):
		does = l.of.user == ended.of[0].user
	case strings.HasSuffix(l.reason, "PerAccount"):
		does = l.of.account == ended.of[0].account
	}
	switch {
	case !does:
		return 0
	case l.onShares():
		return max(1, ended.shares*mostTogether/job.Units)
	}
	return 1
}

// atLimit is the class by which a released job doesn't start.
func atLimit(j *job.Job) (class, bool) {
	is, forever := limitReason(j.Reason)
	if !is || forever || j.State != job.Pending || len(j.Dependency.List) > 0 {
		return class{}, false
	}
	of := classes(j)
	if j.Reason == "JobArrayTaskLimit" {
		return of[1], j.ArrayID != 0
	}
	return of[0], true
}

// observeLimits brings the limits up to date with a look: which jobs that were
// released are at one, who has begun, who has ended.
func (b *Tracker) observeLimits(s *job.Snapshot, seats map[string]seat) {
	maps.DeleteFunc(b.limits, func(c class, l *limit) bool {
		// That a node was closed is remembered until its next try has had its answer.
		return l.over(s.At) && (c.node == "" || s.At.Sub(l.at) >= 2*l.lasts)
	})
	running := make(map[string]holder, len(b.running))
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if j.State != job.Pending {
			running[j.Ref] = held(j)
			continue
		}
		st, sent := seats[j.Ref]
		if c, at := atLimit(j); at && sent && st.group.State != job.Preparing && st.member.Undo == "" {
			b.meet(c, j, st.group.Node, s.At)
		}
	}
	if b.running != nil { // not the first look
		for c, l := range b.limits {
			if c.node != "" {
				continue // no job's end opens it
			}
			begun := 0
			for ref, h := range running {
				if _, before := b.running[ref]; !before && slices.Contains(h.of[:], c) {
					begun++
				}
			}
			l.credit = max(0, l.credit-begun)
			for ref, h := range b.running {
				if _, still := running[ref]; !still {
					l.credit += l.frees(h)
				}
			}
		}
	}
	b.running = running
}

// meet notes that a job of a class is at a limit on the node that it was sent to.
func (b *Tracker) meet(c class, j *job.Job, node string, at time.Time) {
	l := &limit{reason: j.Reason, ref: j.Ref, at: at, lasts: limitLasts, of: c}
	if closedNode(j.Reason) && j.ReqNodes == node { // else it is said of all nodes
		l.of, l.lasts = c.on(node), closedLasts
		if old := b.limits[l.of]; old != nil {
			l.lasts = old.lasts
			if old.over(at) {
				l.lasts = min(2*old.lasts, closedMost)
			}
		}
	}
	b.limits[l.of] = l
}

// surplus says why a released job that is still pending is to be taken back at once,
// "" = it isn't, and whether for good. Those of a class that Slurm hasn't come to yet
// wouldn't start either, unless the limit is on shares, of which each has others.
// node is where it was sent.
func (b *Tracker) surplus(j *job.Job, node string, at time.Time) (why string, forever bool) {
	if len(j.Dependency.List) > 0 {
		return "", false
	}
	if is, forever := limitReason(j.Reason); is {
		return "Slurm's limit " + j.Reason, forever
	}
	of := classes(j)
	for _, c := range []class{of[0], of[1], of[0].on(node)} {
		if l := b.limits[c]; l != nil && l.at.Equal(at) && !l.onShares() {
			return "Slurm's limit " + l.reason, false
		}
	}
	return "", false
}

// on is the class of those that were sent to a node.
func (c class) on(node string) class {
	c.node = node
	return c
}

// budget is what a round may send of a class at a limit. Sent counts the jobs that are on
// their way to a GPU, left is how many more a walk through the queue may let pass.
type budget struct {
	limit      *limit
	sent, left int
}

// hidden is a job of the queue that is kept out of decisions, and which GPUs were its own.
type hidden struct {
	at   int
	gpus []int
}

// hide keeps the jobs that are beyond a limit out of the decisions on GPU g, as far as
// those look, until show. leaving are jobs that will have ended by then.
func (r *planPass) hide(g int, leaving []rlcore.Running) []hidden {
	out := r.hidden[:0]
	r.hidden = nil
	seen := 0
	node := r.b.State.GPUs[g].Node
	r.beyond(leaving, node, func(at int, l *limit) bool {
		j := &r.b.State.Pending[at]
		switch {
		case l != nil:
			out = append(out, hidden{at, j.GPUs})
			j.GPUs = nowhere[:]
		case j.MayUse(g):
			seen++
		}
		return seen < r.p.window()+rlcore.MaxWindow
	})
	return out
}

// nowhere are the GPUs of a job that is hidden: none, where nil would be all.
var nowhere [0]int

func (r *planPass) show(all []hidden) {
	for _, h := range all {
		r.b.State.Pending[h.at].GPUs = h.gpus
	}
	r.hidden = all // its storage, for the next
}

// beyond calls f with each job of the queue and the limit that it is beyond, nil = none:
// of each class as many as may be tried are not, the first ones. On the node, "" = any,
// those are too that it is closed to. It ends where f says that it has seen enough.
func (r *planPass) beyond(leaving []rlcore.Running, node string, f func(at int, l *limit) (more bool)) {
	if len(r.budgets) == 0 && !r.shut[node] {
		return
	}
	for _, b := range r.budgets {
		b.left = b.limit.credit - b.sent
		for i := range leaving {
			if j := r.b.jobs[leaving[i].ID]; j != nil {
				b.left += b.limit.frees(held(j))
			}
		}
	}
	for at := range r.b.State.Pending {
		ref := r.b.State.Pending[at].ID
		of := r.capped[ref]
		by := r.closedTo(ref, node)
		for _, b := range of {
			if b.left <= 0 {
				by = b.limit
			}
		}
		if by == nil {
			for _, b := range of {
				b.left--
			}
		}
		if !f(at, by) {
			return
		}
	}
}

// findCapped finds the jobs that are of a class at a limit.
func (r *planPass) findCapped() {
	if len(r.f.Tracker.limits) == 0 {
		return
	}
	byClass := map[class]*budget{}
	r.shut = map[string]bool{}
	for c, l := range r.f.Tracker.limits {
		if c.node != "" {
			r.shut[c.node] = r.shut[c.node] || !l.over(r.f.Snap.At)
			continue
		}
		b := &budget{limit: l}
		byClass[c] = b
		r.budgets = append(r.budgets, b)
	}
	r.capped = map[string][]*budget{}
	for i := range r.f.Snap.Jobs {
		j := &r.f.Snap.Jobs[i]
		if j.State != job.Pending {
			continue
		}
		for _, c := range classes(j) {
			if b := byClass[c]; b != nil {
				r.capped[j.Ref] = append(r.capped[j.Ref], b)
			}
		}
	}
}

// closedTo is what keeps a job off a node alone, nil = nothing.
func (r *planPass) closedTo(ref, node string) *limit {
	j := r.b.jobs[ref]
	if !r.shut[node] || j == nil {
		return nil
	}
	if l := r.f.Tracker.limits[classes(j)[0].on(node)]; l != nil && !l.over(r.f.Snap.At) {
		return l
	}
	return nil
}

// softMayStart reports whether one of those that wait for a GPU to become free could
// start at once on GPU g, as far as its owner and limits go.
func (r *planPass) softMayStart(g int) bool {
next:
	for ref, j := range r.softJobs {
		if !j.MayUse(g) || r.closedTo(ref, r.b.State.GPUs[g].Node) != nil {
			continue
		}
		for _, b := range r.capped[ref] {
			if b.limit.credit <= b.sent {
				continue next
			}
		}
		return true
	}
	return false
}

// limited reports whether a job is of a class that is at a limit.
func (r *planPass) limited(ref string) bool { return len(r.capped[ref]) > 0 }

// send counts a job that goes to a GPU now.
func (r *planPass) send(ref string) {
	for _, b := range r.capped[ref] {
		b.sent++
	}
}
