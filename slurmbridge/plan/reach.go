package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// oneUser reports whether a job's partitions give a node to one user at a time.
func (v *clusterView) oneUser(j *job.Job) bool {
	if j.Exclusive != "" && j.Exclusive != job.OneUser {
		return false
	}
	return !slices.ContainsFunc(j.Partitions(), func(name string) bool { return !v.in.Snap.OneUser[name] })
}

// tenant is a user whose job needs nodes without other users' jobs (alone), or nodes that belong to no other user.
type tenant struct {
	user  string
	alone bool
}

// othersHave returns the nodes that other users keep a job off.
func (v *clusterView) othersHave(j *job.Job) []string {
	t := tenant{j.User, v.oneUser(j)}
	if !t.alone && !v.owned {
		return nil
	}
	return once(v.others, t, func() (out []string) {
		others := func(user string) bool { return user != t.user }
		for name, gpus := range v.nodes {
			owner := v.gpus[gpus[0]].node.Owner
			if owner != "" && others(owner) || t.alone && slices.ContainsFunc(v.users[name], others) {
				out = append(out, name)
			}
		}
		slices.Sort(out)
		return out
	})
}

// demand says which GPUs a job may get. Jobs of one demand have the same set of GPUs.
type demand struct{ partition, nodes, excluded, closed, typ string }

// reach are the GPUs that a pending job may use, the largest number of them on one node, and their models.
type reach struct {
	gpus      *rlcore.GPUSet
	most      int
	models    []string
	holds     []bool // by model: all its GPUs hold jobs to their memory
	instances []int  // a GPU of each kind of MIG instance among them
}

// mayRun reports of nodes whether a job may run there, by the nodes and partitions that it names.
func mayRun(j *job.Job) func(n *job.Node) bool {
	only, exclude, partitions := text.ExpandHosts(j.ReqNodes), text.ExpandHosts(j.ExcNodes), j.Partitions()
	return func(n *job.Node) bool {
		return (j.ReqNodes == "" || only[n.Name]) && !exclude[n.Name] && n.Serves(partitions)
	}
}

// ofType returns the GPUs of the requested type among those that a foreign job may use. It returns all of them if any
// type will do, if the job takes whole nodes, or if no GPU has that type: then the site's names aren't understood.
func (v *clusterView) ofType(j *job.Job) reach {
	all, typ := v.reach(j, "", ""), j.Request.Type
	if typ == "" || v.in.Snap.TakesNodes(j) {
		return all
	}
	of := once(v.reaches, demand{j.Partition, j.ReqNodes, j.ExcNodes, "", "card " + typ}, func() reach {
		return v.reachOf(func(g int) bool {
			return all.gpus.Has(g) && v.gpus[g].node.GPU(v.gpus[g].index).Type == typ
		})
	})
	if of.gpus.Len(len(v.gpus)) == 0 {
		return all
	}
	return reach{gpus: of.gpus, most: all.most, models: of.models[:1], holds: of.holds[:1]}
}

// reachOf is the GPUs that fulfil a condition.
func (v *clusterView) reachOf(may func(g int) bool) reach {
	var list []int
	out := reach{most: 1}
	on := map[*job.Node]int{}
	for g, r := range v.gpus {
		if !may(g) {
			continue
		}
		list = append(list, g)
		on[r.node]++
		out.most = max(out.most, on[r.node])
		card := &v.state.GPUs[g]
		k := slices.Index(out.models, card.Model)
		if k < 0 {
			k = len(out.models)
			out.models = append(out.models, card.Model)
			out.holds = append(out.holds, true)
		}
		out.holds[k] = out.holds[k] && card.Spec.MemLimits
		alike := func(o int) bool { return v.kind(o) == v.kind(g) }
		if v.gpus[g].instance && !slices.ContainsFunc(out.instances, alike) {
			out.instances = append(out.instances, g)
		}
	}
	if len(list) < len(v.gpus) {
		out.gpus = rlcore.NewGPUSet(list...)
	}
	return out
}

