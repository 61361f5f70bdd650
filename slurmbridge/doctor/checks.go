package doctor

import (
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

const (
	// Signature is in the project's job_submit.lua, however it was renamed or included.
	Signature = "slurmbridge"
	// PackagedLua is where packages put the script.
	PackagedLua = "/usr/share/slurmbridge/job_submit.lua"
	luaFirst    = "-- slurmbridge:" // begins the project's own script

	settingsFile = "/etc/slurmbridge/slurmbridge.yaml"
	filesOfNodes = "/etc/slurmbridge/gpuprof.yaml and node.yaml on the nodes" // the agent's settings and the hooks'
)

func row(name string, s Severity, reads source, hits []hit, what, why, cost string, fix ...Fix) check {
	return check{name, s, reads, hits, what, why, cost, fix}
}

func in(file string, lines ...string) Fix { return Fix{file, lines} }
func toConf(lines ...string) Fix          { return in("$SLURM_CONF", lines...) }
func gres(lines ...string) Fix            { return in("$dir/gres.conf", lines...) }
func setting(lines ...string) Fix         { return in(settingsFile, lines...) }
func run(commands ...string) Fix          { return in("", commands...) }

// Advice and texts of several checks.
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
	restarts = "all of Slurm's daemons restart (jobs go on); until slurm.conf and gres.conf agree on a node, it takes " +
		"no jobs"
	gatesPartition = "a partition more, in which only root and SlurmUser may put jobs. For them sinfo and scontrol show " +
		"partition list it, and all nodes a second time. A program that starts nodes for pending jobs should ignore the " +
		"job slurmbridge-gate, which never runs; jobs that wait for it have Reason=Dependency"
	gateSeen = "all users' squeue lists it as a pending job, and a script that waits for an empty queue waits for ever"
	noCard   = "the bridge doesn't know how much memory such a GPU has, and keeps groups off it"
	noLua    = "without it `sbatch --gres=gpu:shared` is refused, unless a node's GPUs carry the type shared and Slurm " +
		"is 23.02.6 or later; the bridge then gates jobs only when it next looks"
	luaCost  = "the script runs in slurmctld at each submission and change of a job, for a fraction of a millisecond"
	whyProof = "what nodes send is believed only with proof of the sender; until then records wait on the nodes, and " +
		"nothing is learned"
	pluginCost = "slurmstepd runs the plugin for each task, as long as a TaskProlog takes; a node without it, or with " +
		"one of another release, runs its tasks without"
	hookCost = "some milliseconds for each job, with or without a GPU; a node without the program is drained by its " +
		"next job: install the package on all nodes first"
	noShm = "each job then has a /dev/shm of its own, and its processes don't reach the MPS server of their GPU: jobs " +
		"that share one take turns"
	modeCost = "a process that is left over, or one of a user who is logged in, may then compute beside a job of a " +
		"whole GPU"
	shmCost = "the nodes' slurmds restart while no job runs; jobs then see each other's files in /dev/shm, whose owners " +
		"protect them"
	noWeights = "jobs that share a GPU are billed as if they had none, and fair share doesn't count it either. With " +
		"this weight each job pays for its shares"
	sharersCost = "in these partitions no job gets two GPUs, but for whole nodes, nor options that count by GPU " +
		"(--cpus-per-gpu, --mem-per-gpu, --ntasks-per-gpu, --gpu-freq), nor a script whose srun asks for a GPU again: each " +
		"is refused with a sentence. Accounting has shares in place of gres/gpu: limits, weights and reports by gres/gpu " +
		"don't see these jobs"
	weightsCost = "jobs with shares use up fair share and GrpTRESMins, those that users asked for by hand too; " +
		"priorities change at once"
)

// needAccount are the words of AccountingStorageEnforce by which every job needs an account.
var needAccount = []string{"associations", "limits", "qos", "safe", "wckeys", "all"}

// newest is the newest release that the tests have run on. They run on 22.05, 24.11 and 26.05.
var newest = text.Release{26, 5, 0}

