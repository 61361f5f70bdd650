package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

func recorded(t *testing.T, name string) string {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("testdata", name)))(t)
	return string(b)
}

func ptr[T any](v T) *T { return &v }

// bridged are the facts of a cluster where nothing is missing.
func bridged(t *testing.T, release string) *Facts {
	t.Helper()
	conf := text.ParseConfig([]byte(recorded(t, release+"-bridged.config")))
	conf["SchedulerParameters"] = "sched_interval=2,bf_interval=5,batch_sched_delay=1"
	settings := config.Default()
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
		Folders:     map[string]bool{"/run/slurmbridge": true},
		MungeSocket: ptr(true),
		User:        "slurm",
		Agents:      map[string]Agent{"gpu1": {MPS: ptr(true)}, "gpu2": {MPS: ptr(true)}},
		Settings:    settings,
	}
}

// gates is the gate's partition, as scontrol shows it.
const gates = "PartitionName=gates Hidden=YES MaxTime=00:01:00 RootOnly=YES State=UP\n"

// accounting gives the cluster a database that counts GPUs and shares.
func accounting(f *Facts) {
	f.Config["AccountingStorageType"] = "accounting_storage/slurmdbd"
	f.Config["AccountingStorageTRES"] = "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/mps"
}

func checks(found []Finding) []string {
	var out []string
	for _, f := range found {
		out = append(out, string(f.Severity)+" "+f.Check)
	}
	return out
}

func TestPlainCluster(t *testing.T) {
	f := &Facts{
		Config:     text.ParseConfig([]byte(recorded(t, "22.05.8-plain.config"))),
		Nodes:      text.ParseNodes([]byte(recorded(t, "22.05.8-plain.nodes"))),
		Partitions: text.ParsePartitions([]byte(recorded(t, "22.05.8-plain.partitions"))),
		ConfDir:    "/etc/slurm", Hooks: map[string][]Hook{}, User: "slurm", Settings: config.Default(),
		Folders: map[string]bool{"/run/slurmbridge": false}, MungeSocket: ptr(true),
	}
	got := checks(Examine(f))
	want := []string{
		"error gres-types", "error folder", "error node-shares", "error gpu-type", "error lua", "error default-memory",
		"error hook-prolog", "error hook-epilog", "error hook-taskprolog",
		"warning epilog-slurmctld", "note gate-seen",
	}
	must.Equal(t, got, want)
}

func TestNothingMissing(t *testing.T) {
	for _, release := range []string{"22.05.8", "24.11.5"} {
		f := bridged(t, release)
		// 24.11.5 was recorded with auth/slurm.
		f.Config["AuthType"] = "auth/munge"
		if got := Examine(f); len(got) != 0 {
			t.Errorf("%s: %v", release, checks(got))
		}
	}
}

// Slurm takes most of its plugins' names with their kind in front and without it.
func TestPluginsByEitherName(t *testing.T) {
	for key, name := range map[string]string{
		"JobSubmitPlugins": "job_submit/all_partitions,job_submit/lua", "TaskPlugin": "task/affinity,cgroup", "AuthType": "munge", "SelectType": "cons_tres",
		"SchedulerType": "backfill", "PriorityType": "multifactor",
	} {
		f := bridged(t, "22.05.8")
		f.Config["ConstrainDevices"] = "yes"
		f.Config["TaskPlugin"] = "task/affinity,task/cgroup"
		f.Config[key] = name
		if got := Examine(f); len(got) != 0 {
			t.Errorf("%s=%s: %v", key, name, checks(got))
		}
	}
}

// refusing is what a well daemon says whose change Slurm has refused.
func refusing(r job.RefusedChanges) *Daemon {
	return &Daemon{Mode: "active", Policy: "dqn", Gate: "7", Refused: []job.RefusedChanges{r}}
}

