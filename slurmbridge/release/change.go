// Package release is the gate protocol: how a job is gated, how the members of a group
// are prepared, released and restored, and how a poll's view of a member is recognised.
// All of it is pure. Every Gres, ReqNodeList, Dependency and StartTime that the bridge
// sends to Slurm is made here.
//
// A job that waits for the bridge depends on after:GATE. A released group either starts
// now (no dependency, StartTime=now, which makes Slurm look at once) or follows the jobs
// on a busy GPU (afterany: each of them).
package release

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// The dependency types that the bridge sets.
const (
	after    = "after"    // on the gate
	afterAny = "afterany" // on the jobs that a Next group follows
)

// Behind reports whether one of the closed gates is among the job's unmet dependencies.
func Behind(gates []job.GateState, j *job.Job) bool {
	return slices.ContainsFunc(gates, func(g job.GateState) bool { return !g.Open && j.Dependency.Has(after, g.ID) })
}

// OnlyBehind reports whether a closed gate is the job's only unmet dependency.
func OnlyBehind(gates []job.GateState, j *job.Job) bool {
	return slices.ContainsFunc(gates, func(g job.GateState) bool { return !g.Open && j.Dependency.Only(after, g.ID) })
}

// Follows reports whether the dependency is one that the bridge set for the group.
func Follows(g *job.Group, d job.Dependency) bool {
	return d.Type == afterAny && slices.Contains(g.After, d.Job)
}

// Gate puts a job that still asks for gpu:shared behind the gate: a cluster without the
// job_submit script.
func Gate(j *job.Job, gate string, sharing job.Sharing) job.Change {
	dep := after + ":" + gate
	if own := j.Dependency.Plain(); own != "" {
		dep = own + "," + dep
	}
	gres := gresOf(sharing, job.Units)
	return change(job.StepGate, "asks for gpu:shared", job.Update{Gres: &gres, Dependency: &dep}, j)
}

// Ungate makes a gated job an ordinary one with the GPU it asks for.
func Ungate(j *job.Job, gates []job.GateState, why string) job.Change {
	dep := j.Dependency.Without(gates)
	return change(job.StepUngate, why, job.Update{Dependency: &dep, StartNow: dep == "" && Startable(j)}, j)
}

// change is a change of one job.
func change(step job.Step, why string, u job.Update, j *job.Job) job.Change {
	u.Jobs = []string{j.Ref}
	return job.Change{Step: step, Why: why, Update: u, Was: map[string]string{j.Ref: describe(j)}}
}

// Making is what Make needs to know of a group's members and its node.
type Making struct {
	Jobs    map[string]*job.Job
	Sharing job.Sharing // of the node
	Gate    string      // "" = there is none
	// Waits reports whether the member waits for a GPU already, in another group.
	Waits func(ref string) bool
}

// Make returns the changes that make a group of its members as they are now: prepare
// where something differs, then one release for all.
func Make(g *job.Group, with Making) []job.Change {
	var out []job.Change
	all := job.Change{Step: job.StepRelease, Why: purpose(g), Was: map[string]string{}}
	for i := range g.Members {
		m := &g.Members[i]
		j := with.Jobs[m.Ref]
		all.Update.Jobs = append(all.Update.Jobs, m.Ref)
		all.Was[m.Ref] = describe(j)
		u := prepare(g, m, j, with)
		if u.Gres == nil && u.ReqNodes == nil && u.Dependency == nil {
			continue
		}
		// Members that get the same values share an update.
		if k := slices.IndexFunc(out, func(c job.Change) bool { return sameValues(&c.Update, &u) }); k >= 0 {
			out[k].Update.Jobs = append(out[k].Update.Jobs, m.Ref)
			out[k].Was[m.Ref] = describe(j)
			continue
		}
		out = append(out, change(job.StepPrepare, "", u, j))
	}
	deps := make([]string, len(g.After))
	for i, ref := range g.After {
		deps[i] = afterAny + ":" + ref
	}
	dep := strings.Join(deps, ",")
	all.Update.Dependency, all.Update.StartNow = &dep, g.Kind != job.Next
	return append(out, all)
}

// prepare is what a member lacks before its release.
func prepare(g *job.Group, m *job.Member, j *job.Job, with Making) job.Update {
	var u job.Update
	if gres := gresOf(with.Sharing, m.Shares); !sameGres(gres, j.Request) {
		u.Gres = &gres
	}
	if nodes := nodesOf(g, m); nodes != j.ReqNodes {
		u.ReqNodes = &nodes
	}
	if with.Waits(m.Ref) && with.Gate != "" {
		// The jobs it waits for may end before the release. It would then start next to
		// whatever leaves room for its new shares, or on its old GPU.
		gate := after + ":" + with.Gate
		u.Dependency = &gate
	}
	return u
}

