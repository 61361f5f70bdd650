// Package slurmlimit knows what Slurm won't let start now.
//
// The limits of an association, a QOS or an array (its %N) can't be seen while a job is behind the gate: its Reason is
// its dependency. They show once a job was released and Slurm gives a limit as the reason for keeping it pending. The
// job then goes back behind the gate, and for a minute only as many jobs of its class are sent as have ended.
//
// A limit may also be of one node: a maintenance or another job's reservation that begins before the job's time limit.
// Or Slurm keeps a node's idle GPUs for a job of higher priority. Then no job of the class is sent to that node for a
// while, which doubles each time the node turns out to be still closed.
package slurmlimit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

const (
	// lasts is how long a limit is believed to be unchanged.
	lasts = time.Minute
	// partitionLasts is how long a partition is believed to be closed whose state can't be read.
	partitionLasts = 10 * time.Second
	// closedLasts is how long a node is believed to be closed after the first refusal, closedMost after many.
	closedLasts = 15 * time.Second
	closedMost  = 10 * time.Minute
	// answered is how long Slurm's answer to another try on a closed node may take: other nodes are tried first, then the
	// job is released, given time to start and seen pending.
	answered = 10 * time.Minute
	// mostOfReason is how much of a Reason is remembered of a closed node: it may list nodes.
	mostOfReason = 100
	// mostSharers is how many jobs the shares of one GPU may be for.
	mostSharers = 5
)

// class is a set of jobs that a limit can apply to: an owner and a size of request. A class with an
// array holds the tasks of that array, a class with a node the jobs sent to that node.
type class struct {
	user, account, qos, partition string
	cpus                          int
	memMiB                        float64
	time                          time.Duration
	array                         int64
	node                          string
}

// classOf is the class of a job by its owner and size.
func classOf(j *job.Job) class {
	return class{
		user: j.User, account: j.Account, qos: j.QOS, partition: j.Partition, cpus: j.CPUs, memMiB: j.HostMemMiB,
		time: j.TimeLimit,
	}
}

// arrayOf is the class of a job by its array.
func arrayOf(j *job.Job) class { return class{array: j.ArrayID} }

// on is the class of its jobs that were sent to a node.
func (c class) on(node string) class {
	c.node = node
	return c
}

// Limit is what is known of a class that Slurm starts no more jobs of.
type Limit struct {
	reason string // Slurm's
	ref    string // the job that Slurm gave it for
	at     time.Time
	lasts  time.Duration
	of     class
	// shown: what an operator has set is, or was, seen to be the reason.
	shown bool
	// credit is how many jobs may be tried: as many as ended jobs have made room for, less the jobs
	// that have started since.
	credit int
}

// over reports whether the limit is to be tried again. One of the future is of a clock that has been set back.
func (l *Limit) over(at time.Time) bool {
	return at.Sub(l.at) >= l.lasts || at.Before(l.at.Add(-time.Minute))
}

// Text describes the limit to people, as of a time.
func (l *Limit) Text(at time.Time) string {
	ago, again := at.Sub(l.at).Round(time.Second), l.at.Add(l.lasts).Sub(at).Round(time.Second)
	if l.of.node != "" {
		return fmt.Sprintf("on %s Slurm said %q of job %s %s ago; it is tried there again in %s", l.of.node, l.reason, l.ref,
			ago, again)
	}
	return fmt.Sprintf("Slurm's limit %s, which kept job %s from starting %s ago; it is tried again when a job has "+
		"ended, within %s",
		l.reason, l.ref, ago, again)
}

// onShares reports whether the limit is on gres such as shares of GPUs, which jobs of one class may
// request in different amounts.
func (l *Limit) onShares() bool { return strings.Contains(l.reason, "GRES") }

// Limits are the limits in force. One polling loop owns them. They are not stored: the next
// released jobs show them again.
type Limits struct {
	byClass map[class]*Limit
	running map[string]holder // at the last poll; nil = there was none
}

