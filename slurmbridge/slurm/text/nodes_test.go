package text

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseNodesRecorded(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			by := map[string]Node{}
			for _, n := range ParseNodes(recorded(t, release, "nodes")) {
				if n.GPUCount() > 0 {
					by[n.Name] = n
				}
			}
			if len(by) != 4 {
				t.Fatalf("%d nodes with GPUs: %v", len(by), by)
			}
			for name := range by {
				n := by[name]
				n.State, n.Addr, n.Cards = "", "", nil // see TestCards
				by[name] = n
			}
			for _, want := range []Node{
				// A maintenance reservation is over n1.
				{Name: "n1", Up: true, GPUs: map[string]int{"titanxp": 1}, Shares: map[string]int{"mps": 100}, Partitions: []string{"gpu", "long"}, CPUs: 16, CPUsPerCore: 1, CPUsPerSocket: 1, CPUsAlloc: 1, MemMiB: 15500, MemAlloc: 100, Reserved: true},
				// n2's comment and n4's reason say otherwise.
				{Name: "n2", Up: true, GPUs: map[string]int{"titanxp": 2}, Shares: map[string]int{"mps": 200}, Partitions: []string{"gpu", "long"}, CPUs: 16, CPUsPerCore: 1, CPUsPerSocket: 1, CPUsAlloc: 3, MemMiB: 16000, MemAlloc: 300},
				{Name: "n3", Up: true, GPUs: map[string]int{"titanxp": 2}, Shares: map[string]int{"shard": 200}, Partitions: []string{"gpu", "long"}, CPUs: 16, CPUsPerCore: 1, CPUsPerSocket: 1, CPUsAlloc: 4, MemMiB: 16000, MemAlloc: 400},
				{Name: "n4", GPUs: map[string]int{"shared": 1}, Shares: map[string]int{}, Partitions: []string{"gpu", "hidden"}, CPUs: 16, CPUsPerCore: 1, CPUsPerSocket: 1, MemMiB: 16000, Reason: "State=IDLE Gres=gpu:titanxp:7"},
			} {
				if got := by[want.Name]; !reflect.DeepEqual(got, want) {
					t.Errorf("%s:\n got %+v\nwant %+v", want.Name, got, want)
				}
			}
		})
	}
}

// Which of a node's GPUs has how many shares. Recorded on 22.05.8 and 24.11.5 from a node with a gres.conf
// that has no shares for one of its two GPUs of type b.
func TestCards(t *testing.T) {
	for _, c := range []struct{ gres, used, want string }{
		{"gpu:a:2,shard:a:200", "", "a100 a100"},
		{"gpu:2,mps:200", "", "100 100"},
		{"gpu:b:2(S:0-15),gpu:a:2(S:0-15),shard:b:100(S:0-15),shard:a:200(S:0-15)", "gpu:b:0(IDX:N/A),gpu:a:1(IDX:3),shard:b:2(IDX:0-1),shard:a:1(IDX:2)", "b100 b0 a100 a100"},
		{"gpu:b:2(S:0-15),gpu:a:2(S:0-15),shard:b:100(S:0-15),shard:a:200(S:0-15)", "gpu:b:0(IDX:N/A),gpu:a:1(IDX:3),shard:b:80(0/0,80/100),shard:a:60(60/100,0/100)", "b0 b100 a100 a100"},
		{"gpu:a:2,shard:a:200", "shard:a:60(60/100,0/x)", "a100 a100"},
	} {
		nodes := ParseNodes([]byte("NodeName=x State=IDLE Gres=" + c.gres + " GresUsed=" + c.used + "\n"))
		if len(nodes) != 1 {
			t.Fatalf("%s: %d nodes", c.gres, len(nodes))
		}
		var got []string
		for _, card := range nodes[0].Cards {
			got = append(got, fmt.Sprint(card.Type, card.Shares["shard"]+card.Shares["mps"]))
		}
		if is := strings.Join(got, " "); is != c.want {
			t.Errorf("%s, %s: %s, want %s", c.gres, c.used, is, c.want)
		}
	}
}

