package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// An adopted job waits behind the gate as the job of one GPU that its owner asked for. It goes through the stages of a plan
// like any sharer and becomes shares only as a member of a group of several, or to keep its turn for one; otherwise it is ungated as it is.

// Rule returns the rule by which a job that has its own request is adopted, nil = it isn't.
func (in *Input) Rule(j *job.Job) *adopt.Rule {
	if in.Adopt == nil || !in.Shadow && !in.Adopt.Active {
		return nil
	}
	return in.match(j)
}

// match returns the rule that matches a job which has its own request, whether rules are in shadow or not; nil = none does.
func (in *Input) match(j *job.Job) *adopt.Rule {
	if in.Adopt == nil || in.Snap.GivesUsedGPUs || in.Terms[j.Ref].NoShare {
		return nil
	}
	r := in.Adopt.Of(j)
	if r == nil || in.Bans.Stopped(r.String(), in.Snap.At) {
		return nil
	}
	return r
}

// contract sets what an adopted job allows: by its rule, or as a member of a group by what the rule said then.
func (in *Input) contract(j *job.Job, out *rlcore.Job) {
	if m := in.members[j.Ref]; m != nil && release.Adopted(m) && j.Request.Kind == job.Shares {
		out.MaxSlowdown, out.Grace = m.Contract, m.Grace
	} else if r := in.Rule(j); r != nil {
		out.MaxSlowdown, out.Grace = cmp.Or(out.MaxSlowdown, r.MaxSlowdown), r.Grace
	}
}

// unadoptable returns why a job of a whole GPU that is behind the gate isn't grouped, "" = it may be.
func (in *Input) unadoptable(j *job.Job) job.Unfit {
	if in.Rule(j) == nil {
		return job.UnfitNoRule
	}
	if why := in.leftAlone(j); why != "" {
		return why
	}
	switch app, identified := in.Apps[j.Ref]; {
	case !identified && in.Snap.At.Sub(j.Submit) < in.Adopt.Delay:
		return "" // a later tick sees to it
	case app.Profile == nil || app.Profile.Runs == 0:
		return job.UnfitUnknown
	case !adopt.Leaves(app.Profile, in.largestMiB()):
		return job.UnfitFull
	case in.Bans.Bars(rlcore.Identity{App: app.Key, Owner: j.User}, in.Snap.At):
		return job.UnfitBroken
	}
	return ""
}

// notAdopted returns why a job of Slurm's queue that a rule matches has its own GPU, "" = no rule matches it.
func (in *Input) notAdopted(j *job.Job) job.Unfit {
	if in.match(j) == nil {
		return ""
	}
	if why := in.leftAlone(j); why != "" || in.Rule(j) != nil {
		return why
	}
	return job.UnfitRuleInShadow
}

// leftAlone returns why a job that a rule matches is never adopted, "" = it may be.
func (in *Input) leftAlone(j *job.Job) job.Unfit {
	perGPU := func(p string) bool { _, has := in.Snap.PerGPU[p]; return has }
	switch {
	case perGPU(job.AllPartitions), slices.ContainsFunc(j.Partitions(), perGPU):
		return job.UnfitPerGPU // Slurm refuses to replace its request
	case in.Adopt.Charge && slices.ContainsFunc(j.Partitions(), func(p string) bool { return slices.Contains(in.Snap.Unbilled, p) }):
		return job.UnfitUnbilled
	case !j.Deadline.IsZero():
		return job.UnfitPromised
	case in.mayHaveUnshared(j):
		return job.UnfitUnshared // it could start on that GPU while it waits for co-runners
	}
	return ""
}

