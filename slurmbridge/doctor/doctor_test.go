package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// active returns the settings of a bridge that is switched on.
func active() *config.Config {
	c := config.Default()
	c.Mode = "active"
	return c
}

func init() { probeTimeout = time.Minute }

func recorded(t *testing.T, name string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(filepath.Join("testdata", name)))(t))
}

func ptr[T any](v T) *T { return &v }

// bridged are the facts of a cluster where nothing is missing.
func bridged(t *testing.T, release string) *Facts {
	t.Helper()
	conf := text.ParseConfig([]byte(recorded(t, release+"-bridged.config")))
	conf["AuthType"] = "auth/munge" // 24.11.5 was recorded with auth/slurm, and with a limit on requests
	conf["SlurmctldParameters"] = "enable_configless"
	conf["PrologFlags"] = "Alloc,Contain"
	settings := active()
	settings.GatePartition, settings.SharersOnly = "gates", []string{"gpu"}
	return &Facts{
		Config:       conf,
		Nodes:        text.ParseNodes([]byte(recorded(t, release+"-bridged.nodes"))),
		Partitions:   text.ParsePartitions([]byte(recorded(t, release+"-bridged.partitions") + gates)),
		ConfDir:      "/etc/slurm",
		GresConf:     ptr("Name=gpu Type=titanxp File=/dev/nvidia0\nName=mps Count=100 File=/dev/nvidia0\n"),
		JobSubmitLua: ptr("slurmbridge.submit() slurmbridge.modify()"),
		Hooks: map[string][]Hook{
			"Prolog":          {{"/etc/slurm/prolog.d/50-slurmbridge", true, true}},
			"Epilog":          {{"/etc/slurm/epilog.d/50-slurmbridge", true, true}},
			"TaskProlog":      {{"/usr/lib/slurmbridge/taskprolog", true, true}},
			"EpilogSlurmctld": {{"/usr/lib/slurmbridge/epilog-slurmctld", true, true}},
		},
		MungeSocket: ptr(true),
		User:        "slurm",
		Agents:      map[string]Agent{"gpu1": {MPS: ptr(true)}, "gpu2": {MPS: ptr(true)}},
		Settings:    settings,
	}
}

// gates is the gate's partition, as scontrol shows it.
const gates = "PartitionName=gates Hidden=YES MaxTime=00:01:00 RootOnly=YES State=UP\n"

// named are the findings in one line.
func named(found []Finding) string {
	var out []string
	for _, f := range found {
		out = append(out, string(f.Severity)+" "+f.Check)
	}
	return strings.Join(out, ", ")
}

func TestPlainCluster(t *testing.T) {
	f := &Facts{
		Config:     text.ParseConfig([]byte(recorded(t, "22.05.8-plain.config"))),
		Nodes:      text.ParseNodes([]byte(recorded(t, "22.05.8-plain.nodes"))),
		Partitions: text.ParsePartitions([]byte(recorded(t, "22.05.8-plain.partitions"))),
		ConfDir:    "/etc/slurm", Hooks: map[string][]Hook{}, User: "slurm", Settings: active(),
		Missing: []string{"/run/slurmbridge"}, MungeSocket: ptr(true),
	}
	must.Equal(t, named(Examine(f)),
		"error used-gpus, error gres-types, error folder, error node-shares, error gpu-type, "+
			"error default-memory, error lua, error hook-prolog, error hook-epilog, error hook-taskprolog, "+
			"warning epilog-slurmctld, note prolog-flags, note gate-seen")
}

func TestNothingMissing(t *testing.T) {
	must.Equal(t, named(Examine(bridged(t, "24.11.5"))), "")
}

func TestWhatIsNotKnownIsNotBlamed(t *testing.T) {
	must.Equal(t, named(Examine(&Facts{Config: bridged(t, "22.05.8").Config, Settings: active()})), "")
}

// A situation is a cluster where nothing is missing, and then this.
type situation struct {
	name   string
	change func(*Facts)
	want   string // the findings
	fix    string // a line that the first of them tells to write; "" = not looked at
}

func at(name string, change func(*Facts), want, fix string) situation {
	return situation{name, change, want, fix}
}

// Ways in which a cluster changes.
var (
	in2411 = slurm("SLURM_VERSION", "24.11.5")
	shadow = func(f *Facts) { f.Settings.Mode = "shadow" }
)

// slurm sets settings of slurm.conf.
func slurm(pairs ...string) func(*Facts) {
	return func(f *Facts) {
		for i := 0; i < len(pairs); i += 2 {
			f.Config[pairs[i]] = pairs[i+1]
		}
	}
}

// all makes several changes.
func all(changes ...func(*Facts)) func(*Facts) {
	return func(f *Facts) {
		for _, change := range changes {
			change(f)
		}
	}
}

// node makes gpu1 the one node, with these generic resources, and gresConf is gres.conf.
func node(gres string) func(*Facts) {
	return func(f *Facts) { f.Nodes = text.ParseNodes([]byte("NodeName=gpu1 State=IDLE Gres=" + gres)) }
}
func gresConf(text string) func(*Facts) { return func(f *Facts) { f.GresConf = &text } }

// agent is what gpu2's says; MPS is there unless it says otherwise.
func agent(a Agent) func(*Facts) {
	return func(f *Facts) {
		if a.MPS == nil {
			a.MPS = ptr(true)
		}
		f.Agents["gpu2"] = a
	}
}

// serves is what a daemon says that is well, but for this; lua is job_submit.lua.
func serves(change func(*Daemon)) func(*Facts) {
	return func(f *Facts) {
		f.Daemon = &Daemon{Status: job.Status{Mode: "active", Policy: "dqn", Gate: "7"}}
		change(f.Daemon)
	}
}
func lua(text string) func(*Facts) { return func(f *Facts) { f.JobSubmitLua = &text } }

func refuses(r job.RefusedChanges) func(*Facts) {
	return serves(func(d *Daemon) { d.Refused = []job.RefusedChanges{r} })
}

func hook(name, setting string, has ...Hook) func(*Facts) {
	return func(f *Facts) { f.Config[name], f.Hooks[name] = setting, has }
}

func stack(lines ...string) func(*Facts) { return func(f *Facts) { f.PlugStack = lines } }

// ofGPUs gives the cluster accounting that counts GPUs and shares.
var ofGPUs = slurm("AccountingStorageType", "accounting_storage/slurmdbd",
	"AccountingStorageTRES", "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/mps")

func limits(l ...Limit) func(*Facts) { return func(f *Facts) { f.Limits = l } }

// shards makes a cluster share by shard.
func shards(f *Facts) {
	for i := range f.Nodes {
		f.Nodes[i].Shares = map[string]int{"shard": 100}
	}
	f.Config["GresTypes"], f.GresConf = "gpu,shard", ptr("Name=shard Count=100")
}

const ourLua = luaFirst + ` gate = "/run/slurmbridge/gate"`

