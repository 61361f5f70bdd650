package text

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A request, as it is read: its kind, how many, and whether it is for each node. What Gres= can't rewrite without a loss
// counts as whole GPUs.
func TestParseRequest(t *testing.T) {
	const na = "N/A"
	for in, want := range map[TRES]string{
		{}: "", {na, na, na, na}: "", {PerNode: "gres/nic:2"}: "", {PerNode: "gres:none"}: "", {PerTask: "cpu=2"}: "",
		{PerNode: "gres:gpu:1"}:                          "whole 1 a node",
		{PerNode: "gres:gpu"}:                            "whole 1 a node",
		{PerNode: "gres/gpu:titanxp:2"}:                  "whole 2 a node",
		{PerNode: "gres/gpu=3"}:                          "whole 3 a node",
		{PerNode: "gres:gpu:titanxp"}:                    "whole 1 a node",
		{PerNode: "gres:gpu:a:1,gres:gpu:b:2"}:           "whole 3",
		{PerTask: "cpu=2,gres/gpu=1"}:                    "whole 1",
		{PerSocket: "gres:gpu:1"}:                        "whole 1",
		{PerNode: "gres:gpu:2", PerJob: "gres:gpu:4"}:    "whole 4", // from two sides
		{PerNode: "gres:gpu:shared"}:                     "shared 1",
		{PerNode: "gres/gpu:shared:1"}:                   "shared 1",
		{PerJob: "gres:gpu:shared:1"}:                    "whole 1",
		{PerTask: "gres/gpu:shared=1"}:                   "whole 1",
		{PerNode: "gres:gpu:shared,gres:nic"}:            "whole 1",
		{PerNode: "gres:mps:100"}:                        "100 of mps",
		{PerNode: "gres/mps:50"}:                         "50 of mps",
		{PerNode: "mps:titanxp:50"}:                      "50 of mps titanxp",
		{PerNode: "gres/shard:34"}:                       "34 of shard",
		{PerNode: "gres/mps:1K"}:                         "1024 of mps",
		{PerNode: "gres/nic:2,gres/mps:100"}:             "whole 1", // Gres=mps:50 would take the nic away
		{PerNode: "gres/mps:a:50,gres/mps:b:50"}:         "whole 2",
		{PerTask: "gres/mps:50"}:                         "whole 1", // shares of a task
		{PerNode: "gres/mps:50", PerTask: "gres/mps:50"}: "whole 1",
	} {
		r, got := ParseRequest(in), ""
		switch r.Kind {
		case job.WholeGPU:
			got = fmt.Sprint("whole ", r.Count)
		case job.SharedGPU:
			got = fmt.Sprint("shared ", r.Count)
		case job.Shares:
			got = strings.TrimSpace(fmt.Sprint(r.Count, " of ", r.Sharing, " ", r.Type))
		}
		if r.PerNode {
			got += " a node"
		}
		must.Equal(t, got, want, "%+v", in)
		if want != "" {
			lists := slices.DeleteFunc([]string{in.PerNode, in.PerJob, in.PerSocket, in.PerTask}, IsNone)
			must.Equal(t, r.Raw, strings.Join(lists, ","), "as it came, %+v", in)
		}
	}
}

func TestParseDependencies(t *testing.T) {
	dep := func(typ, on, rest string) job.Dependency {
		return job.Dependency{Type: typ, Job: on, Rest: rest}
	}
	for _, tc := range []struct {
		in   string
		or   bool
		want []job.Dependency
	}{
		{"", false, nil},
		{"(null)", false, nil},
		{"after:12(unfulfilled)", false, []job.Dependency{dep("after", "12", "")}},
		{
			"afterok:1(unfulfilled)?afterany:2(unfulfilled)", true,
			[]job.Dependency{dep("afterok", "1", ""), dep("afterany", "2", "")},
		},
		{
			"after:22_*+5(unfulfilled),afterany:1(unfulfilled)", false,
			[]job.Dependency{dep("after", "22", "+5"), dep("afterany", "1", "")},
		},
		{"afterok:7_3(failed)", false, []job.Dependency{dep("afterok", "7_3", "")}},
		{"afterany:1:2_4:3", false, []job.Dependency{
			dep("afterany", "1", ""), dep("afterany", "2_4", ""),
			dep("afterany", "3", ""),
		}},
		{"singleton(unfulfilled)", false, []job.Dependency{dep("singleton", "", "")}},
		{"after:x", false, []job.Dependency{dep("after", "", "x")}},
		{"aftercorr:9_", false, []job.Dependency{dep("aftercorr", "9", "_")}},
	} {
		d := ParseDependencies(tc.in)
		must.Equal(t, d.Or, tc.or, "%q: or", tc.in)
		must.Equal(t, d.List, tc.want, tc.in)
	}
	d := ParseDependencies("after:12(unfulfilled)")
	if !d.Only("after", "12") || d.Only("after", "1") {
		t.Error("after:12 is not understood")
	}
}

