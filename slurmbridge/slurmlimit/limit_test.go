package slurmlimit

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

func TestLimitReasons(t *testing.T) {
	for reason, want := range map[string][2]bool{
		"":                                     {false, false},
		"Priority":                             {false, false},
		"Resources":                            {false, false},
		"MaxMemPerLimit":                       {false, false},
		"QOSMaxJobsPerUserLimit":               {true, false},
		"AssocGrpGRES":                         {true, false},
		"AssocMaxJobsLimit":                    {true, false},
		"QOSMaxGRESPerUser":                    {true, false},
		"MaxGRESPerAccount":                    {true, false},
		"JobArrayTaskLimit":                    {true, false},
		"PartitionDown":                        {true, false},
		"PartitionInactive":                    {true, false},
		"PartitionTimeLimit":                   {true, true},
		"ReqNodeNotAvail":                      {false, false},
		"ReqNodeNotAvail, UnavailableNodes:n1": {false, false},
		"ReqNodeNotAvail, Reserved for maintenance":                                                   {true, false},
		"ReqNodeNotAvail, May be reserved for other job":                                              {true, false},
		"Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": {false, false},
		"AssocMaxCpuPerJobLimit":                                                                      {true, true},
		"QOSMaxGRESPerNode":                                                                           {true, true},
		"QOSMinGRES":                                                                                  {true, true},
		"QOSMaxWallDurationPerJobLimit":                                                               {true, true},
	} {
		is, forever := Reason(reason)
		must.Equal(t, [2]bool{is, forever}, want, reason)
	}
}

// A Reason that explains why Slurm keeps a job is no mark against it, whatever follows it. Other words explain nothing.
func TestKeptReasons(t *testing.T) {
	for reason, want := range map[string]bool{
		"Priority": true, "Resources": true, "Licenses": true, "ReqNodeNotAvail": true,
		"ReqNodeNotAvail, UnavailableNodes:n1": true, "ReqNodeNotAvail,_UnavailableNodes:n[1-9]": true,
		"": false, "None": false, "Dependency": false, "BadConstraints": false, "DependencyNeverSatisfied": false,
		"Priority\nResources": false, " Priority": false, "priority": false, "It says ReqNodeNotAvail": false,
		"Licenses|x": false,
	} {
		must.Equal(t, StaysPending(reason), want, reason)
	}
}

// A class that Slurm keeps from a node is tried there ever less often, other classes and nodes
// are free, and what is remembered of the reason is short.
func TestKeptFromANode(t *testing.T) {
	at := time.Unix(1e9, 0)
	j, other := job.Job{Ref: "1", User: "ann", State: job.Pending}, job.Job{Ref: "2", User: "bob", State: job.Pending}
	s := &job.Snapshot{Jobs: []job.Job{j, other}}
	ls := New()
	open := func(j *job.Job, node string) bool {
		s.At = at
		ls.Observe(s, func(string) (string, bool) { return "", false })
		return maySend(ls.Budget(at), j, node)
	}
	for _, want := range []time.Duration{15, 30, 60, 120, 240, 480, 600, 600} {
		if !open(&j, "n1") {
			t.Fatalf("closed before it is kept, %v", want)
		}
		at = at.Add(time.Minute) // the job is released, and doesn't start
		ls.Close(&j, "n1", "ReqNodeNotAvail, UnavailableNodes:"+strings.Repeat("n", 1000), at)
		ls.Close(&j, "n1", "Priority", at) // another of its class
		at = at.Add(want*time.Second - time.Second)
		got := []bool{open(&j, "n1"), open(&j, "n2"), open(&other, "n1")}
		must.Equal(t, got, []bool{false, true, true}, "after %d s", want-1)
		at = at.Add(time.Second)
	}
	ls.Close(&j, "n1", strings.Repeat("\x1b[2J", 1000), at)
	if _, by := ls.Budget(at).Closed(&j); len(by.Text(at)) > 1000 || strings.Contains(by.Text(at), "\x1b") {
		t.Errorf("%v", by)
	}
	if at = at.Add(time.Hour); !open(&j, "n1") || len(ls.byClass) > 0 {
		t.Error("it is remembered for ever")
	}
}