// mayHaveUnshared reports whether Slurm might start a job of one whole GPU on one without shares.
func (in *Input) mayHaveUnshared(j *job.Job) bool {
	key := [3]string{j.Partition, j.ReqNodes, typed(j)}
	may, known := in.unshared[key]
	if !known {
		only := text.ExpandHosts(j.ReqNodes)
		may = slices.ContainsFunc(in.Snap.Nodes, func(n job.Node) bool {
			if !n.Up || !n.Serves(j.Partitions()) || j.ReqNodes != "" && !only[n.Name] {
				return false
			}
			for g := range n.GPUs {
				if c := n.Card(g); (n.Units == 0 || c.Units < job.Units) && (key[2] == "" || key[2] == c.Type) {
					return true
				}
			}
			return false
		})
		in.unshared[key] = may
	}
	return may
}

// largestMiB is the memory of the largest GPU, MiB.
func (in *Input) largestMiB() float64 {
	most := 0.0
	for i := range in.Snap.Nodes {
		n := &in.Snap.Nodes[i]
		for g := range n.GPUs {
			most = max(most, in.Card.Spec(n.Card(g).Type).MemMiB)
		}
	}
	return most
}

// adopted reports whether a pending job is one of a whole GPU, which shares by a rule of the site only.
func (v *view) adopted(ref string) bool {
	j := v.jobs[ref]
	return j != nil && j.Request.Kind == job.WholeGPU
}

// typed returns the type of GPU that an adopted job asks for, "" = any.
func typed(j *job.Job) string {
	if !j.Request.PerNode {
		return ""
	}
	return gpuType(j)
}

// gpuType returns the type of GPU that a job asks for, "" = any.
func gpuType(j *job.Job) string {
	if j.Request.Kind != job.WholeGPU {
		return ""
	}
	parts := strings.FieldsFunc(j.Request.Raw, func(r rune) bool { return r == ':' || r == '=' || r == '/' })
	i := slices.Index(parts, "gpu")
	if i < 0 || i+1 >= len(parts) || strings.Trim(parts[i+1], "0123456789") == "" {
		return ""
	}
	return parts[i+1]
}

// hasOnly reports whether all GPUs with shares of a node are of a type; "" = any. Shares lead a job to a node for sure, and
// to one of its GPUs only if nothing comes in between.
func hasOnly(n *job.Node, typ string) bool {
	for g := range n.GPUs {
		if c := n.Card(g); typ != "" && c.Units >= job.Units && c.Type != typ {
			return false
		}
	}
	return true
}

// alone reports whether a draft is of one adopted job, which then needs no shares.
func (r *pass) alone(d *draft) bool {
	return len(d.group.Members) == 1 && d.group.Kind == job.StartNow && r.adopted(d.group.Members[0].Ref)
}

// hasPartner reports whether one of the next jobs of the queue may join an adopted job that keeps its turn with shares. One
// that asks for a type of GPU must find no other: it could be given shares of any.
func (r *pass) hasPartner(j *rlcore.Job) bool {
	own := r.jobs[j.ID]
	if n := len(r.gpus); r.mayUse(own, "", typed(own)).gpus.Len(n) < r.mayUse(own, "", "").gpus.Len(n) {
		return false
	}
	left := r.Decider.Window()
	for i := range r.State.Pending {
		p := &r.State.Pending[i]
		if p.Foreign || p.ID == j.ID {
			continue
		}
		if left--; left < 0 {
			break
		}
		g := slices.IndexFunc(r.gpus, func(ref gpuRef) bool {
			g := r.index[job.GPUAddr{Node: ref.node.Name, GPU: ref.index}]
			return j.MayUse(g) && p.MayUse(g)
		})
		if g >= 0 && r.Decider.Guard.Together(&r.State.GPUs[g].Spec, []rlcore.Running{{Job: *j}, {Job: *p}}, r.State.NowS) == rlcore.Allowed {
			return true
		}
	}
	return false
}

// waitsTooLong reports whether a job has waited next to an idle GPU for as long as it may.
func (r *pass) waitsTooLong(j *rlcore.Job) bool {
	most := r.Decider.Guard.DelayLimitS()
	if r.in.Adopt != nil && r.adopted(j.ID) {
		most = min(most, r.in.Adopt.Delay.Seconds())
	}
	return j.DelayedS >= most
}
