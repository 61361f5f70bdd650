// Package release is the gate protocol: how a job is gated, how the members of a group are prepared, released and
// restored, and how a poll's view of a member is recognised. All of it is pure. Every Gres, ReqNodeList, Dependency and
// StartTime that the bridge sends to Slurm is made here.
//
// A job that waits for the bridge depends on after:GATE. A released group
// has no dependency and starts now (StartTime=now, which makes Slurm look at once).
package release

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// after is the type of dependency that the bridge sets, on the gate.
const after = "after"

// Behind reports whether one of the closed gates is among the job's unmet dependencies.
func Behind(gates []job.GateState, j *job.Job) bool {
	return slices.ContainsFunc(gates, func(g job.GateState) bool { return !g.Open && j.Dependency.Has(after, g.ID) })
}

// OnlyBehind reports whether a closed gate is the job's only unmet dependency.
func OnlyBehind(gates []job.GateState, j *job.Job) bool {
	return slices.ContainsFunc(gates, func(g job.GateState) bool { return !g.Open && j.Dependency.Only(after, g.ID) })
}

// Gate puts a job that still requests gpu:shared behind the gate: a cluster without the job_submit
// script. Without a gate it only turns the request into a whole GPU's shares.
func Gate(j *job.Job, gate string, sharing job.Sharing) job.Change {
	gres := WholeGPU(sharing)
	if gate == "" {
		return change(job.StepUngate, "requests gpu:shared, and there is no gate", job.Update{Gres: &gres}, j)
	}
	dep := strings.TrimPrefix(j.Dependency.Plain()+","+after+":"+gate, ",")
	return change(job.StepGate, "asks for gpu:shared", job.Update{Gres: &gres, Dependency: &dep}, j)
}

// Ungate makes a gated job an ordinary one with the GPU that it requests.
func Ungate(j *job.Job, gates []job.GateState, why string, at time.Time) job.Change {
	dep := j.Dependency.Without(gates)
	return change(job.StepUngate, why, job.Update{Dependency: &dep, StartNow: dep == "" && Startable(j, at)}, j)
}

func change(step job.Step, why string, u job.Update, j *job.Job) job.Change {
	u.Jobs = []string{j.Ref}
	return job.Change{Step: step, Why: why, Update: u, Was: map[string]string{j.Ref: describe(j)}}
}

// Make returns the changes that make a group of its members as they are now.
//
// The gate may open between any two of them. The members are prepared behind the gate where something differs, then
// released together: whenever they start, it is on a GPU that has room for them.
func Make(g *job.Group, jobs map[string]*job.Job, sharing job.Sharing) job.PlannedGroup {
	none := ""
	p := job.PlannedGroup{Group: *g}
	all := job.Change{
		Step: job.StepRelease, Why: purpose(g), Was: map[string]string{},
		Update: job.Update{Dependency: &none, StartNow: true},
	}
	for i := range g.Members {
		m := &g.Members[i]
		j := jobs[m.Ref]
		u := prepare(g, m, j, sharing)
		if stamp := Stamp(g, m); stamp != "" && changes(u) {
			text := j.Note.Comment(stamp)
			u.AdminComment = &text
		}
		all.Update.Jobs = append(all.Update.Jobs, m.Ref)
		all.Was[m.Ref] = describe(j)
		if changes(u) {
			p.Prepare = append(p.Prepare, change(job.StepPrepare, "", u, j))
		}
	}
	p.Prepare, p.Release = Merge(p.Prepare), all
	return p
}

// changes reports whether an update changes what a job requests.
func changes(u job.Update) bool {
	return u.Gres != nil || u.ReqNodes != nil || u.Host != job.Defaults{}
}

// prepare is what a member lacks of its shares and its node, and its part of the node's cores and memory.
func prepare(g *job.Group, m *job.Member, j *job.Job, sharing job.Sharing) job.Update {
	var u job.Update
	if gres := gresOf(sharing, m.GPUType, m.Shares); !sameGres(gres, j.Request) {
		u.Gres = &gres
	}
	if nodes := nodesOf(g, m); nodes != j.ReqNodes {
		u.ReqNodes = &nodes
	}
	u.Host = m.Host.Missing(j, m.WasHost)
	return u
}

