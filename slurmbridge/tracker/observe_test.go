package tracker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
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

// Whatever polls show of a group's members, and in whatever order, each of them only goes from one state to another as
// the table of transitions allows, and the tracker asks for nothing of a job that isn't pending.
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

// A released job that doesn't start goes back behind the gate. Where Slurm says why it keeps the job pending, or that
// it keeps the node for others, or the node goes down, that is no mark against the job, however often it happens; what
// Slurm keeps pending isn't sent to the node for a while. A job of which Slurm says nothing that explains it, or that
// its node doesn't suit it, is left to Slurm after two tries.
func TestReleasedAndKeptPending(t *testing.T) {
	const late = 46 // s, until it is taken back
	up, planned, down := job.Node{Up: true}, job.Node{Up: true, Planned: true}, job.Node{}
	for _, c := range []struct {
		reason  string
		node    job.Node
		after   int // s, until it is taken back
		cause   job.CauseKind
		closed  bool // the node, to jobs like it
		strikes bool
	}{
		{"Priority", up, late, job.CausePassedOver, true, false},
		{"Resources", up, late, job.CausePassedOver, true, false},
		{"Licenses", up, late, job.CausePassedOver, true, false},
		{"ReqNodeNotAvail", up, late, job.CausePassedOver, true, false},
		{"ReqNodeNotAvail, UnavailableNodes:n1", up, late, job.CausePassedOver, true, false},
		{"None", planned, late, job.CausePassedOver, true, false},
		{"None", up, late, job.CauseLate, false, true},
		{"Dependency", up, late, job.CauseLate, false, true},
		{"Priority\nReqNodeNotAvail", up, late, job.CauseLate, false, true},
		{"BadConstraints", up, 0, job.CauseImpossible, false, true},
		{"None", down, 0, job.CauseNodeDown, false, false},
		// Slurm says so while another job waits for a GPU that is being cleaned up: it may start a moment later.
		{
			"Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", up, 16,
			job.CausePassedOver, false, false,
		},
	} {
		tr := tracker.New()
		at := time.Unix(1e9, 0)
		for try := range 3 {
			g := released(int64(try), 50, "1")
			tr.Groups = map[int64]*job.Group{g.ID: g}
			s := poll(at, sent("1", c.reason))
			s.Nodes[0].Up, s.Nodes[0].Planned = c.node.Up, c.node.Planned
			if c.cause == job.CauseImpossible {
				s.Jobs[0].Priority = 0 // Slurm holds it
			}
			repairs, events := tr.Observe(s, "7")
			for _, seconds := range []int{c.after - 1, 1}[:min(2, 2*c.after)] {
				must.Equal(t, len(repairs)+len(events), 0, "%q: taken back too soon", c.reason)
				at = at.Add(time.Duration(seconds) * time.Second)
				s.At = at
				repairs, events = tr.Observe(s, "7")
			}
			kind, left := tracker.EventStuck, c.strikes && try > 0
			if c.closed {
				kind = tracker.EventPassedOver
			} else if left {
				kind = tracker.EventLeft
			}
			if len(repairs) != 1 || len(events) != 1 || events[0].Kind != kind {
				t.Fatalf("%q, try %d: %v, %v, want %s", c.reason, try, repairs, events, kind)
			}
			closed, _ := tr.Limits.Budget(s.At).Closed(&s.Jobs[0])
			open := len(closed) == 0 && tr.Limits.Budget(s.At).Pass(&s.Jobs[0]) == nil
			must.Equal(t, open, !c.closed, "%q, try %d: others may be sent", c.reason, try)
			must.Equal(t, tr.Unmanaged["1"] == job.UngatedNotStarted.String(), left, "%q, try %d: left", c.reason, try)
			must.Equal(t, tr.Wait("1").Strikes > 0, c.strikes, "%q: strikes", c.reason)
			must.Equal(t, g.Members[0].Cause.Kind, c.cause, "%q: the cause", c.reason)
			must.Equal(t, *repairs[0].Update.Dependency == "", left, "%q, try %d: no gate", c.reason, try)
			must.Equal(t, *repairs[0].Update.ReqNodes, "", "its node")
			at = at.Add(15 * time.Minute)
		}
	}
}

// Behind a job that Slurm says nothing of, the next one is pending by Priority: only the former gets a strike.
func TestOnlyTheUnexplainedGetsAStrike(t *testing.T) {
	tr := tracker.New()
	tr.Groups[1] = released(1, 50, "0", "1")
	s := poll(time.Unix(1e9, 0), sent("0", "BadConstraints"), sent("1", "Priority"))
	tr.Observe(s, "7")
	s.At = s.At.Add(46 * time.Second)
	tr.Observe(s, "7")
	must.Equal(t, tr.Wait("0").Strikes, 1, "strikes")
	must.Equal(t, tr.Wait("1").Strikes, 0, "strikes")
}

func states(g *job.Group) []job.MemberState {
	var out []job.MemberState
	for i := range g.Members {
		out = append(out, g.Members[i].State)
	}
	return out
}

func pending(s *job.Snapshot, ref string) bool {
	return slices.ContainsFunc(s.Jobs, func(j job.Job) bool { return j.Ref == ref && j.State == job.Pending })
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
	must.Equal(t, g.Members[0].State, job.MemberEnded)
	must.Equal(t, g.State, job.Done)
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
		must.Equal(t, len(repairs) > 0, c.back, "%s: taken back", c.name)
	}
}

// A clock that was ahead for one poll leaves nothing behind: how long a job has run, and what it has done, is what it
// would be without that poll. A suspended job has run for less than since its start.
func TestAClockThatWasAheadForAPoll(t *testing.T) {
	start := time.Unix(1e9, 0)
	after := func(polls ...time.Duration) job.Progress {
		tr := tracker.New()
		j := job.Job{Ref: "1", State: job.Running, Start: start, Nodes: "n1"}
		for _, at := range polls {
			j.State = job.Running
			if at == 20*time.Second {
				j.State = job.Suspended
			}
			tr.Observe(&job.Snapshot{At: start.Add(at), Jobs: []job.Job{j}}, "7")
		}
		return tr.Done["1"].Progress
	}
	want := after(0, 10*time.Second, 15*time.Second, 30*time.Second)
	must.Equal(t, after(0, 10*time.Second, time.Hour, 15*time.Second, 30*time.Second), want)
	must.Equal(t, after(0, 10*time.Second, 20*time.Second, 30*time.Second).RunS, 20)
}

// A refused change that gives a job back what it had counts no more once the job has it back.
func TestARefusalThatWasMadeGood(t *testing.T) {
	tr, at := tracker.New(), time.Unix(1e9, 0)
	g := released(1, 50, "1")
	m := &g.Members[0]
	m.State, m.Tries = job.MemberRestoring, 1
	tr.Groups[1] = g
	tr.Wait("1").Unrestored = 5
	j := sent("1", "")
	j.Request.Count, j.ReqNodes = job.Units, m.WasNodes
	tr.Observe(poll(at, j), "7")
	must.Equal(t, m.State, job.MemberRestored)
	must.Equal(t, tr.Wait("1").Unrestored, 0)
}