func FuzzParseDependencies(f *testing.F) {
	for _, s := range []string{
		"after:12+5(unfulfilled),afterok:7_2(unfulfilled)", "a?b", "singleton", "after:22_*", ":::",
		"(null)", "after:(", "?,?,", "0:0_*00", "0:0_*_1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := ParseDependencies(s)
		must.Equal(t, d.Or, !IsNone(s) && strings.Contains(s, "?"), "or")
		for _, x := range d.List {
			if x.Job != "" && refLen(x.Job) != len(x.Job) {
				t.Errorf("job %q", x.Job)
			}
			if x.Type == "" {
				t.Errorf("no type: %+v", x)
			}
		}
		// What is written for scontrol is read as the same conditions.
		if again := ParseDependencies(d.Plain()); !slices.ContainsFunc(d.List,
			func(x job.Dependency) bool { return x.Job == "" && x.Rest != "" }) &&
			!IsNone(d.Plain()) && !slices.Equal(again.List, d.List) {
			t.Errorf("%+v became %+v", d.List, again.List)
		}
		// A condition is never lost: a list with one in it is not an empty list.
		if len(d.List) == 0 && strings.HasPrefix(s, "after:") {
			t.Error("a condition was lost")
		}
		// What the parser hands out may be appended to by several jobs.
		must.Equal(t, cap(d.List), len(d.List), "room behind the list: appending would write into shared memory")
	})
}

func TestParseNodesRecorded(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			by := map[string]Node{}
			for _, n := range ParseNodes(recorded(t, release, "nodes")) {
				if n.GPUs > 0 {
					by[n.Name] = n
				}
			}
			if len(by) != 4 {
				t.Fatalf("%d nodes with GPUs: %v", len(by), by)
			}
			for name := range by {
				n := by[name]
				n.State, n.Addr, n.ByIndex = "", "", nil // see TestWhichGPUsHaveShares
				by[name] = n
			}
			titanxp := func(name string, gpus int, sharing job.Sharing) Node {
				return Node{
					Node: job.Node{
						Name: name, Up: true, GPUs: gpus, GPUType: "titanxp", Sharing: sharing, Units: 100 * gpus,
						Partitions: []string{"gpu", "long"}, CPUs: 16, CPUsPerAlloc: 1, MemMiB: 16000, Weight: 1,
					},
					CPUsPerSocket: 1, ByType: map[string]int{"titanxp": gpus}, Shares: map[string]int{string(sharing): 100 * gpus},
				}
			}
			// A maintenance reservation is over n1; n2's comment and n4's reason say otherwise.
			n1, n2, n3 := titanxp("n1", 1, job.MPS), titanxp("n2", 2, job.MPS), titanxp("n3", 2, job.Shard)
			n1.Reserved, n1.CPUsAlloc, n1.MemAlloc, n1.MemMiB = true, 1, 100, 15500
			n2.CPUsAlloc, n2.MemAlloc, n3.CPUsAlloc, n3.MemAlloc = 3, 300, 4, 400
			n4 := Node{Node: job.Node{
				Name: "n4", GPUs: 1, GPUType: "shared", Partitions: []string{"gpu", "hidden"}, CPUs: 16, CPUsPerAlloc: 1,
				MemMiB: 16000, Weight: 1,
			}, CPUsPerSocket: 1, ByType: map[string]int{"shared": 1}, Shares: map[string]int{}}
			n4.Reason = "State=IDLE Gres=gpu:titanxp:7"
			for _, want := range []Node{n1, n2, n3, n4} {
				must.Equal(t, by[want.Name], want, want.Name)
			}
		})
	}
}

