package tracker_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/limit"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// released is a group on n1 whose members, each with so many shares, may start.
func released(id int64, shares int, refs ...string) *job.Group {
	g := &job.Group{ID: id, Kind: job.StartNow, Node: "n1", Pinned: true}
	for _, ref := range refs {
		g.Members = append(g.Members,
			job.Member{Ref: ref, Shares: shares, State: job.MemberPrepared, WasGres: release.WholeGPU(job.MPS)})
	}
	release.Released(g)
	return g
}

// sent is a member of such a group, pending for a reason.
func sent(ref, reason string) job.Job {
	return job.Job{
		Ref: ref, User: "ann", State: job.Pending, Priority: 1, Reason: reason, ReqNodes: "n1", Request: shares(50),
	}
}

func shares(n int) job.GPURequest {
	return job.GPURequest{Kind: job.Shares, Sharing: job.MPS, Count: n}
}

// poll shows jobs, and the one GPU of n1.
func poll(at time.Time, jobs ...job.Job) *job.Snapshot {
	return &job.Snapshot{At: at, Jobs: jobs, Nodes: []job.Node{{Name: "n1", Up: true, GPUs: 1}}}
}

// Whatever polls show of a group's members, and in whatever order, each of them only goes
// from one state to another as the table of transitions allows, and the tracker asks for
// nothing of a job that isn't pending.
func TestWhateverPollsShow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := tracker.New()
		g := released(1, 33, "0", "1", "2")
		g.Kind = rapid.SampledFrom([]job.GroupKind{job.StartNow, job.Join}).Draw(t, "kind")
		if !rapid.Bool().Draw(t, "released") {
			for i := range g.Members {
				g.Members[i].State = job.MemberPrepared
			}
			release.Derive(g)
		}
		tr.Groups[1] = g
		at := time.Unix(1e9, 0)
		for range rapid.IntRange(1, 12).Draw(t, "polls") {
			at = at.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
			s := drawPoll(t, at)
			before := states(g)
			repairs, _ := tr.Observe(s, "7") // Move panics on a transition that isn't allowed
			for i, was := range before {
				if is := g.Members[i].State; was.Final() && is != was {
					t.Fatalf("member %d went from %s, which is final, to %s", i, was, is)
				}
			}
			for i := range repairs {
				for _, ref := range repairs[i].Update.Jobs {
					if !pending(s, ref) {
						t.Fatalf("a change of job %s, which is not pending: %s", ref, repairs[i].Text())
					}
				}
			}
			tr.LastAt = at
		}
	})
}

// Of a cluster with few nodes Slurm says of a released job that its nodes are reserved while
// another waits for a GPU that is being cleaned up. It starts a moment later: it isn't taken
// back for that, and its like may be sent there. Where it lasts it is, without a mark.
func TestPassedOverInAPass(t *testing.T) {
	const reason = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
	tr := tracker.New()
	g := released(1, 50, "0", "1")
	tr.Groups[1] = g
	see := func(seconds int) ([]job.Change, []tracker.Event, bool) {
		s := poll(time.Unix(1e9, 0).Add(time.Duration(seconds)*time.Second), sent("0", reason), sent("1", reason))
		repairs, events := tr.Observe(s, "7")
		tr.LastAt = s.At
		return repairs, events, maySend(tr.Limits.Budget(s, map[string]*job.Job{"0": &s.Jobs[0], "1": &s.Jobs[1]}), "0", "n1")
	}
	for seconds := 0; seconds <= 15; seconds += 5 {
		if repairs, events, open := see(seconds); len(repairs)+len(events) > 0 || !open {
			t.Fatalf("after %d s it asks for %v and tells %v; may others be sent: %v", seconds, repairs, events, open)
		}
	}
	repairs, events, _ := see(16)
	if len(repairs) != 2 || len(events) != 2 || tr.Wait("0").Strikes > 0 {
		t.Fatalf("after 16 s it asks for %v and tells %v; %d marks", repairs, events, tr.Wait("0").Strikes)
	}
	if m := g.Members[0]; m.State != job.MemberRestoring || m.Cause.Kind != job.CausePassedOver {
		t.Errorf("it is %s for %s", m.State, m.Cause)
	}
}

