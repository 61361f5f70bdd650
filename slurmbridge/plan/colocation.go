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
//
// These sets needn't keep the jobs' dues. Where half of the ends were unforeseen and a start took three seconds, ten of
// 1,193 members landed on another GPU than planned, and no job ended late for it. With dues kept as well, jobs took 6 %
// longer from submission to end, and 11 % in a busier queue.

// mostChecks bounds the sets that a plan lets the guard check. A group that needs more waits for the next plan.
const mostChecks = 20000

// meeting checks which jobs could meet on a GPU.
type meeting struct {
	guard  *rlcore.Guard
	spec   *rlcore.GPUSpec
	nowS   float64
	checks *int // that are left, of mostChecks
	guests []guest
	there  int // the first so many guests run on the GPU
	set    []rlcore.Running
	of     []*guest // of set
	// meant reports whether a job is meant for the GPU, or for an empty one of the same kind.
	meant func(p *placement) bool
}

// guest is a job that could share a GPU.
type guest struct {
	placement
	like  rlcore.Alike
	fresh bool // its shares are new
}

// meets reports whether the guard allows every set of jobs that could meet on one of the GPUs because of the fresh
// placements: these, the other placements and the running jobs. spent: there are too many sets to check.
func (v *clusterView) meets(guard *rlcore.Guard, checks *int, gpus []int, fresh, others []placement) (ok, spent bool) {
	app := func(x *guest) string { return cmp.Or(x.Profile, &rlcore.Profile{}).App } // "" = not known
	var all []guest
	for i, list := range [][]placement{fresh, others} {
		from := len(all)
		for _, x := range list {
			if x.Shares < job.Units {
				all = append(all, guest{x, x.Alike(), i == 0})
			}
		}
		slices.SortStableFunc(all[from:], func(a, b guest) int { // jobs alike next to each other, where that is cheap
			return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(app(&a), app(&b)), a.Shares-b.Shares,
				cmp.Compare(a.LimitS, b.LimitS))
		})
	}
	seen := map[rlcore.GPUSpec]bool{}
	for _, g := range gpus {
		m := meeting{guard: guard, spec: &v.state.GPUs[g].Spec, nowS: v.state.NowS, checks: checks, guests: all}
		m.meant = func(x *placement) bool { return v.state.GPUs[x.gpu].Spec == *m.spec }
		if !seen[*m.spec] {
			if ok, _ = m.grow(0, job.Units, false); !ok {
				return false, *checks < 0
			}
		}
		seen[*m.spec] = true
		if len(v.present[g]) == 0 || v.present[g][0].Whole {
			continue
		}
		m.guests, m.there = nil, len(v.present[g])
		for _, x := range v.present[g] {
			m.guests = append(m.guests, guest{placement{Running: x}, x.Alike(), false})
		}
		m.guests = append(m.guests, all...)
		m.meant = func(x *placement) bool { return x.gpu == g }
		if ok, _ = m.grow(0, job.Units, false); !ok {
			return false, *checks < 0
		}
	}
	return true, false
}

// grow checks every set that the present one can grow into with the guests from the given index on, while shares are
// free. After an allowed set it skips sets with a job like the last one in its place. fresh: the set has a job with new
// shares. general: what is returned is true of all sets of jobs like these.
func (m *meeting) grow(from, free int, fresh bool) (ok, general bool) {
	var last rlcore.Alike
	known := false // the answer about last is known
	general = true
	for i := from; i < len(m.guests); i++ {
		x := &m.guests[i]
		apart := i >= m.there && (!fresh && !x.fresh || m.there > 0 && len(m.set) == 0)
		if x.Shares > free || apart || known && x.like == last {
			continue
		}
		m.set, m.of = append(m.set, x.Running), append(m.of, x)
		isFresh := fresh || x.fresh
		ok, known = true, true
		if isFresh && len(m.set) > 1 {
			*m.checks--
			ok = *m.checks >= 0
			if ok && m.guard.Together(m.spec, m.set, m.nowS) != rlcore.Allowed {
				ok, known = m.planned(), false
			}
		}
		if ok {
			var always bool
			ok, always = m.grow(i+1, free-x.Shares, isFresh)
			known = known && always
		}
		m.set, m.of = m.set[:len(m.set)-1], m.of[:len(m.of)-1]
		if !ok {
			return false, false
		}
		last, general = x.like, general && known
	}
	return true, general
}

// planned reports whether the set is a group, or a part of one, on its own GPU: the guard has allowed it for the moment
// of its start.
func (m *meeting) planned() bool {
	var of *guest
	for _, x := range m.of {
		if x.group == 0 { // it runs
			continue
		}
		if of != nil && of.group != x.group {
			return false
		}
		of = x
	}
	return of != nil && m.meant(&of.placement)
}