// fitting returns what is left of a reach without the MIG instances that have too little memory for the application, by
// its profile: a whole GPU has what the job would get anywhere, and an instance hasn't. All where nothing else is left.
func (v *clusterView) fitting(r reach, app job.App) reach {
	var small []kind
	for _, g := range r.instances {
		k := v.kind(g)
		if use := app.On(k.card); use != nil && use.Peak().MemMiB > k.spec.MemMiB {
			small = append(small, k)
		}
	}
	if small == nil {
		return r
	}
	fits := once(v.fits, fit{r.gpus, fmt.Sprint(small)}, func() reach {
		return v.reachOf(func(g int) bool { return r.gpus.Has(g) && !slices.Contains(small, v.kind(g)) })
	})
	if fits.gpus.Len(len(v.gpus)) == 0 {
		return r
	}
	return fits
}

// kind is what GPUs have in common that are alike.
type kind struct {
	card string
	spec rlcore.GPUSpec
}

// fit names a reach without kinds of instances.
type fit struct {
	gpus  *rlcore.GPUSet
	small string
}

// know sets the GPUs that a job may use, and what is known of its application there. What a job's owner says of its
// memory counts where the job can be held to it.
func (r reach) know(j *rlcore.Job, app job.App) {
	j.GPUs = r.gpus
	switch len(r.models) {
	case 0:
	case 1:
		j.Profile = r.on(0, app)
	default:
		j.ByModel = &rlcore.ProfilesByModel{}
		var fastest *rlcore.Profile
		for k, model := range r.models {
			on := r.on(k, app)
			(*j.ByModel)[model] = on
			if on != nil && (fastest == nil || on.DurationS < fastest.DurationS) {
				fastest = on
			}
		}
		if len(r.instances) > 0 && fastest != nil { // a model that it can't have promises nothing
			j.Profile = fastest
		}
	}
}

// on is what is known of an application on one of the models.
func (r reach) on(k int, app job.App) *rlcore.Profile {
	p := app.On(r.models[k])
	if p != nil && p.Asked && !r.holds[k] {
		return nil
	}
	return p
}

// hasOnly reports whether all GPUs with shares of a node are of a type.
func hasOnly(n *job.Node, typ string) bool {
	for g := range n.GPUs {
		if c := n.GPU(g); c.Units >= job.Units && c.Type != typ {
			return false
		}
	}
	return true
}

// ownType returns the type of GPU in the job's own request, "" = any.
func ownType(j *job.Job) string {
	if j.Request.Kind == job.Shares || j.Request.PerNode {
		return j.Request.Type
	}
	return ""
}

// reach returns the GPUs that a pending job may use, without closed nodes. typ is the type that all GPUs of a node must
// have, "" = any: shares lead a job to a node for sure, and to one of its GPUs only if nothing comes in between.
func (v *clusterView) reach(j *job.Job, closed, typ string) reach {
	return once(v.reaches, demand{j.Partition, j.ReqNodes, j.ExcNodes, closed, typ}, func() reach {
		may, shut := mayRun(j), strings.Split(closed, ",")
		return v.reachOf(func(g int) bool {
			n := v.gpus[g].node
			return may(n) && !slices.Contains(shut, n.Name) && (typ == "" || v.gpus[g].typ == typ || hasOnly(n, typ))
		})
	})
}

func (v *clusterView) kind(g int) kind { return kind{v.state.GPUs[g].Model, v.state.GPUs[g].Spec} }

// isDrawn reports whether Slurm may start a job on a node that a magnetic reservation keeps from the bridge.
func (v *clusterView) isDrawn(j *job.Job) bool {
	if v.in.Bounds == nil {
		return false
	}
	may := mayRun(j)
	for _, reservation := range v.in.Bounds.Reservations {
		if !reservation.Draws(j, v.in.Snap.At) {
			continue
		}
		for i := range v.in.Snap.Nodes {
			n := &v.in.Snap.Nodes[i]
			if n.Reserved && reservation.Holds(n.Name) && may(n) {
				return true
			}
		}
	}
	return false
}

// onlyType returns the type that all GPUs which a job may use have, where some GPUs are MIG instances: it starts on any
// of these, and not on one that is too small for it. "" = any type.
func (v *clusterView) onlyType(j *rlcore.Job, sharing job.Sharing) string {
	if !v.mig || sharing != job.Shard {
		return ""
	}
	typ := ""
	first := true
	for g := range j.GPUs.Of(len(v.gpus)) {
		own := v.gpus[g].node.GPU(v.gpus[g].index).Type
		if !first && own != typ {
			return ""
		}
		typ = own
		first = false
	}
	return typ
}