// Each fact that is off brings out its own finding, and only that.
func TestEachFinding(t *testing.T) {
	conf := func(name, value string) func(*Facts) { return func(f *Facts) { f.Config[name] = value } }
	node := func(gres string) func(*Facts) {
		return func(f *Facts) { f.Nodes = text.ParseNodes([]byte("NodeName=gpu1 State=IDLE Gres=" + gres)) }
	}
	for _, c := range []struct {
		name   string
		change func(*Facts)
		want   string
		fix    string // a line that the finding tells to write
	}{
		{"no slurmctld", func(f *Facts) { f.Config = nil }, "error slurmctld", "scontrol ping"},
		{"old", conf("SLURM_VERSION", "21.08.8"), "error release", ""},
		{"gives GPUs away twice", conf("SLURM_VERSION", "25.05.0"), "error release-fault", ""},
		{"misses the ends of hooks", conf("SLURM_VERSION", "25.11.3"), "warning release-fault", ""},
		{"untried", conf("SLURM_VERSION", "26.11.0-rc1"), "note release-new", ""},
		{"counts GPUs by itself", func(f *Facts) {
			f.Config["SLURM_VERSION"], f.Config["JobAcctGatherType"], f.Config["JobAcctGatherParams"] = "26.05.5", "jobacct_gather/cgroup", "NoOverMemoryKill"
		}, "note gpu-accounting", "JobAcctGatherParams=NoOverMemoryKill,DisableGPUAcct"},
		{"whole GPUs in use", func(f *Facts) { f.Settings.SharersOnly = nil }, "error used-gpus", "sharers_only: [gpu]"},
		{"both kinds", conf("GresTypes", "gpu,mps,shard"), "error gres-both", "GresTypes=gpu,mps"},
		{"no shares", conf("GresTypes", "gpu"), "error gres-types", "GresTypes=gpu,mps"},
		{"no gpu type", conf("GresTypes", ""), "error gres-types", "GresTypes=gpu,mps"},
		{"linear", conf("SelectType", "select/linear"), "error select-type", "SelectType=select/cons_tres"},
		{"no lua", conf("JobSubmitPlugins", ""), "error lua", "JobSubmitPlugins=lua"},
		{"no script", func(f *Facts) { f.JobSubmitLua = nil }, "error lua", "install -m 644 /usr/share/slurmbridge/job_submit.lua /etc/slurm/job_submit.lua"},
		{"own script", func(f *Facts) { f.JobSubmitLua = ptr("function slurm_job_submit() end") }, "error lua", "return there and slurmbridge.submit(job_desc, part_list, submit_uid) or slurm.SUCCESS"},
		{"lua no", func(f *Facts) { f.Settings.Lua = "no" }, "error lua", "lua: auto"},
		{"lua yes, newer", func(f *Facts) {
			f.Config["SLURM_VERSION"], f.Config["JobSubmitPlugins"], f.Settings.Lua = "24.11.5", "", "yes"
		}, "error lua", "JobSubmitPlugins=lua"},
		{"no lua, newer", func(f *Facts) { f.Config["SLURM_VERSION"], f.Config["JobSubmitPlugins"] = "23.02.6", "" }, "warning lua", "JobSubmitPlugins=lua"},
		{"other user", func(f *Facts) { f.User = "alice" }, "error gate-rights", "User=slurm"},
		{"root is barred", func(f *Facts) { f.User, f.Config["DisableRootJobs"] = "root", "YES" }, "error gate-rights", "User=slurm"},
		{"accounts", conf("AccountingStorageEnforce", "associations,limits"), "warning gate-account", "sacctmgr add user slurm account=ACCOUNT"},
		{"no account", func(f *Facts) { f.Config["AccountingStorageEnforce"], f.Account = "safe", ptr(false) }, "error gate-account", "sacctmgr add user slurm account=ACCOUNT"},
		{"shares in no account", conf("AccountingStorageType", "accounting_storage/slurmdbd"), "note shares-accounted", "AccountingStorageTRES=gres/mps"},
		{"shares in no account, GPUs are", func(f *Facts) {
			accounting(f)
			f.Config["AccountingStorageTRES"] = "cpu,mem,billing,fs/disk,gres/gpu,gres/gpu:titanxp"
		}, "note shares-accounted", "AccountingStorageTRES=gres/gpu,gres/gpu:titanxp,gres/mps"},
		{"limit on GPUs", func(f *Facts) {
			accounting(f)
			f.Limits = []Limit{{"qos normal", "MaxTRESPerUser", "cpu=8,gres/gpu=2"}, {"qos both", "GrpTRES", "gres/gpu=2,gres/mps=100"}}
		}, "note shares-limits", "sacctmgr modify qos normal set MaxTRESPerUser=gres/mps=200"},
		{"limit on GPUs, enforced", func(f *Facts) {
			accounting(f)
			f.Config["AccountingStorageEnforce"], f.Account = "associations,limits,qos", ptr(true)
			f.Limits = []Limit{{"user ann where account=lab", "GrpTRES", "gres/gpu=1"}}
		}, "warning shares-limits", "sacctmgr modify user ann where account=lab set GrpTRES=gres/mps=100"},
		{"bill for GPUs", func(f *Facts) { accounting(f); f.Partitions[0].Billing = "CPU=1.0,GRES/gpu=20" }, "note shares-billed", "PartitionName=gpu … TRESBillingWeights=CPU=1.0,GRES/gpu=20,GRES/mps=0.2"},
		{"no charge for adopted jobs", func(f *Facts) {
			accounting(f)
			f.Partitions[0].Billing, f.Settings.Adopt, f.Settings.AdoptCharge = "GRES/gpu=20", []adopt.Rule{{}}, "shares"
		}, "warning shares-billed", "PartitionName=gpu … TRESBillingWeights=GRES/gpu=20,GRES/mps=0.2"},
		{"defaults per GPU where jobs are adopted", func(f *Facts) {
			f.Partitions[0].PerGPU.CPUs, f.Settings.Adopt = 4, []adopt.Rule{{Never: true}, {Partitions: []string{"gpu"}}}
		}, "warning adopt-per-gpu", "PartitionName=… DefMemPerCPU=…   # in place of JobDefaults=DefCpuPerGPU=…,DefMemPerGPU=…"},
		{"no partition for the gate", func(f *Facts) { f.Partitions = f.Partitions[:1] }, "warning gate-partition", "PartitionName=gates Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1"},
		{"the gate's partition enters other lists", conf("JobSubmitPlugins", "lua,job_submit/all_partitions,pbs"), "error gate-in-lists", "JobSubmitPlugins=job_submit/all_partitions,lua,pbs"},
		{"no partition for the gate, and it would enter other lists", func(f *Facts) {
			f.Partitions, f.Config["JobSubmitPlugins"] = f.Partitions[:1], "lua,all_partitions"
		}, "warning gate-partition", "JobSubmitPlugins=all_partitions,lua"},
		{"the gate's partition is down", func(f *Facts) { f.Partitions[1].State = "DOWN" }, "warning gate-partition", "scontrol update PartitionName=gates State=UP"},
		{"the gate's partition is seen", func(f *Facts) { f.Partitions[1].Hidden = false }, "note gate-seen", "PartitionName=gates … Hidden=YES"},
		{"the gate is seen", func(f *Facts) { f.Settings.GatePartition = "" }, "note gate-seen", "gate_partition: slurmbridge"},
		{"a federation", func(f *Facts) { f.Federation = "both" }, "warning federation", ""},
		{"a backup slurmctld", func(f *Facts) {
			f.Config["SlurmctldHost[0]"], f.Config["SlurmctldHost[1]"] = "head1(10.0.0.1)", "head2"
		}, "note two-controllers", `# on the nodes, in gpuprof.yaml and node.yaml: controller: "http://head1:9797,http://head2:9797"`},
		{"held gate", func(f *Facts) {
			f.Daemon = &Daemon{Mode: "active", Policy: "dqn", Gate: "7", GateError: "gate 7: held"}
		}, "error gate", "slurmbridge open   # lets every waiting job go"},
		{"gate over a limit", func(f *Facts) {
			f.Daemon = &Daemon{Mode: "active", Policy: "dqn", GateError: "create gate: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"}
		}, "error gate", "sacctmgr modify user slurm set MaxSubmitJobs=-1 MaxJobs=-1"},
		{"gate without an account", func(f *Facts) {
			f.Daemon = &Daemon{Mode: "active", Policy: "dqn", GateError: "create gate: Invalid account or account/partition combination specified"}
		}, "error gate", "sacctmgr add user slurm account=ACCOUNT"},
		{"default memory for whole GPUs alone", func(f *Facts) {
			f.Config["DefMemPerCPU"], f.Partitions[0].PerGPU.MemMiB = "0", 2000
		}, "warning default-memory", ""},
		{"no default memory", conf("DefMemPerCPU", "0"), "error default-memory", "PartitionName=gpu … DefMemPerCPU=2000   # MB; a node's memory divided by its cores is a good start"},
		{"other gres", func(f *Facts) {
			f.Config["GresTypes"] = "gpu,nic"
			f.Config["SLURM_VERSION"] = "24.11.5"
		}, "error gres-types", "GresTypes=gpu,nic,mps"},
		{"both plugins, none of them lua", conf("JobSubmitPlugins", "job_submit/pbs,require_timelimit"), "error lua", "JobSubmitPlugins=job_submit/pbs,require_timelimit,lua"},
		{"another plugin", func(f *Facts) { f.Config["JobSubmitPlugins"] = "require_timelimit" }, "error lua", "JobSubmitPlugins=require_timelimit,lua"},
		{"a node of other gres", node("gpu:titanxp:2,nic:2(S:0)"), "error node-shares", "NodeName=gpu1 … Gres=gpu:titanxp:2,mps:200,nic:2"},
		{"own script without modify", func(f *Facts) { f.JobSubmitLua = ptr("return slurmbridge.submit()") }, "warning lua-modify", "-- as the last thing of your slurm_job_modify:"},
		{"no prolog", func(f *Facts) { f.Hooks["Prolog"] = nil }, "error hook-prolog", "ln -s /usr/lib/slurmbridge/prolog /etc/slurm/prolog.d/50-slurmbridge"},
		{"other epilog", func(f *Facts) { f.Config["Epilog"], f.Hooks["Epilog"] = "/x", []Hook{{"/x", true, false}} }, "error hook-epilog", "/usr/lib/slurmbridge/epilog   # a line of it, called with the same environment"},
		{"epilog that is on the nodes", func(f *Facts) {
			f.Config["Epilog"], f.Hooks["Epilog"] = "/etc/slurm/epilog.d/*", []Hook{{"/etc/slurm/epilog.d/*", false, false}}
		}, "note hook-epilog", "ln -s /usr/lib/slurmbridge/epilog /etc/slurm/epilog.d/50-slurmbridge"},
		{"another epilogslurmctld", func(f *Facts) {
			f.Config["EpilogSlurmctld"], f.Hooks["EpilogSlurmctld"] = "/opt/end", []Hook{{"/opt/end", true, false}}
		}, "warning epilog-slurmctld", "/usr/lib/slurmbridge/epilog-slurmctld   # a line of it, called with the same environment"},
		{"no task prolog", func(f *Facts) { f.Config["TaskProlog"], f.Hooks["TaskProlog"] = "", nil }, "error hook-taskprolog", "TaskProlog=/usr/lib/slurmbridge/taskprolog"},
		{"drained", func(f *Facts) { f.Nodes[1].Reason = "Prolog error" }, "error drained", "scontrol update NodeName=gpu2 State=RESUME"},
		{"no epilog at all", conf("Epilog", ""), "warning epilog-order", "Epilog=/usr/lib/slurmbridge/epilog"},
		{"no epilogslurmctld", func(f *Facts) { f.Config["EpilogSlurmctld"], f.Hooks["EpilogSlurmctld"] = "", nil }, "warning epilog-slurmctld", "EpilogSlurmctld=/usr/lib/slurmbridge/epilog-slurmctld"},
		{"short hooks", conf("PrologEpilogTimeout", "20"), "warning hook-timeout", "PrologEpilogTimeout=120"},
		{"requeued at once", func(f *Facts) {
			f.Config["SLURM_VERSION"], f.Config["SchedulerParameters"] = "26.05.5", "requeue_delay=1,sched_interval=2,bf_interval=5,batch_sched_delay=1"
		}, "warning requeue-delay", "SchedulerParameters=requeue_delay=10,sched_interval=2,bf_interval=5,batch_sched_delay=1"},
		{"requeued as soon as credentials expire", conf("AuthInfo", "socket=/run/munge/munge.socket.2,cred_expire=5"), "warning requeue-delay", "AuthInfo=socket=/run/munge/munge.socket.2,cred_expire=10"},
		{"accrual is limited", func(f *Facts) {
			f.Config["PriorityFlags"], f.Limits = "FAIR_TREE", []Limit{{"qos normal", "MaxJobsAccruePerUser", "10"}}
		}, "note accrue", ""},
		{"limits of accrual are ignored", func(f *Facts) { f.Limits = []Limit{{"qos normal", "MaxJobsAccruePerUser", "10"}} }, "warning accrue", ""},
		{"no accrual", conf("PriorityFlags", "FAIR_TREE"), "warning accrue", "PriorityFlags=FAIR_TREE,ACCRUE_ALWAYS"},
		{"no munge", conf("AuthType", "auth/slurm"), "error key", "(umask 077; set -C; head -c 32 /dev/urandom | base64 >/etc/slurmbridge/key)   # unless there is a good one"},
		{"no munge, and it doesn't work", func(f *Facts) {
			f.Config["AuthType"], f.Munge = "auth/slurm", ptr("munged does not answer")
		}, "error key", "key_file: /etc/slurmbridge/key"},
		{"munge besides", func(f *Facts) { f.Config["AuthType"], f.Munge = "auth/slurm", ptr("") }, "warning munge-besides", "key_file: /etc/slurmbridge/key"},
		{"a key that others read", func(f *Facts) {
			f.Config["AuthType"], f.Key, f.Settings.KeyFile = "auth/slurm", ptr("/srv/key has mode 0644"), "/srv/key"
		}, "error key", "chown slurm: /srv/key; chmod 600 /srv/key"},
		{"a key and munge", func(f *Facts) { f.Key = ptr("") }, "warning key-and-munge", `key_file: ""`},
		{"no munged", func(f *Facts) { f.MungeSocket = ptr(false) }, "error munge", "systemctl enable --now munge"},
		{"no folder", func(f *Facts) { f.Folders["/run/slurmbridge"] = false }, "error folder", "install -d -o slurm -m 755 /run/slurmbridge"},
		{"no gpu", node("(null)"), "error no-gpu", ""},
		{"node without shares", node("gpu:titanxp:2"), "error node-shares", "NodeName=gpu1 … Gres=gpu:titanxp:2,mps:200"},
		{"odd shares", func(f *Facts) {
			node("gpu:titanxp:2,mps:150(S:0-1)")(f)
			f.GresConf = ptr("Name=mps Flags=all_sharing")
		}, "error share-count", "Name=mps Count=100 File=/dev/nvidia0"},
		{"a GPU without shares", func(f *Facts) {
			node("gpu:titanxp:2,mps:100(S:0-1)")(f)
			f.GresConf = ptr("Name=mps Flags=all_sharing")
		}, "warning gpu-without-shares", "Name=mps Count=100 File=/dev/nvidia0   # a line for each GPU"},
		{"least loaded", func(f *Facts) {
			node("gpu:titanxp:4,shard:400")(f)
			f.GresConf = ptr("Name=shard Count=400")
			f.Config["SelectTypeParameters"] = "CR_CORE_MEMORY,LL_SHARED_GRES"
		}, "warning least-loaded", "SelectTypeParameters=CR_CORE_MEMORY"},
		{"several GPUs a job", conf("SelectTypeParameters", "CR_CORE,MULTIPLE_SHARING_GRES_PJ"), "error multiple-sharing", "SelectTypeParameters=CR_CORE"},
		{"several by mps", node("gpu:titanxp:2(S:0),mps:200"), "warning one-sharing", "Name=mps Count=… File=/dev/nvidia[0-…] Flags=all_sharing"},
		{"untyped", node("gpu:1,mps:100"), "error gpu-type", "Name=gpu Type=titanxp File=/dev/nvidia0"},
		{"untyped, newer", func(f *Facts) { node("gpu:1,mps:100")(f); f.Config["SLURM_VERSION"] = "24.11.5" }, "warning gpu-type", ""},
		{"unknown card", node("gpu:radeon:1,mps:100"), "warning gpu-unknown", "gpu_types:"},
		{"agent away", func(f *Facts) { f.Agents["gpu2"] = Agent{Err: "connection refused"} }, "warning agent", ""},
		{"agent unheard of", func(f *Facts) { delete(f.Agents, "gpu1") }, "warning agent", ""},
		{"no memory limits", func(f *Facts) { f.Agents["gpu2"] = Agent{MPS: ptr(true), NoLimits: ptr(true)} }, "warning mps-memory-limit", "# install a driver of CUDA 11.5 or later, or set memory_limits: false for these cards in gpu_types of slurmbridge.yaml"},
		{"no mps binary", func(f *Facts) { f.Agents["gpu2"] = Agent{MPS: ptr(false)} }, "error mps-binary", ""},
		{"clock", func(f *Facts) { f.Agents["gpu2"] = Agent{Ahead: -3 * time.Second, MPS: ptr(true)} }, "warning clock", "chronyc tracking   # on gpu2"},
		{"any GPU can be opened", func(f *Facts) { f.Config["ConstrainDevices"], f.Config["TaskPlugin"] = "no", "task/cgroup" }, "note constrain-devices", "ConstrainDevices=yes"},
		{"nothing constrains", func(f *Facts) { f.Config["ConstrainDevices"], f.Config["TaskPlugin"] = "yes", "task/affinity" }, "note constrain-devices", "TaskPlugin=task/cgroup,task/affinity"},
		{"hooks' settings", func(f *Facts) { f.Agents["gpu2"] = Agent{MPS: ptr(true), Hooks: ptr(false)} }, "warning hook-settings", ""},
		{"agent unwell", func(f *Facts) { f.Agents["gpu2"] = Agent{Sick: "the last pass failed", MPS: ptr(true)} }, "warning agent-sick", "journalctl -u gpuprof -n 50   # on each of them"},
		{"agent with a password", func(f *Facts) { f.Agents["gpu2"] = Agent{Locked: "it wants a password", MPS: ptr(true)} }, "note agent-locked", ""},
		{"mps not seen", func(f *Facts) { f.Agents["gpu2"] = Agent{} }, "note mps-unseen", ""},
		{"clock", func(f *Facts) { f.Agents["gpu2"] = Agent{Ahead: time.Minute, MPS: ptr(true)} }, "warning clock", ""},
		{"no mps for shards", func(f *Facts) {
			f.Agents["gpu2"] = Agent{MPS: ptr(false)}
			f.Nodes[1].Shares = map[string]int{"shard": 100}
			f.GresConf = ptr("Name=gpu\nName=mps Count=100\nName=shard Count=100\n")
		}, "error mps-binary", ""},
		{"nothing shared, no mps needed", func(f *Facts) {
			f.Agents["gpu2"] = Agent{MPS: ptr(false)}
			f.Nodes[1].Shares = nil
		}, "error node-shares", ""},
		{"jobs forgotten", conf("MinJobAge", "5 sec"), "warning min-job-age", "MinJobAge=300   # Slurm's default"},
		{"munge fails", func(f *Facts) { f.Munge = ptr("munged does not answer") }, "error munge", "munge -n | unmunge"},
		{"no gres.conf", func(f *Facts) { f.GresConf = nil }, "error gres-conf", "Name=mps Count=100 File=/dev/nvidia0"},
		{"gres.conf without shares", func(f *Facts) { f.GresConf = ptr("Name=gpu File=/dev/nvidia0\n#Name=mps Count=100\n") }, "warning gres-conf", "Name=mps Count=100 File=/dev/nvidia0"},
		{"gres.conf of another kind", func(f *Facts) { f.GresConf = ptr("Name=gpu\nName=shard Count=100\n") }, "warning gres-conf", ""},
		{"less than promised", func(f *Facts) { f.Nodes[0].State = "IDLE+DRAIN+INVALID_REG" }, "error node-invalid", "scontrol show node gpu1 | grep Reason"},
		{"gate file elsewhere", func(f *Facts) {
			f.JobSubmitLua = ptr(`-- slurmbridge: script` + "\n" + `gate = "/run/elsewhere/gate",`)
		}, "error lua-gate-file", `gate = "/run/slurmbridge/gate",`},
		{"the script says mps", func(f *Facts) {
			for i := range f.Nodes {
				f.Nodes[i].Shares = map[string]int{"shard": 100}
			}
			f.Config["GresTypes"], f.GresConf = "gpu,shard", ptr("Name=shard Count=100")
			f.JobSubmitLua = ptr(`-- slurmbridge: script` + "\n" + `gate = "/run/slurmbridge/gate",` + "\n" + `gres = "mps",`)
		}, "warning lua-gres", `gres = "shard",`},
		{"old script", func(f *Facts) {
			f.JobSubmitLua = ptr(`-- slurmbridge: script` + "\n" + `gate = "/run/slurmbridge/gate",` + "\nlocal M = { conf }\nold")
			f.PackagedLua = ptr("-- slurmbridge: script\nlocal M = { conf }\nnew")
		}, "warning lua-version", "install -m 644 /usr/share/slurmbridge/job_submit.lua /etc/slurm/job_submit.lua"},
		{"exclusive GPUs", func(f *Facts) { f.Agents = well("gpu1", Agent{Modes: []string{"default", "exclusive_process"}}) }, "warning compute-exclusive", "nvidia-smi -c DEFAULT   # on each of them, at every boot"},
		{"closed GPUs", func(f *Facts) { f.Agents = well("gpu1", Agent{Modes: []string{"prohibited"}}) }, "error compute-mode", "nvidia-smi -c DEFAULT   # on each of them, at every boot"},
		{"GPUs in no certain order", func(f *Facts) { f.Agents = well("gpu1", Agent{Uncertain: 2}) }, "warning gpu-order", "AutoDetect=nvml   # and no File= of GPUs; or AutoDetect=off, and File= in the order of nvidia-smi"},
		{"jobs' own /dev/shm, always", conf("JobContainerType", "job_container/tmpfs"), "error private-memory", "JobContainerType=job_container/none   # or a newer Slurm, with Dirs=/tmp in job_container.conf"},
		{"no daemon", func(f *Facts) { f.Daemon = &Daemon{Err: "connection refused"} }, "warning daemon", "systemctl enable --now slurmbridge"},
		{"daemon with a password", func(f *Facts) { f.Daemon = &Daemon{Locked: "it wants a password"} }, "note daemon-locked", ""},
		{"daemon fails", func(f *Facts) { f.Daemon = &Daemon{Mode: "active", Error: "no look yet"} }, "error daemon-look", "journalctl -u slurmbridge -n 50"},
		{"no gate", func(f *Facts) { f.Daemon = &Daemon{Mode: "active", Policy: "dqn"} }, "error gate", "journalctl -u slurmbridge -g gate   # Slurm's answer"},
		{"a plugin refuses shares", func(f *Facts) {
			f.JobSubmitLua = ptr("-- slurmbridge.modify() is called, slurmbridge.submit( too\n x.modify(")
			f.Daemon = refusing(job.RefusedChanges{Step: job.StepPrepare, Code: "SLURM_ERROR", Times: 4, GivenUp: 2})
		}, "warning refused", "if modify_uid == 64030 then return slurm.SUCCESS end   -- the bridge's changes pass"},
		{"a plugin lets no job go", func(f *Facts) {
			f.Config["JobSubmitPlugins"], f.User = "lua,throttle", "root"
			f.Daemon = refusing(job.RefusedChanges{Step: job.StepUngate, Code: "ESLURM_ACCESS_DENIED", Times: 2})
		}, "error refused", "if modify_uid == 0 then return slurm.SUCCESS end   -- the bridge's changes pass"},
		{"Slurm refuses once", func(f *Facts) {
			f.JobSubmitLua = ptr(luaFirst + ` gate = "/run/slurmbridge/gate"`)
			f.Daemon = refusing(job.RefusedChanges{Step: job.StepPrepare, Code: "other", Times: 1})
		}, "note refused", "journalctl -u slurmbridge -g refused   # each with Slurm's words; plugins here: lua"},
		{"jobs may not go", func(f *Facts) {
			f.JobSubmitLua = ptr(luaFirst + ` gate = "/run/slurmbridge/gate"`)
			f.Daemon = &Daemon{Mode: "active", Policy: "dqn", GateError: "jobs can't be let go from the gate one by one, since Slurm refuses it: the gate was opened for all of them"}
		}, "error gate", "journalctl -u slurmbridge -g refused   # each with Slurm's words; plugins here: lua"},
		{"another mode", func(f *Facts) { f.Daemon = &Daemon{Mode: "shadow", Policy: "dqn"} }, "warning daemon-mode", "systemctl reload slurmbridge"},
		{"another policy", func(f *Facts) { f.Daemon = &Daemon{Mode: "active", Policy: "greedy", Gate: "7"} }, "warning policy", "journalctl -u slurmbridge -g model"},
		{"preemption", conf("PreemptType", "preempt/qos"), "note preempt", "exclude_partitions: [NAME]   # partitions with preempting jobs"},
		{"private jobs", conf("PrivateData", "jobs,usage"), "note private", ""},
		{"rate limit", conf("SlurmctldParameters", "rl_enable"), "warning rate-limit", "SlurmctldParameters=rl_enable,rl_bucket_size=100,rl_refill_rate=20"},
		{"shadow", func(f *Facts) { f.Settings.Mode = "shadow" }, "note shadow", "mode: active"},
	} {
		f := bridged(t, "22.05.8")
		c.change(f)
		found := Examine(f)
		if got := checks(found); len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
			continue
		}
		if found[0].What == "" || found[0].Why == "" {
			t.Errorf("%s: says nothing: %+v", c.name, found[0])
		}
		var lines []string
		for _, fix := range found[0].Fix {
			lines = append(lines, fix.Lines...)
			if strings.HasSuffix(fix.File, ".conf") && found[0].Cost == "" {
				t.Errorf("%s: advice for %s that doesn't say what it costs", c.name, fix.File)
			}
		}
		if c.fix != "" && !slices.Contains(lines, c.fix) {
			t.Errorf("%s: no line %q in %q", c.name, c.fix, lines)
		}
	}
}