var situations = []situation{
	at("no slurmctld", func(f *Facts) { f.Config = nil }, "error slurmctld", "scontrol ping"),
	at("old", slurm("SLURM_VERSION", "21.08.8"), "error release", ""),
	at("gives GPUs away twice", slurm("SLURM_VERSION", "25.05.0"), "error release-fault", ""),
	at("misses the ends of hooks", slurm("SLURM_VERSION", "25.11.3"), "warning release-fault", ""),
	at("untried", slurm("SLURM_VERSION", "26.11.0-rc1"), "note release-new", ""),
	at("whole GPUs in use", func(f *Facts) { f.Settings.SharersOnly = nil }, "error used-gpus", "sharers_only: [gpu]"),
	at("whole GPUs planned as if free", all(in2411, func(f *Facts) { f.Settings.SharersOnly = nil }), "error planned-gpus",
		"sharers_only: [gpu]"),
	at("whole GPUs planned as if free, as the site has it", all(in2411, func(f *Facts) {
		f.Settings.SharersOnly, f.Settings.MixedPartitions = nil, "share"
	}), "warning planned-gpus", "sharers_only: [gpu]"),
	at("whole GPUs planned right", all(slurm("SLURM_VERSION", "25.05.1"), func(f *Facts) { f.Settings.SharersOnly = nil }),
		"", ""),

	at("partitions that aren't there", func(f *Facts) {
		f.Settings.ExcludePartitions, f.Settings.HandShares = []string{"gqu"}, []string{"ann", "partition:gpu", "partition:x"}
	}, "error partitions-absent, error partitions-absent", "exclude_partitions: …   # without gqu"),

	at("both kinds", slurm("GresTypes", "gpu,mps,shard"), "error gres-both", "GresTypes=gpu,mps"),
	at("both kinds, and nodes have shards", all(shards, slurm("GresTypes", "gpu,MPS,shard")), "error gres-both",
		"GresTypes=gpu,shard"),
	at("both kinds, newer", all(in2411, slurm("GresTypes", "gpu,mps,shard")), "warning gres-both", ""),
	at("no shares", slurm("GresTypes", "gpu"), "error gres-types", "GresTypes=gpu,mps"),
	at("no gpu type", slurm("GresTypes", ""), "error gres-types", "GresTypes=gpu,mps"),
	at("other gres", slurm("GresTypes", "gpu,nic"), "error gres-types", "GresTypes=gpu,nic,mps"),
	at("linear", slurm("SelectType", "select/linear"), "error select-type", "SelectType=select/cons_tres"),
	at("several GPUs a job", slurm("SelectTypeParameters", "CR_CORE,MULTIPLE_SHARING_GRES_PJ"), "error multiple-sharing",
		"SelectTypeParameters=CR_CORE"),
	at("least loaded", all(node("gpu:titanxp:4,shard:400"), gresConf("Name=shard Count=400"),
		slurm("SelectTypeParameters", "CR_CORE_MEMORY,LL_SHARED_GRES")), "warning least-loaded",
		"SelectTypeParameters=CR_CORE_MEMORY"),
	at("short hooks", slurm("PrologEpilogTimeout", "20"), "warning hook-timeout", "PrologEpilogTimeout=120"),
	at("no extern step", slurm("PrologFlags", "Alloc,NoHold"), "note prolog-flags", "PrologFlags=Alloc,NoHold,Contain"),
	at("an extern step for X11", slurm("PrologFlags", "X11"), "", ""),
	at("preemption by QOS", all(slurm("PreemptType", "preempt/qos"), func(f *Facts) { f.QOS = ptr(true) }), "", ""),
	at("QOSes that can't be read", all(slurm("PreemptType", "preempt/qos"), func(f *Facts) { f.QOS = ptr(false) }),
		"note preempt", "sacctmgr -nP show qos format=Name,Preempt   # as slurm"),
	at("jobs forgotten", slurm("MinJobAge", "5 sec"), "warning min-job-age", "MinJobAge=300   # Slurm's default"),
	at("nobody is forgotten", slurm("MinJobAge", "0 sec"), "", ""),
	at("known long enough", slurm("MinJobAge", "30 sec"), "", ""),
	at("rate limit", slurm("SlurmctldParameters", "rl_enable"), "warning rate-limit",
		"SlurmctldParameters=rl_enable,rl_bucket_size=100,rl_refill_rate=20"),
	at("limits below need", slurm("SlurmctldParameters", "rl_bucket_size=200,rl_enable,idle_on_node_suspend,rl_refill_rate=5"),
		"warning rate-limit", "SlurmctldParameters=rl_enable,idle_on_node_suspend,rl_bucket_size=100,rl_refill_rate=20"),
	at("a limit far above need", slurm("SlurmctldParameters", "rl_enable,rl_bucket_size=100,rl_refill_rate=20"), "", ""),
	at("files that only root reads", func(f *Facts) { f.Unread, f.JobSubmitLua = []string{"/etc/slurm/job_submit.lua"}, ptr("") },
		"note files", ""),
	at("shadow", shadow, "note shadow", "mode: active"),
	at("no folder", func(f *Facts) { f.Missing = []string{"/run/slurmbridge"} }, "error folder",
		"install -d -o slurm -m 755 /run/slurmbridge"),
	at("any GPU can be opened", slurm("ConstrainDevices", "no", "TaskPlugin", "task/cgroup"), "note constrain-devices",
		"ConstrainDevices=yes"),
	at("nothing constrains", slurm("ConstrainDevices", "yes", "TaskPlugin", "task/affinity"), "note constrain-devices",
		"TaskPlugin=task/cgroup,task/affinity"),

	at("no gpu", node("(null)"), "error no-gpu", ""),
	at("node without shares", node("gpu:titanxp:2"), "error node-shares", "Name=mps Count=200 File=/dev/nvidia[0-1] Flags=all_sharing"),
	at("a node of other gres", node("gpu:titanxp:2,nic:2(S:0)"), "error node-shares",
		"NodeName=gpu1 … Gres=gpu:titanxp:2,mps:200,nic:2"),
	at("odd shares", all(node("gpu:titanxp:2,mps:150(S:0-1)"), gresConf("Name=mps Flags=all_sharing")),
		"error share-count", "Name=mps Count=200 File=/dev/nvidia[0-1] Flags=all_sharing"),
	at("a GPU without shares", all(node("gpu:titanxp:2,mps:100(S:0-1)"), gresConf("Name=mps Flags=all_sharing")),
		"warning gpu-without-shares", "Name=mps Count=200 File=/dev/nvidia[0-1] Flags=all_sharing"),
	at("MIG instances without shares", all(in2411, node("gpu:1g.10gb:7,gpu:h100:1")),
		"note mig-shares", "NodeName=gpu1 … Gres=gpu:1g.10gb:7,gpu:h100:1,mps:800"),
	at("MIG instances without shares, by mps", all(in2411, node("gpu:1g.10gb:7")), "note mig-shares",
		"Name=mps Count=700 Flags=all_sharing   # without File"),
	at("MIG instances of an old Slurm", node("gpu:1g.10gb:7(S:0)"), "", ""),
	at("shares of MIG instances of an old Slurm", all(node("gpu:1g.10gb:7,mps:700"),
		gresConf("Name=mps Count=700 Flags=all_sharing")),
		"warning mig-release", ""),
	at("less than promised", func(f *Facts) { f.Nodes[0].State = "IDLE+DRAIN+INVALID_REG" }, "error node-invalid",
		"scontrol show node gpu1 | grep Reason"),
	at("several by mps", node("gpu:titanxp:2(S:0),mps:200"), "warning one-sharing",
		"Name=mps Count=200 File=/dev/nvidia[0-1] Flags=all_sharing"),
	at("no gres.conf", func(f *Facts) { f.GresConf = nil }, "warning gres-conf", "Name=mps Count=100 File=/dev/nvidia0"),
	at("gres.conf without shares", gresConf("Name=gpu File=/dev/nvidia0\n#Name=mps Count=100\n"), "warning gres-conf",
		"Name=mps Count=100 File=/dev/nvidia0"),
	at("gres.conf of another kind", gresConf("Name=gpu\nName=shard Count=100\n"), "warning gres-conf", ""),
	at("gres.conf includes", gresConf("Name=gpu\nInclude /etc/slurm/gres.d/shares\n"), "", ""),
	at("gres.conf in capitals", gresConf("NodeName=gpu[1-2] NAME=MPS Count=100\n"), "", ""),
	at("gres.conf with blanks and quotes", gresConf("NodeName=gpu1 Name = \"mps\" Count = 100\n"), "", ""),
	at("several by mps, as another file says", all(node("gpu:titanxp:2,mps:200"), gresConf("include /etc/shares\n")), "", ""),
	at("several by mps, as a comment says", all(node("gpu:titanxp:2,mps:200"),
		gresConf("Name=mps Count=200 # not Flags=all_sharing\n")), "warning one-sharing", ""),
	at("gres.conf is not here", func(f *Facts) { f.ConfDir, f.GresConf, f.JobSubmitLua = "", nil, nil }, "", ""),
	at("untyped", node("gpu:1,mps:100"), "error gpu-type", "Name=gpu Type=TYPE File=/dev/nvidia0"),
	at("untyped, newer", all(in2411, node("gpu:1,mps:100")), "warning gpu-type", ""),
	at("unknown card", node("gpu:radeon:1,mps:100"), "warning gpu-unknown", "gpu_types:"),
	at("default memory for whole GPUs alone", func(f *Facts) {
		f.Config["DefMemPerCPU"], f.Partitions[0].PerGPU.MemMiB = "0", 2000
	}, "warning default-memory", ""),
	at("no default memory", slurm("DefMemPerCPU", "0"), "error default-memory",
		"PartitionName=gpu … DefMemPerCPU=2000   # MB; a node's memory divided by its cores is a good start"),
	at("memory by partition", func(f *Facts) { f.Config["DefMemPerCPU"], f.Partitions[0].DefMem = "0", true }, "", ""),
	at("other jobs' memory", func(f *Facts) {
		f.Config["DefMemPerCPU"], f.Partitions[0].DefMem = "0", true
		f.Partitions = append(f.Partitions, text.Partition{Name: "cpus", State: "UP"})
	}, "", ""),

	at("no lua", slurm("JobSubmitPlugins", ""), "error lua", "JobSubmitPlugins=lua"),
	at("no lua, newer", slurm("SLURM_VERSION", "23.02.6", "JobSubmitPlugins", ""), "warning lua", ""),
	at("other plugins", slurm("JobSubmitPlugins", "job_submit/pbs,require_timelimit"), "error lua",
		"JobSubmitPlugins=job_submit/pbs,require_timelimit,lua"),
	at("no script", func(f *Facts) { f.JobSubmitLua = nil }, "error lua",
		"install -m 644 /usr/share/slurmbridge/job_submit.lua /etc/slurm/job_submit.lua"),
	at("own script", lua("function slurm_job_submit() end"), "error lua",
		"return there and slurmbridge.submit(job_desc, part_list, submit_uid) or slurm.SUCCESS"),
	at("own script that loads files", lua("local rules = require('rules')"), "note lua",
		"return there and slurmbridge.submit(job_desc, part_list, submit_uid) or slurm.SUCCESS"),
	at("own script without modify", lua("return slurmbridge.submit()"), "warning lua-modify",
		"-- as the last thing of your slurm_job_modify:"),
	at("own script that calls ours", func(f *Facts) {
		f.JobSubmitLua, f.PackagedLua = ptr("local s = dofile('slurmbridge') s.modify()"), ptr("-- slurmbridge: x")
	}, "", ""),
	at("gate file elsewhere", lua(luaFirst+` gate = "/run/elsewhere/gate",`), "error lua-gate-file",
		`gate = "/run/slurmbridge/gate",`),
	at("the script says mps", all(shards, lua(ourLua+`, gres = "mps",`)), "warning lua-gres", `gres = "shard",`),
	at("old script", func(f *Facts) {
		f.JobSubmitLua, f.PackagedLua = ptr(ourLua+"\nlocal M = { conf }\nold"), ptr(luaFirst+"\nlocal M = { conf }\nnew")
	}, "warning lua-version", "install -m 644 /usr/share/slurmbridge/job_submit.lua /etc/slurm/job_submit.lua"),
	at("settings of a site in our script", func(f *Facts) {
		f.JobSubmitLua = ptr(ourLua + ", -- the bridge's file\ngres = \"shard\",\nlocal M = {}")
		f.PackagedLua = ptr(luaFirst + "\ngres = \"mps\",\nlocal M = {}")
	}, "", ""),

	at("other user", func(f *Facts) { f.User = "alice" }, "error gate-rights", "User=slurm"),
	at("root is barred", func(f *Facts) { f.User, f.Config["DisableRootJobs"] = "root", "YES" }, "error gate-rights",
		"User=slurm"),
	at("accounts", slurm("AccountingStorageEnforce", "associations,limits"), "warning gate-account",
		"sacctmgr add user slurm account=ACCOUNT"),
	at("no account", func(f *Facts) { f.Config["AccountingStorageEnforce"], f.Account = "safe", ptr(false) },
		"error gate-account", "sacctmgr add user slurm account=ACCOUNT"),

	at("no partition for the gate", func(f *Facts) { f.Partitions = f.Partitions[:1] }, "note gate-seen",
		"PartitionName=gates Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1 OverSubscribe=NO"),
	at("no partition for the gate, and nobody sees it", func(f *Facts) {
		f.Partitions, f.Config["PrivateData"] = f.Partitions[:1], "jobs"
	}, "", ""),
	at("the gate's partition enters other lists", slurm("JobSubmitPlugins", "lua,job_submit/all_partitions,pbs"),
		"error gate-in-lists", "JobSubmitPlugins=job_submit/all_partitions,pbs,lua"),
	at("no partition for the gate, and it would enter other lists", func(f *Facts) {
		f.Partitions, f.Config["JobSubmitPlugins"] = f.Partitions[:1], "lua,all_partitions"
	}, "note gate-seen", "JobSubmitPlugins=all_partitions,lua"),
	at("the gate's partition is down", func(f *Facts) { f.Partitions[1].State = "DOWN" }, "warning gate-partition",
		"scontrol update PartitionName=gates State=UP"),
	at("the gate's partition hands out whole nodes", func(f *Facts) { f.Partitions[1].WholeNodes = true },
		"warning gate-partition", "PartitionName=gates … OverSubscribe=NO"),
	at("a partition of whole nodes", all(func(f *Facts) {
		f.Nodes[0].Partitions = append(f.Nodes[0].Partitions, "whole")
		f.Partitions = append(f.Partitions, text.Partition{Name: "whole", State: "UP", WholeNodes: true, DefMem: true})
		f.Settings.SharersOnly = nil
	}), "error used-gpus, note whole-nodes", "sharers_only: [gpu]"),
	at("a partition that keeps users apart", func(f *Facts) { f.Partitions[0].OneUser = true }, "note one-user", ""),
	at("the gate's partition is seen", func(f *Facts) { f.Partitions[1].Hidden = false }, "note gate-seen",
		"PartitionName=gates … Hidden=YES"),
	at("the gate is to be among the jobs", func(f *Facts) { f.Settings.GatePartition = "" }, "note gate-seen",
		"gate_partition: slurmbridge"),
	at("and no partition takes jobs", func(f *Facts) { f.Settings.GatePartition, f.Partitions[0].State = "", "DRAIN" },
		"error gate-partition, note gate-seen", "scontrol update PartitionName=gpu State=UP"),
	at("partition down", func(f *Facts) { f.Partitions[0].State = "DOWN" }, "", ""),
	at("partition drains, and the gate has its own", func(f *Facts) { f.Partitions[0].State = "DRAIN" }, "", ""),

	at("no prolog", func(f *Facts) { f.Hooks["Prolog"] = nil }, "error hook-prolog",
		"ln -s /usr/lib/slurmbridge/prolog /etc/slurm/prolog.d/50-slurmbridge"),
	at("prologs by several patterns", hook("Prolog", "/opt/a,/etc/slurm/prolog.d/*.sh", Hook{"/opt/a", true, false}),
		"error hook-prolog", "ln -s /usr/lib/slurmbridge/prolog /etc/slurm/prolog.d/50-slurmbridge.sh"),
	at("other epilog", hook("Epilog", "/x", Hook{"/x", true, false}), "error hook-epilog",
		"/usr/lib/slurmbridge/epilog   # call it there, in the same environment"),
	at("epilog that is on the nodes", hook("Epilog", "/etc/slurm/epilog.d/*", Hook{"/etc/slurm/epilog.d/*", false, false}),
		"note hook-epilog", "ln -s /usr/lib/slurmbridge/epilog /etc/slurm/epilog.d/50-slurmbridge"),
	at("no epilog at all", slurm("Epilog", ""), "warning epilog-order", "Epilog=/usr/lib/slurmbridge/epilog"),
	at("no task prolog", hook("TaskProlog", ""), "error hook-taskprolog", "TaskProlog=/usr/lib/slurmbridge/taskprolog"),
	at("TaskProlog beside Pyxis", stack("required spank_pyxis.so"), "error task-prolog-pyxis",
		"optional /usr/lib/slurmbridge/spank.so"),
	at("Pyxis, and nothing tells tasks", all(hook("TaskProlog", ""), stack("required spank_pyxis.so")),
		"error hook-taskprolog", "optional /usr/lib/slurmbridge/spank.so"),
	at("Pyxis, and a task prolog that is none of ours",
		all(hook("TaskProlog", "/x", Hook{"/x", false, false}), stack("required spank_pyxis.so")), "error hook-taskprolog",
		"optional /usr/lib/slurmbridge/spank.so"),
	at("Pyxis above our plugin", all(hook("TaskProlog", ""),
		stack("required /opt/spank_pyxis.so", "optional /usr/lib/slurmbridge/spank.so")), "warning plugin-order",
		"optional /usr/lib/slurmbridge/spank.so"),
	at("our plugin in place of TaskProlog", all(hook("TaskProlog", ""),
		stack("optional /usr/lib/slurmbridge/spank.so", "required spank_pyxis.so")), "", ""),
	at("no epilogslurmctld", hook("EpilogSlurmctld", ""), "warning epilog-slurmctld",
		"EpilogSlurmctld=/usr/lib/slurmbridge/epilog-slurmctld"),
	at("another epilogslurmctld", hook("EpilogSlurmctld", "/opt/end", Hook{"/opt/end", true, false}),
		"warning epilog-slurmctld",
		"/usr/lib/slurmbridge/epilog-slurmctld   # call it there, in the same environment"),
	at("drained", func(f *Facts) { f.Nodes[1].Reason = "Prolog error" }, "error drained",
		"scontrol update NodeName=gpu2 State=RESUME"),
	at("jobs' own /dev/shm, always", slurm("JobContainerType", "job_container/tmpfs"), "error private-memory",
		"JobContainerType=job_container/none   # or a newer Slurm, with Dirs=/tmp in job_container.conf"),

	at("no munged", func(f *Facts) { f.MungeSocket = ptr(false) }, "error munge", "systemctl enable --now munge"),
	at("munge fails", func(f *Facts) { f.Munge = ptr("munged does not answer") }, "error munge", "munge -n | unmunge"),
	at("munge is well", func(f *Facts) { f.Munge = ptr("") }, "", ""),
	at("no munge", slurm("AuthType", "auth/slurm"), "error key",
		"(umask 077; set -C; head -c 32 /dev/urandom | base64 >/etc/slurmbridge/key)   # unless there is a good one"),
	at("no munge, and it doesn't work", func(f *Facts) {
		f.Config["AuthType"], f.Munge = "auth/slurm", ptr("munged does not answer")
	}, "error key", "key_file: /etc/slurmbridge/key"),
	at("a key that others read", func(f *Facts) {
		f.Config["AuthType"], f.Key, f.Settings.KeyFile = "auth/slurm", ptr("/srv/key has mode 0644"), "/srv/key"
	}, "error key", "chown slurm: /srv/key; chmod 600 /srv/key"),
	at("a key is well", func(f *Facts) { f.Config["AuthType"], f.Key, f.MungeSocket = "auth/slurm", ptr(""), ptr(false) },
		"", ""),
	at("users of hidden jobs have no tokens", func(f *Facts) {
		f.Config["AuthType"], f.Config["PrivateData"], f.Key, f.Token = "auth/slurm", "jobs", ptr(""), ptr("no socket")
	}, "warning token", ""),

	at("clock", agent(Agent{Answer: Answer{Ahead: -3 * time.Second}}), "warning clock", ""),
	at("a clock a second off", agent(Agent{Answer: Answer{Ahead: -1200 * time.Millisecond}}), "", ""),
	at("agent away", agent(Agent{Answer: Answer{Silent: "connection refused"}}), "warning agent", ""),
	at("agent of a node asleep", func(f *Facts) { f.Nodes[0].Asleep = true; delete(f.Agents, "gpu1") }, "", ""),
	at("agent unheard of", func(f *Facts) { delete(f.Agents, "gpu1") }, "warning agent", ""),
	at("agent unwell", agent(Agent{Answer: Answer{Sick: "the last pass failed"}}), "warning agent-sick",
		"journalctl -u gpuprof -n 50   # on each of them"),
	at("hooks' settings", agent(Agent{Hooks: ptr(false)}), "warning hook-settings", ""),
	at("no mps binary", agent(Agent{MPS: ptr(false)}), "error mps-binary", ""),
	at("no mps for shards", all(shards, agent(Agent{MPS: ptr(false)})), "error mps-binary", ""),
	at("nothing shared, no mps needed", all(agent(Agent{MPS: ptr(false)}), func(f *Facts) { f.Nodes[1].Shares = nil }),
		"error node-shares", ""),
	at("no memory limits", agent(Agent{NoLimits: ptr(true)}), "warning mps-memory-limit", ""),
	at("cold GPUs", agent(Agent{Cold: true}), "warning persistence-mode",
		"systemctl enable --now nvidia-persistenced   # on each of them"),
	at("closed GPUs", agent(Agent{Modes: []string{"prohibited"}}), "error compute-mode",
		"nvidia-smi -c DEFAULT   # on each of them, at every boot"),
	at("exclusive GPUs", agent(Agent{Modes: []string{"default", "exclusive_process"}}), "warning compute-exclusive",
		"nvidia-smi -c DEFAULT   # on each of them, at every boot"),
	at("exclusive GPUs, and jobs' own /dev/shm", all(agent(Agent{Modes: []string{"exclusive_process"}}),
		slurm("JobContainerType", "job_container/tmpfs")), "error private-memory, error compute-exclusive",
		"nvidia-smi -c DEFAULT   # on each of them, at every boot"),
	at("GPUs in no certain order", agent(Agent{Uncertain: 2}), "warning gpu-order",
		"AutoDetect=nvml   # and no File= of GPUs; or AutoDetect=off, and File= in the order of nvidia-smi"),

	at("the daemon is well", serves(func(*Daemon) {}), "", ""),
	at("no daemon", func(f *Facts) { f.Daemon = &Daemon{Answer: Answer{Silent: "connection refused"}} }, "warning daemon",
		"systemctl enable --now slurmbridge"),
	at("daemon fails", serves(func(d *Daemon) { d.Sick = "no look yet" }), "error daemon-poll",
		"journalctl -u slurmbridge -n 50"),
	at("no gate", serves(func(d *Daemon) { d.Gate = "" }), "error gate",
		"journalctl -u slurmbridge -g gate   # Slurm's answer"),
	at("a site's script refuses the gate", serves(func(d *Daemon) {
		d.Gate, d.GateErr = "", "create gate: sbatch: slurmctld refused: Batch job submission failed: Unspecified error"
	}), "error gate", "if submit_uid == 64030 then return slurm.SUCCESS end   -- the bridge's gate passes"),
	at("held gate", serves(func(d *Daemon) { d.GateErr = "gate 7: held" }), "error gate",
		"slurmbridge open   # lets every waiting job start"),
	at("gate over a limit", serves(func(d *Daemon) {
		d.Gate, d.GateErr = "", "create gate: Job violates accounting/QOS policy (job submit limit, user's size)"
	}), "error gate", "sacctmgr modify user slurm set MaxSubmitJobs=-1 MaxJobs=-1   # if a limit holds the gate"),
	at("a plugin refuses shares", refuses(job.RefusedChanges{Step: job.StepPrepare, Times: 4, GivenUp: 2}),
		"warning refused", "if modify_uid == 64030 then return slurm.SUCCESS end   -- the bridge's changes pass"),
	at("a plugin lets no job go", all(slurm("JobSubmitPlugins", "lua,throttle"), func(f *Facts) { f.User = "root" },
		refuses(job.RefusedChanges{Step: job.StepUngate, Code: "ESLURM_ACCESS_DENIED", Times: 2})), "error refused",
		"if modify_uid == 0 then return slurm.SUCCESS end   -- the bridge's changes pass"),
	at("no more time", refuses(job.RefusedChanges{Step: job.StepExtend, Code: "other", Times: 1}), "warning refused", ""),
	at("Slurm refuses once", all(lua(ourLua), refuses(job.RefusedChanges{Step: job.StepPrepare, Code: "other", Times: 1})),
		"note refused", "journalctl -u slurmbridge -g refused   # each with Slurm's words; plugins here: lua"),
	at("another mode", serves(func(d *Daemon) { d.Mode = "shadow" }), "warning daemon-mode",
		"systemctl reload slurmbridge"),
	at("another policy", serves(func(d *Daemon) { d.Policy = "greedy" }), "warning policy",
		"journalctl -u slurmbridge -g model"),

	at("shares in no account", slurm("AccountingStorageType", "accounting_storage/slurmdbd"), "note shares-accounted",
		"AccountingStorageTRES=gres/mps"),
	at("shares in no account, GPUs are", slurm("AccountingStorageType", "accounting_storage/slurmdbd",
		"AccountingStorageTRES", "cpu,mem,billing,fs/disk,gres/gpu,gres/gpu:titanxp"), "note shares-accounted",
		"AccountingStorageTRES=gres/gpu,gres/gpu:titanxp,gres/mps"),
	at("limit on GPUs", all(ofGPUs, limits(Limit{"qos normal", "MaxTRESPerUser", "cpu=8,gres/gpu=2"},
		Limit{"qos both", "GrpTRES", "gres/gpu=2,gres/mps=100"})), "note shares-limits",
		"sacctmgr modify qos normal set MaxTRESPerUser=gres/mps=200"),
	at("limit on GPUs, enforced", all(ofGPUs, limits(Limit{"user ann where account=lab", "GrpTRES", "gres/gpu=1"}),
		slurm("AccountingStorageEnforce", "associations,limits,qos"), func(f *Facts) { f.Account = ptr(true) }),
		"warning shares-limits", "sacctmgr modify user ann where account=lab set GrpTRES=gres/mps=100"),
	at("limits on types of GPUs", all(ofGPUs, limits(Limit{"qos a", "GrpTRES", "gres/gpu:a100=2,gres/gpu:v100=4"})),
		"note shares-limits", "sacctmgr modify qos a set GrpTRES=gres/mps=600"),
	at("bill for types of GPUs", all(ofGPUs, func(f *Facts) {
		f.Partitions[0].Billing = "CPU=1.0, GRES/gpu:a100=20,GRES/gpu:v100=10"
	}), "note shares-billed", "PartitionName=gpu … TRESBillingWeights=CPU=1.0, GRES/gpu:a100=20,GRES/gpu:v100=10,GRES/mps=0.2"),
	at("GPUs cost nothing", all(ofGPUs, func(f *Facts) { f.Partitions[0].Billing = "CPU=1.0,GRES/gpu=0" }), "", ""),
	at("bill for GPUs", all(ofGPUs, func(f *Facts) { f.Partitions[0].Billing = "CPU=1.0,GRES/gpu=20" }),
		"note shares-billed", "PartitionName=gpu … TRESBillingWeights=CPU=1.0,GRES/gpu=20,GRES/mps=0.2"),
	at("no charge for adopted jobs", all(ofGPUs, func(f *Facts) {
		f.Partitions[0].Billing, f.Settings.Adopt = "GRES/gpu=20", []adopt.Rule{{}}
	}), "warning shares-billed", "PartitionName=gpu … TRESBillingWeights=GRES/gpu=20,GRES/mps=0.2"),
	at("defaults per GPU where jobs are adopted", func(f *Facts) {
		f.Partitions[0].PerGPU.CPUs, f.Settings.Adopt = 4, []adopt.Rule{{Never: true}, {Partitions: []string{"gpu"}}}
	}, "warning adopt-per-gpu",
		"PartitionName=… DefMemPerCPU=…   # in place of JobDefaults=DefCpuPerGPU=…,DefMemPerGPU=…"),

	at("defaults per GPU where nothing is shared", func(f *Facts) {
		f.Config["JobDefaults"], f.Settings.Adopt = "DefCpuPerGPU=4", []adopt.Rule{{Partitions: []string{"cpus"}}}
		f.Partitions = append(f.Partitions, text.Partition{Name: "cpus", State: "UP"})
	}, "", ""),

	// Slurm takes most of its plugins' names with their kind in front and without it.
	at("plugins' long names", slurm("JobSubmitPlugins", "job_submit/all_partitions,job_submit/lua"), "", ""),
	at("plugins' short names", slurm("AuthType", "munge", "SelectType", "cons_tres", "TaskPlugin", "affinity,cgroup",
		"ConstrainDevices", "yes"), "", ""),
}

