package plan

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// On a node with several GPUs a released job may start on any of them: a running job may end
// before, another released one may be cancelled, refused or put off. So the guard must allow every set of jobs
// that could then meet on a GPU, whatever the plan was: the members of all groups on their way to
// the node, with each other and with the jobs that run there, where their shares fit on one GPU. Placing jobs
// by numbers (see rule) is only faster.

// floater is a job on its way to a node with several GPUs.
type floater struct {
	rlcore.Running // as it will run
	// group numbers the floater's group, 0 = it runs; gpu is the one that it is meant for.
	group int64
	gpu   int
}

// kind is what the guard's answers about a floater depend on.
type kind struct {
	profile                              *rlcore.Profile
	user, array                          string
	limit, deadline, slowdown, mem, done float64
	elapsed                              float64
	noShare, arrayOnly                   bool
	shares                               int
}

func kindOf(x *rlcore.Running) kind {
	k := kind{
		profile: x.Profile, user: x.User, limit: x.LimitS, deadline: x.DeadlineS, slowdown: x.MaxSlowdown, mem: x.MemLimitMiB,
		done: x.DoneS, elapsed: x.ElapsedS, noShare: x.NoShare, arrayOnly: x.ArrayOnly, shares: x.Shares, array: x.Array,
	}
	return k
}

// mostMeetings bounds the sets of jobs that a plan asks the guard about; what would need more waits for
// the next one.
const mostMeetings = 20000

// company checks who could meet on a node's GPUs.
type company struct {
	view  *view
	guard *rlcore.Guard
	spec  *rlcore.GPUSpec
	nowS  float64
	left  *int // of mostMeetings
	set   []rlcore.Running
	of    []*member // the same
	items []member
	there int // the first so many of items run
	gpu   int // where they do; −1 = none does
}

// member is a job that could meet others.
type member struct {
	floater
	kind  kind
	fresh bool
}

// meets reports whether the guard allows whoever could meet because of the fresh floaters: those with
// each other, with the other floaters, and with the jobs that run on one of the GPUs. spent: so many
// could that it isn't known.
func (v *view) meets(guard *rlcore.Guard, left *int, node string, fresh, others []floater) (ok, spent bool) {
	gpus := v.nodes[node]
	c := company{view: v, guard: guard, nowS: v.State.NowS, left: left, gpu: -1}
	var all []member
	add := func(f floater, isFresh bool) {
		if f.Shares < job.Units {
			all = append(all, member{f, kindOf(&f.Running), isFresh})
		}
	}
	for _, f := range fresh {
		add(f, true)
	}
	slices.SortStableFunc(all, alike)
	n := len(all)
	for _, f := range others {
		add(f, false)
	}
	slices.SortStableFunc(all[n:], alike)
	specs := map[rlcore.GPUSpec]bool{}
	for _, g := range gpus {
		if c.spec = &v.State.GPUs[g].Spec; specs[*c.spec] {
			continue
		}
		specs[*c.spec] = true
		c.items = all
		if ok, _ := c.grow(0, job.Units, false); !ok {
			return false, *left < 0
		}
	}
	for _, g := range gpus {
		if len(v.present[g]) == 0 || v.present[g][0].Whole {
			continue
		}
		c.items, c.gpu, c.there, c.spec = nil, g, len(v.present[g]), &v.State.GPUs[g].Spec
		for _, x := range v.present[g] {
			c.items = append(c.items, member{floater: floater{Running: x}, kind: kindOf(&x)})
		}
		c.items = append(c.items, all...)
		if ok, _ := c.grow(0, job.Units, false); !ok {
			return false, *left < 0
		}
	}
	return true, false
}

// alike sorts floaters of one kind next to each other, as far as that is cheap.
func alike(a, b member) int {
	return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.kind.app(), b.kind.app()), cmp.Compare(a.Shares, b.Shares), cmp.Compare(a.LimitS, b.LimitS))
}

func (k *kind) app() string {
	if k.profile == nil {
		return ""
	}
	return k.profile.App
}

// grow asks about every set that the present one can grow into by items from the given one on, as far
// as the free shares go. Once a set was allowed, one that has another job of the same kind in a
// place isn't asked about. fresh: the set has a fresh member. plain: the answer is true of every set
// of such kinds.
func (c *company) grow(from, free int, fresh bool) (ok, plain bool) {
	var last kind
	known := false // last was asked about
	plain = true
	for i := from; i < len(c.items); i++ {
		m := &c.items[i]
		apart := i >= c.there && (!fresh && !m.fresh || c.gpu >= 0 && len(c.set) == 0)
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

// planned reports whether the set is one group, or a part of it, where it is meant to be, or on an
// empty card of the same kind: the guard has allowed it for the moment at which it starts.
func (c *company) planned() bool {
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
	return of != nil && (c.gpu == of.gpu || c.gpu < 0 && *c.spec == c.view.State.GPUs[of.gpu].Spec)
}