// well are the answers of both nodes' agents, one of which says something more.
func well(node string, a Agent) map[string]Agent {
	a.MPS = ptr(true)
	out := map[string]Agent{"gpu1": {MPS: ptr(true)}, "gpu2": {MPS: ptr(true)}}
	out[node] = a
	return out
}

// Jobs with a /dev/shm of their own don't reach an MPS server; each release has its own file that says whether they have.
func TestPrivateMemory(t *testing.T) {
	const tmpfs, linux = "namespace/tmpfs", "namespace/linux"
	for _, c := range []struct {
		release, key, plugin string
		conf                 *string
		want                 string
	}{
		{"24.11.5", "JobContainerType", "job_container/none", nil, ""},
		{"24.11.5", "JobContainerType", "job_container/tmpfs", nil, "warning"},
		{"24.11.5", "JobContainerType", "job_container/tmpfs", ptr("AutoBasePath=true\nBasePath=/var/tmp # Dirs=/tmp\n"), "error"},
		{"24.11.5", "JobContainerType", "job_container/tmpfs", ptr("BasePath=/x Dirs=/tmp,/dev/shm"), "error"},
		{"24.11.5", "JobContainerType", "job_container/tmpfs", ptr("BasePath=/x\nDirs=/tmp\nNodeName=gpu1 BasePath=/y dirs=/dev/shm"), "error"},
		{"24.11.5", "JobContainerType", "job_container/tmpfs", ptr("BasePath=/x\nDirs=\"/tmp,/var/tmp\""), ""},
		{"26.05.5", "NamespaceType", tmpfs, ptr("BasePath=/x"), "error"},
		{"26.05.5", "NamespaceType", tmpfs, ptr("BasePath=/x Dirs=/tmp"), ""},
		{"26.05.5", "NamespaceType", linux, ptr("defaults:\n  base_path: /x\n"), "error"},
		{"26.05.5", "NamespaceType", linux, ptr("defaults:\n  dirs: /tmp\n"), ""},
		{"26.05.5", "NamespaceType", linux, ptr("defaults:\n  dirs: /tmp\nnode_confs:\n- nodes: [gpu1]\n  options:\n    dir_confs:\n    - path: /dev/shm\n"), "error"},
		{"26.05.5", "NamespaceType", linux, ptr("a: [\n"), "error"},
	} {
		f := bridged(t, "24.11.5")
		f.Config["SLURM_VERSION"], f.Config[c.key], f.Namespaces = c.release, c.plugin, c.conf
		got := ""
		for _, found := range Examine(f) {
			if found.Check == "private-memory" {
				got = string(found.Severity)
			}
		}
		if got != c.want {
			t.Errorf("%s %s: %q, want %q", c.release, c.plugin, got, c.want)
		}
	}
}