func TestNodeStates(t *testing.T) {
	for state, want := range map[string][2]bool{
		"IDLE": {true, false}, "MIXED": {true, false}, "ALLOCATED": {true, false}, "MIXED+PLANNED": {true, false}, "IDLE+CLOUD": {true, false},
		"MIXED+COMPLETING": {true, false}, "IDLE+RESERVED": {true, true}, "IDLE+MAINTENANCE+RESERVED": {true, true}, "ALLOCATED+MAINT": {true, true},
		"IDLE*": {false, false}, "DOWN": {false, false}, "DOWN*+DRAIN": {false, false}, "IDLE+DRAIN": {false, false}, "MIXED+DRAIN+RESERVED": {false, true},
		"IDLE+NOT_RESPONDING": {false, false}, "IDLE+BLOCKED": {false, false},
		"IDLE+POWERED_DOWN": {true, false}, "IDLE~": {true, false}, "IDLE+CLOUD+POWERED_DOWN": {true, false}, "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP": {true, false}, "ALLOCATED*#": {true, false},
		"IDLE+POWERING_DOWN": {false, false}, "IDLE%": {false, false}, "MIXED+POWER_DOWN": {false, false}, "IDLE!": {false, false}, "DOWN+POWERED_DOWN": {false, false}, "DOWN*~": {false, false}, "IDLE+DRAIN+POWERED_DOWN": {false, false},
		"MIXED+FAIL": {false, false}, "UNKNOWN": {false, false}, "FUTURE": {false, false}, "IDLE+INVALID_REG": {false, false}, "MIXED+NEWFLAG": {false, false}, "": {false, false},
	} {
		if up, reserved := inService(state); up != want[0] || reserved != want[1] {
			t.Errorf("%s: up %v, reserved %v", state, up, reserved)
		}
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
		"CPUTot=16": {1, 1},
		"CPUTot=0":  {1, 1},
		"CPUTot=4 Sockets=1 CoresPerSocket=-4 ThreadsPerCore=99999999999": {1, 1},
	} {
		n := parseNode([]byte("NodeName=x State=IDLE " + layout + " Comment=ThreadsPerCore=9"))
		if n.CPUsPerCore != want[0] || n.CPUsPerSocket != want[1] {
			t.Errorf("%s: %d and %d, want %v", layout, n.CPUsPerCore, n.CPUsPerSocket, want)
		}
	}
}

// A node that Slurm keeps for a pending job is in service.
func TestPlannedNodes(t *testing.T) {
	for state, want := range map[string]bool{"IDLE+PLANNED": true, "MIXED+PLANNED": true, "PLANNED": true, "IDLE": false, "MIXED": false} {
		if n := parseNode([]byte("NodeName=x State=" + state)); n.Planned != want || !n.Up {
			t.Errorf("%s: planned %v, up %v", state, n.Planned, n.Up)
		}
	}
	if n := parseNode([]byte("NodeName=x State=IDLE Reason=PLANNED Comment=State=PLANNED")); n.Planned {
		t.Error("an operator's words plan it")
	}
}

