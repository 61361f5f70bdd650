package plan

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// draft is what the decisions of a plan have taken so far. The view stays as it is: state is a copy of its State, in
// which the taken jobs have left the queue and are on their GPUs. rollBack undoes what was taken since a checkpoint.
type draft struct {
	state  rlcore.State
	view   *clusterView
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

// taken undoes one take: the queue slice as it was, and a copy of the front part that take overwrote.
type taken struct{ queue, front []rlcore.Job }

// checkpoint is what a draft was before a group of a node began or grew.
type checkpoint struct {
	node   string
	placed []placement
	groups int
	last   group // of the groups
}

func newDraft(view *clusterView, queue []rlcore.Job, guard *rlcore.Guard) *draft {
	d := &draft{view: view, guard: guard, state: view.state, placed: map[string][]placement{}}
	d.state.GPUs = slices.Clone(view.state.GPUs)
	d.state.Pending = queue
	return d
}

func (d *draft) checkpoint(node string) checkpoint {
	d.taken = nil
	c := checkpoint{node: node, placed: slices.Clone(d.placed[node]), groups: len(d.groups)}
	if c.groups > 0 {
		c.last = d.groups[c.groups-1]
	}
	return c
}

// rollBack puts back what was taken since the last checkpoint.
func (d *draft) rollBack(to checkpoint) {
	for _, t := range slices.Backward(d.taken) {
		copy(t.queue, t.front)
		d.state.Pending = t.queue
	}
	d.taken = nil
	d.placed[to.node] = to.placed
	d.groups = d.groups[:to.groups]
	if to.groups > 0 {
		d.groups[to.groups-1] = to.last
	}
}

// take moves the jobs at the given indexes from the queue to a GPU, without shares: into a new group of a kind, or into
// an earlier one, the last of all, if into isn't 0. It returns the group's number.
func (d *draft) take(gpu int, kind job.GroupKind, into int64, at []int) int64 {
	card := &d.state.GPUs[gpu]
	if into == 0 {
		d.groups = append(d.groups, group{node: card.Node, kind: kind})
		into = -int64(len(d.groups))
	}
	for _, i := range at {
		x := rlcore.Running{Job: d.state.Pending[i]}
		x.Profile = x.On(card)
		x.ByModel = nil
		d.placed[card.Node] = append(d.placed[card.Node], placement{Running: x, gpu: gpu, group: into})
	}
	// They are near the queue's front: only the jobs before the last one move, in the queue's own storage.
	last := at[len(at)-1]
	t := taken{d.state.Pending, slices.Clone(d.state.Pending[:last+1])}
	d.taken = append(d.taken, t)
	d.state.Pending = t.queue[len(at):]
	stay := 0
	for i := range t.front {
		if !slices.Contains(at, i) {
			d.state.Pending[stay] = t.front[i]
			stay++
		}
	}
	return into
}

// of returns a group by its number.
func (d *draft) of(number int64) *group { return &d.groups[-1-number] }

// members returns the members of a group of this plan.
func (d *draft) members(number int64) []placement {
	all := d.placed[d.of(number).node]
	from := slices.IndexFunc(all, func(p placement) bool { return p.group == number })
	to := from
	for to < len(all) && all[to].group == number {
		to++
	}
	return all[from:to]
}

// refresh brings the State of a node up to date. The members of a group that may still grow, open, hold one share each.
func (d *draft) refresh(node string, open int64) {
	gpus := d.view.nodes[node]
	for _, g := range gpus {
		d.state.GPUs[g] = d.view.state.GPUs[g]
	}
	cpus, memMiB := 0, 0.0
	for _, p := range d.placed[node] {
		ownCPUs, ownMiB := p.Host(d.company(p.group))
		cpus += ownCPUs
		memMiB += ownMiB
		if p.group == open {
			p.Shares = 1
		}
		card := &d.state.GPUs[p.gpu]
		card.Running = append(slices.Clip(card.Running), p.Running)
	}
	takeHost(d.state.GPUs, gpus, cpus, memMiB)
	for _, g := range gpus {
		d.guard.Refresh(&d.state, g)
	}
}

// company is how many jobs are on the GPU of a group: its members, and the jobs that were there before.
func (d *draft) company(number int64) int {
	m := d.members(number)
	return len(m) + len(d.view.state.GPUs[m[0].gpu].Running)
}

// alone reports whether a group is of one adopted job, which then needs no shares.
func (d *draft) alone(number int64) bool {
	m := d.members(number)
	return len(m) == 1 && d.of(number).kind == job.StartNow && d.view.adopted(m[0].ID)
}

// starts reports whether a job of this plan starts on a GPU of a node.
func (d *draft) starts(node string, g int) bool {
	return slices.ContainsFunc(d.placed[node], func(p placement) bool { return p.gpu == g })
}

// othersStart reports whether this plan starts a job on a node that may not be there together with a job of another
// user.
func (d *draft) othersStart(j *rlcore.Job, node string) bool {
	return slices.ContainsFunc(d.placed[node], func(p placement) bool {
		return p.User != j.User && (d.view.oneUser(d.view.jobs[p.ID]) || d.view.oneUser(d.view.jobs[j.ID]))
	})
}

// faster reports whether a job is expected to take less time on an idle GPU of another kind than on GPU g, by more than
// its grace.
func (d *draft) faster(g int, j *rlcore.Job) bool {
	here := j.On(&d.state.GPUs[g])
	if here == nil {
		return false
	}
	grace := cmp.Or(j.Grace, d.guard.Grace, rlcore.DefaultGrace)
	for k := range d.state.GPUs {
		card := &d.state.GPUs[k]
		if len(card.Running) > 0 || d.view.closed[k] || !j.MayUse(k) || d.guard.Claimed(k) != "" {
			continue
		}
		there := j.On(card)
		if there != nil && there.DurationS*(1+grace) < here.DurationS {
			return true
		}
	}
	return false
}

func profilesOf(members []placement) []*rlcore.Profile {
	out := make([]*rlcore.Profile, len(members))
	for i := range members {
		out[i] = members[i].Profile
	}
	return out
}