func purpose(g *job.Group) string {
	why := "alone " + g.Where()
	switch {
	case g.Kind == job.Turn:
		why = "in its turn: " + job.UngatedTurn.String()
	case g.Kind == job.Join:
		why = "join " + strings.TrimPrefix(g.Where(), "on ")
	case len(g.Members) > 1:
		why = "together " + g.Where()
	}
	return why
}

// Restore gives a member back what it lacks of what it had before it was grouped. With a gate it waits
// for the bridge again, without one it is an ordinary job.
func Restore(m *job.Member, j *job.Job, gate, why string, at time.Time) job.Change {
	gres, nodes, dep := m.WasGres, m.WasNodes, ""
	u := job.Update{}
	if !sameGres(gres, j.Request) {
		u.Gres = &gres
	}
	if j.ReqNodes != nodes {
		u.ReqNodes = &nodes
	}
	u.Host = m.WasHost.Missing(j, m.Host)
	if Adopted(m) { // its owner's job has no line of the bridge's
		u.AdminComment = unstamped(j)
	}
	switch {
	case gate == "":
		// The begin time of a job that was requeued to run alone is Slurm's: two minutes on by
		// default (cred_expire; from 25.11 on requeue_delay).
		u.Dependency, u.StartNow = &dep, Startable(j, at) || m.Alone
	case !j.Dependency.Only(after, gate):
		dep = after + ":" + gate
		u.Dependency = &dep
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
	if holds(m, j) && !sameGres(m.WasGres, j.Request) {
		gres := m.WasGres
		u.Gres = &gres
	}
	u.Host = m.WasHost.Missing(j, m.Host)
	return change(job.StepRestore, job.CauseEdited.String(), u, j), changes(u)
}

// Shows reports whether a pending job is as an update was to make it, in what keeps it from starting or lets it share.
func Shows(j *job.Job, u *job.Update, gates []job.GateState) bool {
	let := u.Dependency != nil && !slices.ContainsFunc(gates, func(g job.GateState) bool {
		return slices.Contains(strings.Split(*u.Dependency, ","), after+":"+g.ID)
	})
	return (u.Gres == nil || sameGres(*u.Gres, j.Request)) && (u.ReqNodes == nil || *u.ReqNodes == j.ReqNodes) &&
		!(let && Behind(gates, j))
}

// Startable reports whether a begin time of now takes nothing from the owner: at the time of the poll the job has no
// later one of its own. The reason that Slurm shows is no help: while the gate is closed, it is the dependency.
func Startable(j *job.Job, at time.Time) bool {
	return j.Reason != "BeginTime" && !j.Eligible.After(at)
}

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
		key := strings.Join(append(u.Words(), string(c.Step)), "\x00")
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

// nodesOf is the ReqNodeList of a released member.
func nodesOf(g *job.Group, m *job.Member) string {
	if g.Pinned {
		return g.Node
	}
	return m.WasNodes
}

// WholeGPU is the gres of a whole GPU's shares.
func WholeGPU(sharing job.Sharing) string { return gresOf(sharing, "", job.Units) }

// Requested is a pending job's request as scontrol takes it, to give it back: all of a GPU's shares, or of an adopted
// job the whole GPU that its owner asked for.
func Requested(j *job.Job, sharing job.Sharing) string {
	if j.Request.Kind == job.WholeGPU {
		return wholeGres(j.Request)
	}
	return gresOf(sharing, j.Request.Type, job.Units)
}

// wholeGres is a request for a whole GPU without the prefix that scontrol doesn't need.
func wholeGres(r job.GPURequest) string {
	return strings.TrimPrefix(strings.TrimPrefix(r.Raw, "gres:"), "gres/")
}

// Adopted reports whether the member is a job of a whole GPU that a rule of the site put into the group.
func Adopted(m *job.Member) bool { return m != nil && isWhole(m.WasGres) }

func isWhole(gres string) bool { return gres == "gpu" || strings.HasPrefix(gres, "gpu:") }

func gresOf(sharing job.Sharing, typ string, shares int) string {
	if typ != "" {
		typ += ":"
	}
	return fmt.Sprintf("%s:%s%d", sharing, typ, shares)
}

// holds reports whether a job requests the shares that a member was given.
func holds(m *job.Member, j *job.Job) bool {
	return j.Request.Kind == job.Shares && j.Request.Count == m.Shares && j.Request.Type == m.GPUType
}

// sameGres reports whether a job already has a gres request.
func sameGres(set string, r job.GPURequest) bool {
	if isWhole(set) {
		return r.Kind == job.WholeGPU && r.PerNode && set == wholeGres(r)
	}
	return r.Kind == job.Shares && set == gresOf(r.Sharing, r.Type, r.Count)
}

// describe is what the journal keeps of a job before a change.
func describe(j *job.Job) string {
	s := fmt.Sprintf("Gres=%s ReqNodeList=%s Dependency=%s", j.Request.Raw, j.ReqNodes, j.Dependency.Raw)
	if j.Note.Defaults != (job.Defaults{}) {
		s += fmt.Sprintf(" NumCPUs=%d MinMemoryNode=%.0f", j.CPUs, j.HostMemMiB)
	}
	return s
}

// Stamp begins the AdminComment of a member that was given shares or a node: it says what was set and what that
// replaced, and of what is known of the member alone the rest. It comes with them, in one update, so that a bridge that
// has lost its journal can restore the member, and give it the time back that sharing costs it. "" = nothing is set.
//
//	slurmbridge: [mps:50 on n1, was mps:100] …
//	slurmbridge: [shard:2g.20gb:50 on n1, was shard:100; slow=1.25 mem=4000 limit=60] …
func Stamp(g *job.Group, m *job.Member) string {
	sharing := m.Sharing
	if sharing == "" {
		was, _, _ := strings.Cut(m.WasGres, ":")
		sharing = job.Sharing(was)
	}
	gres := gresOf(sharing, m.GPUType, m.Shares)
	if (gres == m.WasGres || gres == WholeGPU(sharing)) && nodesOf(g, m) == m.WasNodes {
		return ""
	}
	return "[" + gres + onNode(nodesOf(g, m)) + ", was " + m.WasGres + onNode(m.WasNodes) + facts(m) + "]"
}

// facts are what a stamp says of a member besides what was set; readFacts reads them.
func facts(m *job.Member) string {
	var words []string
	add := func(is bool, word string, value ...any) {
		if is {
			words = append(words, fmt.Sprintf(word, value...))
		}
	}
	add(m.Predicted > 1.005, "slow=%.2f", m.Predicted)
	add(m.MemMiB > 0, "mem=%d", m.MemMiB)
	add(m.ProcessMiB > 0, "process=%d", m.ProcessMiB)
	add(m.OwnLimit > 0, "limit=%d", int(m.OwnLimit/time.Minute))
	add(m.Tried, "tried")
	add(m.First, "first")
	if words == nil {
		return ""
	}
	return "; " + strings.Join(words, " ")
}

func readFacts(m *job.Member, text string) {
	for word := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(word, "=")
		number, _ := strconv.ParseFloat(value, 64) // what can't be read isn't known
		switch key {
		case "slow":
			m.Predicted = number
		case "mem":
			m.MemMiB = int64(number)
		case "process":
			m.ProcessMiB = int64(number)
		case "limit":
			m.OwnLimit = time.Duration(number) * time.Minute
		case "tried":
			m.Tried = true
		case "first":
			m.First = true
		}
	}
}

