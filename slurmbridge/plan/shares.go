package plan

// split divides the free shares equally among n jobs. The first jobs get the remainder: the parts sum to free, and no
// other job finds room.
func split(free, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = (free + n - 1 - i) / n
	}
	return out
}

// withRoom returns the number of free shares for the draft's members if one more job is to find room: equal parts, one
// of them left over. All of them where no job could join: the GPU serves no more, or a member doesn't share or has no
// profile.
func (r *pass) withRoom(d *draft, free int) int {
	n := len(d.jobs)
	if !r.leavesRoom(r.in) || len(r.seated[d.gpu])+n >= r.Decider.Guard.Members(&r.State.GPUs[d.gpu].Spec) || free < n+1 {
		return free
	}
	for i := range d.jobs {
		if d.jobs[i].NoShare || d.jobs[i].Profile == nil {
			return free
		}
	}
	return free / (n + 1) * n
}

// split divides the free shares among the draft's members on a node with one GPU. Where jobs with hand-written shares
// come to cards that serve one user, each member gets one share, and the longest one the rest: the freed shares are
// then too few for such a job, which the MPS server wouldn't serve. Before Volta shares limit nothing else.
func (r *pass) split(d *draft, free int) []int {
	n := len(d.jobs)
	if !r.in.handwritten() || !r.State.GPUs[d.gpu].Spec.SameUser {
		return split(r.withRoom(d, free), n)
	}
	out, longest := make([]int, n), 0
	for i := range d.jobs {
		out[i] = 1
		if p, q := d.jobs[i].Profile, d.jobs[longest].Profile; p != nil && q != nil && p.DurationS > q.DurationS {
			longest = i
		}
	}
	out[longest] = free - (n - 1)
	return out
}