// Without a partition of its own the gate is in those of the jobs, if one takes jobs.
func TestGateAmongJobs(t *testing.T) {
	f := bridged(t, "22.05.8")
	f.Settings.GatePartition, f.Partitions[0].State = "", "DRAIN"
	found := Examine(f)
	if got := checks(found); !slices.Equal(got, []string{"error gate-partition", "note gate-seen"}) ||
		!slices.Equal(found[0].Fix[0].Lines, []string{"scontrol update PartitionName=gpu State=UP"}) {
		t.Errorf("%+v", found)
	}
	f.Config["PrivateData"] = "jobs" // nobody sees others' jobs, the gate least of all
	must.Equal(t, checks(Examine(f)), []string{"error gate-partition", "note private"})
}

// Where Slurm hides jobs users need tokens to ask why.
func TestNoTokens(t *testing.T) {
	f := bridged(t, "24.11.5")
	f.Config["AuthType"], f.Config["PrivateData"], f.Key, f.Token = "auth/slurm", "jobs", ptr(""), ptr("no socket")
	if got := checks(Examine(f)); !slices.Equal(got, []string{"warning token", "note private"}) {
		t.Error(got)
	}
}

// What a cluster may well have, and what is well, is not found fault with.
func TestNoFalseAlarm(t *testing.T) {
	for name, change := range map[string]func(*Facts){
		"nobody is forgotten": func(f *Facts) { f.Config["MinJobAge"] = "0 sec" },
		"long enough":         func(f *Facts) { f.Config["MinJobAge"] = "30 sec" },
		"partition down":      func(f *Facts) { f.Partitions[0].State = "DOWN" },
		"partition drains":    func(f *Facts) { f.Partitions[0].State = "DRAIN" }, // the gate has its own
		"memory by partition": func(f *Facts) { f.Config["DefMemPerCPU"], f.Partitions[0].DefMem = "0", true },
		"other jobs' memory": func(f *Facts) {
			f.Config["DefMemPerCPU"], f.Partitions[0].DefMem = "0", true
			f.Partitions = append(f.Partitions, text.Partition{Name: "cpus", State: "UP"})
		},
		"gres.conf includes":    func(f *Facts) { f.GresConf = ptr("Name=gpu\nInclude /etc/slurm/gres.d/shares\n") },
		"gres.conf in capitals": func(f *Facts) { f.GresConf = ptr("NodeName=gpu[1-2] NAME=MPS Count=100\n") },
		"gres.conf is not here": func(f *Facts) { f.ConfDir, f.GresConf, f.JobSubmitLua = "", nil, nil },
		"a site's own lua": func(f *Facts) {
			f.JobSubmitLua, f.PackagedLua = ptr("local s = dofile('slurmbridge') s.modify()"), ptr("-- slurmbridge: x")
		},
		"a clock a second off":   func(f *Facts) { f.Agents["gpu1"] = Agent{Ahead: -1200 * time.Millisecond, MPS: ptr(true)} },
		"the daemon is well":     func(f *Facts) { f.Daemon = &Daemon{Mode: "active", Policy: "dqn", Gate: "7"} },
		"MUNGE is well":          func(f *Facts) { f.Munge = ptr("") },
		"a key is well":          func(f *Facts) { f.Config["AuthType"], f.Key, f.MungeSocket = "auth/slurm", ptr(""), ptr(false) },
		"a limit far above need": func(f *Facts) { f.Config["SlurmctldParameters"] = "rl_enable,rl_bucket_size=100,rl_refill_rate=20" },
		"gate settings of a site": func(f *Facts) {
			f.JobSubmitLua = ptr(luaFirst + `
gate = "/run/slurmbridge/gate", -- the bridge's file
gres = "shard",
local M = {}`)
			f.PackagedLua = ptr(luaFirst + "\ngres = \"mps\",\nlocal M = {}")
		},
	} {
		f := bridged(t, "22.05.8")
		change(f)
		if got := Examine(f); len(got) != 0 {
			t.Errorf("%s: %v", name, checks(got))
		}
	}
}