// checks is all that doctor knows to look at.
func (e *exam) checks() []check {
	conf, version, d, gates, order := e.Config, e.Config["SLURM_VERSION"], e.daemon, e.gates(), e.orderOfPlugins()
	counted := conf["AccountingStorageTRES"]
	enforced := func(word string) bool { return e.has("AccountingStorageEnforce", word) }
	cgroup, devices := e.runs("TaskPlugin", "task/cgroup"), conf["ConstrainDevices"]
	// Which script slurmctld runs at submissions; ours is the project's own, "" where the site's own may call it.
	lua, script, packaged := e.runs("JobSubmitPlugins", "job_submit/lua"), wrong(e.JobSubmitLua), wrong(e.PackagedLua)
	wanted, ours := e.Settings.Lua != "no", ""
	if strings.HasPrefix(script, luaFirst) {
		ours = script
	}
	loads := loadsFiles.MatchString(script)
	// Slurm keeps whole-GPU jobs off untyped GPUs with shares in use; the bridge turns requests into shares itself.
	typesChecked, rewrites := text.TypesChecked(version), text.RewritesTypes(version)
	noNeed := rewrites && e.Settings.Lua != "yes"
	usual := func(w string) bool { return !strings.Contains(w, "/") || w == "fs/disk" } // Slurm counts these anyway
	other := func(w string) bool {
		return w != e.sharing && (strings.EqualFold(w, "mps") || strings.EqualFold(w, "shard"))
	}
	return []check{
		row("slurmctld", Error, anything, when(e.Config == nil),
			"slurmctld does not answer", "everything else is read from it", "",
			run("scontrol ping", "systemctl status slurmctld")),

		row("files", Note, slurmConf, each("file", e.Unread),
			"$file can't be read by the one who runs this", "so nothing is said of the files beside slurm.conf", "",
			run("sudo slurmbridge doctor")),

		// The release. Source of the faults that jobs which share suffer from: Slurm's release notes.
		row("release", Error, slurmConf, when(e.release.Before(text.Oldest)), "Slurm $SLURM_VERSION is older than 22.05",
			"gates with a deadline and shares of a GPU were proven from 22.05 on", ""),
		row("release-fault", Error, slurmConf, when(e.within(text.Release{25, 5, 0}, text.Release{25, 5, 1})),
			"Slurm 25.05.0 may give the same GPU, or the same shares of one, to several jobs",
			"jobs then meet that were never checked with each other; 25.05.1 mends it", ""),
		row("release-fault", Warning, slurmConf, when(e.within(text.Release{25, 11, 0}, text.Release{25, 11, 4})),
			"Slurm 25.11 before 25.11.4 may miss the end of a prolog or epilog",
			"the job then stays completing and keeps its GPU's shares; 25.11.4 mends it", ""),
		row("release-new", Note, slurmConf, when(newest.Before(text.Release{e.release[0], e.release[1]})),
			"Slurm $SLURM_VERSION is newer than the releases that slurmbridge was tried on (22.05, 24.11, 26.05)",
			"the bridge leaves every job alone where Slurm says of its gate what isn't so; begin with mode: shadow", ""),
		row("used-gpus", Error, partitions, e.mixed(version != "" && text.GivesUsedGPUs(version)),
			"Slurm $SLURM_VERSION may give a job of a whole GPU one that a job with shares still uses, in partition $mixed",
			"it takes a GPU for free when the first of its sharers ends (SchedMD's bug 19110, mended in 23.11.5), so on nodes "+
				"of such partitions the bridge lets no jobs share. Where one GPU a job is enough, sharers_only makes "+
				"job_submit.lua hand out only shares there: a request for one GPU becomes all of its shares, one for more is "+
				"refused. Else move nodes to a partition of their own, or upgrade",
			sharersCost, setting("sharers_only: [$all]")),
		row("planned-gpus", either(e.Settings.MixedPartitions == "share", Warning, Error), partitions,
			e.mixed(e.within(text.Release{23, 11, 5}, text.Release{25, 5, 0})),
			"Slurm $SLURM_VERSION plans waiting jobs of whole GPUs as if GPUs in use by shares were free, in partition $mixed",
			"its backfill keeps the node for such a job, so that no job behind it starts there meanwhile, not even one without "+
				"a GPU (SchedMD's ticket 22235, mended in 25.05.0), so on nodes of such partitions the bridge lets no jobs "+
				"share, unless mixed_partitions is share. Where one GPU a job is enough, sharers_only makes job_submit.lua hand "+
				"out only shares. Else move nodes to a partition of their own, or upgrade",
			sharersCost, setting("sharers_only: [$all]")),

		row("partitions-absent", Error, partitions, e.absent(),
			"$setting names a partition that isn't there: $missing", "the setting does nothing then; there are $there", "",
			setting("$setting: …   # without $missing")),

		// Single settings of slurm.conf.
		row("gres-both", either(typesChecked, Warning, Error), slurmConf,
			when(e.has("GresTypes", "mps") && e.has("GresTypes", "shard"), "kept", without(conf["GresTypes"], other)),
			"GresTypes has both mps and shard",
			"Slurm 22.05 then starts mps jobs without CUDA_VISIBLE_DEVICES, and two ways to share one GPU don't see each other",
			restarts+"; a job that asks for the kind that goes is refused", toConf("GresTypes=$kept")),
		row("gres-types", Error, slurmConf, when(!e.has("GresTypes", "gpu") || !e.has("GresTypes", e.sharing),
			"types", with(conf["GresTypes"], "gpu", e.sharing)), `GresTypes is "$GresTypes": Slurm knows no shares of a GPU`,
			"the bridge starts jobs together by giving each a share: mps on nodes with one GPU, shard (or mps) on nodes with "+
				"several", restarts, toConf("GresTypes=$types")),
		row("select-type", Error, slurmConf, when(!e.runs("SelectType", "select/cons_tres")),
			"SelectType is $SelectType", "only select/cons_tres hands out GPUs and shares of them",
			"changing from select/linear or select/serial, Slurm forgets all jobs, pending and running: drain the cluster "+
				"first (from select/cons_res none is lost). Jobs then get cores and memory in place of whole nodes",
			toConf("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory")),
		row("multiple-sharing", Error, slurmConf, when(e.has("SelectTypeParameters", "MULTIPLE_SHARING_GRES_PJ")),
			"SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ",
			"Slurm may then give one job shares of several GPUs, next to jobs on each of them that nobody has compared it with",
			"a job that asks for more shares than one GPU has is refused",
			toConf("SelectTypeParameters=${SelectTypeParameters-MULTIPLE_SHARING_GRES_PJ}")),
		row("least-loaded", Warning, nodes, e.on(func(n *text.Node) bool {
			return n.GPUs > 1 && e.has("SelectTypeParameters", "LL_SHARED_GRES")
		}), "SelectTypeParameters has LL_SHARED_GRES",
			"of a node's GPUs Slurm then takes the least loaded, so no group can be put on one of several that are idle: jobs "+
				"start alone until one GPU is left, and the others are shared only as they become free",
			"jobs with shares by hand fill a node's GPUs one after the other; they are no longer spread",
			toConf("SelectTypeParameters=${SelectTypeParameters-LL_SHARED_GRES}")),
		row("hook-timeout", Warning, slurmConf, e.short(time.Minute, "PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"),
			"$name is $time",
			"a hook that takes longer drains its node; slurmbridge-hook ends within 30 s, the site's other hooks may not",
			"a hook that hangs, the site's own too, keeps its node from other jobs for that long before the node is drained",
			toConf("$name=120")),
		row("preempt", Note, slurmConf, when(e.runs("PreemptType", "preempt/qos") && isnt(e.QOS)),
			"which QOS preempts which can't be read by $user",
			"a job that asks to share then waits at the gate for an idle GPU where it could preempt, and jobs share only with "+
				"jobs of the same QOS", "", run("sacctmgr -nP show qos format=Name,Preempt   # as $user")),
		row("prolog-flags", Note, slurmConf,
			when(!e.has("PrologFlags", "Contain") && !e.has("PrologFlags", "X11") && !e.has("PrologFlags", "RunInJob")),
			"PrologFlags has no Contain",
			"a session of salloc then has no process on its node between two commands, so a job that ended without an epilog "+
				"is told apart only after a day: until then its GPU's MPS daemon goes on, and other users' sharers compute "+
				"without MPS there", "the nodes' slurmds restart; each job has one more process of Slurm's on each node",
			toConf("PrologFlags=${PrologFlags+Contain}")),
		// The bridge learns from squeue --states=all how a run ended, after its record has arrived, and may put a poll off
		// for 30 s: while slurmctld fails it tries again within that time. 0 means that Slurm forgets no job.
		row("min-job-age", Warning, slurmConf, e.short(30*time.Second, "MinJobAge"), "MinJobAge is $time",
			"the bridge asks Slurm how a job ended once its record has come, seconds later; if Slurm has forgotten the job by "+
				"then, whether it failed isn't known, and the job is neither run again nor learned from correctly",
			"slurmctld keeps ended jobs for that long: they count toward MaxJobCount, and take some KiB of memory each",
			toConf("MinJobAge=300   # Slurm's default")),
		// Tried on 24.11.5 with small limits: root and SlurmUser were both held back, for five seconds at a time, so no user
		// is taken to be exempt.
		row("rate-limit", Warning, slurmConf,
			e.held(),
			"SlurmctldParameters limits how often a user may ask (rl_enable)",
			"the bridge asks several times when a group starts; held back, its groups start seconds late",
			"every user may ask that often: more load on slurmctld from scripts that poll",
			toConf("SlurmctldParameters=$params,rl_bucket_size=100,rl_refill_rate=20")),
		row("shadow", Note, slurmConf, when(e.Settings.Mode == "shadow"),
			"the bridge is in shadow mode", "it decides and records, and changes nothing",
			"jobs that ask to share wait behind the gate, for max_delay next to an idle GPU at most, and share",
			setting("mode: active")),
		row("folder", Error, slurmConf, each("folder", e.Missing), "$folder is not there",
			"the bridge keeps its state in it, and job_submit.lua reads the gate there", "",
			run("install -d -o $slurm -m 755 $folder")),
		row("constrain-devices", Note, slurmConf,
			when((devices != "" || cgroup) && !(strings.EqualFold(devices, "yes") && cgroup)),
			"Slurm keeps no process from GPUs that aren't its job's",
			"a job that ignores or changes CUDA_VISIBLE_DEVICES computes on other jobs' GPUs, next to their sharers and "+
				"without MPS",
			"the nodes' slurmds restart; a job that opens a GPU, or another device of gres.conf, that it didn't ask for fails",
			in("$dir/cgroup.conf", "ConstrainDevices=yes"), toConf("TaskPlugin=task/cgroup,task/affinity")),

		// GPUs and their shares.
		row("no-gpu", Error, nodes, when(e.gpus == nil),
			"no node has a GPU", "there is nothing to share", restarts, toConf("NodeName=NODE … Gres=gpu:TYPE:1,$sharing:100")),
		row("node-shares", Error, nodes, e.withoutShares(false),
			"no shares on $nodes", "jobs can be put on these GPUs only one at a time",
			restarts+"; anyone may then ask for a part of a GPU by hand", toConf("$inConf"),
			gres("# on $nodes", "$lines")),
		row("mig-shares", Note, nodes, e.withoutShares(true), "MIG instances without shares on $nodes",
			"the bridge leaves them alone: Slurm hands each out whole, and a small job "+
				"leaves most of it idle", restarts+"; jobs of instances ask for them as before. A line of shares that names "+
				"files of an instance takes the node out of service",
			toConf("$inConf"),
			gres("# on $nodes; a line for an instance: Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,"+
				"/dev/nvidia-caps/nvidia-cap…", "$lines")),
		row("mig-release", Warning, nodes, e.on(func(n *text.Node) bool {
			return hasInstances(n) && sharesOf(n) > 0 && !text.SharesInstances(version)
		}), "Slurm before 23.02.7 can't share the MIG instances of $nodes",
			"it makes fewer shares of each than it shows, and jobs that ask for 60 wait for ever. The bridge leaves these "+
				"instances alone", ""),
		row("gpu-without-shares", Warning, nodes, e.counts(func(got, want int) bool { return got < want && got%100 == 0 }),
			"not every GPU has 100 shares: $nodes",
			"right where one is in MIG mode or kept out on purpose, and the others have 100 each: it is left alone. Otherwise "+
				"Count in gres.conf is 100 for each File", restarts,
			toConf("$inConf"), gres("$lines")),
		row("share-count", Error, nodes,
			e.counts(func(got, want int) bool { return got > want || got < want && got%100 != 0 }),
			"the number of shares isn't 100 a GPU: $nodes",
			"the bridge deals in hundredths of a GPU; a group's shares must add up to the whole of one",
			restarts+"; jobs that ask for a number of shares by hand get another part of a GPU",
			toConf("$inConf"), gres("$lines")),
		row("node-invalid", Error, nodes,
			e.on(func(n *text.Node) bool { return strings.Contains(strings.ToUpper(n.State), "INVALID_REG") }),
			"Slurm doesn't take $nodes: less is there than slurm.conf says",
			"mostly gres.conf on the node names fewer GPUs or shares than Gres= in slurm.conf, or another type; "+
				"so does a line of shares with File= or MultipleFiles= where GPUs are MIG instances", "",
			run("scontrol show node $nodes | grep Reason", "slurmd -G   # on the node: what it finds",
				"systemctl restart slurmd   # on the node, when gres.conf is right")),
		row("one-sharing", Warning, nodes, e.on(func(n *text.Node) bool {
			return e.GresConf != nil && !e.gresConfHas("all_sharing") && n.GPUs > 1 && n.Shares["mps"] > 0
		}), "several GPUs and mps without all_sharing on $nodes",
			"by default Slurm shares one GPU of a node at a time; jobs then wait next to idle GPUs",
			"slurmctld and the nodes' slurmds restart; a job that asks for mps by hand may then be on any of a node's GPUs, "+
				"next to jobs of other users", gres("$lines")),
		row("gres-conf", Warning, files, e.unnamedShares(),
			either(e.GresConf == nil, "$dir/gres.conf is not there", "$dir/gres.conf has no line of $kinds"),
			"unless the nodes have a gres.conf of their own, they don't find their GPUs, or which of them the shares are of, "+
				"and Slurm takes them out of service", restarts,
			gres("$lines")),
		row("gpu-type", either(typesChecked, Warning, Error), nodes,
			e.on(func(n *text.Node) bool { return n.ByType[""] > 0 }),
			"GPUs without a type on $nodes",
			"Slurm 22.05 may start a whole-GPU job on an untyped GPU that shares are in use of; and "+noCard, restarts,
			toConf("$inConf"),
			gres("$lines", "# TYPE: with AutoDetect a part of what slurmd -G calls the GPU")),
		row("gpu-unknown", Warning, nodes, e.unknownCards(),
			"GPU type $type (on $nodes) is no card the bridge knows", noCard, "",
			setting("gpu_types:", "  $type: {mem_mib: MEMORY}   # nvidia-smi --query-gpu=memory.total --format=csv")),
		row("default-memory", Warning, partitions, e.noDefaultMemory(true), "DefMemPerGPU is the only default memory",
			"Slurm gives it to jobs of whole GPUs alone. While the bridge runs, job_submit.lua gives it to jobs that share a "+
				"GPU as well; without the bridge such a job takes all of a node's memory, unless it says --mem", ""),
		row("default-memory", Error, partitions, e.noDefaultMemory(false),
			"DefMemPerCPU is not set for partition $partitions",
			"a job that doesn't say --mem takes all of a node's memory, so no two such jobs ever run side by side",
			"a job that doesn't say --mem gets this much and no more: where Slurm enforces memory, one that needs more is "+
				"killed. Announce it, and choose it from what sacct shows as MaxRSS",
			toConf("$lines")),

		// job_submit.lua gates new jobs.
		row("lua", Error, slurmConf, when(!wanted && !rewrites),
			"the setting lua is no", "Slurm before 23.02.6 can't turn a request for a GPU into shares after the submission",
			luaCost, setting("lua: auto")),
		row("lua", either(noNeed, Warning, Error), slurmConf, when(wanted && !lua), "JobSubmitPlugins has no lua",
			noLua, luaCost,
			toConf("JobSubmitPlugins=${JobSubmitPlugins+lua}"), installLua),
		row("lua", Error, files, when(lua && wanted && e.JobSubmitLua == nil),
			"$lua is not there", "slurmctld won't start with JobSubmitPlugins=lua and no script", luaCost, installLua),
		row("lua", either(loads, Note, either(noNeed, Warning, Error)), files,
			when(lua && wanted && e.JobSubmitLua != nil && !strings.Contains(script, Signature)),
			"$lua is a script of your own that "+either(loads, "loads other files: whether one calls slurmbridge's can't be "+
				"seen from here", "doesn't call slurmbridge's"), noLua, luaCost, in("$lua",
				`local there, slurmbridge = pcall(dofile, "`+PackagedLua+`")   -- slurmctld starts without the package, too`,
				"-- and as the last thing of your slurm_job_submit:",
				"return there and slurmbridge.submit(job_desc, part_list, submit_uid) or slurm.SUCCESS",
				"-- and of your slurm_job_modify:",
				"return there and slurmbridge.modify(job_desc, job_rec, part_list, modify_uid) or slurm.SUCCESS")),
		row("lua-modify", Warning, files,
			when(lua && wanted && strings.Contains(script, Signature) && ours == "" && !strings.Contains(script, ".modify(")),
			"$lua doesn't call slurmbridge.modify",
			"a user may change a job to a part of a GPU that no one checks, and out of the partitions' rules", "",
			in("$lua", "-- as the last thing of your slurm_job_modify:", "return slurmbridge.modify(job_desc, job_rec, "+
				"part_list, modify_uid)   -- or by the name that the script gives it")),
		row("lua-gate-file", Error, files, when(ours != "" && !strings.Contains(ours, `"`+e.Settings.GateFile+`"`)),
			"$lua doesn't read $gate", "the bridge keeps the gate there; jobs are not gated, and start alone", "",
			in("$lua", `gate = "$gate",`, `wake = "$wake",`)),
		// Without a gate file, after a boot for example, the script uses its own setting.
		row("lua-gres", Warning, files, when(ours != "" && e.sharing == "shard" && !strings.Contains(ours, `gres = "shard"`)),
			"$lua says that GPUs are shared by mps, and here it is shard",
			"from a boot until the daemon has polled, and on a host without it, requests for gpu:shared become mps then, which "+
				"Slurm refuses", "", in("$lua", `gres = "shard",`)),
		row("lua-version", Warning, files, when(ours != "" && packaged != "" && luaBody(packaged) != luaBody(ours)),
			"$lua isn't the job_submit.lua of this release", "script and daemon are made for each other", "", installLua),

		// The bridge's user submits the gate and changes jobs.
		row("gate-rights", Error, ofUser, when(e.User == "root" && strings.EqualFold(conf["DisableRootJobs"], "yes")),
			"the bridge runs as root and DisableRootJobs is set", "it can't submit the gate", "", asSlurm...),
		row("gate-rights", Error, ofUser, when(e.User != "root" && e.User != e.values["slurm"]),
			"the bridge runs as $user, not as SlurmUser ($slurm)", "only they may change users' jobs", "", asSlurm...),
		// Where limits are enforced each job needs an account, and the gate is a job.
		row("gate-account", either(e.Account == nil, Warning, Error), ofUser,
			when(!is(e.Account) && slices.ContainsFunc(needAccount, enforced),
				"has", either(e.Account == nil, "may have no account", "has no account")),
			"$user $has, and AccountingStorageEnforce requires one of every submitter",
			"the gate is a job of $user's: without an account it is refused, and then nothing is grouped", "",
			run("sacctmgr show assoc user=$user", "sacctmgr add user $user account=ACCOUNT")),

		// The gate is a job, which a partition must take: its own while that is up, or those where GPUs are shared. One that
		// is down takes jobs all the same.
		row("gate-in-lists", Error, partitions, when(order != "" && gates.State != "", "order", order),
			"JobSubmitPlugins=$JobSubmitPlugins puts the gate's partition $gates into the list of each job that names none",
			"Slurm refuses such a job (with EnforcePartLimits=ALL) or never starts it (PartitionTimeLimit, "+
				"PartitionNodeLimit), whether it wants a GPU or not. If all_partitions comes first, job_submit.lua takes the "+
				"gate's partition out again",
			"where a job names no partition, your own rules in job_submit.lua see a list of all of them",
			toConf("$order"), run("scontrol reconfigure",
				"scontrol delete PartitionName=$gates   # instead, with its line in slurm.conf: the gate is then in the jobs' "+
					"partitions, where all users see it")),
		row("gate-seen", Note, partitions, when(gates.State == "UP" && !gates.Hidden && !e.has("PrivateData", "jobs")),
			"the gate's partition $gates isn't hidden", gateSeen, gatesPartition,
			toConf("PartitionName=$gates … Hidden=YES")),
		row("gate-seen", Note, partitions,
			when(gates.State == "" && e.Settings.Mode != "shadow" && e.gpus != nil && !e.has("PrivateData", "jobs"),
				"order", order),
			"the gate is in the partitions of the jobs", gateSeen+"; in a hidden partition of its own users don't see it",
			gatesPartition,
			toConf("$order", "PartitionName=$gates Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1 OverSubscribe=NO"),
			setting("gate_partition: $gates")),
		row("gate-partition", Warning, partitions, when(gates.State != "" && gates.State != "UP", "state", gates.State),
			"partition $gates, the gate's own, is $state", "the gate is in the jobs' partitions instead, where all see it", "",
			run("scontrol update PartitionName=$gates State=UP")),
		row("gate-partition", Warning, partitions, when(gates.WholeNodes),
			"partition $gates, the gate's own, gives each job whole nodes (OverSubscribe=EXCLUSIVE, which it may have from a "+
				"line PartitionName=DEFAULT)",
			"the gate is in the jobs' partitions instead, where all see it: what Slurm says of it there is what the bridge "+
				"submitted", "none: nothing but the gate is in it", toConf("PartitionName=$gates … OverSubscribe=NO"),
			run("scontrol update PartitionName=$gates OverSubscribe=NO")),
		row("whole-nodes", Note, partitions, e.those(func(p text.Partition) bool { return p.WholeNodes }),
			"no jobs share a GPU in partition $partitions: each gets whole nodes (OverSubscribe=EXCLUSIVE)",
			"`sbatch --gres=gpu:shared` gets all GPUs of its node there, as any job does",
			"jobs that don't say --exclusive then share a node's cores and memory with others",
			toConf("PartitionName=… OverSubscribe=NO   # if jobs are to share there")),
		row("one-user", Note, partitions, e.those(func(p text.Partition) bool { return p.OneUser }),
			"in partition $partitions a node is one user's at a time (ExclusiveUser=YES)",
			"jobs share a GPU there with jobs of their owner alone", ""),
		row("gate-partition", Error, partitions, e.closed(),
			"partition $name is $state, and the gate can be in no other", "it takes no jobs, and the gate is one", "",
			run("scontrol update PartitionName=$name State=UP")),

		// slurm.conf's hooks lead to slurmbridge-hook.
		row("hook-$kind", Error, hooks, e.strays(true, "Prolog", "Epilog", "TaskProlog"),
			"$hook doesn't lead to slurmbridge-hook", "$lost$others", hookCost, addHook),
		row("hook-$kind", Note, hooks, e.strays(false, "Prolog", "Epilog", "TaskProlog"),
			"whether $hook leads to slurmbridge-hook can't be seen from here: $hidden is on the nodes",
			"if it doesn't, jobs there share by turns, or are never recorded$others", hookCost, addHook),
		// Slurm's task.c, 22.05 to 26.05; TestStartsInAContainer shows it.
		row("task-prolog-pyxis", Error, hooks, when(e.plugged(pyxis) >= 0 && e.leads("TaskProlog")),
			"TaskProlog ends each task that Pyxis starts in a container, of jobs without a GPU, too",
			"Slurm runs it inside the container, where it isn't, and ends the task. A SPANK plugin does its work without that",
			pluginCost, in("$SLURM_CONF", "# TaskProlog=…   # take the line out, once the plugin is on all nodes"), buildPlugin,
			stackPlugin),
		row("hook-taskprolog", Error, hooks,
			when(e.plugged(pyxis) >= 0 && e.plugged(ourPlugin) < 0 && !e.leads("TaskProlog")),
			"plugstack.conf lacks slurmbridge's plugin, which does TaskProlog's work where Pyxis is",
			lost["TaskProlog"]+". TaskProlog itself would end each task that Pyxis starts in a container", pluginCost,
			buildPlugin, stackPlugin),
		row("plugin-order", Warning, hooks, when(e.plugged(pyxis) >= 0 && e.plugged(ourPlugin) > e.plugged(pyxis)),
			"plugstack.conf has slurmbridge's plugin below Pyxis",
			"some versions of Pyxis enter the container first, where the plugin finds no hook: jobs in containers then share "+
				"GPUs by turns", pluginCost, stackPlugin),
		row("epilog-slurmctld", Warning, hooks, e.strays(true, "EpilogSlurmctld"), "EpilogSlurmctld doesn't wake the bridge",
			"it then notices that a GPU is free only at its next poll",
			"a short process on the controller at the end of each job; a job is completing until it has ended", addHook),
		// Tried on 22.05.8: with both a job's end is followed by a look within 0.1 s,
		// without an Epilog the next job begins 25 to 30 s later.
		row("epilog-order", Warning, hooks, when(conf["EpilogSlurmctld"] != "" && conf["Epilog"] == ""),
			"there is an EpilogSlurmctld and no Epilog",
			"it then ends later than the job's nodes, after which Slurm doesn't look at its queue: whatever waits for what the "+
				"job had waits for Slurm's next interval, 30 s by default", hookCost, toConf("Epilog=/usr/lib/slurmbridge/epilog")),
		row("drained", Error, hooks, e.drained(), "Slurm drained $nodes: Prolog error or Epilog error",
			"a node that lacks the hooks which slurm.conf names ends so", "",
			run("ls /usr/lib/slurmbridge /usr/sbin/slurmbridge-hook   # on each of them; the package gpuprof has both",
				"scontrol update NodeName=$nodes State=RESUME")),
		row("private-memory", Error, slurmConf, e.namespaces(true),
			"$plugin hides /dev/shm from jobs$always", noShm, shmCost, in("$in", "$line")),
		row("private-memory", Warning, files, e.namespaces(false),
			"whether $plugin hides /dev/shm from jobs can't be seen from here: $in is not there", noShm, shmCost,
			in("$in", "$line")),

		// Senders of records prove their identity: with MUNGE if Slurm has it, otherwise with a key.
		row("munge", Error, slurmConf, when(e.byMunge() && isnt(e.MungeSocket)),
			"munged's socket is not there", whyProof, "", run("systemctl enable --now munge")),
		row("munge", Error, slurmConf, when(e.byMunge() && !isnt(e.MungeSocket) && wrong(e.Munge) != ""),
			"MUNGE doesn't work here: $munge", whyProof, "",
			run("munge -n | unmunge", "systemctl restart munge", "journalctl -u munge -n 20")),
		row("key", Error, slurmConf, when(e.Key == nil && !e.byMunge() && (e.Munge == nil || *e.Munge != "")),
			"AuthType is $AuthType, there is no MUNGE, and key_file is not set", whyProof, "", makeKey...),
		row("key", Error, slurmConf, when(wrong(e.Key) != ""), "the key can't be used: $key", whyProof, "", makeKey...),
		row("token", Warning, slurmConf,
			when(e.Key != nil && text.Private(conf["PrivateData"], "jobs") && wrong(e.Token) != ""),
			"Slurm makes or checks no token here: $token",
			"Slurm hides other users' jobs (PrivateData), so slurmbridge why needs a proof of the user", "",
			run("scontrol show config | grep AuthInfo   # without disable_sack",
				"ls -l /run/slurm/sack.socket /run/slurmctld/sack.socket"),
			in("or, where AuthType is auth/munge, "+settingsFile+" and "+filesOfNodes, `key_file: ""`)),

		// What the nodes' agents say.
		row("clock", Warning, agents, e.why(clock), "clocks differ from this one: $nodes",
			"records of who shared a GPU when don't fit together, and those of a clock that is minutes off are refused", "",
			run("chronyc tracking   # on each of them")),
		row("agent", Warning, agents, e.why(func(a Agent) string { return a.Silent }),
			"gpuprof can't be read on $nodes", "where it doesn't run, jobs run, but nothing is learned from them", "",
			run("systemctl enable --now gpuprof   # on each of them",
				"slurmbridge doctor --agents https://{node}:9798 --client-config FILE   # where it has TLS or a password")),
		row("agent-sick", Warning, agents, e.why(func(a Agent) string { return a.Sick }),
			"gpuprof isn't well on $nodes", "little or nothing is learned from jobs there", "",
			run("journalctl -u gpuprof -n 50   # on each of them")),
		row("hook-settings", Warning, agents, e.onAgents(func(_ *text.Node, a Agent) bool { return isnt(a.Hooks) }),
			"settings of the hooks on $nodes make no sense", "jobs start there with defaults in their place", "",
			run("journalctl -t slurmbridge-hook -n 50   # on each of them, names the setting of /etc/slurmbridge/node.yaml")),
		row("mps-binary", Error, agents,
			e.onAgents(func(n *text.Node, a Agent) bool { return sharesOf(n) > 0 && isnt(a.MPS) }),
			"no nvidia-cuda-mps-control on $nodes", "jobs that share a GPU there take turns instead of running side by side", "",
			run("apt-get install nvidia-cuda-mps   # or your driver's package, on each of them")),
		row("mps-memory-limit", Warning, agents,
			e.onAgents(func(n *text.Node, a Agent) bool { return sharesOf(n) > 0 && is(a.NoLimits) }),
			"the driver on $nodes is too old to hold jobs that share a GPU to a part of its memory",
			"a job that takes more than it was given isn't stopped, and its neighbours run out of memory", "",
			run("# install a driver of CUDA 11.5 or later, or set memory_limits: false for these cards in gpu_types of "+
				"slurmbridge.yaml")),
		row("compute-mode", Error, agents, e.inMode("prohibited"),
			"GPUs of $nodes are in the compute mode PROHIBITED", "no job can compute on them",
			"the mode is changed for all jobs of these GPUs", defaultMode),
		row("compute-exclusive", Error, agents, e.exclusive(false),
			"GPUs of $nodes are in the compute mode EXCLUSIVE_PROCESS, and jobs have a /dev/shm of their own, where they reach "+
				"no MPS server",
			"of the jobs that share a GPU all but the first fail, and run again alone", modeCost, defaultMode),
		row("compute-exclusive", Warning, agents, e.exclusive(true),
			"GPUs of $nodes are in the compute mode EXCLUSIVE_PROCESS",
			"MPS works there, and a job that shares without it fails: in a container or a namespace that hides the server, or "+
				"beside a server that is full or has faulted; such a job runs again alone",
			modeCost, defaultMode),
		row("persistence-mode", Warning, agents,
			e.onAgents(func(n *text.Node, a Agent) bool { return sharesOf(n) > 0 && a.Cold }),
			"GPUs of $nodes are without persistence mode",
			"the driver then initialises a GPU anew for the first job after a pause, which takes seconds, with eight GPUs up "+
				"to half a minute: jobs start before it is known whether their MPS server comes up, and fail where it doesn't",
			"an idle GPU takes some watts more", run("systemctl enable --now nvidia-persistenced   # on each of them")),
		// The hooks know which card each of Slurm's numbers means, or share without MPS.
		row("gpu-order", Warning, agents, e.onAgents(func(_ *text.Node, a Agent) bool { return a.Uncertain > 0 }),
			"which GPU Slurm means by a number isn't certain on $nodes",
			"gres.conf names the GPUs' files in another order than NVML, and says AutoDetect as well, or names files that "+
				"aren't there; jobs on such GPUs share without MPS, and have no records", restarts,
			gres("AutoDetect=nvml   # and no File= of GPUs; or AutoDetect=off, and File= in the order of nvidia-smi")),

		// slurmbridge serve runs, and does what the settings say.
		row("daemon", Warning, daemon, when(d.Silent != "", "said", d.Silent),
			"slurmbridge serve can't be read ($said)", "where it doesn't run, every job runs as it would without it", "",
			run("systemctl enable --now slurmbridge", "journalctl -u slurmbridge -n 50   # if it doesn't stay up",
				"slurmbridge doctor --server https://HOST:9797 --client-config FILE   # if it has TLS or a password")),
		row("daemon-look", Error, daemon, when(d.Sick != "", "said", d.Sick),
			"slurmbridge serve can't do its work: $said", "nothing is shared until it can", "",
			run("journalctl -u slurmbridge -n 50")),
		row("gate", Error, running, e.gateless(true),
			"slurmbridge serve is active and has no gate$said",
			"$lua, a script of your own, may refuse it: the gate is a job without a GPU. Without it no group is made", "",
			in("$file", "$lines"), run("journalctl -u slurmbridge -g gate   # Slurm's answer, and the script's")),
		row("gate", Error, running, e.gateless(false),
			"slurmbridge serve is active and has no gate$said", "without the gate job no group is made", "",
			run("journalctl -u slurmbridge -g gate   # Slurm's answer",
				"sacctmgr add user $user account=ACCOUNT   # if it lacks an account",
				"sacctmgr modify user $user set MaxSubmitJobs=-1 MaxJobs=-1   # if a limit holds it",
				"slurmbridge status --json   # if it is misread: the fields; does a job_submit script change SlurmUser's jobs?")),
		row("gate", Error, running, when(!d.gateless() && d.GateErr != "", "said", d.GateErr),
			"slurmbridge serve has trouble with its gate: $said",
			"if the daemon ended now, jobs could wait for a gate that can't open", "",
			run("slurmbridge open   # lets every waiting job go")),
		row("refused", Warning, running, e.refused(), "$refused", "$then", "", in("$file", "$lines")),
		row("daemon-mode", Warning, running, when(string(d.Mode) != e.Settings.Mode, "is", string(d.Mode)),
			"slurmbridge serve runs in mode $is, the settings say $mode", "settings are read at the start and at a reload", "",
			run("systemctl reload slurmbridge")),
		row("policy", Warning, running, when(d.Policy != e.Settings.Policy, "is", d.Policy),
			"$is decides, the settings say $policy",
			"the model can't be used, or the settings were changed since; sharing continues with a simpler policy", "",
			run("journalctl -u slurmbridge -g model", "systemctl reload slurmbridge")),

		// A job with shares of a GPU has no GPU in accounting. Tried on 22.05.8: AllocTRES has gres/mps=50 and no gres/gpu,
		// MaxTRESPerUser=gres/gpu=1 let six jobs run on two GPUs, and only shares are billed.
		row("shares-accounted", Note, database, when(!e.tracked(), "tres", with(without(counted, usual), "gres/"+e.sharing)),
			"AccountingStorageTRES has no gres/$sharing",
			"Slurm then doesn't account for shares: in reports, bills and limits a job that shares a GPU has none. "+
				"TRESBillingWeights and sacctmgr take gres/$sharing only once it is listed",
			"slurmctld restarts, and slurmdbd keeps the new resource for good: it can't be taken away again",
			toConf("AccountingStorageTRES=$tres"), run("systemctl restart slurmctld")),
		row("shares-limits", either(enforced("limits") || enforced("safe"), Warning, Note), database, e.gpuLimits(),
			"limits on gres/gpu and none on gres/$sharing: $of",
			"Slurm counts a job that shares a GPU under gres/$sharing, not under gres/gpu, so these limits don't hold it. "+
				"Whole GPUs and shares are counted apart; a job alone on its GPU, with all of the shares, counts 100",
			"a job with shares beyond the limit waits, as one with whole GPUs does", run("$lines")),
		row("shares-billed", Note, database, e.gpuBills(false),
			"partition $name bills gres/gpu and not gres/$sharing", noWeights, weightsCost, weights),
		row("shares-billed", Warning, database, e.gpuBills(true),
			"partition $name bills gres/gpu and not gres/$sharing, and no job is adopted there (adopt_charge)",
			noWeights, weightsCost, weights),
		// Tried on 24.11.5: in a partition with DefCpuPerGPU Slurm refuses to replace a request for a GPU by shares,
		// whatever else the update sets.
		row("adopt-per-gpu", Warning, partitions, e.adoptsPerGPU(), "no job is adopted in partition $partitions",
			"jobs there get cores or memory by the GPU (DefCpuPerGPU, DefMemPerGPU), and Slurm refuses to turn such a job's "+
				"GPU into shares. With defaults by the CPU instead, jobs are adopted",
			"a job that asks for neither cores nor memory gets less of them, whether it shares or not; whole-GPU jobs too. "+
				"Announce it", toConf("PartitionName=… DefMemPerCPU=…   # in place of JobDefaults=DefCpuPerGPU=…,DefMemPerGPU=…")),
	}
}
