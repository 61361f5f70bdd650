package plan

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// verdict is the result of an attempt to make a group.
type verdict int

const (
	placed  verdict = iota
	later           // it may be possible once the jobs on their way have started
	refused         // not as things are on the node
)

// formGroup takes the chosen jobs for GPU g, into a new group or the one of the given number, and finds shares that
// lead them there. It makes no group that can't be sure of its GPU, or with members that could meet jobs that they may
// not share with. whole: the only job gets all shares. It returns the group's number.
func (r *planRun) formGroup(g int, kind job.GroupKind, into int64, chosen []int, whole bool) (int64, verdict) {
	number := r.draft.take(g, kind, into, chosen)
	members := r.draft.members(number)
	r.limitMemory(members)
	free := r.view.state.GPUs[g].FreeShares()
	if free < len(members) {
		return number, refused
	}
	if len(r.view.pools[r.view.gpus[g].pool()]) > 1 {
		if !whole && !r.draft.alone(number) {
			r.draft.of(number).spare = free - r.withRoom(members, free)
		}
		return number, newShareSearch(r.draft, number).run(&r.checks)
	}
	parts := r.split(members, free)
	if slices.Min(parts) < r.view.leastShares() {
		return number, later
	}
	for i, shares := range parts {
		members[i].Shares = shares
	}
	unlimit(members)
	return number, placed
}

// shareSearch looks for shares with which Slurm puts each member of the newest group of a node with several GPUs, and
// of the plan's other groups there, on its GPU.
type shareSearch struct {
	draft  *draft
	rule   rule
	newest int64
	node   string
	gpus   []int         // of the node, among which Slurm chooses
	first  int           // of them
	free   []int         // shares of its GPUs, before any of the groups
	freed  []int         // free once the running jobs that are about to end have ended; nil = no such job shares a GPU
	jobs   []placement   // that Slurm considers in its next pass, in its order
	size   map[int64]int // of the groups
	least  int           // shares that a member may get; see leastShares
}

// startS is the longest that Slurm takes to start a released job that has room, s.
const startS = 3

// newShareSearch gathers the jobs that Slurm considers on the node of the newest group.
func newShareSearch(d *draft, newest int64) *shareSearch {
	view := d.view
	node := d.of(newest).node
	members := d.members(newest)
	s := &shareSearch{draft: d, newest: newest, node: node, size: map[int64]int{}, least: view.leastShares()}
	s.gpus = view.pools[view.gpus[members[0].gpu].pool()]
	s.first = s.gpus[0]
	if view.in.Snap.LeastLoaded {
		s.rule = leastLoaded
	}
	for _, g := range s.gpus {
		card := rlcore.GPU{Running: view.present[g]}
		s.free = append(s.free, card.FreeShares())
		card.Running = slices.DeleteFunc(slices.Clone(card.Running), aboutToEnd)
		s.freed = append(s.freed, card.FreeShares())
		if claimed := d.guard.Claimed(g); claimed != "" {
			x := rlcore.Running{Job: rlcore.Job{ID: claimed}, Shares: job.Units}
			s.jobs = append(s.jobs, placement{Running: x, gpu: g})
		}
	}
	// Where short jobs end all the time, members wait for so many of them and no longer.
	hasWaited := slices.ContainsFunc(members, func(m placement) bool { return m.DelayedS >= 3*startS })
	if hasWaited || slices.Equal(s.freed, s.free) {
		s.freed = nil
	}
	placed := s.here(d.placed[node])
	for i := range placed {
		s.size[placed[i].group]++
	}
	s.jobs = slices.Concat(s.jobs, s.here(view.onWay[node]), placed)
	slices.SortFunc(s.jobs, func(a, b placement) int { return ByPriority(view.jobs[a.ID], view.jobs[b.ID]) })
	s.orderGroups()
	return s
}

// orderGroups gives idle GPUs of one kind to the groups that start there in the order of their first members: Slurm
// takes the first GPU first.
func (s *shareSearch) orderGroups() {
	var idle []int
	for i := range s.jobs {
		p := &s.jobs[i]
		if s.startsGroup(p) && !slices.Contains(idle, p.gpu) {
			idle = append(idle, p.gpu)
		}
	}
	slices.Sort(idle)
	gpus := s.draft.view.state.GPUs
	if slices.ContainsFunc(idle, func(g int) bool { return gpus[g].Spec != gpus[idle[0]].Spec }) {
		return
	}
	to := map[int64]int{} // GPUs of the groups
	for i := range s.jobs {
		p := &s.jobs[i]
		if s.startsGroup(p) {
			p.gpu = once(to, p.group, func() int { return idle[len(to)] })
		}
	}
}

// startsGroup reports whether a placement belongs to a group of this plan that starts on an idle GPU.
func (s *shareSearch) startsGroup(p *placement) bool {
	return p.group < 0 && s.draft.of(p.group).kind == job.StartNow
}

// aboutToEnd reports whether a running job is expected to end before a job that is released now has its GPU, so that
// Slurm could give it the shares that become free. A job that should have ended already isn't waited for.
func aboutToEnd(x rlcore.Running) bool {
	if x.Profile == nil {
		return false
	}
	leftS := x.Profile.DurationS - x.DoneS
	return -startS < leftS && leftS <= startS
}

// here selects the jobs that are meant for the GPUs among which Slurm chooses.
func (s *shareSearch) here(jobs []placement) []placement {
	out := make([]placement, 0, len(jobs))
	for i := range jobs {
		if slices.Contains(s.gpus, jobs[i].gpu) {
			out = append(out, jobs[i])
		}
	}
	return out
}