func TestWhatIsNotKnownIsNotBlamed(t *testing.T) {
	f := &Facts{Config: bridged(t, "22.05.8").Config, Settings: config.Default()}
	if got := Examine(f); len(got) != 0 {
		t.Errorf("%v", checks(got))
	}
}

func TestRenderings(t *testing.T) {
	f := bridged(t, "22.05.8")
	f.Config["PriorityFlags"], f.Settings.Mode = "", "shadow"
	found := Examine(f)
	var b bytes.Buffer
	must.OK(t, WriteText(&b, found))
	want := `warning  PriorityFlags has no ACCRUE_ALWAYS
         A job that waits behind the gate has an unmet dependency, and gains no priority by age meanwhile.
         Costs: Every job of the site then ages from its submission on, also while a dependency or begin time of its own keeps it, so chains that are submitted early come first; limits like MaxJobsAccrue and GrpJobsAccrue have no effect.
         in /etc/slurm/slurm.conf:
             PriorityFlags=ACCRUE_ALWAYS

note     the bridge is in shadow mode
         It decides and records, and changes nothing.
         Costs: Jobs that ask to share wait behind the gate, for max_delay next to an idle GPU at most, and share.
         in /etc/slurmbridge/slurmbridge.yaml, in place of the line that is there:
             mode: active

1 warning. slurmbridge works, and would work better without.
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	must.OK(t, WriteJSON(&b, found))
	var back struct {
		Findings []Finding
		Exit     int
	}
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || !reflect.DeepEqual(back.Findings, found) || back.Exit != ExitWarnings {
		t.Errorf("%v %+v", err, back)
	}
	b.Reset()
	if err := WriteJSON(&b, nil); err != nil || !strings.Contains(b.String(), `"findings": []`) {
		t.Errorf("%v %s", err, b.String())
	}
}

func TestExit(t *testing.T) {
	for want, found := range map[int][]Finding{
		ExitWell:     {{Severity: Note}},
		ExitWarnings: {{Severity: Warning}, {Severity: Note}},
		ExitErrors:   {{Severity: Warning}, {Severity: Error}},
	} {
		must.Equal(t, Exit(found), want, found)
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
	hook := put("slurmbridge-hook", "")
	put("prolog.d/10-site", "# not /usr/lib/slurmbridge/prolog\n")
	put("site-epilog", "#!/bin/sh\nexec /usr/lib/slurmbridge/epilog\n")
	must.OK(t, os.Symlink(hook, filepath.Join(dir, "prolog.d/50-gpu")))
	ask := func(_ context.Context, program string, args ...string) (string, error) {
		switch line := program + " " + strings.Join(args, " "); line {
		case "scontrol show config":
			return "SLURM_CONF = " + conf + "\nProlog = " + dir + "/prolog.d/*\nEpilog = " + dir + "/site-epilog\nTaskProlog = /nowhere/slurmbridge\n", nil
		case "scontrol show nodes -o":
			return "NodeName=a Gres=gpu:t4:1\n", nil
		case "scontrol show partitions -o":
			return "", errors.New("busy")
		default:
			return "", errors.New("unexpected " + line)
		}
	}
	settings := config.Default()
	settings.GateFile, settings.WakeFile = dir+"/gate", dir+"/wake"
	settings.Database, settings.MungeSocket = dir+"/absent/db", conf
	f, err := Collect(context.Background(), ask, settings, "slurm")
	if err != nil {
		t.Fatal(err)
	}
	if f.ConfDir != dir || f.GresConf == nil || *f.GresConf != "Name=gpu" || f.JobSubmitLua != nil || !*f.MungeSocket {
		t.Errorf("files: %+v", f)
	}
	if len(f.Nodes) != 1 || f.Partitions != nil {
		t.Errorf("Slurm's: %+v", f)
	}
	must.Equal(t, f.Folders, map[string]bool{dir: true, dir + "/absent": false}, "folders")
	must.Equal(t, f.Hooks, map[string][]Hook{
		"Prolog":     {{dir + "/prolog.d/10-site", true, false}, {dir + "/prolog.d/50-gpu", true, true}},
		"Epilog":     {{dir + "/site-epilog", true, true}},
		"TaskProlog": {{"/nowhere/slurmbridge", false, true}},
	}, "hooks")
	if f.Key != nil {
		t.Errorf("a key: %v", *f.Key)
	}
	key := dir + "/key"
	must.OK(t, os.WriteFile(key, []byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n"), 0o644))
	settings.KeyFile = key
	if f, err = Collect(context.Background(), ask, settings, "root"); err != nil || f.Key == nil || !strings.Contains(*f.Key, "0644") {
		t.Errorf("a key that everybody reads: %+v, %v", f, err)
	}
	silent := func(context.Context, string, ...string) (string, error) { return "", errors.New("down") }
	if f, err = Collect(context.Background(), silent, settings, ""); err != nil || f.Config != nil {
		t.Errorf("slurmctld down: %+v %v", f, err)
	}
}

// No text that a Slurm might print makes the parsers or the checks fall over.
func FuzzExamine(f *testing.F) {
	f.Add("SLURM_VERSION = 22.05.8\nGresTypes = gpu\n", "NodeName=a Gres=gpu:1\n", "PartitionName=p Default=YES\n")
	f.Add("Prolog[0 = x\n=\n", "NodeName=a Gres=gpu:((,)):-1,mps:9999999999999999999\n", "=\n")
	rank := func(s Severity) int { return slices.Index([]Severity{Error, Warning, Note}, s) }
	f.Fuzz(func(t *testing.T, conf, nodes, partitions string) {
		facts := &Facts{
			Config: text.ParseConfig([]byte(conf)), Nodes: text.ParseNodes([]byte(nodes)), Partitions: text.ParsePartitions([]byte(partitions)),
			Hooks: map[string][]Hook{}, User: "slurm", Settings: config.Default(),
		}
		found := Examine(facts)
		var b bytes.Buffer
		if err := WriteText(&b, found); err != nil || b.Len() == 0 {
			t.Errorf("nothing was said: %v", err)
		}
		if !slices.IsSortedFunc(found, func(a, b Finding) int { return rank(a.Severity) - rank(b.Severity) }) {
			t.Errorf("not worst first: %v", checks(found))
		}
	})
}

// Where a node's cores or memory hold no two jobs a GPU, doctor says by which jobs it goes and what would change it.
func TestHostBoundsSharing(t *testing.T) {
	week := func(cpus, mem float64) []Request { return slices.Repeat([]Request{{CPUs: cpus, MemMiB: mem}}, 9) }
	for _, c := range []struct {
		name, defaults, share string
		requests              []Request
		says                  string
	}{
		{"nothing known", "", "divide", nil, ""},
		{"small jobs", "", "divide", week(1, 100), ""},
		{"many cores each", "", "divide", week(24, 100), "24 of its 32 CPUs"},
		{"much memory each", "", "divide", week(1, 40000), "40000 of its 64000 MiB"},
		{"cores by default, which are divided", "DefCpuPerGPU=24", "divide", week(24, 100), ""},
		{"cores by default, which aren't", "DefCpuPerGPU=24", "keep", nil, "by default"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := bridged(t, "24.11.5")
			f.Config["JobDefaults"], f.Settings.HostShare, f.Requests = c.defaults, c.share, c.requests
			f.Config["SelectTypeParameters"] = "CR_Core_Memory"
			for i := range f.Nodes {
				f.Nodes[i].CPUs, f.Nodes[i].MemMiB = 32, 64000
			}
			at := slices.IndexFunc(Examine(f), func(x Finding) bool { return x.Check == "host-share" })
			if at < 0 != (c.says == "") || at >= 0 && !strings.Contains(Examine(f)[at].What, c.says) {
				t.Errorf("%v", Examine(f))
			}
		})
	}
}

func TestRequestsOfTheLastWeek(t *testing.T) {
	f := &Facts{Config: map[string]string{"AccountingStorageType": "accounting_storage/slurmdbd"}}
	askRequests(t.Context(), func(_ context.Context, program string, args ...string) (string, error) {
		return "billing=4,cpu=4,gres/gpu=1,mem=8G,node=1\nbilling=1,cpu=2,gres/mps=33,mem=500M,node=1\ncpu=8,gres/gpu=2,mem=1G,node=1\ncpu=8,mem=1G,node=1\n" +
			"cpu=8,gres/gpu=1,mem=1G,node=2\n\nrubbish\n", nil
	}, f)
	if want := []Request{{4, 8192}, {2, 500}}; !slices.Equal(f.Requests, want) {
		t.Errorf("%v, want %v", f.Requests, want)
	}
}

// A cluster that has what etc's fragments say lacks nothing, and without them it
// lacks something: doctor and the files tell the same.
func TestFragmentsOfEtc(t *testing.T) {
	read := func(name string) string {
		b := must.Get(os.ReadFile(filepath.Join("../../etc", name)))(t)
		return string(b)
	}
	conf := text.ParseConfig([]byte(recorded(t, "22.05.8-plain.config")))
	conf["PriorityType"] = "priority/multifactor"
	var example, gate string
	for line := range strings.Lines(read("slurm.conf.slurmbridge")) {
		if rest, ok := strings.CutPrefix(line, "#NodeName="); ok {
			example = "NodeName=" + strings.TrimSpace(rest)
		}
		if strings.HasPrefix(line, "PartitionName=") {
			gate = strings.TrimSpace(line) + " State=UP\n"
		}
		line, _, _ = strings.Cut(line, "#")
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			conf[name] = value
		}
	}
	settings := config.Default()
	settings.SharersOnly = []string{"gpu"}
	facts := &Facts{
		Config: conf, Nodes: text.ParseNodes([]byte(example + " Partitions=gpu\n")), Partitions: text.ParsePartitions([]byte(recorded(t, "22.05.8-plain.partitions") + gate)),
		Hooks: hooks(conf), User: "slurm", Settings: settings,
		ConfDir: "/etc/slurm", JobSubmitLua: ptr("-- " + Signature + ".modify()"), GresConf: ptr(read("gres.conf.slurmbridge")),
	}
	if got := Examine(facts); len(got) != 0 {
		t.Errorf("with everything that etc names: %v", checks(got))
	}
	for name, check := range map[string]string{
		"GresTypes": "gres-types", "DefMemPerCPU": "default-memory", "JobSubmitPlugins": "lua", "PriorityFlags": "accrue",
		"Prolog": "hook-prolog", "Epilog": "hook-epilog", "TaskProlog": "hook-taskprolog",
		"EpilogSlurmctld": "epilog-slurmctld",
	} {
		was := conf[name]
		conf[name] = ""
		facts.Hooks = hooks(conf)
		if got := strings.Join(checks(Examine(facts)), ","); !strings.Contains(got, check) {
			t.Errorf("without %s: %q", name, got)
		}
		conf[name] = was
	}
}

// agentAt serves what an agent answers and returns its port.
func agentAt(t *testing.T, serve http.HandlerFunc, secure bool) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(serve)
	srv.Config.ErrorLog = nil
	if secure {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestAskAgents(t *testing.T) {
	tells := func(mps, hooks int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/-/healthy":
				http.Error(w, "gpu 3 is lost", http.StatusServiceUnavailable)
			case "/metrics":
				fmt.Fprintf(w, "# TYPE gpuprof_jobs gauge\ngpuprof_jobs 3\n# TYPE gpuprof_mps_control_present gauge\ngpuprof_mps_control_present %d\n# TYPE gpuprof_hook_settings_ok gauge\ngpuprof_hook_settings_ok %d\n# TYPE gpuprof_mps_memory_limit_missing gauge\ngpuprof_mps_memory_limit_missing 1\n# TYPE gpuprof_compute_mode gauge\ngpuprof_compute_mode{mode=\"exclusive_process\",uuid=\"GPU-a\"} 1\n# TYPE gpuprof_gpus_uncertain gauge\ngpuprof_gpus_uncertain 2\n", mps, hooks)
			}
		}
	}
	healthy := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") }
	late := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		fmt.Fprintln(w, "healthy")
	}
	sick := func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the last sample\nwas 20s ago", http.StatusServiceUnavailable)
	}
	secret := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Unauthorized", http.StatusUnauthorized) }
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	_, closed, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for name, c := range map[string]struct {
		port, scheme string
		client       *http.Client
		want         func(a Agent) bool
	}{
		"well":    {agentAt(t, healthy, false), "http", http.DefaultClient, func(a Agent) bool { return a.Err+a.Locked+a.Sick == "" && a.Ahead.Abs() < time.Second }},
		"TLS":     {agentAt(t, healthy, true), "https", trusting, func(a Agent) bool { return a.Err+a.Locked+a.Sick == "" }},
		"late":    {agentAt(t, late, false), "http", http.DefaultClient, func(a Agent) bool { return a.Ahead < -59*time.Minute && a.Ahead > -61*time.Minute }},
		"sick":    {agentAt(t, sick, false), "http", http.DefaultClient, func(a Agent) bool { return a.Sick == "the last sample was 20s ago" }},
		"secret":  {agentAt(t, secret, false), "http", http.DefaultClient, func(a Agent) bool { return a.Locked == "it wants a password" }},
		"no TLS":  {agentAt(t, healthy, true), "http", http.DefaultClient, func(a Agent) bool { return a.Locked == "it wants TLS" }},
		"no CA":   {agentAt(t, healthy, true), "https", http.DefaultClient, func(a Agent) bool { return strings.Contains(a.Locked, "certificate") && a.Err == "" }},
		"TLS, no": {agentAt(t, healthy, false), "https", http.DefaultClient, func(a Agent) bool { return strings.Contains(a.Locked, "HTTP response") }},
		"no MPS": {agentAt(t, tells(0, 1), false), "http", http.DefaultClient, func(a Agent) bool {
			return a.MPS != nil && !*a.MPS && a.Hooks != nil && *a.Hooks && a.Sick == "gpu 3 is lost"
		}},
		"hooks": {agentAt(t, tells(1, 0), false), "http", http.DefaultClient, func(a Agent) bool {
			return *a.MPS && !*a.Hooks && *a.NoLimits && a.Uncertain == 2 && slices.Equal(a.Modes, []string{"exclusive_process"})
		}},
		"older":  {agentAt(t, healthy, false), "http", http.DefaultClient, func(a Agent) bool { return a.MPS == nil && a.Hooks == nil && a.Err == "" }},
		"closed": {closed, "http", http.DefaultClient, func(a Agent) bool { return a.Err == "connection refused" }},
	} {
		nodes := []text.Node{{Name: "gpu1", Addr: "127.0.0.1", GPUs: map[string]int{"t4": 1}}, {Name: "cpu1", GPUs: map[string]int{}}}
		got := AskAgents(context.Background(), c.client, c.scheme+"://{node}:"+c.port, nodes)
		if len(got) != 1 || !c.want(got["gpu1"]) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := AskAgents(context.Background(), http.DefaultClient, "http://{node} x", []text.Node{{Name: "a", GPUs: map[string]int{"": 1}}}); got["a"].Err == "" {
		t.Errorf("no address: %+v", got)
	}
}

func TestAskDaemon(t *testing.T) {
	answer, status := `{"mode":"active","policy":"dqn","gate":"7"}`, http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/status" {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	ask := func() *Daemon { return AskDaemon(context.Background(), http.DefaultClient, srv.URL+"/") }
	if got, want := ask(), (&Daemon{Mode: "active", Policy: "dqn", Gate: "7"}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	answer = `{"mode":"active","policy":"dqn","error":"look: down"}`
	if got := ask(); got.Error != "look: down" {
		t.Errorf("%+v", got)
	}
	answer = "<html>"
	if got := ask(); got.Err != "another program answers there" {
		t.Errorf("%+v", got)
	}
	answer, status = "no look yet", http.StatusServiceUnavailable
	if got := ask(); got.Error != "no look yet" || got.Err != "" {
		t.Errorf("%+v", got)
	}
	srv.Close()
	if got := ask(); got.Err != "connection refused" {
		t.Errorf("%+v", got)
	}
}

type fakeMethod struct{ encode, decode error }

func (f fakeMethod) Header() string                                 { return "" }
func (f fakeMethod) Hint(error) string                              { return "" }
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
		if got := TryCredential(context.Background(), m); got != strings.ReplaceAll(want, "\n", " ") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestUnitUser(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, step := range []struct{ name, text, want string }{
		{"unrelated", "User=alice\n", ""},
		{"usr/lib/systemd/system/slurmbridge.service", "[Service]\n# SlurmUser\nUser=slurm\n", "slurm"},
		{"etc/systemd/system/slurmbridge.service.d/override.conf", "[Service]\nGroup=slurm\n", "slurm"},
		{"etc/systemd/system/slurmbridge.service.d/zz.conf", "[Service]\nUser=hpc\n", "hpc"},
		{"etc/systemd/system/slurmbridge.service", "[Service]\nExecStart=/usr/sbin/slurmbridge\n", "hpc"},
		{"etc/systemd/system/slurmbridge.service.d/zz.conf", "[Service]\nUser=\n", "root"},
	} {
		put(step.name, step.text)
		must.Equal(t, UnitUser(root), step.want, "with %s", step.name)
	}
}