// Each situation has its own findings and no others, each finding says what is so, why and what it costs to follow, and
// each row of the table is found in one situation at least.
func TestSituations(t *testing.T) {
	rows := map[int]bool{}
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			f := bridged(t, "22.05.8")
			s.change(f)
			found := Examine(f)
			must.Equal(t, named(found), s.want)
			var lines []string
			for _, finding := range found {
				texts := finding.What + "|" + finding.Why + "|" + finding.Cost
				for _, fix := range finding.Fix {
					lines = append(lines, fix.Lines...)
					texts += "|" + fix.File + "|" + strings.Join(fix.Lines, "|")
					if strings.HasSuffix(fix.File, ".conf") && finding.Cost == "" {
						t.Errorf("%s: advice for %s that doesn't say what it costs", finding.Check, fix.File)
					}
				}
				if finding.What == "" || finding.Why == "" || strings.Contains(texts, "$") {
					t.Errorf("%s says %q", finding.Check, texts)
				}
			}
			if s.fix != "" && !slices.Contains(lines, s.fix) {
				t.Errorf("no line %q in %q", s.fix, lines)
			}
			for i, c := range newExam(f).checks() {
				rows[i] = rows[i] || c.reads(f) && len(c.hits) > 0
			}
		})
	}
	for i, c := range newExam(bridged(t, "22.05.8")).checks() {
		if !rows[i] && c.name != "private-memory" { // see TestPrivateMemory
			t.Errorf("no situation has %s: %s", c.name, c.what)
		}
	}
}

