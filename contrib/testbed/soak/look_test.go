package soak

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// As 22.05.8 prints it, without the fields that nothing here reads.
const shownText = `JobId=2 JobName=slurmbridge-gate
   JobState=PENDING Reason=BeginTime

JobId=3 JobName=life0
   JobState=RUNNING Reason=None Dependency=(null) Restarts=1 ExitCode=0:0
   StartTime=1970-01-01T00:01:40 EndTime=1970-01-01T00:02:40 NodeList=n4
     Nodes=n4 CPU_IDs=0 Mem=100 GRES=gpu:titanxp:2(IDX:0-1)
   TresPerNode=gres:gpu:2
   AdminComment=JobState=FAILED of a user's

JobId=5 ArrayJobId=5 ArrayTaskId=2-4 JobName=life1
   JobState=PENDING Reason=Dependency Dependency=after:2(unfulfilled) StartTime=Unknown EndTime=Unknown NodeList=(null)

JobId=6 ArrayJobId=5 ArrayTaskId=1 JobName=life1
   JobState=FAILED Reason=NonZeroExitCode ExitCode=2:0 StartTime=1970-01-01T00:00:01 EndTime=1970-01-01T00:00:02 NodeList=n1
`

func TestParse(t *testing.T) {
	want := map[string]shown{
		"slurmbridge-gate": {ID: "2", State: "PENDING", Reason: "BeginTime"},
		"life0": {
			ID: "3", State: "RUNNING", Reason: "None", Exit: "0:0", Restarts: 1, Start: 100, End: 160,
			Dependency: "(null)", Places: []string{"n4:0", "n4:1"}, Gres: "gres:gpu:2",
		},
		"life1_2-4": {ID: "5_2-4", State: "PENDING", Reason: "Dependency", Dependency: "after:2(unfulfilled)"},
		"life1_1": {
			ID: "5_1", State: "FAILED", Reason: "NonZeroExitCode", Exit: "2:0", Start: 1, End: 2,
			Places: []string{"n1"},
		},
	}
	for one := range strings.SplitSeq(shownText, "\n\n") {
		name, got := parse(slurmtest.Fields(one))
		for _, t := range []*float64{&got.Start, &got.End} {
			if math.IsNaN(*t) {
				*t = 0
			}
		}
		if !reflect.DeepEqual(got, want[name]) {
			t.Errorf("%s: %+v", name, got)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}

// A look shows which jobs are together, which of them have whole GPUs, and what is left.
func TestTook(t *testing.T) {
	c := &campaign{
		o: &options{}, nodeGPUs: []int{1, 1}, slots: []slot{{0, []string{dayPart}}, {1, []string{dayPart}}},
		byName: map[string]*job{}, groups: map[string]bool{},
	}
	for n := range 4 {
		c.add(&life{N: n, GPUs: n % 2, Partition: dayPart, gone: math.Inf(1), submitted: "1"})
	}
	c.lives[2].submitted = "" // not yet
	on := func(name, state, node string) map[string]string {
		return map[string]string{
			"JobName": name, "JobId": "7", "JobState": state, "NodeList": node, "GRES": "gpu:1(IDX:0)",
			"StartTime": "1970-01-01T00:01:40",
		}
	}
	serves := map[string]bool{"n1|gpu": true, "n2|gpu": false}
	c.took(100, []map[string]string{
		on("life0", "RUNNING", "n1"), on("life1", "RUNNING", "n1"),
		on("life3", "PENDING", "(null)"), on("other", "RUNNING", "n1"),
	}, serves)
	var names []string
	for _, j := range c.left() {
		names = append(names, j.name)
	}
	if !reflect.DeepEqual(names, []string{"life0", "life1", "life2", "life3"}) || c.waiting() != 2 ||
		!c.groups["life0 life1"] || len(c.outages) != 1 || c.outages[0].GPU != 1 {
		t.Errorf("left %v, %d pending, groups %v, outages %+v", names, c.waiting(), c.groups, c.outages)
	}
	if a, b := c.byName["life0"], c.byName["life1"]; a.inUse || !b.inUse || !a.company[b] || len(b.company) != 1 {
		t.Errorf("%+v, %+v", a, b)
	}
	again := on("life0", "PENDING", "(null)")
	again["Restarts"] = "1"
	c.took(104, []map[string]string{again, on("life1", "COMPLETED", "n1")}, serves)
	if a := c.byName["life0"]; !reflect.DeepEqual(a.earlier, []interval{{100, 104}}) || a.node() != "n1" ||
		len(c.left()) != 3 {
		t.Errorf("%+v, left %d", a, len(c.left()))
	}
}

// An array that misses its deadline before Slurm made jobs of its tasks is one row for all of them.
func TestTasksOfOneRow(t *testing.T) {
	var got []string
	for _, f := range tasks([]map[string]string{
		{"JobName": "a", "JobId": "5", "ArrayJobId": "5", "ArrayTaskId": "1,3-4", "JobState": "DEADLINE"},
		{"JobName": "b", "JobId": "6", "ArrayJobId": "6", "ArrayTaskId": "1-2", "JobState": "PENDING"},
		{"JobName": "c", "JobId": "7", "ArrayJobId": "7", "ArrayTaskId": "2", "JobState": "COMPLETED"},
		{"JobName": "d", "JobId": "8", "JobState": "CANCELLED"},
	}) {
		name, s := parse(f)
		got = append(got, name+" "+s.ID)
	}
	must.Equal(t, got, []string{"a_1 5_1", "a_3 5_3", "a_4 5_4", "b_1-2 6_1-2", "c_2 7_2", "d 8"})
}
