package release_test

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

const gate = "7"

// pendingJob is a gated job that asks for a whole GPU's shares.
func pendingJob(ref string) *job.Job {
	j := &job.Job{
		Ref: ref, State: job.Pending, Priority: 1,
		Request: job.GPURequest{Kind: job.Shares, Sharing: job.MPS, Count: job.Units},
	}
	depend(j, "after:"+gate)
	return j
}

func depend(j *job.Job, list string) {
	j.Dependency = job.Dependencies{Raw: list}
	for term := range strings.SplitSeq(list, ",") {
		if typ, on, ok := strings.Cut(term, ":"); ok {
			j.Dependency.List = append(j.Dependency.List, job.Dependency{Type: typ, Job: on})
		}
	}
}

// apply changes jobs as Slurm would.
func apply(jobs map[string]*job.Job, c job.Change) {
	for _, ref := range c.Update.Jobs {
		j := jobs[ref]
		if c.Update.Gres != nil {
			name, count, _ := strings.Cut(*c.Update.Gres, ":")
			typ, n, typed := strings.Cut(count, ":")
			if count = n; !typed {
				typ, count = "", typ
			}
			if j.Request = (job.GPURequest{Kind: job.Shares, Sharing: job.Sharing(name), Type: typ}); name == "gpu" {
				j.Request, count = job.GPURequest{Kind: job.WholeGPU, PerNode: true, Raw: "gres/" + *c.Update.Gres}, "1"
			}
			j.Request.Count, _ = strconv.Atoi(count)
		}
		if c.Update.ReqNodes != nil {
			j.ReqNodes = *c.Update.ReqNodes
		}
		if c.Update.Dependency != nil {
			depend(j, *c.Update.Dependency)
		}
		if c.Update.Host.CPUs > 0 {
			j.CPUs = c.Update.Host.CPUs
		}
		if c.Update.Host.MemMiB > 0 {
			j.HostMemMiB = float64(c.Update.Host.MemMiB)
		}
	}
}

// drawGroup draws a group of gated jobs.
func drawGroup(t *rapid.T) (*job.Group, map[string]*job.Job) {
	g := &job.Group{
		ID: 1, Kind: rapid.SampledFrom([]job.GroupKind{job.StartNow, job.Join}).Draw(t, "kind"),
		Node: "n1", Pinned: rapid.Bool().Draw(t, "pinned"),
	}
	jobs := map[string]*job.Job{}
	n := rapid.IntRange(1, 4).Draw(t, "members")
	for i := range n {
		ref := strconv.Itoa(10 + i)
		jobs[ref] = pendingJob(ref)
		jobs[ref].ReqNodes = rapid.SampledFrom([]string{"", "n1"}).Draw(t, "node")
		jobs[ref].CPUs, jobs[ref].HostMemMiB = 8, 16000
		m := job.Member{
			Ref: ref, Shares: job.Units / n, State: job.MemberPrepared, WasGres: release.WholeGPU(job.MPS),
			WasNodes: jobs[ref].ReqNodes,
		}
		jobs[ref].Request.Type = rapid.SampledFrom([]string{"", "1g.10gb+me"}).Draw(t, "its type")
		m.WasGres = release.Requested(jobs[ref], job.MPS)
		m.GPUType = cmp.Or(jobs[ref].Request.Type, rapid.SampledFrom([]string{"", "2g.20gb"}).Draw(t, "type"))
		jobs[ref].Note.Defaults = rapid.SampledFrom([]job.Defaults{
			{},
			{CPUs: 8},
			{MemMiB: 16000},
			{CPUs: 8, MemMiB: 16000},
		}).Draw(t, "defaults")
		if n > 1 {
			m.WasHost, m.Host = jobs[ref].Note.Defaults, jobs[ref].Note.Defaults.Of(n)
		}
		if n > 1 && rapid.Bool().Draw(t, "adopted") {
			raw := rapid.SampledFrom([]string{"gpu", "gpu:1", "gpu:titanxp:1", "gpu:titanxp", "gpu:1g.10gb+me:1"}).Draw(t,
				"request")
			jobs[ref].Request = job.GPURequest{Kind: job.WholeGPU, Count: 1, PerNode: true, Raw: "gres/" + raw}
			m.WasGres, m.Sharing = release.Requested(jobs[ref], job.MPS), job.MPS
		}
		g.Members = append(g.Members, m)
	}
	release.Derive(g)
	return g, jobs
}

// same checks that a job is what it was.
func same(t *rapid.T, was, is *job.Job) {
	a, b := *was, *is
	for _, j := range []*job.Job{&a, &b} {
		j.Dependency.List = nil // as Raw says
		if !j.Request.PerNode {
			j.Request.Raw, j.Request.Sharing = "", ""
		}
	}
	if diff := gocmp.Diff(a, b); diff != "" {
		t.Fatalf("the job has changed: %s", diff)
	}
}

// copies are the jobs as they are now.
func copies(jobs map[string]*job.Job) map[string]job.Job {
	out := map[string]job.Job{}
	for ref, j := range jobs {
		out[ref] = *j
	}
	return out
}

func makeGroup(g *job.Group, jobs map[string]*job.Job) {
	p := release.Make(g, jobs, job.MPS)
	for _, c := range append(p.Prepare, p.Release) {
		apply(jobs, c)
	}
	release.Released(g)
}

func TestAReleasedGroupIsRecognisedAsReleased(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, jobs := drawGroup(t)
		makeGroup(g, jobs)
		if g.State != job.Released {
			t.Fatalf("the group is %s", g.State)
		}
		for i := range g.Members {
			m := &g.Members[i]
			must.Equal(t, release.Recognise(g, m, jobs[m.Ref], gate, time.Time{}), release.AsReleased, "%s", m.Ref)
		}
	})
}

func TestARestoredMemberIsWhatItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, jobs := drawGroup(t)
		before := copies(jobs)
		makeGroup(g, jobs)
		for i := range g.Members {
			m := &g.Members[i]
			release.StartRestoring(g, m, job.Cause{Kind: job.CauseHeld})
			apply(jobs, release.Restore(m, jobs[m.Ref], gate, "a test", time.Time{}))
			was, is := before[m.Ref], jobs[m.Ref]
			same(t, &was, is)
			must.Equal(t, release.Recognise(g, m, is, gate, time.Time{}), release.Back, "restored")
		}
	})
}

// What a member was can be told from its AdminComment alone, as long as it is what the bridge made of it.
func TestAStampedJobIsRecovered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, jobs := drawGroup(t)
		before := copies(jobs)
		makeGroup(g, jobs)
		more := rapid.SampledFrom([]string{
			"", " on n1 gpu 0 together: 1, 2",
			" ignored [mps:1 on n9, was mps:100 on n8]",
		}).Draw(t, "more")
		for i := range g.Members {
			m := &g.Members[i]
			was, is := before[m.Ref], jobs[m.Ref]
			_, is.AdminComment = job.ParseNote(is.Note.Comment(release.Stamp(g, m) + more))
			c, ok := release.Recover(is, gate, time.Time{})
			if changed := is.Request.Count != was.Request.Count || is.Request.Type != was.Request.Type ||
				is.ReqNodes != was.ReqNodes; ok != changed {
				t.Fatalf("%+v: recovered %v", is, ok)
			}
			if !ok {
				continue
			}
			apply(jobs, c)
			was.AdminComment = is.AdminComment // the bridge says what became of it later
			same(t, &was, is)
			if _, again := release.Recover(is, gate, time.Time{}); again || release.Stamped(is, is.AdminComment) {
				t.Fatalf("recovered twice: %+v", is)
			}
		}
	})
}

// Whatever an owner edits, nothing that the bridge had set stays once it is handed back.
func TestAnEditedMemberKeepsNothingOfTheBridges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, jobs := drawGroup(t)
		makeGroup(g, jobs)
		m := &g.Members[0]
		j := jobs[m.Ref]
		switch rapid.SampledFrom([]string{"shares", "nodes", "dependency"}).Draw(t, "edit") {
		case "shares":
			j.Request.Count = 3
		case "nodes":
			j.ReqNodes = "n9"
		case "dependency":
			depend(j, "afterok:5")
		}
		must.Equal(t, release.Recognise(g, m, j, gate, time.Time{}), release.Edited)
		if c, ok := release.HandBack(g, m, j); ok {
			apply(jobs, c)
		}
		if _, more := release.HandBack(g, m, j); more {
			t.Fatalf("something is left in %+v", j)
		}
		if j.ReqNodes == "n1" && m.WasNodes == "" || j.Request.Count == m.Shares && m.Shares != job.Units || j.CPUs != 8 ||
			j.HostMemMiB != 16000 {
			t.Fatalf("the bridge's values stay: %+v", j)
		}
	})
}

var states = []job.MemberState{
	job.MemberPrepared, job.MemberWaiting, job.MemberRunning, job.MemberRestoring, job.MemberHandingBack,
	job.MemberEnded, job.MemberCancelled, job.MemberEdited, job.MemberRestored, job.MemberMoved,
}

// Final states are left by nothing, and every state comes to an end, whatever happens on the way.
func TestEveryStateReachesAnEnd(t *testing.T) {
	for _, from := range states {
		leads := slices.ContainsFunc(states, func(to job.MemberState) bool { return to != from && release.Allowed(from, to) })
		must.Equal(t, leads, !from.Final(), "%s leads on", from)
		reached := map[job.MemberState]bool{from: true}
		for range states {
			for _, at := range states {
				for _, to := range states {
					reached[to] = reached[to] || reached[at] && release.Allowed(at, to)
				}
			}
		}
		ends := slices.ContainsFunc(states, func(s job.MemberState) bool { return reached[s] && s.Final() })
		must.Equal(t, ends, true, "from %s a final state is reached", from)
	}
}

func TestATransitionOutsideTheTablePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an ended member ran again")
		}
	}()
	g := &job.Group{Members: []job.Member{{State: job.MemberEnded}}}
	release.Move(g, &g.Members[0], job.MemberRunning)
}

func TestTheStateOfAGroupFollowsFromItsMembers(t *testing.T) {
	ran := time.Unix(1e9, 0)
	for _, c := range []struct {
		want    job.GroupState
		members []job.Member
	}{
		{job.Preparing, []job.Member{{State: job.MemberPrepared}, {State: job.MemberWaiting}}},
		{job.Released, []job.Member{{State: job.MemberWaiting}, {State: job.MemberCancelled}}},
		{job.Released, []job.Member{{State: job.MemberRestoring}}},
		{job.Started, []job.Member{{State: job.MemberRunning, Start: ran}, {State: job.MemberPrepared}}},
		{job.Started, []job.Member{{State: job.MemberEnded, Start: ran}, {State: job.MemberWaiting}}},
		{job.Done, []job.Member{{State: job.MemberEnded, Start: ran}, {State: job.MemberMoved}}},
	} {
		g := &job.Group{Members: c.members}
		release.Derive(g)
		must.Equal(t, g.State, c.want, c.members)
	}
}