// Jobs with a /dev/shm of their own don't reach an MPS server; each release has its own file that says which have one.
func TestPrivateMemory(t *testing.T) {
	const jobContainer, tmpfs, linux = "job_container/tmpfs", "namespace/tmpfs", "namespace/linux"
	for _, c := range []struct {
		plugin string
		conf   *string
		want   string
	}{
		{"job_container/none", nil, ""},
		{jobContainer, nil, "warning private-memory"},
		{jobContainer, ptr("AutoBasePath=true\nBasePath=/var/tmp # Dirs=/tmp\n"), "error private-memory"},
		{jobContainer, ptr("BasePath=/x Dirs=/tmp,/dev/shm"), "error private-memory"},
		{jobContainer, ptr("BasePath=/x\nDirs=/tmp\nNodeName=gpu1 BasePath=/y dirs=/dev/shm"), "error private-memory"},
		{jobContainer, ptr("BasePath=/x\nDirs=\"/tmp,/var/tmp\"  # not /dev/shm"), ""},
		{tmpfs, ptr("BasePath=/x"), "error private-memory"},
		{tmpfs, ptr("BasePath=/x Dirs=/tmp"), ""},
		{linux, ptr("defaults:\n  base_path: /x\n"), "error private-memory"},
		{linux, ptr("defaults:\n  dirs: /tmp\n"), ""},
		{linux, ptr("defaults:\n  dirs: /tmp\nnode_confs:\n- nodes: [gpu1]\n  options:\n    dir_confs:\n" +
			"    - path: /dev/shm\n"), "error private-memory"},
		{linux, ptr("a: [\n"), "error private-memory"},
	} {
		f := bridged(t, "24.11.5")
		key := "NamespaceType"
		if strings.HasPrefix(c.plugin, "job_container") {
			key = "JobContainerType"
		}
		f.Config[key], f.Namespaces = c.plugin, c.conf
		must.Equal(t, named(Examine(f)), c.want, c)
	}
}