// Which of a node's GPUs has how many shares. Recorded on 22.05.8 and 24.11.5 from a node with a gres.conf
// that has no shares for one of its two GPUs of type b.
func TestWhichGPUsHaveShares(t *testing.T) {
	for _, c := range []struct{ gres, used, want string }{
		{"gpu:a:2,shard:a:200", "", "a100 a100"},
		{"gpu:2,mps:200", "", "100 100"},
		{
			"gpu:b:2(S:0-15),gpu:a:2(S:0-15),shard:b:100(S:0-15),shard:a:200(S:0-15)",
			"gpu:b:0(IDX:N/A),gpu:a:1(IDX:3),shard:b:2(IDX:0-1),shard:a:1(IDX:2)", "b100 b0 a100 a100",
		},
		{
			"gpu:b:2(S:0-15),gpu:a:2(S:0-15),shard:b:100(S:0-15),shard:a:200(S:0-15)",
			"gpu:b:0(IDX:N/A),gpu:a:1(IDX:3),shard:b:80(0/0,80/100),shard:a:60(60/100,0/100)", "b0 b100 a100 a100",
		},
		{"gpu:a:2,shard:a:200", "shard:a:60(60/100,0/x)", "a100 a100"},
	} {
		nodes := ParseNodes([]byte("NodeName=x State=IDLE Gres=" + c.gres + " GresUsed=" + c.used + "\n"))
		if len(nodes) != 1 {
			t.Fatalf("%s: %d nodes", c.gres, len(nodes))
		}
		var got []string
		for _, card := range nodes[0].ByIndex {
			got = append(got, fmt.Sprint(card.Type, card.Units))
		}
		must.Equal(t, strings.Join(got, " "), c.want, "%s, %s", c.gres, c.used)
	}
}

func TestNodeStates(t *testing.T) {
	for state, want := range map[string][2]bool{
		"IDLE": {true, false}, "PLANNED": {true, false}, "MIXED": {true, false}, "ALLOCATED": {true, false}, "MIXED+PLANNED": {true, false},
		"IDLE+CLOUD":       {true, false},
		"MIXED+COMPLETING": {true, false}, "IDLE+RESERVED": {true, true}, "IDLE+MAINTENANCE+RESERVED": {true, true},
		"ALLOCATED+MAINT": {true, true},
		"IDLE*":           {false, false}, "DOWN": {false, false}, "DOWN*+DRAIN": {false, false}, "IDLE+DRAIN": {false, false},
		"MIXED+DRAIN+RESERVED": {false, true},
		"IDLE+NOT_RESPONDING":  {false, false}, "IDLE+BLOCKED": {false, false},
		"IDLE+POWERED_DOWN": {true, false}, "IDLE~": {true, false}, "IDLE+CLOUD+POWERED_DOWN": {true, false},
		"MIXED+CLOUD+NOT_RESPONDING+POWERING_UP": {true, false}, "ALLOCATED*#": {true, false},
		"IDLE+POWERING_DOWN": {false, false}, "IDLE%": {false, false}, "MIXED+POWER_DOWN": {false, false},
		"IDLE!": {false, false}, "DOWN+POWERED_DOWN": {false, false}, "DOWN*~": {false, false},
		"IDLE+DRAIN+POWERED_DOWN": {false, false},
		"MIXED+FAIL":              {false, false}, "UNKNOWN": {false, false}, "FUTURE": {false, false}, "IDLE+INVALID_REG": {false, false},
		"MIXED+NEWFLAG": {false, false}, "": {false, false},
	} {
		n := parseNode([]byte("NodeName=x State=" + state + " Reason=PLANNED Comment=State=IDLE+MAINT"))
		planned := strings.Contains(state, "PLANNED") // for a pending job
		must.Equal(t, [3]bool{n.Up, n.Reserved, n.Planned}, [3]bool{want[0], want[1], planned}, state)
	}
}

