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
	poll   *poll
	guard  *rlcore.Guard
	placed map[string][]placement // by node: the members of this plan's groups, group by group
	groups []group                // of this plan; the number of groups[i] is -1-i
	taken  []taken                // since the last checkpoint
}

// group is what starts together on one GPU.
type group struct {
	node  string
	kind  job.GroupKind
	spare int // of the GPU's shares: left for a job that may join
}

// taken is the queue as a take found it: its storage, and a copy of the front part, in which jobs have moved since.
type taken struct{ queue, front []rlcore.Job }

// checkpoint is what a statement was before a group of a node began or grew.
type checkpoint struct {
	node   string
	placed []placement
	groups int
	last   group // of the groups
}

func newStatement(p *poll, queue []rlcore.Job, g *rlcore.Guard) *statement {
	s := &statement{poll: p, guard: g, now: p.State, placed: map[string][]placement{}}
	s.now.GPUs, s.now.Pending = slices.Clone(p.State.GPUs), queue
	return s
}

func (s *statement) checkpoint(node string) checkpoint {
	s.taken = nil
	c := checkpoint{node: node, placed: slices.Clone(s.placed[node]), groups: len(s.groups)}
	if c.groups > 0 {
		c.last = s.groups[c.groups-1]
	}
	return c
}

// rollBack puts back what was taken since the last checkpoint.
func (s *statement) rollBack(to checkpoint) {
	for _, t := range slices.Backward(s.taken) {
		copy(t.queue, t.front)
		s.now.Pending = t.queue
	}
	s.taken = nil
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
	// They are near the queue's front: only the jobs before the last one move, in the queue's own storage.
	t := taken{s.now.Pending, slices.Clone(s.now.Pending[:at[len(at)-1]+1])}
	s.taken, s.now.Pending = append(s.taken, t), t.queue[len(at):]
	stay := 0
	for i := range t.front {
		if !slices.Contains(at, i) {
			s.now.Pending[stay] = t.front[i]
			stay++
		}
	}
	return into
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
