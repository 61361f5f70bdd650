package plan

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A released job may start on any GPU of its node: a running job may end early, another released one may be cancelled,
// refused or delayed. So the guard must allow every set of jobs that could then meet on a GPU: the members of all
// groups on their way to the node, with each other and with the running jobs, where their shares fit. Numbers that lead
// a job to its GPU (see rule) only make that likely.

// floater is a job on its way to a node with several GPUs.
type floater struct {
	rlcore.Running       // as it will run
	group          int64 // number of its group; 0 = the job runs
	gpu            int   // the one that it is meant for
}

// kind is what the guard's answer about a job depends on.
type kind struct {
	profile                              *rlcore.Profile
	user, array, rank                    string
	limit, deadline, slowdown, mem, done float64
	elapsed                              float64
	noShare, arrayOnly, limitFixed       bool
	shares                               int
}

// mostMeetings bounds the sets that a plan lets the guard check. A group that needs more waits for the next plan.
const mostMeetings = 20000

// coLocation checks which jobs could meet on a GPU.
type coLocation struct {
	guard *rlcore.Guard
	spec  *rlcore.GPUSpec
	nowS  float64
	left  *int // of mostMeetings
	items []member
	there int // the first so many of items run on the GPU
	set   []rlcore.Running
	of    []*member // the same
	// meant reports whether a floater is meant for the GPU, or for an empty one of the same kind.
	meant func(f *floater) bool
}

// member is a job that could share a GPU.
type member struct {
	floater
	kind  kind
	fresh bool
}

func newMember(f floater, fresh bool) member {
	x := &f.Running
	return member{floater: f, fresh: fresh, kind: kind{
		profile: x.Profile, user: x.User, limit: x.LimitS, deadline: x.DeadlineS, slowdown: x.MaxSlowdown, mem: x.MemLimitMiB,
		done: x.DoneS, elapsed: x.ElapsedS, noShare: x.NoShare, arrayOnly: x.ArrayOnly, limitFixed: x.LimitFixed, shares: x.Shares, array: x.Array, rank: x.Rank,
	}}
}

// app names what the job runs, "" = not known.
func (m *member) app() string {
	if m.Profile == nil {
		return ""
	}
	return m.Profile.App
}

// meets reports whether the guard allows all meetings that the fresh floaters make possible: with each other, with the
// other floaters and with the running jobs of a GPU. spent: there are too many sets to check.
func (v *view) meets(guard *rlcore.Guard, left *int, node string, fresh, others []floater) (ok, spent bool) {
	var all []member
	n := 0 // of them are fresh
	for i, f := range slices.Concat(fresh, others) {
		if f.Shares < job.Units {
			all = append(all, newMember(f, i < len(fresh)))
		}
		if i < len(fresh) {
			n = len(all)
		}
	}
	for _, part := range [][]member{all[:n], all[n:]} {
		slices.SortStableFunc(part, func(a, b member) int { // jobs of one kind next to each other, where that is cheap
			return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.app(), b.app()), cmp.Compare(a.Shares, b.Shares), cmp.Compare(a.LimitS, b.LimitS))
		})
	}
	seen := map[rlcore.GPUSpec]bool{}
	for _, g := range v.nodes[node] {
		c := coLocation{guard: guard, spec: &v.State.GPUs[g].Spec, nowS: v.State.NowS, left: left, items: all}
		c.meant = func(f *floater) bool { return v.State.GPUs[f.gpu].Spec == *c.spec }
		if !seen[*c.spec] {
			if ok, _ = c.grow(0, job.Units, false); !ok {
				return false, *left < 0
			}
		}
		seen[*c.spec] = true
		if len(v.present[g]) == 0 || v.present[g][0].Whole {
			continue
		}
		c.items, c.there = nil, len(v.present[g])
		for _, x := range v.present[g] {
			c.items = append(c.items, newMember(floater{Running: x}, false))
		}
		c.items = append(c.items, all...)
		c.meant = func(f *floater) bool { return f.gpu == g }
		if ok, _ = c.grow(0, job.Units, false); !ok {
			return false, *left < 0
		}
	}
	return true, false
}

// grow checks every set that the present one can grow into with the items from the given index on, while shares are
// free. After an allowed set it skips sets with another job of the same kind in that place. fresh: the set has a fresh
// member. plain: the answer holds for all sets of such kinds.
func (c *coLocation) grow(from, free int, fresh bool) (ok, plain bool) {
	var last kind
	known := false // the answer about last is known
	plain = true
	for i := from; i < len(c.items); i++ {
		m := &c.items[i]
		apart := i >= c.there && (!fresh && !m.fresh || c.there > 0 && len(c.set) == 0)
		if m.Shares > free || apart || known && m.kind == last {
			continue
		}
		c.set, c.of = append(c.set, m.Running), append(c.of, m)
		isFresh := fresh || m.fresh
		ok, known = true, true
		if isFresh && len(c.set) > 1 {
			*c.left--
			ok = *c.left >= 0
			if ok && c.guard.Together(c.spec, c.set, c.nowS) != rlcore.Allowed {
				ok, known = c.planned(), false
			}
		}
		if ok {
			var same bool
			ok, same = c.grow(i+1, free-m.Shares, isFresh)
			known = known && same
		}
		c.set, c.of = c.set[:len(c.set)-1], c.of[:len(c.of)-1]
		if !ok {
			return false, false
		}
		last, plain = m.kind, plain && known
	}
	return true, plain
}

// planned reports whether the set is a group, or a part of one, on its own GPU: the guard has allowed it for the moment
// of its start.
func (c *coLocation) planned() bool {
	var of *member
	for _, m := range c.of {
		if m.group == 0 { // it runs
			continue
		}
		if of != nil && of.group != m.group {
			return false
		}
		of = m
	}
	return of != nil && c.meant(&of.floater)
}