// How many CPUs a core and a socket hold. Recorded on 22.05.8 are the first two: of a node with two
// threads a core, and of one of which slurm.conf names the CPUs alone.
func TestCPUsPerCore(t *testing.T) {
	for layout, want := range map[string][2]int{
		"CoresPerSocket=4 CPUAlloc=2 CPUEfctv=16 CPUTot=16 Sockets=2 ThreadsPerCore=2":  {2, 8},
		"CoresPerSocket=1 CPUAlloc=0 CPUEfctv=16 CPUTot=16 Sockets=16 ThreadsPerCore=1": {1, 1},
		"CoresPerSocket=4 CPUEfctv=8 CPUTot=8 Sockets=2 ThreadsPerCore=2":               {1, 4}, // cores are its CPUs
		"CoresPerSocket=4 CPUEfctv=14 CPUTot=16 Sockets=2 ThreadsPerCore=2":             {2, 8}, // a core is the system's
		"CoresPerSocket=4 CPUTot=32 Sockets=2 ThreadsPerCore=4":                         {4, 16},
		"CoresPerSocket=4 CPUTot=16 Sockets=2 ThreadsPerCore=2 CPUTot=8":                {2, 8}, // the first is Slurm's
		"CPUTot=16": {1, 1},
		"CPUTot=0":  {1, 1},
		"CPUTot=4 Sockets=1 CoresPerSocket=-4 ThreadsPerCore=99999999999": {1, 1},
	} {
		n := parseNode([]byte("NodeName=x State=IDLE " + layout + " Comment=ThreadsPerCore=9"))
		must.Equal(t, [2]int{n.CPUsPerAlloc, n.CPUsPerSocket}, want, layout)
	}
}

func FuzzParseNodes(f *testing.F) {
	for _, release := range releases {
		f.Add(recorded(f, release, "nodes"), "a reason\nNodeName=n1 State=IDLE Gres=gpu:9")
	}
	f.Add([]byte("NodeName=a State=IDLE Gres=gpu:1,mps:100(,"), "State=IDLE")
	f.Fuzz(func(t *testing.T, out []byte, reason string) {
		seen := map[string]bool{}
		for _, n := range ParseNodes(out) {
			if n.Name == "" || n.GPUs < 0 || n.MemMiB < 0 || n.CPUs < 0 || seen[n.Name] {
				t.Errorf("%+v", n)
			}
			for _, units := range n.Shares {
				if units < 1 {
					t.Errorf("%+v", n)
				}
			}
			seen[n.Name] = true
		}
		// An operator's words can't lend a node what it hasn't, nor bring it up.
		line := "NodeName=me Gres=gpu:2,mps:200 State=DOWN Partitions=p CfgTRES=cpu=1 Reason=" +
			strings.ReplaceAll(reason, "\n", " ") + "\n"
		got := ParseNodes([]byte(line + reason + "\n"))
		if i := slices.IndexFunc(got, func(n Node) bool { return n.Name == "me" }); i != 0 || got[0].GPUs != 2 ||
			got[0].Up || got[0].Shares["mps"] != 200 || len(got[0].Partitions) != 1 {
			t.Errorf("%q: %+v", reason, got)
		}
	})
}

func TestParseDetailRecorded(t *testing.T) {
	for _, release := range releases {
		for name, want := range map[string]struct {
			node string
			gpus []int
		}{
			"rgpu": {"n1", []int{0}}, "rgpus": {"n2", []int{0}}, "rmps2": {"n2", []int{1}}, "rshard": {"n3", []int{0}},
			"rshard2": {"n3", []int{1}},
			"rmps":    {"n2", nil},     // its name forges a line: not known
			"rcpu":    {"c1", []int{}}, // no GPU
			"arr":     {"n1", nil},     // not running
		} {
			gpus, ok := ParseDetail(recorded(t, release, "detail-"+name), nil, want.node)
			must.Equal(t, ok, want.gpus != nil, "%s %s", release, name)
			if ok {
				must.Equal(t, gpus, map[string][]int{want.node: want.gpus}, "%s %s", release, name)
			}
		}
		if gpus, ok := ParseDetail(recorded(t, release, "detail-rgpu"), nil, "n2"); ok {
			t.Errorf("on another node: %v", gpus)
		}
	}
}

