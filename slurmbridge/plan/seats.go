package plan

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// verdict is the result of an attempt to make a group.
type verdict int

const (
	placed  verdict = iota
	later           // it may be possible once the jobs on their way have started
	refused         // not as things are on the node
)

// draft takes the chosen jobs for GPU g, into a new group or the one of the given number, and finds shares that lead
// them there. It makes no group that can't be sure of its GPU, or with members that could meet jobs that they may not
// share with. whole: the only job gets all shares. It returns the group's number.
func (r *pass) draft(g int, kind job.GroupKind, into int64, chosen []int, whole bool) (int64, verdict) {
	number := r.take(g, kind, into, chosen)
	members, of := r.members(number), r.of(number)
	r.limitMemory(members)
	card := &r.State.GPUs[g]
	free := card.FreeShares()
	if free < len(members) {
		return number, refused
	}
	if len(r.shelves[r.gpus[g].shelf()]) > 1 {
		if !whole && !r.alone(number) {
			of.spare = free - r.withRoom(members, free)
		}
		return number, r.lead(number)
	}
	parts := r.split(members, free)
	if slices.Min(parts) < r.leastShares() {
		return number, later
	}
	for i, shares := range parts {
		members[i].Shares = shares
	}
	unlimit(members)
	return number, placed
}

// limitMemory sets what the members of a group may hold of the GPU's memory, and lets a job that starts alone try with
// a part of it.
func (r *pass) limitMemory(members []placement) {
	card := &r.State.GPUs[members[0].gpu]
	for i, mib := range r.guard.MemoryLimits(card, profilesOf(members)) {
		members[i].MemLimitMiB = mib
	}
	m := &members[0]
	switch alone := len(members) == 1 && r.of(m.group).kind == job.StartNow; {
	case alone && r.mayTry(m):
		m.tried, m.NoShare, m.FirstRun, m.MemLimitMiB = true, true, true, r.tryMiB(m)
	case alone && r.firstUnderMPS(m, &card.Spec):
		m.first, m.NoShare, m.FirstRun = true, true, true
	}
}

// unlimit takes the memory limit from a job that has all shares: no job can join it.
func unlimit(members []placement) {
	if m := &members[0]; len(members) == 1 && m.Shares >= job.Units {
		m.tried, m.first, m.MemLimitMiB = false, false, 0
	}
}

func profilesOf(members []placement) []*rlcore.Profile {
	out := make([]*rlcore.Profile, len(members))
	for i := range members {
		out[i] = members[i].Profile
	}
	return out
}

// tryMiB is the memory that a job is to make do with, MiB, 0 = all: by its owner's wish, or by the site's.
func (r *pass) tryMiB(m *placement) float64 { return cmp.Or(r.Terms[m.ID].TryMiB, r.TryMiB) }

// mayTry reports whether a job that starts alone gets a part of the GPU's memory, since its application takes most of a
// card at its start, or isn't known, and its owner or the site wants to see what it needs. MPS limits sharers only, so
// the job leaves one of the shares, and no job joins it. One that fails runs again with all of the memory; by the
// site's wish, only a job is tried that may be run again.
func (r *pass) mayTry(m *placement) bool {
	spec, p, was := &r.State.GPUs[m.gpu].Spec, m.Profile, r.jobs[m.ID]
	owner, mib := r.Terms[m.ID].TryMiB, r.tryMiB(m)
	app := rlcore.Identity{App: r.Apps[m.ID].Key, Owner: m.User}
	switch {
	case mib == 0, mib >= spec.MemMiB, !spec.MemLimits, mib <= r.TriedMiB[app], app.App == "":
		return false
	case p == nil && owner == 0, p != nil && (p.HeldMiB > 0 || !p.Preallocating(spec.MemMiB)):
		return false
	case m.NoShare, r.Shadow, r.adopted(m.ID), r.handwritten() && !r.RoomAnyway:
		return false
	}
	return owner > 0 || was.Requeue && !tracker.Awaited(r.Snap)(was)
}

// alone reports whether a group is of one adopted job, which then needs no shares.
func (r *pass) alone(number int64) bool {
	m := r.members(number)
	return len(m) == 1 && r.of(number).kind == job.StartNow && r.adopted(m[0].ID)
}