func TestRenderings(t *testing.T) {
	f := bridged(t, "22.05.8")
	all(slurm("PrologTimeout", "20"), shadow)(f)
	found := Examine(f)
	must.Equal(t, Text(found), `warning  PrologTimeout is 20s
         Slurm drains a node whose hook takes longer; slurmbridge-hook ends within 30 s, the site's own hooks may not.
         Costs: A hook that hangs, including the site's own, keeps its node from other jobs for that long before `+
		`Slurm drains it.
         in /etc/slurm/slurm.conf:
             PrologTimeout=120

note     the bridge is in shadow mode
         It decides and records, and changes nothing.
         Costs: Jobs that ask to share wait behind the gate, beside an idle GPU for max_delay at most, and share.
         in /etc/slurmbridge/slurmbridge.yaml, in place of the line that is there:
             mode: active

1 warning. slurmbridge works, but not as well as it could.
`)
	must.Equal(t, Text(nil), "Nothing is missing.\n")
	for want, findings := range map[int][]Finding{
		0: {{Severity: Note}}, 1: found, 2: {{Severity: Warning}, {Severity: Error}},
	} {
		must.Equal(t, Exit(findings), want, findings)
	}
}

func TestCollect(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "slurm.conf")
	put := func(name, text string) string {
		p := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(p), 0o700))
		must.OK(t, os.WriteFile(p, []byte(text), 0o600))
		return p
	}
	put("slurm.conf", "")
	put("gres.conf", "Name=gpu")
	put("plugstack.conf", "# required gone.so\noptional a.so  x\n\ninclude plugstack.conf.d/*.conf\noptional z.so\n")
	put("plugstack.conf.d/pyxis.conf", "required spank_pyxis.so\ninclude more*\n")
	// It includes itself, and is read as often as files may include each other.
	put("plugstack.conf.d/more", "optional b.so\ninclude "+dir+"/plugstack.conf.d/more\n")
	hook := put("slurmbridge-hook", "")
	put("prolog.d/10-site", "# not /usr/lib/slurmbridge/prolog\n")
	put("site-epilog", "#!/bin/sh\nexec /usr/lib/slurmbridge/epilog\n")
	must.OK(t, os.Symlink(hook, filepath.Join(dir, "prolog.d/50-gpu")))
	ask := func(_ context.Context, program string, args ...string) (string, error) {
		switch program + " " + strings.Join(args, " ") {
		case "scontrol show config":
			return "SLURM_CONF = " + conf + "\nProlog = prolog.d/*\nEpilog = " + dir + "/site-epilog\n" +
				"TaskProlog = /nowhere/slurmbridge\n", nil
		case "scontrol -o -a show nodes":
			return "NodeName=a Gres=gpu:t4:1\n", nil
		}
		return "", errors.New("busy")
	}
	settings := active()
	settings.RunDir, settings.Database, settings.MungeSocket = dir, dir+"/absent/db", conf
	f := must.Get(Collect(t.Context(), ask, settings, "slurm"))(t)
	must.Equal(t, len(f.Nodes), 1)
	f.Config, f.Nodes = nil, nil
	must.Equal(t, f, &Facts{
		Settings: settings, User: "slurm", ConfDir: dir, GresConf: ptr("Name=gpu"), MungeSocket: ptr(true),
		Missing:   []string{dir + "/absent"},
		PlugStack: []string{"optional a.so x", "required spank_pyxis.so", "optional b.so", "optional b.so", "optional z.so"},
		Hooks: map[string][]Hook{
			"Prolog":     {{dir + "/prolog.d/10-site", true, false}, {dir + "/prolog.d/50-gpu", true, true}},
			"Epilog":     {{dir + "/site-epilog", true, true}},
			"TaskProlog": {{"/nowhere/slurmbridge", false, true}},
		},
	})
	settings.KeyFile = put("key", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n")
	must.OK(t, os.Chmod(settings.KeyFile, 0o644))
	f = must.Get(Collect(t.Context(), ask, settings, "root"))(t)
	must.Contain(t, orEmpty(f.Key), "0644", "a key that everybody reads")
	silent := func(context.Context, string, ...string) (string, error) { return "", errors.New("down") }
	must.Equal(t, must.Get(Collect(t.Context(), silent, settings, ""))(t), &Facts{Settings: settings}, "slurmctld down")
}

