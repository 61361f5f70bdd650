package limit

import (
	"testing"
	"time"

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
		if is, forever := Reason(reason); is != want[0] || forever != want[1] {
			t.Errorf("%q: %v, %v", reason, is, forever)
		}
	}
}

// What an operator has closed no job's end opens.
func TestClosedIsNotOpenedByAnEnd(t *testing.T) {
	for reason, want := range map[string]int{"PartitionDown": 0, "ReqNodeNotAvail, Reserved for maintenance": 0, "AssocGrpJobsLimit": 1} {
		if got := (&Limit{reason: reason, of: class{user: "ann"}}).frees(holder{}); got != want {
			t.Errorf("%q: %d", reason, got)
		}
	}
}

// A user at a limit of two runs two jobs; they end, her next two start in their place and a
// third is refused, all before one poll. Nothing has room for another then, until one of the
// two ends.
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
		byRef := map[string]*job.Job{}
		for i := range s.Jobs {
			byRef[s.Jobs[i].Ref] = &s.Jobs[i]
		}
		return ls.Budget(s, byRef)
	}
	poll(one("1", job.Running, ""), one("2", job.Running, ""), one("3", job.Pending, ""), one("4", job.Pending, ""), one("5", job.Pending, ""))
	b := poll(one("3", job.Running, ""), one("4", job.Running, ""), one("5", job.Pending, "QOSMaxJobsPerUserLimit"))
	if b.MaySend("5", "n1") {
		t.Error("it may be sent although as many run as before")
	}
	if b = poll(one("4", job.Running, ""), one("5", job.Pending, "")); !b.MaySend("5", "n1") {
		t.Error("it may not be sent although one has ended")
	}
}