// The lines are those of 22.05.8, 24.11.5 and 26.05.5: whole GPUs, shares, and a GPU of a node with MIG instances.
func TestParseDetailOfSeveralNodes(t *testing.T) {
	for lines, want := range map[string]map[string][]int{
		"     Nodes=n[1-2] CPU_IDs=0 Mem=10 GRES=gpu:titanxp:1(IDX:0)\n": {"n1": {0}, "n2": {0}},
		"     Nodes=n1 CPU_IDs=1-2 Mem=10 GRES=gpu:titanxp:2(IDX:1-2)\n" +
			"     Nodes=n2 CPU_IDs=1 Mem=10 GRES=gpu:titanxp:1(IDX:1)\n": {"n1": {1, 2}, "n2": {1}},
		"     Nodes=n1 CPU_IDs=1 Mem=10 GRES=mps:50(0/100,0/100,0/100,50/100)\n" +
			"     Nodes=n2 CPU_IDs=1 Mem=10 GRES=mps:50(0/100,0/100,50/100,0/100)\n": {"n1": {3}, "n2": {2}},
		"     Nodes=n1 CPU_IDs=3 Mem=10 GRES=gpu:1g.10gb:0(IDX:),gpu:2g.20gb:1(IDX:2)\n" +
			"     Nodes=n2 CPU_IDs=3 Mem=10 GRES=\n": {"n1": {2}, "n2": {}},
	} {
		gpus, ok := ParseDetail([]byte("   JOB_GRES=x\n"+lines+"   MinCPUsNode=1\n"), nil, "n[1-2]")
		must.Equal(t, ok, true, lines)
		must.Equal(t, gpus, want)
	}
	for _, lines := range []string{
		"", "     Nodes=n1 CPU_IDs=0 Mem=10 GRES=gpu:1(IDX:0)\n", "     Nodes=n[1-3] CPU_IDs=0 Mem=10 GRES=gpu:1(IDX:0)\n",
		"     Nodes=n[1-2],n1 CPU_IDs=0 Mem=10 GRES=gpu:1(IDX:0)\n",
	} {
		if gpus, ok := ParseDetail([]byte(lines), []byte{}, "n[1-2]"); ok {
			t.Errorf("%q: %v", lines, gpus)
		}
	}
}

func TestMemPerCPU(t *testing.T) {
	for _, release := range releases {
		if !MemPerCPU(recorded(t, release, "detail-rgpu")) {
			t.Errorf("%s: DefMemPerCPU's memory is by the node", release)
		}
		// as --mem shows it
		node := strings.ReplaceAll(string(recorded(t, release, "detail-rgpu")), "MinMemoryCPU=", "MinMemoryNode=")
		if MemPerCPU([]byte(node)) {
			t.Errorf("%s: --mem is by the CPU", release)
		}
		forged := "JobId=1 JobName=\n   MinCPUsNode=1 MinMemoryNode=1M MinTmpDiskNode=0\n"
		if !MemPerCPU(append([]byte(forged), recorded(t, release, "detail-rgpu")...)) {
			t.Errorf("%s: a job's name hides its memory", release)
		}
	}
	if !MemPerCPU(nil) {
		t.Error("nothing is by the node")
	}
}

func TestParseIndexes(t *testing.T) {
	for in, want := range map[string][]int{
		"gpu:titanxp:2(IDX:0-1)": {0, 1}, "mps:60(IDX:3)": {3}, "mps:titanxp:60(0/100,60/100)": {1},
		"shard:50(50/100,0/100)":          {0},
		"gpu:a:1(IDX:0),gpu:b:2(IDX:2-3)": {0, 2, 3}, "gres:mps:50(IDX:1)": {1}, "gres/shard:50(0/100,0/100,50/100)": {2},
		"nic:1(IDX:0),gpu:1(IDX:1)": {1},
		// a node's GresUsed
		"shard:70(70/100,0/100,0/100,0/100)": {0}, "shard:titanxp:200(100/100,0/100,100/100)": {0, 2},
		"shard:8(-/5,5/5)": nil,

		"": {}, "gpu:a:0(IDX:),gpu:b:1(IDX:2)": {2}, "gpu:0(CNT:0)": {},

		"gpu:2": nil, "gpu:1(IDX:)": nil, "gpu:1(IDX:1-0)": nil, "gpu:1(IDX:0-99999)": nil, "gpu:1(IDX:0": nil,
		"mps:1(x/100)": nil, "mps:1(-1/100)": nil,
	} {
		got, ok := parseIndexes(in)
		if ok != (want != nil) || ok && !slices.Equal(got, want) {
			t.Errorf("%q: %v %v", in, got, ok)
		}
	}
}

// A --mail-user is what Slurm shows, and nothing where a job's name may have forged it.
func TestParseMailUser(t *testing.T) {
	const line = "   MailUser=ann@x.org MailType=END,FAIL\n"
	for in, want := range map[string]string{
		"": "", "JobId=7 JobName=x\n   Power=\n" + line + "\n": "ann@x.org",
		"JobId=7 JobName=x MailUser=eve MailType=END\n":                              "",
		"JobId=7 JobName=x\n   MailUser=eve MailType=END\n   UserId=ann(1)\n" + line: "",
		"   MailUser=a b MailType=END\n":                                             "", "   MailUser=ann\n": "",
	} {
		must.Equal(t, ParseMailUser([]byte(in)), want, in)
	}
}