func onNode(node string) string {
	if node == "" {
		return ""
	}
	return " on " + node
}

// stampShape is a stamp at the beginning of an AdminComment, where no user's text can be.
// What it replaced can only be a whole GPU's shares, or of an adopted job a whole GPU.
var stampShape = regexp.MustCompile(`^` + job.CommentPrefix + `\[((?:mps|shard):(?:[A-Za-z0-9_.+-]+:)?[0-9]+)(?: on ([A-Za-z0-9_.-]+))?, was ((?:mps|shard):(?:[A-Za-z0-9_.+-]+:)?100|gpu(?::[A-Za-z0-9_.+-]+){0,2})(?: on ([A-Za-z0-9_.-]+))?(?:; ([a-z0-9.= ]{1,100}))?\]`)

// Stamped reports whether an AdminComment, without the note, has a stamp that is true of the job: it may be needed to
// restore the job.
func Stamped(j *job.Job, adminComment string) bool {
	s := stampShape.FindStringSubmatch(adminComment)
	return s != nil && isStamped(j, s)
}

// Announced is what an AdminComment of the bridge's, without the note, says besides its stamp, "" = nothing.
func Announced(adminComment string) string {
	rest := adminComment[len(stampShape.FindString(adminComment)):]
	return strings.TrimSpace(strings.TrimPrefix(rest, job.CommentPrefix))
}