// New returns no limits.
func New() *Limits { return &Limits{byClass: map[class]*Limit{}} }

// holder is a job that runs and counts against limits.
type holder struct {
	class, array class
	shares       int
}

func holderOf(j *job.Job) holder {
	h := holder{class: classOf(j), array: arrayOf(j)}
	if j.Request.Kind == job.Shares {
		h.shares = j.Request.Count
	}
	return h
}

// frees is for how many jobs of its class the end of a job makes room under the limit.
func (l *Limit) frees(ended holder) int {
	does := true // a group's limit, and its members aren't known
	switch {
	case closed(l.reason):
		does = false
	case l.of.array != 0:
		does = l.of == ended.array
	case strings.Contains(l.reason, "PerUser"), strings.HasPrefix(l.reason, "AssocMax"):
		does = l.of.user == ended.class.user
	case strings.HasSuffix(l.reason, "PerAccount"):
		does = l.of.account == ended.class.account
	}
	switch {
	case !does:
		return 0
	case l.onShares():
		return max(1, ended.shares*mostSharers/job.Units)
	}
	return 1
}

// Observe brings the limits up to date with a poll: which released jobs are at one, which jobs have started and which
// have ended. sentTo returns the node that a released job was sent to; false: it wasn't released, or is being restored.
func (ls *Limits) Observe(s *job.Snapshot, sentTo func(ref string) (node string, ok bool)) {
	maps.DeleteFunc(ls.byClass, func(c class, l *Limit) bool {
		// That a node was closed is remembered until the next try has been answered.
		return l.over(s.At) && (c.node == "" || s.At.Sub(l.at) >= 2*l.lasts+answered)
	})
	running := make(map[string]holder, len(ls.running))
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if j.State != job.Pending {
			if j.State != job.Completing { // Slurm no longer counts that: acct_policy_job_fini in deallocate_nodes
				running[j.Ref] = holderOf(j)
			}
			continue
		}
		if c, is := atLimit(j); is {
			if node, sent := sentTo(j.Ref); sent {
				ls.meet(c, j, node, s.At)
			}
		}
	}
	if ls.running != nil {
		ls.count(running)
	}
	ls.running = running
}

// count notes which jobs have started and ended since the last poll.
func (ls *Limits) count(running map[string]holder) {
	for c, l := range ls.byClass {
		if c.node != "" {
			continue // no job's end opens a node
		}
		// Both before the bound: in a poll that shows a new limit, the jobs that started took the
		// room of the jobs that ended.
		for ref, h := range running {
			if _, before := ls.running[ref]; !before && (h.class == c || h.array == c) {
				l.credit--
			}
		}
		for ref, h := range ls.running {
			if _, still := running[ref]; !still {
				l.credit += l.frees(h)
			}
		}
		l.credit = max(0, l.credit)
	}
}

// meet notes that a job of a class is at a limit on the node that it was sent to.
func (ls *Limits) meet(c class, j *job.Job, node string, at time.Time) {
	if closedNode(j.Reason) && j.ReqNodes == node { // else it is said of all nodes
		ls.close(c.on(node), j.Ref, j.Reason, at)
		return
	}
	l := &Limit{reason: j.Reason, ref: j.Ref, at: at, lasts: lasts, of: c}
	if closed(j.Reason) {
		l.lasts = partitionLasts
	}
	ls.byClass[c] = l
}

// ByOperator reports whether there is a limit that an operator has set, by closing a partition or reserving a node.
func (ls *Limits) ByOperator() bool {
	for _, l := range ls.byClass {
		if closed(l.reason) {
			return true
		}
	}
	return false
}

// Reopen keeps the limits that operators have set in force for as long as they are shown, and ends them once they
// aren't any more.
func (ls *Limits) Reopen(b *job.Bounds, at time.Time) {
	maps.DeleteFunc(ls.byClass, func(c class, l *Limit) bool {
		holds := false
		switch {
		case !closed(l.reason):
			return false
		case c.node != "":
			keeps := func(r job.Reservation) bool { return r.Holds(c.node) && r.End.After(at) }
			holds = slices.ContainsFunc(b.Reservations, keeps)
		default:
			holds = slices.ContainsFunc(strings.Split(c.partition, ","), func(p string) bool { return b.Closed[p] })
			if holds {
				l.at = at
			}
		}
		lifted := l.shown && !holds
		l.shown = l.shown || holds
		return lifted
	})
}

