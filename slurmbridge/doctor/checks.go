package doctor

import (
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

const (
	// Signature occurs in the project's job_submit.lua, and in each script that loads it.
	Signature = "slurmbridge"
	// PackagedLua is the path at which packages install the script.
	PackagedLua = "/usr/share/slurmbridge/job_submit.lua"
	luaFirst    = "-- slurmbridge:" // the beginning of the project's script

	settingsFile = "/etc/slurmbridge/slurmbridge.yaml"
	filesOfNodes = "/etc/slurmbridge/gpuprof.yaml and node.yaml on the nodes" // settings of the agent, and of the hooks
)

func row(name string, s Severity, reads source, hits []hit, what, why, cost string, fix ...Fix) check {
	return check{name, s, reads, hits, what, why, cost, fix}
}

func in(file string, lines ...string) Fix { return Fix{file, lines} }
func toConf(lines ...string) Fix          { return in("$SLURM_CONF", lines...) }
func gres(lines ...string) Fix            { return in("$dir/gres.conf", lines...) }
func setting(lines ...string) Fix         { return in(settingsFile, lines...) }
func run(commands ...string) Fix          { return in("", commands...) }

// Fixes and texts that several checks use.
var (
	installLua = run("install -m 644 "+PackagedLua+" $lua", "scontrol reconfigure")
	asSlurm    = []Fix{
		in("systemctl edit slurmbridge", "[Service]", "User=$slurm", "Group="),
		run("echo 'd /run/slurmbridge 0755 $slurm - -' >/etc/tmpfiles.d/slurmbridge.conf",
			"systemd-tmpfiles --create slurmbridge.conf"),
	}
	makeKey = []Fix{
		run("(umask 077; set -C; head -c 32 /dev/urandom | base64 >$keyFile)   # unless there is a good one",
			"chown $owner: $keyFile; chmod 600 $keyFile",
			"scp $keyFile NODE:$keyFile   # to each node with GPUs, root's and 0600 there, too"),
		setting("key_file: $keyFile"), in(filesOfNodes, "key_file: $keyFile"),
	}
	buildPlugin = run("gcc -O2 -shared -fPIC -o /usr/lib/slurmbridge/spank.so /usr/share/slurmbridge/slurmbridge.c   # " +
		"on each node, and again with each release of Slurm, as Pyxis; slurm/spank.h is in slurm-devel or " +
		"libslurm-dev")
	stackPlugin = in("$dir/plugstack.conf", "# above the line of Pyxis", "optional /usr/lib/slurmbridge/spank.so")
	defaultMode = run("nvidia-smi -c DEFAULT   # on each of them, at every boot")
	weights     = toConf("PartitionName=$name … TRESBillingWeights=$weights")
)

const (
	restarts = "all Slurm daemons restart (running jobs continue); a node whose slurm.conf and gres.conf disagree takes " +
		"no jobs until they agree"
	gatesPartition = "one more partition, to which only root and SlurmUser can submit. To them sinfo and scontrol show " +
		"partition list it, and all nodes a second time. A program that starts nodes for pending jobs should ignore the " +
		"job slurmbridge-gate, which never runs; jobs that wait for it have Reason=Dependency"
	gateSeen = "every user's squeue lists it as a pending job, and a script that waits for an empty queue waits for ever"
	noCard   = "the bridge doesn't know how much memory such a GPU has, and keeps groups off it"
	noLua    = "without the script `sbatch --gres=gpu:shared` is refused, unless a node's GPUs have the type shared and " +
		"Slurm is 23.02.6 or later; the bridge then gates jobs only at its next poll"
	luaCost  = "slurmctld runs the script each time a job is submitted or changed, for a fraction of a millisecond"
	whyProof = "the daemon accepts records only from nodes that prove their identity; until then records wait on the " +
		"nodes, and nothing is learned"
	pluginCost = "slurmstepd runs the plugin for each task, which takes as long as a TaskProlog; a node that lacks the " +
		"plugin, or has it for another release of Slurm, runs its tasks without"
	hookCost = "some milliseconds for each job, with or without a GPU; Slurm drains a node without the program at its " +
		"next job: install the package on all nodes first"
	noShm = "each job then has a /dev/shm of its own, and its processes don't reach the MPS server of their GPU: jobs " +
		"that share a GPU take turns"
	modeCost = "a leftover process, or a process of a user who is logged in, can then use the GPU of a whole-GPU job"
	shmCost  = "the nodes' slurmds restart while no job runs; jobs then see each other's files in /dev/shm, as far as " +
		"these files' modes permit"
	noWeights = "jobs that share a GPU are billed as if they had none, and fair share doesn't count it either. With " +
		"this weight each job pays for its shares"
	sharersCost = "in these partitions jobs are refused, with a sentence, if they request several GPUs (other than " +
		"whole nodes) or use options by GPU (--cpus-per-gpu, --mem-per-gpu, --ntasks-per-gpu, --gpu-freq); so is an srun " +
		"in a job that requests a GPU again. Accounting has shares in place of gres/gpu: limits, weights and reports by " +
		"gres/gpu don't see these jobs"
	weightsCost = "jobs with shares use up fair share and GrpTRESMins, including shares that users request by hand; " +
		"priorities change at once"
)

// needAccount are the values of AccountingStorageEnforce with which every job needs an account.
var needAccount = []string{"associations", "limits", "qos", "safe", "wckeys", "all"}

// newest is the newest release that the tests run on: 22.05, 24.11 and 26.05.
var newest = text.Release{26, 5, 0}

// checks is the table of checks, filled in for the facts.
func (e *exam) checks() []check {
	conf := e.Config
	version := conf["SLURM_VERSION"]
	d := e.daemon
	gates := e.gatePartition()
	order := e.orderOfPlugins()
	counted := conf["AccountingStorageTRES"]
	enforced := func(word string) bool { return e.hasOption("AccountingStorageEnforce", word) }
	prologFlag := func(word string) bool { return e.hasOption("PrologFlags", word) }
	cgroup := e.hasPlugin("TaskPlugin", "task/cgroup")
	devices := conf["ConstrainDevices"]
	lua := e.hasPlugin("JobSubmitPlugins", "job_submit/lua")
	packaged := orEmpty(e.PackagedLua)
	script := orEmpty(e.JobSubmitLua) // that slurmctld runs at submissions
	ours := ""                        // script if it is the project's own, "" if it is the site's
	if strings.HasPrefix(script, luaFirst) {
		ours = script
	}
	loads := loadsFiles.MatchString(script)
	// Slurm keeps whole-GPU jobs off untyped GPUs with shares in use.
	typesChecked := text.TypesChecked(version)
	// The bridge itself can turn requests into shares.
	rewrites := text.RewritesTypes(version)
	usual := func(w string) bool { return !strings.Contains(w, "/") || w == "fs/disk" } // always counted by Slurm
	other := func(w string) bool {
		return w != e.sharing && (strings.EqualFold(w, "mps") || strings.EqualFold(w, "shard"))
	}
	return []check{
		row("slurmctld", Error, anything, hitIf(e.Config == nil),
			"slurmctld does not answer", "all other checks need its answers", "",
			run("scontrol ping", "systemctl status slurmctld")),

		row("files", Note, slurmConf, hitEach("file", e.Unread),
			"you have no permission to read $file", "the files in slurm.conf's folder are not checked", "",
			run("sudo slurmbridge doctor")),

		// The release. Its faults that affect sharing are from Slurm's release notes.
		row("release", Error, slurmConf, hitIf(e.release.Before(text.Oldest)), "Slurm $SLURM_VERSION is older than 22.05",
			"gates with a deadline, and shares of a GPU, are tested from 22.05 on", ""),
		row("release-fault", Error, slurmConf, hitIf(e.within(text.Release{25, 5, 0}, text.Release{25, 5, 1})),
			"Slurm 25.05.0 may give the same GPU, or the same shares of one, to several jobs",
			"jobs that don't fit together then share a GPU; 25.05.1 fixes it", ""),
		row("release-fault", Warning, slurmConf, hitIf(e.within(text.Release{25, 11, 0}, text.Release{25, 11, 4})),
			"Slurm 25.11 before 25.11.4 may miss the end of a prolog or epilog",
			"the job then stays in state COMPLETING and keeps its GPU's shares; 25.11.4 fixes it", ""),
		row("release-new", Note, slurmConf, hitIf(newest.Before(text.Release{e.release[0], e.release[1]})),
			"Slurm $SLURM_VERSION is newer than the releases that slurmbridge was tried on (22.05, 24.11, 26.05)",
			"if Slurm reports the gate with values that the bridge didn't submit, the bridge changes no job; begin with "+
				"mode: shadow", ""),
		row("used-gpus", Error, partitions, e.mixed(version != "" && text.GivesUsedGPUs(version)),
			"Slurm $SLURM_VERSION may give a whole-GPU job a GPU that a job with shares still uses, in partition $mixed",
			"it considers a GPU free when the first of its sharers ends (SchedMD's bug 19110, fixed in 23.11.5), so the bridge "+
				"lets no jobs share on nodes of such partitions. If one GPU a job is enough, sharers_only has job_submit.lua hand "+
				"out only shares there: a request for one GPU becomes all of its shares, a request for more is refused. "+
				"Otherwise move nodes to a partition of their own, or upgrade",
			sharersCost, setting("sharers_only: [$all]")),
		row("planned-gpus", choose(e.Settings.MixedPartitions == "share", Warning, Error), partitions,
			e.mixed(e.within(text.Release{23, 11, 5}, text.Release{25, 5, 0})),
			"Slurm $SLURM_VERSION plans waiting whole-GPU jobs as if GPUs in use by shares were free, in partition $mixed",
			"its backfill keeps the node for such a job, so no job behind it starts there meanwhile, not even one without a "+
				"GPU (SchedMD's ticket 22235, fixed in 25.05.0). So the bridge lets no jobs share on nodes of such partitions, "+
				"unless mixed_partitions is share. If one GPU a job is enough, sharers_only has job_submit.lua hand out only "+
				"shares. Otherwise move nodes to a partition of their own, or upgrade",
			sharersCost, setting("sharers_only: [$all]")),

		row("partitions-absent", Error, partitions, e.absentPartitions(),
			"$setting names a partition that doesn't exist: $missing", "the setting has no effect there; Slurm has $there", "",
			setting("$setting: …   # without $missing")),

		// Settings of slurm.conf, one by one.
		row("gres-both", choose(typesChecked, Warning, Error), slurmConf,
			hitIf(e.hasOption("GresTypes", "mps") && e.hasOption("GresTypes", "shard"),
				"kept", withoutWords(conf["GresTypes"], other)),
			"GresTypes has both mps and shard",
			"Slurm 22.05 then starts mps jobs without CUDA_VISIBLE_DEVICES, and two ways to share one GPU don't see each other",
			restarts+"; a job that requests the removed kind is refused", toConf("GresTypes=$kept")),
		row("gres-types", Error, slurmConf, hitIf(!e.hasOption("GresTypes", "gpu") || !e.hasOption("GresTypes", e.sharing),
			"types", withWords(conf["GresTypes"], "gpu", e.sharing)),
			`GresTypes is "$GresTypes": Slurm knows no shares of a GPU`,
			"the bridge starts jobs together by giving each of them shares: mps on nodes with one GPU, shard (or mps) on nodes "+
				"with several", restarts, toConf("GresTypes=$types")),
		row("select-type", Error, slurmConf, hitIf(!e.hasPlugin("SelectType", "select/cons_tres")),
			"SelectType is $SelectType", "only select/cons_tres hands out GPUs and shares of them",
			"with a change from select/linear or select/serial Slurm forgets all jobs, pending and running: drain the cluster "+
				"first (from select/cons_res none is lost). Jobs then get cores and memory in place of whole nodes",
			toConf("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory")),
		row("multiple-sharing", Error, slurmConf, hitIf(e.hasOption("SelectTypeParameters", "MULTIPLE_SHARING_GRES_PJ")),
			"SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ",
			"Slurm may then give one job shares of several GPUs, beside jobs that don't fit with it",
			"a job that requests more shares than one GPU has is refused",
			toConf("SelectTypeParameters=${SelectTypeParameters-MULTIPLE_SHARING_GRES_PJ}")),
		row("least-loaded", Warning, nodes, e.nodesWhere(func(n *text.Node) bool {
			return n.GPUs > 1 && e.hasOption("SelectTypeParameters", "LL_SHARED_GRES")
		}), "SelectTypeParameters has LL_SHARED_GRES",
			"Slurm then spreads jobs over a node's idle GPUs, so no group can start on one of them: jobs start alone until one "+
				"GPU is left, and the others are shared only as they become free",
			"jobs whose users request shares by hand fill a node's GPUs one after the other; Slurm no longer spreads them",
			toConf("SelectTypeParameters=${SelectTypeParameters-LL_SHARED_GRES}")),
		row("hook-timeout", Warning, slurmConf,
			e.tooShort(time.Minute, "PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"),
			"$name is $time",
			"Slurm drains a node whose hook takes longer; slurmbridge-hook ends within 30 s, the site's own hooks may not",
			"a hook that hangs, including the site's own, keeps its node from other jobs for that long before Slurm drains it",
			toConf("$name=120")),
		row("preempt", Note, slurmConf, hitIf(e.hasPlugin("PreemptType", "preempt/qos") && isFalse(e.QOS)),
			"$user can't read which QOS preempts which",
			"a job that asks to share then waits at the gate for an idle GPU even if it could preempt, and jobs share only "+
				"with jobs of the same QOS", "", run("sacctmgr -nP show qos format=Name,Preempt   # as $user")),
		row("prolog-flags", Note, slurmConf,
			hitIf(!slices.ContainsFunc([]string{"Contain", "X11", "RunInJob"}, prologFlag)),
			"PrologFlags has no Contain",
			"a session of salloc then has no process on its node between two commands, so a job that ended without an epilog "+
				"looks like one: for a day its GPU's MPS daemon keeps running, and other users' sharers compute without MPS "+
				"there", "the nodes' slurmds restart; each job has one more process of Slurm's on each node",
			toConf("PrologFlags=${PrologFlags+Contain}")),
		// After a run's record has arrived, the bridge reads from squeue --states=all how the run ended. Its polls may be
		// 30 s apart: it retries within that time while slurmctld fails. With 0 Slurm forgets no job.
		row("min-job-age", Warning, slurmConf, e.tooShort(30*time.Second, "MinJobAge"), "MinJobAge is $time",
			"the bridge asks Slurm how a job ended seconds after its end, when its record arrives; if Slurm has forgotten the "+
				"job, the bridge doesn't know whether it failed, can't run it again and learns the wrong thing from it",
			"slurmctld keeps ended jobs for that long: they count toward MaxJobCount, and take some KiB of memory each",
			toConf("MinJobAge=300   # Slurm's default")),
		// Tried on 24.11.5 with small limits: even root and SlurmUser were held back, for five seconds at a time.
		row("rate-limit", Warning, slurmConf, e.lowRateLimit(),
			"SlurmctldParameters limits a user's requests to slurmctld (rl_enable)",
			"the bridge sends several requests when a group starts; if Slurm delays them, groups start seconds late",
			"every user may send as many requests: more load on slurmctld from scripts that poll",
			toConf("SlurmctldParameters=$params,rl_bucket_size=100,rl_refill_rate=20")),
		row("shadow", Note, slurmConf, hitIf(e.Settings.Mode == "shadow"),
			"the bridge is in shadow mode", "it decides and records, and changes nothing",
			"jobs that ask to share wait behind the gate, beside an idle GPU for max_delay at most, and share",
			setting("mode: active")),
		row("folder", Error, slurmConf, hitEach("folder", e.Missing), "$folder does not exist",
			"the bridge keeps its state in it, and job_submit.lua reads the gate there", "",
			run("install -d -o $slurm -m 755 $folder")),
		row("constrain-devices", Note, slurmConf,
			hitIf((devices != "" || cgroup) && !(strings.EqualFold(devices, "yes") && cgroup)),
			"Slurm lets a job's processes open other jobs' GPUs",
			"a job that ignores or changes CUDA_VISIBLE_DEVICES computes on other jobs' GPUs, beside their sharers and "+
				"without MPS",
			"the nodes' slurmds restart; a job fails if it opens a GPU, or another device in gres.conf, that it didn't request",
			in("$dir/cgroup.conf", "ConstrainDevices=yes"), toConf("TaskPlugin=task/cgroup,task/affinity")),

		// GPUs and their shares.
		row("no-gpu", Error, nodes, hitIf(e.gpus == nil),
			"no node has a GPU", "there is nothing to share", restarts, toConf("NodeName=NODE … Gres=gpu:TYPE:1,$sharing:100")),
		row("node-shares", Error, nodes, e.withoutShares(false),
			"no shares on $nodes", "only one job at a time can use each of these GPUs",
			restarts+"; any user may then request a part of a GPU by hand", toConf("$inConf"),
			gres("# on $nodes", "$lines")),
		row("mig-shares", Note, nodes, e.withoutShares(true), "MIG instances without shares on $nodes",
			"the bridge leaves them alone: Slurm hands out whole instances, and a small job leaves most of one idle",
			restarts+"; users request instances as before. A line of shares that names files of an instance takes the node "+
				"out of service",
			toConf("$inConf"),
			gres("# on $nodes; a line for an instance: Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,"+
				"/dev/nvidia-caps/nvidia-cap…", "$lines")),
		row("mig-release", Warning, nodes, e.nodesWhere(func(n *text.Node) bool {
			return hasInstances(n) && sharesOf(n) > 0 && !text.SharesInstances(version)
		}), "Slurm before 23.02.7 can't share the MIG instances of $nodes",
			"it gives each instance fewer shares than it shows, and a job that requests 60 waits for ever. The bridge leaves "+
				"these instances alone", ""),
		row("gpu-without-shares", Warning, nodes,
			e.shareCounts(func(got, want int) bool { return got < want && got%100 == 0 }),
			"not every GPU has 100 shares: $nodes",
			"this is right if a GPU is in MIG mode or excluded on purpose and the others have 100 shares each: the bridge "+
				"leaves that GPU alone. Otherwise set Count in gres.conf to 100 for each File", restarts,
			toConf("$inConf"), gres("$lines")),
		row("share-count", Error, nodes,
			e.shareCounts(func(got, want int) bool { return got > want || got < want && got%100 != 0 }),
			"the number of shares isn't 100 a GPU: $nodes",
			"to the bridge a share is a hundredth of a GPU; the shares of a group must add up to a whole GPU",
			restarts+"; a number of shares that a user requests by hand becomes a different part of a GPU",
			toConf("$inConf"), gres("$lines")),
		row("node-invalid", Error, nodes,
			e.nodesWhere(func(n *text.Node) bool { return strings.Contains(strings.ToUpper(n.State), "INVALID_REG") }),
			"Slurm rejects $nodes: they have less than slurm.conf says",
			"usually gres.conf on the node names fewer GPUs or shares than Gres= in slurm.conf, or another type, or has a line "+
				"of shares with File= or MultipleFiles= for MIG instances", "",
			run("scontrol show node $nodes | grep Reason", "slurmd -G   # on the node: what it finds",
				"systemctl restart slurmd   # on the node, when gres.conf is right")),
		row("one-sharing", Warning, nodes, e.nodesWhere(func(n *text.Node) bool {
			return e.GresConf != nil && !e.gresConfHas("all_sharing") && n.GPUs > 1 && n.Shares["mps"] > 0
		}), "several GPUs and mps without all_sharing on $nodes",
			"by default Slurm shares one GPU of a node at a time; jobs then wait beside idle GPUs",
			"slurmctld and the nodes' slurmds restart; a job that requests mps by hand may then run on any of a node's GPUs, "+
				"beside jobs of other users", gres("$lines")),
		row("gres-conf", Warning, files, e.unnamedShares(),
			choose(e.GresConf == nil, "$dir/gres.conf does not exist", "$dir/gres.conf has no line with $kinds"),
			"unless the nodes have a gres.conf of their own, they find no GPUs, or don't know which GPUs the shares belong to, "+
				"and Slurm takes them out of service", restarts,
			gres("$lines")),
		row("gpu-type", choose(typesChecked, Warning, Error), nodes,
			e.nodesWhere(func(n *text.Node) bool { return n.ByType[""] > 0 }),
			"GPUs without a type on $nodes",
			"Slurm 22.05 may start a whole-GPU job on an untyped GPU whose shares are in use; and "+noCard, restarts,
			toConf("$inConf"),
			gres("$lines", "# TYPE: with AutoDetect a part of the name that slurmd -G prints")),
		row("gpu-unknown", Warning, nodes, e.unknownCards(),
			"the bridge doesn't know GPU type $type (on $nodes)", noCard, "",
			setting("gpu_types:", "  $type: {mem_mib: MEMORY}   # nvidia-smi --query-gpu=memory.total --format=csv")),
		row("default-memory", Warning, partitions, e.noDefaultMemory(true), "DefMemPerGPU is the only default memory",
			"Slurm gives it to whole-GPU jobs only. While the bridge runs, job_submit.lua gives it to jobs that share a GPU as "+
				"well; without the bridge such a job takes all of a node's memory, unless it says --mem", ""),
		row("default-memory", Error, partitions, e.noDefaultMemory(false),
			"DefMemPerCPU is not set for partition $partitions",
			"a job that doesn't say --mem takes all of a node's memory, so no two such jobs ever run side by side",
			"a job that doesn't say --mem gets this much and no more: if Slurm enforces memory limits, it kills a job that "+
				"needs more. Announce it, and choose the value from MaxRSS in sacct",
			toConf("$lines")),

		// job_submit.lua gates new jobs.
		row("lua", choose(rewrites, Warning, Error), slurmConf, hitIf(!lua), "JobSubmitPlugins has no lua",
			noLua, luaCost, toConf("JobSubmitPlugins=${JobSubmitPlugins+lua}"), installLua),
		row("lua", Error, files, hitIf(lua && e.JobSubmitLua == nil),
			"$lua does not exist", "with JobSubmitPlugins=lua and no script slurmctld won't start", luaCost, installLua),
		row("lua", choose(loads, Note, choose(rewrites, Warning, Error)), files,
			hitIf(lua && e.JobSubmitLua != nil && !strings.Contains(script, Signature)),
			"$lua is a script of your own that "+choose(loads, "loads other files: whether one calls slurmbridge's can't be "+
				"seen from here", "doesn't call slurmbridge's"), noLua, luaCost, in("$lua",
				`local there, slurmbridge = pcall(dofile, "`+PackagedLua+`")   -- slurmctld starts without the package, too`,
				"-- and as the last thing of your slurm_job_submit:",
				"return there and slurmbridge.submit(job_desc, part_list, submit_uid) or slurm.SUCCESS",
				"-- and of your slurm_job_modify:",
				"return there and slurmbridge.modify(job_desc, job_rec, part_list, modify_uid) or slurm.SUCCESS")),
		row("lua-modify", Warning, files,
			hitIf(lua && strings.Contains(script, Signature) && ours == "" && !strings.Contains(script, ".modify(")),
			"$lua doesn't call slurmbridge.modify",
			"a user may change a job to part of a GPU unchecked, and evade the partitions' rules", "",
			in("$lua", "-- as the last thing of your slurm_job_modify:", "return slurmbridge.modify(job_desc, job_rec, "+
				"part_list, modify_uid)   -- or by the name that the script gives it")),
		row("lua-gate-file", Error, files, hitIf(ours != "" && !strings.Contains(ours, `"`+e.Settings.GateFile()+`"`)),
			"$lua doesn't read $gate", "the bridge names the gate in this file; jobs are not gated, and start alone", "",
			in("$lua", `gate = "$gate",`, `wake = "$wake",`)),
		// Without a gate file, after a boot for example, the script uses its own setting.
		row("lua-gres", Warning, files,
			hitIf(ours != "" && e.sharing == "shard" && !strings.Contains(ours, `gres = "shard"`)),
			"$lua has gres = mps, but this cluster shares GPUs by shard",
			"from a boot until the daemon has polled, and on a host without the daemon, requests for gpu:shared become mps, "+
				"which Slurm refuses", "", in("$lua", `gres = "shard",`)),
		row("lua-version", Warning, files, hitIf(ours != "" && packaged != "" && luaBody(packaged) != luaBody(ours)),
			"$lua isn't the job_submit.lua of this release", "script and daemon must be of the same release", "", installLua),

		// The bridge's user submits the gate and changes jobs.
		row("gate-rights", Error, bridgeUser, hitIf(e.User == "root" && strings.EqualFold(conf["DisableRootJobs"], "yes")),
			"the bridge runs as root and DisableRootJobs is set", "it can't submit the gate", "", asSlurm...),
		row("gate-rights", Error, bridgeUser, hitIf(e.User != "root" && e.User != e.values["slurm"]),
			"the bridge runs as $user, not as SlurmUser ($slurm)", "only SlurmUser and root may change users' jobs", "",
			asSlurm...),
		// Where limits are enforced each job needs an account, and the gate is a job.
		row("gate-account", choose(e.Account == nil, Warning, Error), bridgeUser,
			hitIf(!isTrue(e.Account) && slices.ContainsFunc(needAccount, enforced),
				"has", choose(e.Account == nil, "may have no account", "has no account")),
			"$user $has, and AccountingStorageEnforce requires one of every submitter",
			"the gate is a job of $user's: without an account Slurm refuses it, and then nothing is grouped", "",
			run("sacctmgr show assoc user=$user", "sacctmgr add user $user account=ACCOUNT")),

		// The gate is a job, so a partition must take it: its own while that is up, else those where GPUs are shared. A
		// partition that is DOWN still accepts jobs.
		row("gate-in-lists", Error, partitions, hitIf(order != "" && gates.State != "", "order", order),
			"JobSubmitPlugins=$JobSubmitPlugins adds the gate's partition $gates to each job that names no partition",
			"Slurm refuses such a job (with EnforcePartLimits=ALL) or never starts it (PartitionTimeLimit, "+
				"PartitionNodeLimit), whether it requests a GPU or not. If all_partitions comes first, job_submit.lua removes the "+
				"gate's partition again",
			"if a job names no partition, your own rules in job_submit.lua see a list of all partitions",
			toConf("$order"), run("scontrol reconfigure",
				"scontrol delete PartitionName=$gates   # instead, with its line in slurm.conf: the gate is then in the jobs' "+
					"partitions, where all users see it")),
		row("gate-seen", Note, partitions, hitIf(gates.State == "UP" && !gates.Hidden && !e.hasOption("PrivateData", "jobs")),
			"the gate's partition $gates isn't hidden", gateSeen, gatesPartition,
			toConf("PartitionName=$gates … Hidden=YES")),
		row("gate-seen", Note, partitions,
			hitIf(gates.State == "" && e.Settings.Mode != "shadow" && e.gpus != nil && !e.hasOption("PrivateData", "jobs"),
				"order", order),
			"the gate is in the jobs' partitions", gateSeen+"; users don't see it in a hidden partition of its own",
			gatesPartition,
			toConf("$order", "PartitionName=$gates Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1 OverSubscribe=NO"),
			setting("gate_partition: $gates")),
		row("gate-partition", Warning, partitions, hitIf(gates.State != "" && gates.State != "UP", "state", gates.State),
			"partition $gates, the gate's own, is $state", "the gate is in the jobs' partitions instead, where all users see it",
			"",
			run("scontrol update PartitionName=$gates State=UP")),
		row("gate-partition", Warning, partitions, hitIf(gates.WholeNodes),
			"partition $gates, the gate's own, gives each job whole nodes (OverSubscribe=EXCLUSIVE, perhaps from the line "+
				"PartitionName=DEFAULT)",
			"the gate is in the jobs' partitions instead, where all users see it: only there Slurm reports it as the bridge "+
				"submitted it", "none: the partition has no other job", toConf("PartitionName=$gates … OverSubscribe=NO"),
			run("scontrol update PartitionName=$gates OverSubscribe=NO")),
		row("whole-nodes", Note, partitions, e.partitionsWhere(func(p text.Partition) bool { return p.WholeNodes }),
			"no jobs share a GPU in partition $partitions: each gets whole nodes (OverSubscribe=EXCLUSIVE)",
			"`sbatch --gres=gpu:shared` gets all GPUs of its node there, as any job does",
			"jobs without --exclusive then share nodes with other jobs",
			toConf("PartitionName=… OverSubscribe=NO   # if jobs are to share there")),
		row("one-user", Note, partitions, e.partitionsWhere(func(p text.Partition) bool { return p.OneUser }),
			"in partition $partitions a node runs jobs of one user at a time (ExclusiveUser=YES)",
			"there jobs share a GPU only with jobs of the same user", ""),
		row("gate-partition", Error, partitions, e.gateLockedOut(),
			"partition $name is $state, and the gate has no other partition", "the gate is a job, and $name takes no jobs", "",
			run("scontrol update PartitionName=$name State=UP")),

		// slurm.conf's hooks lead to slurmbridge-hook.
		row("hook-$kind", Error, hooks, e.strays(true, "Prolog", "Epilog", "TaskProlog"),
			"$hook doesn't lead to slurmbridge-hook", "$lost$others", hookCost, addHook),
		row("hook-$kind", Note, hooks, e.strays(false, "Prolog", "Epilog", "TaskProlog"),
			"whether $hook leads to slurmbridge-hook is unknown: $hidden is on the nodes only",
			"if it doesn't, jobs there share by turns, or are never recorded$others", hookCost, addHook),
		// Slurm's task.c, 22.05 to 26.05, ends the task if TaskProlog fails; TestStartsInAContainer shows it.
		row("task-prolog-pyxis", Error, hooks, hitIf(e.stackIndex(pyxis) >= 0 && e.isOurs("TaskProlog")),
			"TaskProlog ends each task that Pyxis starts in a container, even in jobs without a GPU",
			"Slurm runs TaskProlog inside the container, doesn't find it there, and ends the task. A SPANK plugin avoids this",
			pluginCost, in("$SLURM_CONF", "# TaskProlog=…   # remove this line when the plugin is on all nodes"), buildPlugin,
			stackPlugin),
		row("hook-taskprolog", Error, hooks,
			hitIf(e.stackIndex(pyxis) >= 0 && e.stackIndex(ourPlugin) < 0 && !e.isOurs("TaskProlog")),
			"plugstack.conf lacks slurmbridge's plugin, which does TaskProlog's work beside Pyxis",
			lost["TaskProlog"]+". TaskProlog itself would end each task that Pyxis starts in a container", pluginCost,
			buildPlugin, stackPlugin),
		row("plugin-order", Warning, hooks,
			hitIf(e.stackIndex(pyxis) >= 0 && e.stackIndex(ourPlugin) > e.stackIndex(pyxis)),
			"plugstack.conf has slurmbridge's plugin below Pyxis",
			"some versions of Pyxis enter the container first, where the plugin finds no hook: jobs in containers then share "+
				"GPUs by turns", pluginCost, stackPlugin),
		row("epilog-slurmctld", Warning, hooks, e.strays(true, "EpilogSlurmctld"), "EpilogSlurmctld doesn't wake the bridge",
			"it then notices that a GPU is free only at its next poll",
			"a short process on the controller at the end of each job, which stays COMPLETING meanwhile", addHook),
		// Tried on 22.05.8: with both hooks Slurm looks at its queue within 0.1 s of a job's end. Without an Epilog the next
		// job starts 25 to 30 s later.
		row("epilog-order", Warning, hooks, hitIf(conf["EpilogSlurmctld"] != "" && conf["Epilog"] == ""),
			"there is an EpilogSlurmctld and no Epilog",
			"EpilogSlurmctld then ends after the job has left its nodes, and Slurm doesn't look at its queue at that time: the "+
				"next job on them waits for Slurm's next interval, 30 s by default", hookCost,
			toConf("Epilog=/usr/lib/slurmbridge/epilog")),
		row("drained", Error, hooks, e.drained(), "Slurm drained $nodes: Prolog error or Epilog error",
			"Slurm drains a node if a hook in slurm.conf is missing there", "",
			run("ls /usr/lib/slurmbridge /usr/sbin/slurmbridge-hook   # on each of them; the package gpuprof has both",
				"scontrol update NodeName=$nodes State=RESUME")),
		row("private-memory", Error, slurmConf, e.hidesMemory(true),
			"$plugin hides /dev/shm from jobs$always", noShm, shmCost, in("$in", "$line")),
		row("private-memory", Warning, files, e.hidesMemory(false),
			"whether $plugin hides /dev/shm from jobs is unknown: this machine has no $in", noShm, shmCost,
			in("$in", "$line")),

		// Senders of records prove their identity: with MUNGE if Slurm has it, otherwise with a key.
		row("munge", Error, slurmConf, hitIf(e.byMunge() && isFalse(e.MungeSocket)),
			"munged's socket does not exist", whyProof, "", run("systemctl enable --now munge")),
		row("munge", Error, slurmConf, hitIf(e.byMunge() && !isFalse(e.MungeSocket) && orEmpty(e.Munge) != ""),
			"MUNGE doesn't work here: $munge", whyProof, "",
			run("munge -n | unmunge", "systemctl restart munge", "journalctl -u munge -n 20")),
		row("key", Error, slurmConf, hitIf(e.Key == nil && !e.byMunge() && (e.Munge == nil || *e.Munge != "")),
			"AuthType is $AuthType, there is no MUNGE, and key_file is not set", whyProof, "", makeKey...),
		row("key", Error, slurmConf, hitIf(orEmpty(e.Key) != ""), "key_file is unusable: $key", whyProof, "", makeKey...),
		row("token", Warning, slurmConf,
			hitIf(e.Key != nil && text.Private(conf["PrivateData"], "jobs") && orEmpty(e.Token) != ""),
			"Slurm's tokens don't work here: $token",
			"Slurm hides other users' jobs (PrivateData), so slurmbridge why needs proof of the user's identity", "",
			run("scontrol show config | grep AuthInfo   # without disable_sack",
				"ls -l /run/slurm/sack.socket /run/slurmctld/sack.socket"),
			in("or, where AuthType is auth/munge, "+settingsFile+" and "+filesOfNodes, `key_file: ""`)),

		// The nodes' agents.
		row("clock", Warning, agents, e.agentsByText(clock), "clocks differ from this machine's: $nodes",
			"records then disagree about which jobs shared a GPU, and the daemon refuses records that are minutes off", "",
			run("chronyc tracking   # on each of them")),
		row("agent", Warning, agents, e.agentsByText(func(a Agent) string { return a.Silent }),
			"gpuprof doesn't answer on $nodes", "if it doesn't run, jobs run, but nothing is learned from them", "",
			run("systemctl enable --now gpuprof   # on each of them",
				"slurmbridge doctor --agents https://{node}:9798 --client-config FILE   # if it has TLS or a password")),
		row("agent-sick", Warning, agents, e.agentsByText(func(a Agent) string { return a.Sick }),
			"gpuprof reports a problem on $nodes", "little or nothing is learned from jobs there", "",
			run("journalctl -u gpuprof -n 50   # on each of them")),
		row("hook-settings", Warning, agents, e.agentsWhere(func(_ *text.Node, a Agent) bool { return isFalse(a.Hooks) }),
			"settings of the hooks on $nodes are invalid", "the hooks use defaults instead", "",
			run("journalctl -t slurmbridge-hook -n 50   # on each of them; names the setting in /etc/slurmbridge/node.yaml")),
		row("mps-binary", Error, agents,
			e.agentsWhere(func(n *text.Node, a Agent) bool { return sharesOf(n) > 0 && isFalse(a.MPS) }),
			"no nvidia-cuda-mps-control on $nodes", "jobs that share a GPU there take turns instead of running side by side", "",
			run("apt-get install nvidia-cuda-mps   # or your driver's package, on each of them")),
		row("mps-memory-limit", Warning, agents,
			e.agentsWhere(func(n *text.Node, a Agent) bool { return sharesOf(n) > 0 && isTrue(a.NoLimits) }),
			"the driver on $nodes is too old to limit the memory of jobs that share a GPU",
			"nothing stops a job from allocating more than its part, and its neighbours then run out of memory", "",
			run("# install a driver of CUDA 11.5 or later, or set memory_limits: false for these cards in gpu_types of "+
				"slurmbridge.yaml")),
		row("compute-mode", Error, agents, e.inMode("prohibited"),
			"GPUs of $nodes are in compute mode PROHIBITED", "no job can compute on them",
			"the mode changes for all jobs on these GPUs", defaultMode),
		row("compute-exclusive", Error, agents, e.exclusive(false),
			"GPUs of $nodes are in compute mode EXCLUSIVE_PROCESS, and jobs have a /dev/shm of their own, from which they "+
				"can't reach the MPS server",
			"of the jobs that share a GPU all but the first fail, and run again alone", modeCost, defaultMode),
		row("compute-exclusive", Warning, agents, e.exclusive(true),
			"GPUs of $nodes are in compute mode EXCLUSIVE_PROCESS",
			"MPS works there, but a job that can't use it fails and runs again alone: in a container or namespace that hides "+
				"the MPS server, or when the server is full or has faulted",
			modeCost, defaultMode),
		row("persistence-mode", Warning, agents,
			e.agentsWhere(func(n *text.Node, a Agent) bool { return sharesOf(n) > 0 && a.Cold }),
			"GPUs of $nodes have persistence mode off",
			"the driver then initialises an idle GPU again for its next job, which takes seconds, with eight GPUs up to half a "+
				"minute: jobs start before their MPS server is known to run, and fail if it doesn't start",
			"an idle GPU draws a few more watts", run("systemctl enable --now nvidia-persistenced   # on each of them")),
		// The hooks start MPS on a GPU only if they know for certain which card it is.
		row("gpu-order", Warning, agents, e.agentsWhere(func(_ *text.Node, a Agent) bool { return a.Uncertain > 0 }),
			"Slurm's GPU numbers on $nodes can't be matched to cards with certainty",
			"gres.conf names the GPUs' files in another order than NVML and has AutoDetect as well, or names files that don't "+
				"exist; jobs on such GPUs share without MPS, and have no records", restarts,
			gres("AutoDetect=nvml   # and no File= of GPUs; or AutoDetect=off, and File= in the order of nvidia-smi")),

		// The daemon runs, and does what the settings say.
		row("daemon", Warning, daemon, hitIf(d.Silent != "", "said", d.Silent),
			"slurmbridge serve doesn't answer ($said)", "if it doesn't run, every job runs as on plain Slurm", "",
			run("systemctl enable --now slurmbridge", "journalctl -u slurmbridge -n 50   # if it doesn't stay up",
				"slurmbridge doctor --server https://HOST:9797 --client-config FILE   # if it has TLS or a password")),
		row("daemon-poll", Error, daemon, hitIf(d.Sick != "", "said", d.Sick),
			"slurmbridge serve can't do its work: $said", "nothing is shared until it can", "",
			run("journalctl -u slurmbridge -n 50")),
		row("gate", Error, running, e.gateless(true),
			"slurmbridge serve is active and has no gate$said",
			"$lua, your own script, may refuse the gate, which is a job without a GPU. Without the gate no jobs share", "",
			in("$file", "$lines"), run("journalctl -u slurmbridge -g gate   # Slurm's answer, and the script's")),
		row("gate", Error, running, e.gateless(false),
			"slurmbridge serve is active and has no gate$said", "without the gate no jobs share", "",
			run("journalctl -u slurmbridge -g gate   # Slurm's answer",
				"sacctmgr add user $user account=ACCOUNT   # if $user lacks an account",
				"sacctmgr modify user $user set MaxSubmitJobs=-1 MaxJobs=-1   # if a limit holds the gate",
				"slurmbridge status --json   # lists misread fields; does a job_submit script change SlurmUser's jobs?")),
		row("gate", Error, running, hitIf(!d.gateless() && d.GateErr != "", "said", d.GateErr),
			"slurmbridge serve has trouble with its gate: $said",
			"if the daemon ended now, jobs could wait for a gate that can't open", "",
			run("slurmbridge open   # lets every waiting job start")),
		row("refused", Warning, running, e.refusedChanges(), "$refused", "$then", "", in("$file", "$lines")),
		row("daemon-mode", Warning, running, hitIf(string(d.Mode) != e.Settings.Mode, "current", string(d.Mode)),
			"slurmbridge serve runs in mode $current, the settings say $mode",
			"the daemon reads settings when it starts or reloads", "",
			run("systemctl reload slurmbridge")),
		row("policy", Warning, running, hitIf(d.Policy != e.Settings.Policy, "current", d.Policy),
			"policy $current decides, the settings say $policy",
			"the model is unusable, or the settings have changed since; sharing continues with a simpler policy", "",
			run("journalctl -u slurmbridge -g model", "systemctl reload slurmbridge")),

		// Accounting. A job with shares has no GPU there. Tried on 22.05.8: AllocTRES has gres/mps=50 and no gres/gpu,
		// MaxTRESPerUser=gres/gpu=1 let six jobs run on two GPUs, and only shares are billed.
		row("shares-accounted", Note, database,
			hitIf(!e.tracked(), "tres", withWords(withoutWords(counted, usual), "gres/"+e.sharing)),
			"AccountingStorageTRES has no gres/$sharing",
			"Slurm then doesn't account for shares: in reports, bills and limits a job that shares a GPU has none. "+
				"TRESBillingWeights and sacctmgr accept gres/$sharing only if it is listed",
			"slurmctld restarts, and slurmdbd keeps the new resource for good: it can't be removed again",
			toConf("AccountingStorageTRES=$tres"), run("systemctl restart slurmctld")),
		row("shares-limits", choose(enforced("limits") || enforced("safe"), Warning, Note), database, e.gpuLimits(),
			"limits on gres/gpu and none on gres/$sharing: $of",
			"Slurm counts a job that shares a GPU under gres/$sharing, not under gres/gpu, so these limits don't apply to it. "+
				"Whole GPUs and shares are counted apart; a job alone on its GPU, with all of the shares, counts 100",
			"a job whose shares exceed the limit waits, as a job with too many whole GPUs does", run("$lines")),
		row("shares-billed", Note, database, e.gpuBills(false),
			"partition $name bills gres/gpu and not gres/$sharing", noWeights, weightsCost, weights),
		row("shares-billed", Warning, database, e.gpuBills(true),
			"partition $name bills gres/gpu and not gres/$sharing, and no job is adopted there; GRES/$sharing=0 charges nothing",
			noWeights, weightsCost, weights),
		// Tried on 24.11.5: in a partition with DefCpuPerGPU Slurm refuses each update that replaces a GPU by shares.
		row("adopt-per-gpu", Warning, partitions, e.adoptsPerGPU(), "no job is adopted in partition $partitions",
			"jobs there get cores or memory by GPU (DefCpuPerGPU, DefMemPerGPU), and Slurm refuses to turn such a job's GPU "+
				"into shares. With defaults by CPU instead, jobs are adopted",
			"a job that requests neither cores nor memory gets less of them, whether it shares or not. Announce it",
			toConf("PartitionName=… DefMemPerCPU=…   # in place of JobDefaults=DefCpuPerGPU=…,DefMemPerGPU=…")),
	}
}