// What accounting knows of the bridge's user, and of limits.
func TestAccounting(t *testing.T) {
	f := &Facts{Config: map[string]string{"ClusterName": "c"}, User: "slurm"}
	ask := func(_ context.Context, program string, args ...string) (string, error) {
		switch program + " " + strings.Join(args, " ") {
		case "sacctmgr -n -P show assoc cluster=c user=slurm format=Account":
			return "root\n", nil
		case "sacctmgr -n -P show qos format=Name,GrpTRES,MaxTRESPA,MaxTRESPU":
			return "normal|||gres/gpu=2\nhigh|gres/gpu=9||\n\n", nil
		case "sacctmgr -n -P show assoc cluster=c format=Account,User,GrpTRES":
			return "lab||gres/gpu=4\nlab|ann|gres/gpu=1\nrubbish\n", nil
		}
		return "", errors.New("unexpected")
	}
	f.askAccounting(t.Context(), ask)
	f.Config = nil
	must.Equal(t, f, &Facts{
		User: "slurm", Account: ptr(true), QOS: ptr(true),
		Limits: []Limit{
			{"qos normal", "MaxTRESPerUser", "gres/gpu=2"},
			{"qos high", "GrpTRES", "gres/gpu=9"},
			{"account lab where cluster=c", "GrpTRES", "gres/gpu=4"},
			{"user ann where account=lab cluster=c", "GrpTRES", "gres/gpu=1"},
		},
	})
}