// purpose says what a release is for.
func purpose(g *job.Group) string {
	why := fmt.Sprintf("alone on %s gpu %d", g.Node, g.GPU)
	switch {
	case g.Kind == job.Join:
		why = fmt.Sprintf("join %s gpu %d", g.Node, g.GPU)
	case len(g.Members) > 1:
		why = fmt.Sprintf("together on %s gpu %d", g.Node, g.GPU)
	}
	if g.Kind == job.Next {
		why += ", after " + strings.Join(g.After, ",")
	}
	return why
}

// Push makes Slurm look at the given members of a waiting group whose GPU is free.
// false: none of them may start now.
func Push(g *job.Group, members []*job.Job) (job.Change, bool) {
	dep := ""
	c := job.Change{
		Step: job.StepRelease, Why: fmt.Sprintf("%s gpu %d is free", g.Node, g.GPU), Was: map[string]string{},
		Update: job.Update{Dependency: &dep, StartNow: true},
	}
	for _, j := range members {
		if Startable(j) {
			c.Update.Jobs = append(c.Update.Jobs, j.Ref)
			c.Was[j.Ref] = describe(j)
		}
	}
	return c, len(c.Update.Jobs) > 0
}

// Restore gives a member back what it had before it was grouped. With a gate it waits
// for the bridge again, without one it is an ordinary job.
func Restore(g *job.Group, m *job.Member, j *job.Job, gate, why string) job.Change {
	gres, nodes, dep := m.WasGres, m.WasNodes, ""
	u := job.Update{Gres: &gres, ReqNodes: &nodes, Dependency: &dep}
	if !g.Pinned && j.ReqNodes == m.WasNodes {
		u.ReqNodes = nil
	}
	if gate != "" {
		dep = after + ":" + gate
	} else {
		// The begin time of a job that was requeued to run alone is Slurm's, two minutes on.
		u.StartNow = Startable(j) || m.Alone
	}
	return change(job.StepRestore, why, u, j)
}

// HandBack undoes what the bridge had set in a job that its owner has edited since and
// that the owner left as it was; the rest is the owner's. false: there is nothing.
func HandBack(g *job.Group, m *job.Member, j *job.Job) (job.Change, bool) {
	var u job.Update
	if g.Pinned && j.ReqNodes == g.Node && m.WasNodes != g.Node {
		nodes := m.WasNodes
		u.ReqNodes = &nodes
	}
	if j.Request.Kind == job.Shares && j.Request.Count == m.Shares && !sameGres(m.WasGres, j.Request) {
		gres := m.WasGres
		u.Gres = &gres
	}
	return change(job.StepRestore, job.Cause{Kind: job.CauseEdited}.String(), u, j), u.ReqNodes != nil || u.Gres != nil
}

// Startable reports whether a begin time of now takes nothing from the owner: the job
// has no later one of its own.
func Startable(j *job.Job) bool { return j.Reason != "BeginTime" }

// mostJobs is how many jobs one update names at most.
const mostJobs = 200

// Merge joins changes that set the same values into one update each: a list of jobs costs
// slurmctld little more than one job.
func Merge(changes []job.Change) []job.Change {
	var out []job.Change
	last := map[string]int{} // by values: the change that more jobs may be added to
	for _, c := range changes {
		u := &c.Update
		if u.TimeLimit > 0 { // for a reason of its own each
			out = append(out, c)
			continue
		}
		key := strings.Join([]string{string(c.Step), keyOf(u.Gres), keyOf(u.ReqNodes), keyOf(u.Dependency), fmt.Sprint(u.StartNow)}, "\x00")
		i, ok := last[key]
		if !ok || len(out[i].Update.Jobs) >= mostJobs {
			last[key] = len(out)
			out = append(out, c)
			continue
		}
		out[i].Update.Jobs = append(out[i].Update.Jobs, u.Jobs...)
		for ref, was := range c.Was {
			out[i].Was[ref] = was
		}
	}
	return out
}

// keyOf tells an absent value from every present one.
func keyOf(v *string) string {
	if v == nil {
		return "\x01"
	}
	return *v
}

func sameValues(a, b *job.Update) bool {
	return keyOf(a.Gres) == keyOf(b.Gres) && keyOf(a.ReqNodes) == keyOf(b.ReqNodes) && keyOf(a.Dependency) == keyOf(b.Dependency)
}

// nodesOf is the ReqNodeList of a released member.
func nodesOf(g *job.Group, m *job.Member) string {
	if g.Pinned {
		return g.Node
	}
	return m.WasNodes
}

// WholeGPU is the gres of a whole GPU's shares.
func WholeGPU(sharing job.Sharing) string { return gresOf(sharing, job.Units) }

func gresOf(sharing job.Sharing, shares int) string { return fmt.Sprintf("%s:%d", sharing, shares) }

// sameGres reports whether a gres to set is what the job asks for already.
func sameGres(set string, r job.GPURequest) bool {
	return r.Kind == job.Shares && set == gresOf(r.Sharing, r.Count)
}

// describe is what the journal keeps of a job before a change.
func describe(j *job.Job) string {
	return fmt.Sprintf("Gres=%s ReqNodeList=%s Dependency=%s", j.Request.Raw, j.ReqNodes, j.Dependency.Raw)
}