// close notes that a node is closed to a class, longer if it is still closed at another try.
func (ls *Limits) close(c class, ref, reason string, at time.Time) {
	l := &Limit{reason: reason[:min(len(reason), mostOfReason)], ref: ref, at: at, lasts: closedLasts, of: c}
	if old := ls.byClass[c]; old != nil {
		l.lasts = old.lasts
		if old.over(at) {
			l.lasts = min(2*old.lasts, closedMost)
		}
	}
	ls.byClass[c] = l
}

// Close notes that Slurm keeps a released job from starting on the node that it was sent to, for
// the reason given. No job of its class is sent there for a while.
func (ls *Limits) Close(j *job.Job, node, reason string, at time.Time) {
	ls.close(classOf(j).on(node), j.Ref, reason, at)
}

// Surplus returns the reason why a released job that is still pending should go back behind the gate at once, "" = it
// should not, and whether for good. Other released jobs of the class that Slurm hasn't considered yet wouldn't start
// either, unless the limit is on shares. node is where the job was sent.
func (ls *Limits) Surplus(j *job.Job, node string, at time.Time) (reason string, forever bool) {
	if len(j.Dependency.List) > 0 {
		return "", false
	}
	if is, forever := Reason(j.Reason); is {
		return j.Reason, forever
	}
	for _, c := range [...]class{classOf(j), arrayOf(j), classOf(j).on(node)} {
		if l := ls.byClass[c]; l != nil && l.at.Equal(at) && !l.onShares() {
			return l.reason, false
		}
	}
	return "", false
}

// atLimit is the class by which a released job doesn't start.
func atLimit(j *job.Job) (class, bool) {
	is, forever := Reason(j.Reason)
	switch {
	case !is || forever || j.State != job.Pending || len(j.Dependency.List) > 0:
		return class{}, false
	case j.Reason == "JobArrayTaskLimit":
		return arrayOf(j), j.ArrayID != 0
	}
	return classOf(j), true
}

// Reason reports whether a job's Reason is a limit, and whether the job will never be within it. The names are Slurm's
// (slurm.h, 22.05 to 24.11): Assoc…, QOS…, Max…PerAccount, and an array's own. What an operator has closed for a while
// (a partition, or a node that is reserved before the job's time limit) is like a limit: it is no mark against the job.
func Reason(reason string) (is, forever bool) {
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
	return slices.Contains([]string{"PartitionDown", "PartitionInactive"}, reason) || closedNode(reason)
}

// closedNode reports whether a Reason is of the node that a job was sent to.
func closedNode(reason string) bool {
	return strings.HasPrefix(reason, "ReqNodeNotAvail") && strings.Contains(reason, "eserved")
}

// StaysPending reports whether a Reason explains why Slurm keeps a job pending that may start: other
// jobs go first, or what it needs is in use or away. It is no mark against the job. Slurm also
// gives Priority to a job that it hasn't considered yet, so the job needs time to start first.
func StaysPending(reason string) bool {
	return slices.Contains([]string{"Priority", "Resources", "Licenses"}, reason) ||
		strings.HasPrefix(reason, "ReqNodeNotAvail")
}

// PassedOver reports whether a Reason only says that in one pass Slurm kept the job's node for another job. Slurm gives
// it to a job of a partition in which each node has a pending job of higher priority (job_scheduler.c, 22.05 to 26.05):
// with few nodes, to most jobs released while another waits for its GPU to be cleaned up. The next pass decides.
func PassedOver(reason string) bool {
	return strings.HasPrefix(strings.ReplaceAll(reason, "_", " "), "Nodes required for job are")
}