// run finds the shares and commits them. It changes the shares and GPUs of the other groups only where the newest
// group's alone don't do.
func (s *shareSearch) run(checks *int) verdict {
	result := refused
	if len(s.jobs) > s.size[s.newest] {
		result = later
	}
	for _, others := range []bool{false, true} {
		if others && len(s.size) == 1 {
			break
		}
		for _, want := range s.wishes() {
			jobs, ok := s.try(want, others)
			if !ok {
				continue
			}
			allowed, spent := s.mayMeet(jobs, others, checks)
			switch {
			case spent:
				return later
			case !allowed:
				result = refused
			case s.freed != nil && !s.rule.lands(s.freed, s.first, jobs):
				result = later
			default:
				s.commit(jobs)
				return placed
			}
		}
	}
	return result
}

// mayMeet reports whether the guard allows all jobs that could meet if the shares are these. spent: there are too many
// sets of jobs to check.
func (s *shareSearch) mayMeet(jobs []placement, others bool, checks *int) (allowed, spent bool) {
	var fresh, rest []placement // with new shares, and without
	for i := range jobs {
		switch {
		case jobs[i].group >= 0:
		case others || jobs[i].group == s.newest:
			fresh = append(fresh, jobs[i])
		default:
			rest = append(rest, jobs[i])
		}
	}
	rest = append(rest, s.here(s.draft.view.onWay[s.node])...)
	return s.draft.view.meets(s.draft.guard, checks, s.gpus, fresh, rest)
}

// wish is how large the parts of a group are to be.
type wish struct {
	spare bool // shares are left for a job that may join
	equal bool
	least int // where they aren't equal
}

// wishes are tried in this order. With more than 100 ÷ (members + 1) shares each, no more jobs than the group's own fit
// on a GPU.
func (s *shareSearch) wishes() []wish {
	out := []wish{{spare: true, equal: true}, {equal: true}}
	for _, least := range []int{job.Units/(s.size[s.newest]+1) + 1, 20, 10, 5, 2, 1} {
		out = append(out, wish{least: least})
	}
	if s.draft.of(s.newest).spare == 0 {
		return out[1:]
	}
	return out
}

// try finds shares for the newest group, or for all groups of this plan.
func (s *shareSearch) try(want wish, others bool) ([]placement, bool) {
	spare := make([]int, len(s.free))
	jobs := slices.Clone(s.jobs)
	for i := range jobs {
		p := &jobs[i]
		if p.group >= 0 || p.group != s.newest && !others {
			continue
		}
		at := p.gpu - s.first
		if want.spare {
			spare[at] = s.draft.of(p.group).spare
		}
		p.Shares = 0
		p.least = want.least
		if want.equal {
			p.least = max(1, (s.free[at]-spare[at])/s.size[p.group])
		}
	}
	if !s.rule.number(s.free, spare, s.first, jobs) {
		return nil, false
	}
	return jobs, !slices.ContainsFunc(jobs, func(p placement) bool { return p.group < 0 && p.Shares < s.least })
}

// commit writes the GPUs and the shares of the groups' members into the draft.
func (s *shareSearch) commit(jobs []placement) {
	all := s.draft.placed[s.node]
	for i := range all {
		at := slices.IndexFunc(jobs, func(p placement) bool { return p.ID == all[i].ID })
		if at >= 0 {
			all[i].gpu = jobs[at].gpu
			all[i].Shares = jobs[at].Shares
		}
	}
	for number := range s.size {
		unlimit(s.draft.members(number))
	}
}

// withRoom returns the number of free shares for a group's members if one more job is to find room: equal parts, one of
// them left over. All of them where no job could join: the GPU serves no more, or a member doesn't share or has no
// profile.
func (r *planRun) withRoom(members []placement, free int) int {
	if members[0].onTrial() {
		return free - 1
	}
	n := len(members)
	card := &r.view.state.GPUs[members[0].gpu]
	if !r.leavesRoom() || len(card.Running)+n >= r.draft.guard.Members(&card.Spec) || free < n+1 {
		return free
	}
	if slices.ContainsFunc(members, func(p placement) bool { return p.NoShare || p.Profile == nil }) {
		return free
	}
	return free / (n + 1) * n
}

// split divides the free shares equally among a group's members on a node with one GPU. Where jobs with hand-written
// shares come to cards that serve one user, each member gets one share, and the longest one the rest: the freed shares
// are then too few for such a job, which the MPS server wouldn't serve. Before Volta shares limit nothing else.
func (r *planRun) split(members []placement, free int) []int {
	n := len(members)
	out := make([]int, n)
	if !r.in.handwritten() || !r.view.state.GPUs[members[0].gpu].Spec.SameUser {
		free = r.withRoom(members, free)
		for i := range out { // all of them: no other job finds room
			out[i] = (free + n - 1 - i) / n
		}
		return out
	}
	longest := 0
	for i := range members {
		out[i] = 1
		p := members[i].Profile
		q := members[longest].Profile
		if p != nil && q != nil && p.DurationS > q.DurationS {
			longest = i
		}
	}
	out[longest] = free - (n - 1)
	return out
}

// leavesRoom reports whether groups leave a share of their GPU free for a later join: not where jobs with hand-written
// shares were seen in the last week.
func (r *planRun) leavesRoom() bool {
	return policy.Shares(r.planner.Decider.Policy) && !r.in.handwritten()
}

// leastShares is the smallest number of shares that fits on no GPU next to a job that waits for its turn.
func (v *clusterView) leastShares() int {
	least := 1
	for _, g := range v.in.Tracker.Groups {
		if g.Kind != job.Turn {
			continue
		}
		for i := range g.Members {
			m := &g.Members[i]
			if !m.State.Final() && m.State != job.MemberRunning {
				least = max(least, job.Units+1-m.Shares)
			}
		}
	}
	return least
}