// A released job that Slurm keeps pending for other jobs goes back behind the gate however often
// that happens, and its class isn't sent to the node for a while. A job of which Slurm says nothing
// that explains it is left to Slurm after two tries.
func TestReleasedAndKeptPending(t *testing.T) {
	for _, c := range []struct {
		reason  string
		planned bool
		left    bool
	}{
		{reason: "Priority"},
		{reason: "Resources"},
		{reason: "Licenses"},
		{reason: "ReqNodeNotAvail"},
		{reason: "ReqNodeNotAvail, UnavailableNodes:n1"},
		{reason: "None", planned: true},
		{reason: "None", left: true},
		{reason: "Dependency", left: true},
		{reason: "Priority\nReqNodeNotAvail", left: true},
	} {
		tr := tracker.New()
		at := time.Unix(1e9, 0)
		for try := range 3 {
			g := released(int64(try), 50, "1")
			tr.Groups = map[int64]*job.Group{g.ID: g}
			s := poll(at, sent("1", c.reason))
			s.Nodes[0].Planned = c.planned
			var repairs []job.Change
			var events []tracker.Event
			for _, seconds := range []int{1, 45, 1} {
				if at = at.Add(time.Duration(seconds) * time.Second); len(repairs)+len(events) > 0 {
					t.Fatalf("%q: taken back too soon", c.reason)
				}
				s.At = at
				repairs, events = tr.Observe(s, "7")
			}
			kind := tracker.EventStuck
			if !c.left {
				kind = tracker.EventKept
			} else if try > 0 {
				kind = tracker.EventLeft
			}
			if len(repairs) != 1 || len(events) != 1 || events[0].Kind != kind {
				t.Fatalf("%q, try %d: %v, %v, want %s", c.reason, try, repairs, events, kind)
			}
			open := maySend(tr.Limits.Budget(s, map[string]*job.Job{"1": &s.Jobs[0]}), "1", "n1")
			left := tr.Unmanaged["1"] == job.UngatedNotStarted.String()
			if strikes := tr.Wait("1").Strikes; open != c.left || left != (c.left && try > 0) || (strikes > 0) != c.left {
				t.Errorf("%q, try %d: open %v, left %v, %d strikes", c.reason, try, open, left, strikes)
			}
			if cause := g.Members[0].Cause.Kind; (cause == job.CausePassedOver) == c.left {
				t.Errorf("%q: taken back for %q", c.reason, cause)
			}
			if gate := *repairs[0].Update.Dependency; (gate == "") != left {
				t.Errorf("%q, try %d: it goes back behind %q", c.reason, try, gate)
			}
			at = at.Add(15 * time.Minute)
		}
	}
}

// A member that Slurm holds since its node doesn't suit it is no held job: the bridge has chosen the node. After two
// tries it is left to Slurm, which lets go of it when it is changed.
func TestNodeThatDoesNotSuit(t *testing.T) {
	tr := tracker.New()
	for try := range 2 {
		tr.Groups = map[int64]*job.Group{1: released(1, 50, "1")}
		held := sent("1", "BadConstraints")
		held.Priority = 0
		repairs, events := tr.Observe(poll(time.Unix(1e9, 0), held), "7")
		if len(repairs) != 1 || len(events) != 1 {
			t.Fatalf("try %d: %v, %v", try, repairs, events)
		}
		left := try > 0
		if gate := *repairs[0].Update.Dependency; (gate == "") != left || (tr.Unmanaged["1"] != "") != left ||
			*repairs[0].Update.ReqNodes != "" {
			t.Errorf("try %d: it goes back behind %q, left alone for %q", try, gate, tr.Unmanaged["1"])
		}
	}
}

// Behind a job that Slurm says nothing of, the next one is pending by Priority: only the former
// gets a strike.
func TestOnlyTheUnexplainedGetsAStrike(t *testing.T) {
	tr := tracker.New()
	tr.Groups[1] = released(1, 50, "0", "1")
	s := poll(time.Unix(1e9, 0), sent("0", "BadConstraints"), sent("1", "Priority"))
	tr.Observe(s, "7")
	s.At = s.At.Add(46 * time.Second)
	tr.Observe(s, "7")
	if a, b := tr.Wait("0").Strikes, tr.Wait("1").Strikes; a != 1 || b != 0 {
		t.Errorf("%d and %d strikes", a, b)
	}
}

func states(g *job.Group) []job.MemberState {
	var out []job.MemberState
	for i := range g.Members {
		out = append(out, g.Members[i].State)
	}
	return out
}

func pending(s *job.Snapshot, ref string) bool {
	for i := range s.Jobs {
		if s.Jobs[i].Ref == ref {
			return s.Jobs[i].State == job.Pending
		}
	}
	return false
}