// A job that Slurm keeps from the one node that it was sent to is at no limit: its class may be sent elsewhere, and
// other classes there.
func TestANodeThatIsClosedToAClass(t *testing.T) {
	j := job.Job{Ref: "1", User: "ann", State: job.Pending, ReqNodes: "n1"}
	j.Reason = "ReqNodeNotAvail, May be reserved for other job"
	other := job.Job{Ref: "2", User: "bob", State: job.Pending}
	s, ls := &job.Snapshot{At: time.Unix(1e9, 0), Jobs: []job.Job{j, other}}, New()
	ls.Observe(s, func(ref string) (string, bool) { return "n1", ref == "1" })
	b := ls.Budget(s.At)
	must.Equal(t, []bool{maySend(b, &j, "n1"), maySend(b, &j, "n2"), maySend(b, &other, "n1")}, []bool{false, true, true})
}

// What an operator has closed no job's end opens.
func TestClosedIsNotOpenedByAnEnd(t *testing.T) {
	for reason, want := range map[string]int{
		"PartitionDown": 0, "ReqNodeNotAvail, Reserved for maintenance": 0,
		"AssocGrpJobsLimit": 1,
	} {
		must.Equal(t, (&Limit{reason: reason, of: class{user: "ann"}}).frees(holder{}), want, reason)
	}
}

// A user at a limit of two runs two jobs; they end, her next two start in their place and a third is refused, all
// before one poll. Nothing has room for another then, until one of the two ends.
func TestLimitMetByThoseWhoFollowed(t *testing.T) {
	at := time.Unix(1e9, 0)
	one := func(ref string, state job.JobState, reason string) job.Job {
		return job.Job{Ref: ref, User: "ann", State: state, Reason: reason}
	}
	ls := New()
	sent := func(string) (string, bool) { return "n1", true }
	poll := func(jobs ...job.Job) *Budget {
		at = at.Add(time.Second)
		s := &job.Snapshot{At: at, Jobs: jobs}
		ls.Observe(s, sent)
		return ls.Budget(at)
	}
	fifth := one("5", job.Pending, "")
	poll(one("1", job.Running, ""), one("2", job.Running, ""), one("3", job.Pending, ""), one("4", job.Pending, ""),
		one("5", job.Pending, ""))
	b := poll(one("3", job.Running, ""), one("4", job.Running, ""), one("5", job.Pending, "QOSMaxJobsPerUserLimit"))
	must.Equal(t, maySend(b, &fifth, "n1"), false, "it may be sent: as many run as before")
	b = poll(one("4", job.Running, ""), one("5", job.Pending, ""))
	must.Equal(t, maySend(b, &fifth, "n1"), true, "it may be sent: one has ended")
}

// maySend reports whether the limits let the job start on the node at once.
func maySend(b *Budget, j *job.Job, node string) bool {
	closed, _ := b.Closed(j)
	return !slices.Contains(closed, node) && b.Pass(j) == nil
}

