package plan

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// statement is what the decisions of a plan have taken so far. The poll stays as it is: now is a copy of its State, in
// which the taken jobs have left the queue and are on their GPUs. What was taken since a checkpoint can be put back.
type statement struct {
	now    rlcore.State
	queue  []rlcore.Job // now.Pending is its end; in front are the taken jobs
	poll   *poll
	guard  *rlcore.Guard
	placed map[string][]placement // by node: the members of this plan's groups, group by group
	groups []group                // of this plan; the number of groups[i] is -1-i
	taken  [][]int                // indexes in the queue, ascending, as each take found them
}

// group is what starts together on one GPU.
type group struct {
	node  string
	kind  job.GroupKind
	spare int // of the GPU's shares: left for a job that may join
}

// checkpoint is what a statement was before a group of a node began or grew.
type checkpoint struct {
	node          string
	placed        []placement
	groups, taken int
	last          group // of the groups
}

func newStatement(p *poll, queue []rlcore.Job, g *rlcore.Guard) *statement {
	s := &statement{poll: p, guard: g, now: p.State, queue: queue, placed: map[string][]placement{}}
	s.now.GPUs, s.now.Pending = slices.Clone(p.State.GPUs), queue
	return s
}

func (s *statement) checkpoint(node string) checkpoint {
	c := checkpoint{node: node, placed: slices.Clone(s.placed[node]), groups: len(s.groups), taken: len(s.taken)}
	if c.groups > 0 {
		c.last = s.groups[c.groups-1]
	}
	return c
}

// rollBack puts back what was taken since a checkpoint.
func (s *statement) rollBack(to checkpoint) {
	for len(s.taken) > to.taken {
		s.requeue(s.taken[len(s.taken)-1])
		s.taken = s.taken[:len(s.taken)-1]
	}
	s.placed[to.node], s.groups = to.placed, s.groups[:to.groups]
	if to.groups > 0 {
		s.groups[to.groups-1] = to.last
	}
}

// take moves the jobs at the given indexes from the queue to a GPU, without shares: into a new group of a kind, or into
// an earlier one, the last of all, if into isn't 0. It returns the group's number.
func (s *statement) take(gpu int, kind job.GroupKind, into int64, at []int) int64 {
	card := &s.now.GPUs[gpu]
	if into == 0 {
		s.groups = append(s.groups, group{node: card.Node, kind: kind})
		into = -int64(len(s.groups))
	}
	for _, i := range at {
		x := rlcore.Running{Job: s.now.Pending[i]}
		x.Profile, x.Cards = x.On(card), nil
		s.placed[card.Node] = append(s.placed[card.Node], placement{Running: x, gpu: gpu, group: into})
	}
	s.dequeue(at)
	s.taken = append(s.taken, at)
	return into
}

// dequeue removes the jobs at the given ascending indexes from the queue. They are near its front, so the jobs before
// them move, in the queue's own storage, and the removed ones stay in front of it.
func (s *statement) dequeue(at []int) {
	q := s.now.Pending
	for k, i := range at {
		j := q[i]
		copy(q[k+1:i+1], q[k:i])
		q[k] = j
	}
	s.now.Pending = q[len(at):]
}

// requeue puts back what dequeue removed last.
func (s *statement) requeue(at []int) {
	q := s.queue[len(s.queue)-len(s.now.Pending)-len(at):]
	for k := len(at) - 1; k >= 0; k-- {
		j := q[k]
		copy(q[k:at[k]], q[k+1:at[k]+1])
		q[at[k]] = j
	}
	s.now.Pending = q
}

// of returns a group by its number.
func (s *statement) of(number int64) *group { return &s.groups[-1-number] }

// members returns the members of a group of this plan.
func (s *statement) members(number int64) []placement {
	all := s.placed[s.of(number).node]
	from := slices.IndexFunc(all, func(p placement) bool { return p.group == number })
	to := from
	for to < len(all) && all[to].group == number {
		to++
	}
	return all[from:to]
}

// refresh brings the State of a node up to date. The members of a group that may still grow, open, hold one share each.
func (s *statement) refresh(node string, open int64) {
	for _, g := range s.poll.nodes[node] {
		s.now.GPUs[g] = s.poll.State.GPUs[g]
	}
	cpus, memMiB := 0, 0.0
	for _, p := range s.placed[node] {
		itsCPUs, itsMiB := p.Host(s.company(p.group))
		cpus, memMiB = cpus+itsCPUs, memMiB+itsMiB
		if p.group == open {
			p.Shares = 1
		}
		card := &s.now.GPUs[p.gpu]
		card.Running = append(slices.Clip(card.Running), p.Running)
	}
	for _, g := range s.poll.nodes[node] {
		card := &s.now.GPUs[g] // below 0 would mean that they aren't counted
		card.FreeCPUs, card.FreeHostMemMiB = max(0, card.FreeCPUs-cpus), max(0, card.FreeHostMemMiB-memMiB)
		s.guard.Refresh(&s.now, g)
	}
}

// company is how many jobs are on the GPU of a group: its members, and the jobs that were there before.
func (s *statement) company(number int64) int {
	m := s.members(number)
	return len(m) + len(s.poll.State.GPUs[m[0].gpu].Running)
}