// No text that a Slurm might print makes the parsers or the checks fall over.
func FuzzExamine(f *testing.F) {
	f.Add("SLURM_VERSION = 22.05.8\nGresTypes = gpu\n", "NodeName=a Gres=gpu:1\n", "PartitionName=p Default=YES\n")
	f.Add("Prolog[0 = x\n=\n", "NodeName=a Gres=gpu:((,)):-1,mps:9999999999999999999\n", "=\n")
	rank := func(s Severity) int { return slices.Index([]Severity{Error, Warning, Note}, s) }
	f.Fuzz(func(t *testing.T, conf, nodes, partitions string) {
		facts := &Facts{
			Config: text.ParseConfig([]byte(conf)), Nodes: text.ParseNodes([]byte(nodes)),
			Partitions: text.ParsePartitions([]byte(partitions)), Hooks: map[string][]Hook{}, User: "slurm",
			Settings: active(),
		}
		found := Examine(facts)
		if Text(found) == "" {
			t.Error("nothing was said")
		}
		if !slices.IsSortedFunc(found, func(a, b Finding) int { return rank(a.Severity) - rank(b.Severity) }) {
			t.Errorf("not worst first: %v", named(found))
		}
	})
}

// What an agent answers, and what doctor takes it for.
func TestAskAgents(t *testing.T) {
	const metrics = `# TYPE gpuprof_mps_control_present gauge
gpuprof_mps_control_present 0
# TYPE gpuprof_hook_settings_ok gauge
gpuprof_hook_settings_ok 1
# TYPE gpuprof_mps_memory_limit_missing gauge
gpuprof_mps_memory_limit_missing 1
# TYPE gpuprof_compute_mode gauge
gpuprof_compute_mode{mode="exclusive_process",uuid="GPU-a"} 1
# TYPE gpuprof_gpus_uncertain gauge
gpuprof_gpus_uncertain 2
# TYPE gpuprof_persistence_mode gauge
gpuprof_persistence_mode{uuid="GPU-a"} 0
gpuprof_persistence_mode{uuid="GPU-b"} 1
`
	says := func(status int, healthy, metrics string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				fmt.Fprint(w, metrics)
				return
			}
			w.WriteHeader(status)
			fmt.Fprintln(w, healthy)
		}
	}
	well := says(http.StatusOK, "healthy", "<html>")
	silent := func(why string) Agent { return Agent{Answer: Answer{Silent: why}} }
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		https  bool // it speaks TLS
		scheme string
		client *http.Client
		want   Agent
	}{
		"well":               {well, false, "http", http.DefaultClient, Agent{}},
		"well TLS":           {well, true, "https", trusting, Agent{}},
		"TLS, asked without": {well, true, "http", http.DefaultClient, silent("it requires TLS")},
		"TLS of an unknown CA": {
			well, true, "https", http.DefaultClient, silent("x509: certificate signed by unknown authority"),
		},
		"no TLS": {well, false, "https", http.DefaultClient, silent("http: server gave HTTP response to HTTPS client")},
		"a password": {
			says(http.StatusUnauthorized, "", ""), false, "http", http.DefaultClient, silent("it requires a password"),
		},
		"sick, with metrics": {
			says(http.StatusServiceUnavailable, "the last sample\nwas 20s ago", metrics), false, "http",
			http.DefaultClient,
			Agent{
				Answer: Answer{Sick: "the last sample was 20s ago"}, MPS: ptr(false), Hooks: ptr(true),
				NoLimits: ptr(true), Modes: []string{"exclusive_process"}, Cold: true, Uncertain: 2,
			},
		},
	} {
		srv := httptest.NewUnstartedServer(c.serve)
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		start := srv.Start
		if c.https {
			start = srv.StartTLS
		}
		start()
		_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
		nodes := text.ParseNodes([]byte("NodeName=gpu1 NodeAddr=127.0.0.1 Gres=gpu:t4:1\nNodeName=cpu1\n"))
		ask := func() map[string]Agent { return AskAgents(t.Context(), c.client, c.scheme+"://{node}:"+port, nodes) }
		got := ask()
		must.Equal(t, len(got), 1, name)
		a := got["gpu1"]
		a.Ahead = 0
		must.Equal(t, a, c.want, name)
		srv.Close()
		must.Equal(t, ask()["gpu1"].Silent, "connection refused", name)
	}
	node := text.Node{Node: job.Node{Name: "a", GPUs: 1}}
	got := AskAgents(t.Context(), http.DefaultClient, "http://{node} x", []text.Node{node})
	if got["a"].Silent == "" {
		t.Error("an address that is none")
	}
}

// A clock that is an hour late is noticed by the date of an answer.
func TestALateClockIsNoticed(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
	}))
	defer srv.Close()
	if off := get(t.Context(), http.DefaultClient, srv.URL).Ahead + time.Hour; off.Abs() > time.Minute {
		t.Errorf("%s off", off)
	}
}