// drawPoll draws what a poll shows of the members and of the job that they may follow.
func drawPoll(t *rapid.T, at time.Time) *job.Snapshot {
	s := &job.Snapshot{At: at, Nodes: []job.Node{{Name: "n1", Up: rapid.Bool().Draw(t, "up"), GPUs: 1}}}
	if rapid.Bool().Draw(t, "predecessor runs") {
		s.Jobs = append(s.Jobs, job.Job{Ref: "9", State: job.Running, Nodes: "n1", Start: at.Add(-time.Minute)})
	}
	for i := range 3 {
		j := job.Job{
			Ref: fmt.Sprint(i), Priority: 1, ReqNodes: "n1",
			State:   rapid.SampledFrom([]job.JobState{job.Pending, job.Pending, job.Running, job.Completing}).Draw(t, "state"),
			Request: shares(33),
		}
		switch rapid.SampledFrom([]string{
			"as released", "gone", "held", "edited", "restored", "put off",
			"at a limit",
		}).Draw(t, "sight") {
		case "gone":
			continue
		case "held":
			j.Priority = 0
		case "edited":
			j.Request.Count = 5
		case "restored":
			j.ReqNodes, j.Request.Count = "", job.Units
			j.Dependency.List = []job.Dependency{{Type: "after", Job: "7"}}
		case "put off":
			j.Eligible = at.Add(time.Hour)
		case "at a limit":
			j.Reason = rapid.SampledFrom([]string{"QOSMaxJobsPerUserLimit", "QOSMaxWallDurationPerJobLimit"}).Draw(t, "limit")
		}
		if j.State != job.Pending {
			j.Nodes, j.Start = "n1", at
		} else {
			j.Expedited = rapid.Bool().Draw(t, "expedited")
		}
		s.Jobs = append(s.Jobs, j)
	}
	return s
}

// A journal may say of a member that it runs, and not since when.
func TestAMemberThatRanWithoutAStartHasEnded(t *testing.T) {
	tr := tracker.New()
	g := &job.Group{ID: 1, Kind: job.StartNow, Node: "n1", Members: []job.Member{{Ref: "1", State: job.MemberRunning}}}
	tr.Groups[1] = g
	tr.Observe(&job.Snapshot{At: time.Unix(1e9, 0)}, "7")
	if g.Members[0].State != job.MemberEnded || g.State != job.Done {
		t.Errorf("%s, the group %s", g.Members[0].State, g.State)
	}
}

// maySend reports whether the limits let the job start on the node at once.
func maySend(b *limit.Budget, ref, node string) bool {
	return b.ClosedTo(ref, node) == nil && b.Pass(ref) == nil
}

// A group whose GPU another job has by its priority is taken back at once, also where that job started between the poll
// that the group was decided by and its release, in the same second; one that still finds room there isn't.
func TestAnotherJobTakesTheGPU(t *testing.T) {
	decided := time.Unix(1e9, 4e8)
	for _, c := range []struct {
		name    string
		request job.GPURequest
		start   time.Time
		back    bool
	}{
		{"a whole GPU", job.GPURequest{Kind: job.WholeGPU, Count: 1}, decided.Truncate(time.Second), true},
		{"too many shares", shares(80), decided.Add(time.Second), true},
		{"few shares", shares(50), decided.Add(time.Second), false},
		{"one that ran before", shares(80), decided.Add(-2 * time.Second), false},
	} {
		tr := tracker.New()
		g := released(1, 50, "1")
		g.Decided, tr.Groups[1] = decided, g
		other := job.Job{Ref: "2", State: job.Running, Nodes: "n1", GPUs: []int{0}, Start: c.start, Request: c.request}
		repairs, _ := tr.Observe(poll(decided.Add(2*time.Second), sent("1", ""), other), "7")
		if back := len(repairs) > 0; back != c.back {
			t.Errorf("%s: taken back: %v, want %v", c.name, back, c.back)
		}
	}
}

// A job whose node goes down again and again before it starts is restored each time: that is no mark against the job.
func TestFailingNodeIsNoMarkAgainstTheJob(t *testing.T) {
	tr := tracker.New()
	s := poll(time.Unix(1e9, 0), sent("1", ""))
	s.Nodes[0].Up = false
	for id := range int64(3) {
		tr.Groups = map[int64]*job.Group{id: released(id, 50, "1")}
		if repairs, _ := tr.Observe(s, "7"); len(repairs) != 1 || *repairs[0].Update.Dependency != "after:7" {
			t.Errorf("%+v", repairs)
		}
	}
	must.Equal(t, tr.Unmanaged["1"], "", "left to Slurm")
}
