package soak

import (
	"math"
	"reflect"
	"testing"
)

// As 22.05.8 prints it, without the fields that nothing here reads.
const shown = `JobId=2 JobName=slurmbridge-gate UserId=slurm(64030) JobState=PENDING Reason=BeginTime
JobId=3 JobName=life0 UserId=games(5) Priority=1 JobState=RUNNING Reason=None Dependency=(null) Restarts=1 ExitCode=0:0 StartTime=1970-01-01T00:01:40 EndTime=1970-01-01T00:02:40 NodeList=n4 GRES=mps:titanxp:60(IDX:1) TresPerNode=gres:mps:60 AdminComment=JobState=FAILED of a user's
JobId=5 ArrayJobId=5 ArrayTaskId=2-4 JobName=life1 JobState=PENDING Reason=Dependency Dependency=after:2(unfulfilled) StartTime=Unknown EndTime=Unknown NodeList=(null)
JobId=6 ArrayJobId=5 ArrayTaskId=1 JobName=life1 JobState=FAILED Reason=NonZeroExitCode ExitCode=2:0 StartTime=1970-01-01T00:00:01 EndTime=1970-01-01T00:00:02 NodeList=n1
`

func TestParseJobs(t *testing.T) {
	want := []seenJob{
		{Key: "life0", ID: "3", State: "RUNNING", Reason: "None", Exit: "0:0", Restarts: 1, Start: 100, End: 160, Dependency: "(null)", Place: "n4:1", Shares: "gres:mps:60"},
		{Key: "life1_1", ID: "5_1", State: "FAILED", Reason: "NonZeroExitCode", Exit: "2:0", Start: 1, End: 2, Place: "n1"},
	}
	if got := parseJobs(shown); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestParseNodes(t *testing.T) {
	got := parseNodes("n1|gpu|up|mixed\nn1|night|down|mixed\nn2|gpu|up|idle*\nn3|gpu|up|draining\nrubbish\n")
	want := map[string]seenNode{"n1": {"gpu": true, "night": false}, "n2": {"gpu": false}, "n3": {"gpu": false}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestSlurmTime(t *testing.T) {
	if got := slurmTime("1970-01-01T01:00:00"); got != 3600 {
		t.Error(got)
	}
	if !math.IsNaN(slurmTime("Unknown")) {
		t.Error("Unknown is a time")
	}
}