func TestNodeGres(t *testing.T) {
	for gres, want := range map[string]Node{
		"gpu:2(S:0-1)":                         {GPUs: map[string]int{"": 2}},
		"gpu:a:1(S:0,2),gpu:b:3":               {GPUs: map[string]int{"a": 1, "b": 3}},
		"gpu:a:1(S:0,2),nic:2,shard:a:100":     {GPUs: map[string]int{"a": 1}, Shares: map[string]int{"shard": 100}},
		"gpu:a:2,mps:a:100(S:1),mps:a:100":     {GPUs: map[string]int{"a": 2}, Shares: map[string]int{"mps": 200}},
		"gres/gpu:a:2,gres/mps:200,shard:200":  {GPUs: map[string]int{"a": 2}, Shares: map[string]int{"mps": 200, "shard": 200}},
		"craynetwork:4,gpu:tesla:1,gpu:kepler": {GPUs: map[string]int{"tesla": 1, "kepler": 1}},
		"gpu:0,shard:0,(null)":                 {},
	} {
		n := parseNode([]byte("NodeName=x State=IDLE Gres=" + gres))
		if !maps.Equal(n.GPUs, want.GPUs) || !maps.Equal(n.Shares, want.Shares) || n.Name != "x" || !n.Up {
			t.Errorf("%s: %+v", gres, n)
		}
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
			if n.Name == "" || n.GPUCount() < 0 || n.MemMiB < 0 || n.CPUs < 0 || seen[n.Name] {
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
		line := "NodeName=me Gres=gpu:2,mps:200 State=DOWN Partitions=p CfgTRES=cpu=1 Reason=" + strings.ReplaceAll(reason, "\n", " ") + "\n"
		got := ParseNodes([]byte(line + reason + "\n"))
		if i := slices.IndexFunc(got, func(n Node) bool { return n.Name == "me" }); i != 0 || got[0].GPUCount() != 2 || got[0].Up || got[0].Shares["mps"] != 200 || len(got[0].Partitions) != 1 {
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
			"rgpu": {"n1", []int{0}}, "rgpus": {"n2", []int{0}}, "rmps2": {"n2", []int{1}}, "rshard": {"n3", []int{0}}, "rshard2": {"n3", []int{1}},
			"rmps": {"n2", nil}, // its name forges a line: not known
			"rcpu": {"c1", nil}, // no GPU
			"arr":  {"n1", nil}, // not running
		} {
			gpus, ok := ParseDetail(recorded(t, release, "detail-"+name), want.node)
			if !slices.Equal(gpus, want.gpus) || ok != (want.gpus != nil) {
				t.Errorf("%s %s: %v %v", release, name, gpus, ok)
			}
		}
		if gpus, ok := ParseDetail(recorded(t, release, "detail-rgpu"), "n2"); ok {
			t.Errorf("on another node: %v", gpus)
		}
	}
}

func TestMemPerCPU(t *testing.T) {
	for _, release := range releases {
		if !MemPerCPU(recorded(t, release, "detail-rgpu")) {
			t.Errorf("%s: DefMemPerCPU's memory is by the node", release)
		}
		node := strings.ReplaceAll(string(recorded(t, release, "detail-rgpu")), "MinMemoryCPU=", "MinMemoryNode=") // as --mem shows it
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
		"gpu:titanxp:2(IDX:0-1)": {0, 1}, "mps:60(IDX:3)": {3}, "mps:titanxp:60(0/100,60/100)": {1}, "shard:50(50/100,0/100)": {0},
		"gpu:a:1(IDX:0),gpu:b:2(IDX:2-3)": {0, 2, 3}, "gres:mps:50(IDX:1)": {1}, "gres/shard:50(0/100,0/100,50/100)": {2}, "nic:1(IDX:0),gpu:1(IDX:1)": {1},
		"shard:70(70/100,0/100,0/100,0/100)": {0}, "shard:titanxp:200(100/100,0/100,100/100)": {0, 2}, "shard:8(-/5,5/5)": nil, // a node's GresUsed

		"gpu:2": nil, "": nil, "gpu:1(IDX:)": nil, "gpu:1(IDX:1-0)": nil, "gpu:1(IDX:0-99999)": nil, "gpu:1(IDX:0": nil, "mps:1(x/100)": nil, "gpu:0(CNT:0)": nil, "mps:1(-1/100)": nil,
	} {
		got, ok := parseIndexes(in)
		if ok != (want != nil) || ok && !slices.Equal(got, want) {
			t.Errorf("%q: %v %v", in, got, ok)
		}
	}
}

func FuzzDetail(f *testing.F) {
	for _, release := range releases {
		for _, name := range []string{"rgpu", "rgpus", "rmps", "rmps2", "rshard2", "rcpu", "arr"} {
			f.Add(recorded(f, release, "detail-"+name), "x\n     Nodes=n1 CPU_IDs=0 Mem=1 GRES=mps:1(IDX:3)")
		}
	}
	f.Fuzz(func(t *testing.T, out []byte, text string) {
		gpus, ok := ParseDetail(out, "n1")
		if ok != (len(gpus) > 0) {
			t.Errorf("%v %v", gpus, ok)
		}
		for _, g := range gpus {
			if g < 0 || g >= maxGPUs {
				t.Errorf("GPU %d", g)
			}
		}
		// Whatever stands in a job's name and comment, its GPU is 0 or not known.
		forged := fmt.Sprintf("JobId=1 JobName=%s\n   NodeList=n1\n   JOB_GRES=mps:50\n     Nodes=n1 CPU_IDs=0-1 Mem=100 GRES=mps:50(IDX:0)\n   MinCPUsNode=1\n   SubmitLine=sbatch %s\n   Comment=%s\n", text, text, text)
		if gpus, ok := ParseDetail([]byte(forged), "n1"); ok && !slices.Equal(gpus, []int{0}) {
			t.Errorf("%q made it %v", text, gpus)
		}
	})
}

func TestParseConfigRecorded(t *testing.T) {
	for _, release := range releases {
		config := ParseConfig(recorded(t, release, "config"))
		for key, want := range map[string]string{
			"ClusterName": "recorded", "SlurmUser": "slurm(64030)", "GresTypes": "gpu,mps,shard", "JobSubmitPlugins": "", "SlurmctldHost[0]": "node(127.0.0.1)",
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
		if len(parts) != 3 || parts[0].Name != "gpu" || !parts[0].Default || parts[0].State != "UP" || parts[1].Default || parts[2].Name != "hidden" {
			t.Errorf("%s: %+v", release, parts)
		}
	}
}

func TestRecord(t *testing.T) {
	for _, release := range releases {
		lines := strings.Split(string(recorded(t, release, "partitions")), "\n")
		if f := record([]byte(lines[0])); f["PartitionName"] != "gpu" || f["Nodes"] != "n[1-4]" || f["Hidden"] != "NO" {
			t.Errorf("%s: %v", release, f)
		}
		if f := record([]byte(lines[2])); f["PartitionName"] != "hidden" || f["Hidden"] != "YES" {
			t.Errorf("%s: %v", release, f)
		}
	}
	if f := record([]byte("A=1 B=(null) A=2 C Text=x B=3 D=4"), "Text"); !maps.Equal(f, map[string]string{"A": "1", "B": ""}) {
		t.Errorf("%v", f)
	}
}

func TestNumberedSettings(t *testing.T) {
	c := ParseConfig([]byte("Prolog[0] = /a/*\nProlog[1] = /b\nEpilog = (null)\nSlurmctld(primary) at ctl is UP\n"))
	if c["Prolog"] != "/a/*,/b" || c["Epilog"] != "" {
		t.Errorf("%q", c)
	}
}

func TestRewritesTypes(t *testing.T) {
	for release, want := range map[string]bool{
		"22.05.8": false, "23.02.5": false, "23.02.6": true, "23.02.10": true, "23.11.0-rc1": true, "24.11.5": true, "25.05": true, "": false, "x": false,
	} {
		if FormOf(release).RewritesTypes != want {
			t.Errorf("%q: not %v", release, want)
		}
	}
}