// unstamped is the AdminComment that an adopted job had before it was put into a group.
func unstamped(j *job.Job) *string {
	text := ""
	if j.Note != (job.Note{}) {
		text = j.Note.Comment("")
	}
	return &text
}

// isStamped reports whether a job looks as its stamp says, or has its shares back and not yet its node; see Make.
func isStamped(j *job.Job, stamp []string) bool {
	withdrawn := sameGres(stamp[3], j.Request) && stamp[2] != stamp[4]
	return (sameGres(stamp[1], j.Request) || withdrawn) && stamp[2] == j.ReqNodes
}

// Recover restores a job of no known group that looks as its stamp says. false: it has no stamp, or was changed since.
func Recover(j *job.Job, gate string, at time.Time) (job.Change, bool) {
	s := stampShape.FindStringSubmatch(j.AdminComment)
	if s == nil || !isStamped(j, s) {
		return job.Change{}, false
	}
	m := memberOf(j, s)
	c := Restore(m, j, gate, job.CauseUnreleased.String(), at)
	if slices.ContainsFunc(j.Dependency.List, func(d job.Dependency) bool { return d.Type != after }) {
		c.Update.Dependency, c.Update.StartNow = nil, false // its owner's stay
	}
	return c, true
}

// Regroup returns the group of a running job of no known group that has one GPU and looks as its stamp says, by itself.
// false: it has no stamp, or was changed since.
func Regroup(j *job.Job) (g *job.Group, ok bool) {
	s := stampShape.FindStringSubmatch(j.AdminComment)
	if s == nil || len(j.GPUs) != 1 || !sameGres(s[1], j.Request) || s[2] != j.ReqNodes {
		return nil, false
	}
	m := memberOf(j, s)
	m.State, m.Start = job.MemberRunning, j.Start
	return &job.Group{
		Kind: job.StartNow, State: job.Started, Node: j.Nodes, GPU: j.GPUs[0], Members: []job.Member{*m},
		Pinned: s[2] != s[4], Decided: j.Start,
	}, true
}

// memberOf is a job as the member of a group, by its stamp.
func memberOf(j *job.Job, stamp []string) *job.Member {
	m := &job.Member{
		Ref: j.Ref, User: j.User, Shares: j.Request.Count, GPUType: j.Request.Type,
		WasGres: stamp[3], WasNodes: stamp[4], WasHost: j.Note.Defaults,
	}
	if isWhole(m.WasGres) {
		m.Sharing = j.Request.Sharing
	}
	readFacts(m, stamp[5])
	if j.CPUs < m.WasHost.CPUs {
		m.Host.CPUs = j.CPUs
	}
	if mib := int64(j.HostMemMiB); mib < m.WasHost.MemMiB {
		m.Host.MemMiB = mib
	}
	return m
}