func FuzzDetail(f *testing.F) {
	for _, release := range releases {
		for _, name := range []string{"rgpu", "rgpus", "rmps", "rmps2", "rshard2", "rcpu", "arr"} {
			f.Add(recorded(f, release, "detail-"+name), "x\n     Nodes=n1 CPU_IDs=0 Mem=1 GRES=mps:1(IDX:3)")
		}
	}
	// All fields that users write, in Slurm's order.
	written := func(text, detail, runTime string) []byte {
		return fmt.Appendf(nil, "JobId=1 JobName=%[1]s\n   UserId=u(1) GroupId=g(1) MCS_label=%[1]s\n"+
			"   Priority=1 Nice=0 Account=%[1]s QOS=normal WCKey=%[1]s\n   JobState=RUNNING Reason=None Dependency=(null)\n"+
			"   RunTime=%[3]s TimeLimit=1\n   CrontabSpec=\"%[1]s\"\n   ReqNodeList=(null)\n   NodeList=n1\n"+
			"   BatchFeatures=%[1]s\n%[2]s   MinCPUsNode=1\n   Features=%[1]s DelayBoot=00:00:00\n   Prefer=%[1]s\n"+
			"   OverSubscribe=OK Licenses=%[1]s Network=%[1]s\n   Command=%[1]s\n   SubmitLine=sbatch %[1]s\n   WorkDir=%[1]s\n"+
			"   AdminComment=%[1]s \n   Comment=%[1]s \n   StdErr=%[1]s\n   StdIn=%[1]s\n   StdOut=%[1]s\n   Extra=%[1]s\n"+
			"   BurstBuffer=%[1]s\n   MailUser=%[1]s MailType=END\n   Container=%[1]s\n\n", text, detail, runTime)
	}
	f.Fuzz(func(t *testing.T, out []byte, text string) {
		for _, plain := range [][]byte{nil, out} {
			gpus, ok := ParseDetail(out, plain, "n1")
			must.Equal(t, ok, len(gpus) == 1 && gpus["n1"] != nil, gpus)
			for _, g := range gpus["n1"] {
				if g < 0 || g >= maxGPUs {
					t.Errorf("GPU %d", g)
				}
			}
		}
		// Whatever users write, a job's GPU is 0. Only where they write lines like Slurm's, the job is to be shown twice.
		const detail = "   JOB_GRES=mps:50\n     Nodes=n1 CPU_IDs=0-1 Mem=100 GRES=mps:50(IDX:0)\n"
		want := map[string][]int{"n1": {0}}
		forged := written(text, detail, "00:00:01")
		gpus, ok := ParseDetail(forged, written(text, "", "00:00:02"), "n1")
		must.Equal(t, ok, true, text)
		must.Equal(t, gpus, want, text)
		if gpus, ok := ParseDetail(forged, nil, "n1"); ok || !strings.Contains(text, "CPU_IDs=") {
			must.Equal(t, gpus, want, text)
		}
	})
}

func TestParseConfigRecorded(t *testing.T) {
	for _, release := range releases {
		config := ParseConfig(recorded(t, release, "config"))
		for key, want := range map[string]string{
			"ClusterName": "recorded", "SlurmUser": "slurm(64030)", "GresTypes": "gpu,mps,shard", "JobSubmitPlugins": "",
			"SlurmctldHost[0]": "node(127.0.0.1)",
		} {
			if got, ok := config[key]; !ok || got != want {
				t.Errorf("%s: %s is %q", release, key, got)
			}
		}
		if !strings.HasPrefix(config["SLURM_VERSION"], release) {
			t.Errorf("%s: version %q", release, config["SLURM_VERSION"])
		}
		if name, uid, ok := User(config["SlurmUser"]); name != "slurm" || uid != 64030 || !ok {
			t.Errorf("%s: SlurmUser is %s, %d, %v", release, name, uid, ok)
		}
		parts := ParsePartitions(recorded(t, release, "partitions"))
		if len(parts) != 3 || parts[0].Name != "gpu" || parts[0].State != "UP" || parts[2].Name != "hidden" ||
			parts[0].Hidden || !parts[2].Hidden {
			t.Errorf("%s: %+v", release, parts)
		}
	}
}