// Adopted jobs with shares count under limits on whole GPUs.
func TestAdoptedJobsUnderGPULimits(t *testing.T) {
	one := func(ref, user, account string) job.Job {
		return job.Job{
			Ref: ref, User: user, Account: account, QOS: "normal", Partition: "gpu",
			Request: job.GPURequest{Kind: job.WholeGPU, Count: 1, PerNode: true},
		}
	}
	holds, runs, waiting, next := one("shares", "ann", "lab"), one("runs", "bob", "lab"), one("foreign", "ann", "lab"),
		one("next", "ann", "lab")
	holds.State, holds.Request = job.Running, job.GPURequest{Kind: job.Shares, Count: 50}
	runs.State, waiting.State, next.State = job.Running, job.Pending, job.Pending
	for name, c := range map[string]struct {
		limit job.GPULimit
		says  string
		waits bool
	}{
		"room for all":        {job.GPULimit{Accounts: []string{"lab"}, Most: 4}, "", false},
		"the rest is Slurm's": {job.GPULimit{Accounts: []string{"lab"}, Most: 3}, "don't share", false},
		"used up":             {job.GPULimit{Accounts: []string{"lab"}, Most: 2}, "have them", true},
		"each user by itself": {job.GPULimit{QOS: "normal", EachUser: true, Most: 1}, "have them", true},
		"another user":        {job.GPULimit{User: "bob", Accounts: []string{"lab"}, Most: 0}, "", false},
		"another account":     {job.GPULimit{Accounts: []string{"theory"}, Most: 0}, "", false},
		"another QOS":         {job.GPULimit{QOS: "high", Most: 0}, "", false},
		"a partition's QOS":   {job.GPULimit{QOS: "high", Partitions: []string{"gpu"}, Most: 2}, "have them", true},
		"each account":        {job.GPULimit{QOS: "normal", EachAccount: true, Most: 2}, "have them", true},
		"minutes that are left": {
			job.GPULimit{Of: "GrpTRESMins", Accounts: []string{"lab"}, Most: 1000, Uncounted: true},
			"GrpTRESMins", false,
		},
	} {
		s := &job.Snapshot{Jobs: []job.Job{holds, runs, waiting, next}, GPULimits: []job.GPULimit{c.limit}}
		g := CountGPUs(s, func(j *job.Job) bool { return j.Ref == "shares" },
			func(j *job.Job) bool { return j.Ref == "next" })
		says, waits := g.Pass(&next)
		if !strings.Contains(says, c.says) || (says == "") != (c.says == "") || waits != c.waits {
			t.Errorf("%s: %q, waits %v", name, says, waits)
		}
	}
	s := &job.Snapshot{Jobs: []job.Job{holds, runs, next}, GPULimits: []job.GPULimit{{Most: 3}}}
	g := CountGPUs(s, func(j *job.Job) bool { return j.Ref == "shares" }, func(j *job.Job) bool { return j.Ref == "next" })
	says, _ := g.Pass(&next)
	must.Equal(t, says, "")
	_, waits := g.Pass(&next)
	must.Equal(t, waits, true, "the job that passed counts")
}

// What an operator closes is closed until the operator opens it, and no longer: a partition, and a node by a
// reservation. What can't be seen is tried again.
func TestOpenedByTheOperator(t *testing.T) {
	at := time.Unix(1e9, 0)
	for name, c := range map[string]struct {
		reason, node string
		closed       job.Bounds
		unseen       time.Duration // for as long as it is closed if nobody sees why
	}{
		"partition": {"PartitionDown", "", job.Bounds{Closed: map[string]bool{"b": true}}, 10 * time.Second},
		"node": {"ReqNodeNotAvail, Reserved for maintenance", "n1", job.Bounds{Reservations: []job.Reservation{
			{Nodes: map[string]bool{"n1": true}, End: at.Add(time.Hour)},
		}}, 15 * time.Second},
	} {
		j := job.Job{Ref: "1", State: job.Pending, Partition: "a,b", Reason: c.reason, ReqNodes: c.node}
		later := job.Job{Ref: "2", State: job.Pending, Partition: "a,b"}
		isClosed := func(ls *Limits, at time.Time) bool {
			ls.Observe(&job.Snapshot{At: at}, func(string) (string, bool) { return "", false })
			b := ls.Budget(at)
			nodes, _ := b.Closed(&later)
			return len(nodes) > 0 || b.Pass(&later) != nil
		}
		met := func() *Limits {
			ls := New()
			ls.Observe(&job.Snapshot{At: at, Jobs: []job.Job{j}}, func(string) (string, bool) { return c.node, true })
			must.Equal(t, ls.ByOperator(), true, name)
			return ls
		}
		ls := met()
		ls.Reopen(&c.closed, at)
		must.Equal(t, isClosed(ls, at.Add(time.Second)), true, name)
		ls.Reopen(&c.closed, at.Add(5*time.Second))
		must.Equal(t, isClosed(ls, at.Add(14*time.Second)), true, name)
		ls.Reopen(&job.Bounds{}, at.Add(14*time.Second))
		must.Equal(t, isClosed(ls, at.Add(14*time.Second)), false, "%s: opened", name)
		ls = met()
		ls.Reopen(&job.Bounds{}, at)
		must.Equal(t, isClosed(ls, at.Add(c.unseen-time.Second)), true, name)
		must.Equal(t, isClosed(ls, at.Add(c.unseen)), false, name)
	}
}