// seating is an attempt to find shares for the newest group of a node with several GPUs, together with the other groups
// of this plan there.
type seating struct {
	*statement
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

// lead finds shares with which Slurm puts each member of a new group, and of the plan's other groups, on its GPU, on a
// node with several GPUs. It may change the shares and GPUs of the other groups.
func (r *pass) lead(number int64) verdict {
	s := r.seat(number)
	onWay := s.here(r.onWay[s.node])
	why := refused
	if len(s.jobs) > s.size[number] {
		why = later
	}
	for _, others := range []bool{false, true} { // are the other groups' shares to change, too?
		for _, want := range s.wishes() {
			jobs, ok := s.try(want, others)
			if !ok {
				continue
			}
			var fresh, rest []placement // with new shares, and without
			for i := range jobs {
				switch {
				case jobs[i].group >= 0:
				case others || jobs[i].group == number:
					fresh = append(fresh, jobs[i])
				default:
					rest = append(rest, jobs[i])
				}
			}
			ok, spent := r.meets(r.guard, &r.checks, s.gpus, fresh, append(rest, onWay...))
			switch {
			case ok && s.freed != nil && !s.rule.lands(s.freed, s.first, jobs):
				why = later
				continue
			case ok:
				s.keep(jobs)
				return placed
			case spent:
				return later
			}
			why = refused
		}
		if len(s.size) == 1 {
			break
		}
	}
	return why
}

// startS is in how many seconds of its release Slurm starts a job at the latest, where it has room.
const startS = 3

// aboutToEnd reports whether a running job is expected to end before a job that is released now has its GPU, so that
// Slurm could give it the shares that become free. A job that should have ended already isn't waited for.
func aboutToEnd(x rlcore.Running) bool {
	if x.Profile == nil {
		return false
	}
	leftS := x.Profile.DurationS - x.DoneS
	return -startS < leftS && leftS <= startS
}

// seat gathers the jobs that Slurm considers on a new group's node. Groups that start on idle GPUs of one kind get them
// in the order of their first members, since Slurm takes the first GPU first.
func (r *pass) seat(number int64) *seating {
	node := r.of(number).node
	s := &seating{statement: r.statement, newest: number, node: node, size: map[int64]int{}}
	s.gpus = r.shelves[r.gpus[r.members(number)[0].gpu].shelf()]
	s.first, s.least = s.gpus[0], r.leastShares()
	if r.Snap.LeastLoaded {
		s.rule = leastLoaded
	}
	s.freed = make([]int, len(s.gpus))
	for at, g := range s.gpus {
		card := rlcore.GPU{Running: r.present[g]}
		s.free = append(s.free, card.FreeShares())
		card.Running = slices.DeleteFunc(slices.Clone(card.Running), aboutToEnd)
		s.freed[at] = card.FreeShares()
		if claimed := r.guard.Claimed(g); claimed != "" {
			s.jobs = append(s.jobs, placement{Running: rlcore.Running{Job: rlcore.Job{ID: claimed}, Shares: job.Units}, gpu: g})
		}
	}
	// Where short jobs end all the time, members wait for so many of them and no longer.
	hasWaited := func(m placement) bool { return m.DelayedS >= 3*startS }
	if slices.Equal(s.freed, s.free) || slices.ContainsFunc(r.members(number), hasWaited) {
		s.freed = nil
	}
	placed := s.here(r.placed[node])
	s.jobs = slices.Concat(s.jobs, s.here(r.onWay[node]), placed)
	var idle []int
	for i := range placed {
		p := &placed[i]
		if s.size[p.group]++; s.size[p.group] == 1 && r.of(p.group).kind == job.StartNow {
			idle = append(idle, p.gpu)
		}
	}
	slices.Sort(idle)
	slices.SortFunc(s.jobs, func(a, b placement) int { return ByPriority(r.jobs[a.ID], r.jobs[b.ID]) })
	if slices.ContainsFunc(idle, func(g int) bool { return r.State.GPUs[g].Spec != r.State.GPUs[idle[0]].Spec }) {
		return s
	}
	to := map[int64]int{} // GPUs of the groups
	for i := range s.jobs {
		p := &s.jobs[i]
		if p.group >= 0 || r.of(p.group).kind != job.StartNow {
			continue
		}
		p.gpu = once(to, p.group, func() int { return idle[len(to)] })
	}
	return s
}

// here are those of a node's jobs that are meant for the GPUs among which Slurm chooses.
func (s *seating) here(jobs []placement) []placement {
	out := make([]placement, 0, len(jobs))
	for i := range jobs {
		if slices.Contains(s.gpus, jobs[i].gpu) {
			out = append(out, jobs[i])
		}
	}
	return out
}

// wish is how large the parts of a group are to be.
type wish struct {
	spare bool // shares are left for a job that may join
	equal bool
	least int // where they aren't equal
}

// wishes are tried in this order. With more than 100 ÷ (members + 1) shares each, no more jobs than the group's own fit
// on a GPU.
func (s *seating) wishes() []wish {
	out := []wish{{spare: true, equal: true}, {equal: true}}
	for _, least := range []int{job.Units/(s.size[s.newest]+1) + 1, 20, 10, 5, 2, 1} {
		out = append(out, wish{least: least})
	}
	if s.of(s.newest).spare == 0 {
		return out[1:]
	}
	return out
}

// try finds shares for the newest group; if others is set, for all groups of this plan.
func (s *seating) try(want wish, others bool) ([]placement, bool) {
	spare, jobs := make([]int, len(s.free)), slices.Clone(s.jobs)
	for i := range jobs {
		p := &jobs[i]
		if p.group >= 0 || p.group != s.newest && !others {
			continue
		}
		at := p.gpu - s.first
		if want.spare {
			spare[at] = s.of(p.group).spare
		}
		if p.Shares, p.least = 0, want.least; want.equal {
			p.least = max(1, (s.free[at]-spare[at])/s.size[p.group])
		}
	}
	if !s.rule.number(s.free, spare, s.first, jobs) {
		return nil, false
	}
	return jobs, !slices.ContainsFunc(jobs, func(p placement) bool { return p.group < 0 && p.Shares < s.least })
}

// keep commits the GPUs and the shares of the groups' members.
func (s *seating) keep(jobs []placement) {
	all := s.statement.placed[s.of(s.newest).node]
	for i := range all {
		if at := slices.IndexFunc(jobs, func(p placement) bool { return p.ID == all[i].ID }); at >= 0 {
			all[i].gpu, all[i].Shares = jobs[at].gpu, jobs[at].Shares
		}
	}
	for number := range s.size {
		unlimit(s.members(number))
	}
}

// withRoom returns the number of free shares for a group's members if one more job is to find room: equal parts, one of
// them left over. All of them where no job could join: the GPU serves no more, or a member doesn't share or has no
// profile.
func (r *pass) withRoom(members []placement, free int) int {
	n, card := len(members), &r.State.GPUs[members[0].gpu]
	if members[0].tried || members[0].first {
		return free - 1
	}
	if !r.leavesRoom() || len(card.Running)+n >= r.guard.Members(&card.Spec) || free < n+1 {
		return free
	}
	if slices.ContainsFunc(members, func(p placement) bool { return p.NoShare || p.Profile == nil }) {
		return free
	}
	return free / (n + 1) * n
}

// firstUnderMPS reports whether a job that starts alone is the first of an application that is to share under MPS: it
// leaves one share, so that it computes there, too, and what can't run there shows it alone. It must be a job that may
// run again, without MPS. No job joins it; one by hand could.
func (r *pass) firstUnderMPS(m *placement, spec *rlcore.GPUSpec) bool {
	was := r.jobs[m.ID]
	switch {
	case m.Profile != nil, m.NoShare, r.Apps[m.ID].Key == "", spec.Sharing == contention.TimeSlice.Name:
		return false
	case !r.RetryAlone, !was.Requeue, tracker.Awaited(r.Snap)(was), r.handwritten(), r.adopted(m.ID):
		return false
	}
	return true
}

// split divides the free shares equally among a group's members on a node with one GPU. Where jobs with hand-written
// shares come to cards that serve one user, each member gets one share, and the longest one the rest: the freed shares
// are then too few for such a job, which the MPS server wouldn't serve. Before Volta shares limit nothing else.
func (r *pass) split(members []placement, free int) []int {
	n, longest := len(members), 0
	out := make([]int, n)
	if !r.handwritten() || !r.State.GPUs[members[0].gpu].Spec.SameUser {
		free = r.withRoom(members, free)
		for i := range out { // all of them: no other job finds room
			out[i] = (free + n - 1 - i) / n
		}
		return out
	}
	for i := range members {
		out[i] = 1
		if p, q := members[i].Profile, members[longest].Profile; p != nil && q != nil && p.DurationS > q.DurationS {
			longest = i
		}
	}
	out[longest] = free - (n - 1)
	return out
}