// Who else may be on a node of a partition's job, as 22.05.8, 24.11.5 and 26.05.5 print it.
func TestPartitionsThatKeepJobsApart(t *testing.T) {
	for words, want := range map[string][2]bool{
		"OverSubscribe=EXCLUSIVE ExclusiveUser=NO":              {true, false},
		"OverSubscribe=NO ExclusiveUser=YES":                    {false, true},
		"OverSubscribe=FORCE:4 ExclusiveUser=NO":                {false, false},
		"OverSubscribe=NO ExclusiveTopo=YES ExclusiveUser=NO":   {true, false},
		"Exclusive=NODE OverSubscribe=NO":                       {true, false},
		"Exclusive=TOPO OverSubscribe=NO":                       {true, false},
		"Exclusive=USER OverSubscribe=NO":                       {false, true},
		"Exclusive=NO OverSubscribe=NO State=UP Hidden=NO LLN=": {false, false},
	} {
		p := ParsePartitions([]byte("PartitionName=p " + words + "\n"))[0]
		must.Equal(t, [2]bool{p.WholeNodes, p.OneUser}, want, words)
	}
}

func TestNumberedSettings(t *testing.T) {
	c := ParseConfig([]byte("Prolog[0] = /a/*\nProlog[1] = /b\nEpilog = (null)\nSlurmctld(primary) at ctl is UP\n"))
	must.Equal(t, c["Prolog"], "/a/*,/b")
	must.Equal(t, c["Epilog"], "")
}

func TestRewritesTypes(t *testing.T) {
	for release, want := range map[string]bool{
		"22.05.8": false, "23.02.5": false, "23.02.6": true, "23.02.10": true, "23.11.0-rc1": true, "24.11.5": true,
		"25.05": true, "": false, "x": false,
	} {
		must.Equal(t, RewritesTypes(release), want, release)
	}
}

// The rows are those of sacctmgr 24.11.5.
func TestParseGPULimits(t *testing.T) {
	assocs := "root|||||\nroot|root||||\nlab||root|cpu=8,gres/gpu=4,gres/gpu:a100=2||\nlab|ann||gres/gpu=1||gres/gpu=600\ndeep||lab|||\nodd||odd|gres/gpufree=1||\n"
	qos := "normal|gres/gpu=8|||gres/mps=5|\nhigh||gres/gpu=3|gres/gpu=2|gres/gpu=1000|\nshort\n"
	got := ParseGPULimits(assocs, qos, []Partition{{Name: "gpu", QOS: "high"}, {Name: "cpu", QOS: "N/A"}, {Name: "old"}})
	gpu := []string{"gpu"}
	want := []job.GPULimit{
		{Of: "GrpTRES of account lab", Accounts: []string{"lab", "deep"}, Most: 2},
		{Of: "GrpTRES of user ann in account lab", Accounts: []string{"lab"}, User: "ann", Most: 1},
		{Of: "GrpTRESRunMins of user ann in account lab", Accounts: []string{"lab"}, User: "ann", Most: 600, Uncounted: true},
		{Of: "GrpTRES of QOS normal", QOS: "normal", Most: 8},
		{Of: "MaxTRESPerAccount of QOS high", QOS: "high", Partitions: gpu, EachAccount: true, Most: 3},
		{Of: "MaxTRESPerUser of QOS high", QOS: "high", Partitions: gpu, EachUser: true, Most: 2},
		{Of: "GrpTRESMins of QOS high", QOS: "high", Partitions: gpu, Most: 1000, Uncounted: true},
	}
	must.Equal(t, got, want)
}

// The rows are those of sacctmgr 24.11.5.
func TestParsePreemptions(t *testing.T) {
	must.Equal(t, ParsePreemptions("normal|\nlow|\nhigh|low,normal\nsacctmgr: error\n|x\n"),
		map[string][]string{"normal": nil, "low": nil, "high": {"low", "normal"}})
}

func TestBillsGPUsAlone(t *testing.T) {
	for weights, want := range map[string]bool{
		"": false, "CPU=1.0": false, "CPU=1.0,GRES/gpu=20": true, "GRES/gpu:a100=2.5": true, "gres/gpu=0.0": false,
		"GRES/gpu=20,GRES/shard=0.2": false,
		"GRES/gpu=20,GRES/mps=0":     false, "GRES/gpufree=1": false,
	} {
		must.Equal(t, (&Partition{Billing: weights}).BillsGPUsAlone(), want, weights)
	}
}