func TestAskDaemon(t *testing.T) {
	for _, c := range []struct {
		status int
		answer string
		want   Daemon
	}{
		{http.StatusOK, `{"mode":"active","policy":"dqn"}`, Daemon{Status: job.Status{Mode: "active", Policy: "dqn"}}},
		{http.StatusOK, `{"error":"down"}`, Daemon{Status: job.Status{Err: "down"}, Answer: Answer{Sick: "down"}}},
		{http.StatusOK, "<html>", Daemon{Answer: Answer{Silent: "another program answers there"}}},
		{http.StatusServiceUnavailable, "no look yet", Daemon{Answer: Answer{Sick: "no look yet"}}},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			must.Equal(t, r.URL.Path, "/v1/status")
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.answer)
		}))
		got := AskDaemon(t.Context(), http.DefaultClient, srv.URL+"/")
		got.Ahead = 0
		must.Equal(t, *got, c.want)
		srv.Close()
		must.Equal(t, AskDaemon(t.Context(), http.DefaultClient, srv.URL).Silent, "connection refused")
	}
}

type fakeMethod struct {
	credential.Method
	encode, decode error
}

func (f fakeMethod) Encode(context.Context, string) (string, error) { return "MUNGE:x:", f.encode }
func (f fakeMethod) Decode(context.Context, string) (*credential.Credential, error) {
	return &credential.Credential{}, f.decode
}

func TestTryCredential(t *testing.T) {
	for want, m := range map[string]fakeMethod{
		"":                           {},
		"munged does not answer":     {encode: errors.New("munged does not answer")},
		"the credential\nis invalid": {decode: errors.New("the credential\nis invalid")},
	} {
		must.Equal(t, TryCredential(context.Background(), m), strings.ReplaceAll(want, "\n", " "))
	}
}

func TestUnitUser(t *testing.T) {
	for properties, want := range map[string]string{
		"":                                "", // systemctl fails
		"LoadState=not-found\nUser=\n":    "",
		"User=slurm\nLoadState=loaded\n":  "slurm",
		"LoadState=loaded\nUser=\n":       "root",
		"LoadState=masked\nUser=nobody\n": "",
	} {
		must.Equal(t, UnitUser(properties), want, properties)
	}
}

// Hosts are written as Slurm does.
func TestFoldedHosts(t *testing.T) {
	for want, names := range map[string][]string{
		"gpu[1-3,7]":          {"gpu1", "gpu3", "gpu2", "gpu7"},
		"a1,a2,b":             {"a1", "a2", "b"},
		"n01,n02,n03":         {"n01", "n02", "n03"},
		"r1n[0-2],r2n4":       {"r1n0", "r1n1", "r1n2", "r2n4"},
		"head":                {"head"},
		"x[8-10],99999999999": {"x8", "x9", "x10", "99999999999"},
	} {
		must.Equal(t, fold(names), want)
	}
}

// apply does what findings say: lines of slurm.conf, gres.conf and the settings, and commands.
func apply(t *testing.T, f *Facts, settings map[string]string, found []Finding) {
	t.Helper()
	for i := range found {
		for _, fix := range found[i].Fix {
			for _, line := range fix.Lines {
				line, _, _ = strings.Cut(line, "   #")
				switch key, value, _ := strings.Cut(line, "="); {
				case strings.HasPrefix(line, "#"):
				case fix.File == settingsFile:
					name, value, _ := strings.Cut(line, ": ")
					settings[name] = value
				case strings.HasSuffix(fix.File, "gres.conf"):
					f.GresConf = ptr(orEmpty(f.GresConf) + line + "\n")
				case fix.File != "" && key == "NodeName":
					names, gres, _ := strings.Cut(value, " … Gres=")
					for host := range text.ExpandHosts(names) {
						at := slices.IndexFunc(f.Nodes, func(n text.Node) bool { return n.Name == host })
						f.Nodes[at] = text.ParseNodes([]byte("NodeName=" + host + " Gres=" + gres + " State=IDLE Partitions=gpu\n"))[0]
					}
				case fix.File != "" && key == "PartitionName":
					name, rest, _ := strings.Cut(value, " ")
					if strings.Contains(rest, "DefMemPerCPU") {
						f.Partitions[0].DefMem = true
					} else {
						f.Partitions = append(f.Partitions, text.ParsePartitions([]byte(line+" State=UP\n"))...)
					}
					must.Equal(t, name == "gpu" || name == "slurmbridge", true, line)
				case fix.File != "":
					f.Config[key] = value
					f.Hooks[key] = []Hook{{value, strings.HasPrefix(value, "/usr/lib/slurmbridge/"), true}}
				case strings.HasPrefix(line, "install -d "):
					f.Missing = nil
				case strings.Contains(line, "job_submit.lua"):
					f.JobSubmitLua = ptr(string(must.Get(os.ReadFile("../../contrib/job_submit.lua"))(t)))
				}
			}
		}
	}
}

// At its first run doctor says first what costs a site the most, and once all its lines are written it has no more to say.
func TestItsLinesAreEnough(t *testing.T) {
	for name, c := range map[string]struct{ release, gres, first string }{
		"one GPU, 22.05":            {"22.05.8", "gpu:titanxp:1", "used-gpus"},
		"one GPU, 24.11":            {"24.11.5", "gpu:titanxp:1", "planned-gpus"},
		"four GPUs, 24.11":          {"24.11.5", "gpu:a100:4", "planned-gpus"},
		"four GPUs, 26.05":          {"26.05.5", "gpu:a100:4", "gres-types"},
		"two models, 26.05":         {"26.05.5", "gpu:a100:2,gpu:h100:2", "gres-types"},
		"MIG instances, 26.05":      {"26.05.5", "gpu:1g.10gb:7", "gres-types"},
		"shares without all, 22.05": {"22.05.8", "gpu:a100:4,mps:350", "used-gpus"},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes strings.Builder
			for i := range 40 {
				fmt.Fprintf(&nodes, "NodeName=gpu%d Gres=%s State=IDLE Partitions=gpu\n", i+1, c.gres)
			}
			f := &Facts{
				Config: text.ParseConfig([]byte(recorded(t, "22.05.8-plain.config"))), Nodes: text.ParseNodes([]byte(nodes.String())),
				Partitions: text.ParsePartitions([]byte("PartitionName=gpu State=UP\n")), ConfDir: "/etc/slurm",
				Hooks: map[string][]Hook{}, User: "slurm", Missing: []string{"/run/slurmbridge"}, MungeSocket: ptr(true),
			}
			f.Config["SLURM_VERSION"] = c.release
			settings := map[string]string{"mode": "shadow"}
			for range 5 {
				var lines strings.Builder
				for key, value := range settings {
					fmt.Fprintf(&lines, "%s: %s\n", key, value)
				}
				file := filepath.Join(t.TempDir(), "slurmbridge.yaml")
				must.OK(t, os.WriteFile(file, []byte(lines.String()), 0o600))
				f.Settings = must.Get(config.Load(file, nil))(t)
				found := Examine(f)
				if c.first != "" {
					must.Equal(t, found[0].Check, c.first)
					c.first = ""
				}
				if len(found) == 0 {
					return
				}
				apply(t, f, settings, found)
			}
			t.Error(Text(Examine(f)))
		})
	}
}
