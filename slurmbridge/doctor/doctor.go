// Package doctor compares a cluster's configuration with what the bridge needs
// and says, in an admin's words, what is missing and which lines to write where.
// Examine is a pure function over Facts; Collect gathers them.
package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Severity says how bad a finding is.
type Severity string

// The severities, worst first.
const (
	Error   Severity = "error"   // the bridge can't do its work like this
	Warning Severity = "warning" // it works, but worse than it could, or at a risk
	Note    Severity = "note"    // good to know
)

// Finding is one thing to know about the cluster.
type Finding struct {
	Check    string   `json:"check"` // stable name, for scripts
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Cost     string   `json:"cost,omitempty"` // of following it
	// Fix is what to write into which file, or what to run.
	Fix []Fix `json:"fix,omitempty"`
}

// Fix is one step of a cure.
type Fix struct {
	File  string   `json:"file,omitempty"` // "" = commands to run
	Lines []string `json:"lines"`
}

// Exit codes of `slurmbridge doctor`, for scripts.
const (
	ExitWell     = 0 // nothing but notes
	ExitWarnings = 1
	ExitErrors   = 2
)

// Exit is the code for these findings.
func Exit(findings []Finding) int {
	code := ExitWell
	for i := range findings {
		switch findings[i].Severity {
		case Error:
			return ExitErrors
		case Warning:
			code = ExitWarnings
		}
	}
	return code
}

type exam struct {
	*Facts
	form *text.Form // of the release
	// sharing is the kind of shares the cluster has or should get.
	sharing string
	gpus    []*text.Node // the nodes that have GPUs
	found   []Finding
}

// Examine returns what there is to say, errors first, in a fixed order.
func Examine(f *Facts) []Finding {
	e := &exam{Facts: f, sharing: "mps"}
	if f.Config == nil {
		e.add("slurmctld", Error, "slurmctld does not answer", "everything else is read from it", run("scontrol ping", "systemctl status slurmctld"))
		return e.found
	}
	e.form = text.FormOf(f.Config["SLURM_VERSION"])
	if e.has("GresTypes", "shard") && !e.has("GresTypes", "mps") {
		e.sharing = "shard"
	}
	for i := range e.Nodes {
		if e.Nodes[i].GPUCount() > 0 {
			e.gpus = append(e.gpus, &e.Nodes[i])
		}
	}
	for _, check := range []func(){
		e.release, e.slurmConf, e.shares, e.gresConf, e.cards, e.lua, e.user, e.gatePartition, e.memory, e.host,
		e.hooks, e.requeueDelay, e.accrue, e.proof, e.agents, e.computeModes, e.uncertain, e.namespaces, e.devices, e.daemon, e.accounting, e.adoption,
	} {
		check()
	}
	rank := map[Severity]int{Error: 0, Warning: 1, Note: 2}
	slices.SortStableFunc(e.found, func(a, b Finding) int { return rank[a.Severity] - rank[b.Severity] })
	return e.found
}

func (e *exam) add(check string, s Severity, what, why string, fix ...Fix) {
	f := Finding{Check: check, Severity: s, What: what, Why: why, Fix: fix}
	if len(fix) > 0 {
		f.Cost = costs[check]
	}
	e.found = append(e.found, f)
}

// when adds a finding if something is so.
func (e *exam) when(so bool, check string, s Severity, what, why string, fix ...Fix) {
	if so {
		e.add(check, s, what, why, fix...)
	}
}

// Files that lines are added to.
const settingsFile = "/etc/slurmbridge/slurmbridge.yaml"

func (e *exam) confFile() string { return cmp.Or(e.Config["SLURM_CONF"], "/etc/slurm/slurm.conf") }

// nextTo is a file in the folder of slurm.conf.
func (e *exam) nextTo(name string) string { return filepath.Join(filepath.Dir(e.confFile()), name) }

func (e *exam) conf(lines ...string) Fix { return Fix{File: e.confFile(), Lines: lines} }

func (e *exam) gres(lines ...string) Fix { return Fix{File: e.nextTo("gres.conf"), Lines: lines} }

func setting(lines ...string) Fix { return Fix{File: settingsFile, Lines: lines} }

func run(commands ...string) Fix { return Fix{Lines: commands} }

// has reports whether a setting of slurm.conf, a list, has a word.
func (e *exam) has(key, word string) bool { return text.HasOption(e.Config[key], word) }

// runs reports whether a setting of slurm.conf names a plugin.
func (e *exam) runs(key, plugin string) bool { return text.HasPlugin(e.Config[key], plugin) }

// with is the line of slurm.conf that adds to a list what it lacks of these words.
func (e *exam) with(key string, words ...string) Fix {
	list := e.Config[key]
	for _, w := range words {
		if !text.HasOption(list, w) {
			list = strings.TrimPrefix(list+","+w, ",")
		}
	}
	return e.conf(key + "=" + list)
}

// without is the line of slurm.conf that takes a word out of a list.
func (e *exam) without(key, word string) Fix {
	words := slices.DeleteFunc(strings.Split(e.Config[key], ","), func(w string) bool { return strings.EqualFold(strings.TrimSpace(w), word) })
	return e.conf(key + "=" + strings.Join(words, ","))
}

// nodesThat lists the nodes for which something is so, separated by commas.
func nodesThat(nodes []*text.Node, so func(*text.Node) bool) string {
	var names []string
	for _, n := range nodes {
		if so(n) {
			names = append(names, n.Name)
		}
	}
	return strings.Join(names, ",")
}

// sharesOf is the number of a node's shares.
func sharesOf(n *text.Node) int { return n.Shares["mps"] + n.Shares["shard"] }

// newest is the newest release that the tests have run on. They run on 22.05, 24.11 and 26.05.
var newest = text.Release{26, 5, 0}

// release: is this one that the bridge works with, and one to run?
func (e *exam) release() {
	said := e.Config["SLURM_VERSION"]
	is := text.ParseRelease(said)
	within := func(from, mended text.Release) bool { return !is.Before(from) && is.Before(mended) }
	e.when(is.Before(text.Oldest), "release", Error, "Slurm "+said+" is older than 22.05", "gates with a deadline and shares of a GPU were proven from 22.05 on")
	// Faults that jobs which share suffer from. Source: Slurm's release notes.
	e.when(within(text.Release{25, 5, 0}, text.Release{25, 5, 1}), "release-fault", Error,
		"Slurm 25.05.0 may give the same GPU, or the same shares of one, to several jobs",
		"jobs then meet that were never checked with each other; 25.05.1 mends it")
	e.when(within(text.Release{25, 11, 0}, text.Release{25, 11, 4}), "release-fault", Warning,
		"Slurm 25.11 before 25.11.4 may miss the end of a prolog or epilog",
		"the job then stays completing and keeps its GPU's shares; 25.11.4 mends it")
	e.when(newest.Before(text.Release{is[0], is[1]}), "release-new", Note,
		"Slurm "+said+" is newer than the releases that slurmbridge was tried on (22.05, 24.11, 26.05)",
		"the bridge compares what Slurm says of its gate with what is so, and leaves every job alone where that differs; begin with mode: shadow")
	// From 25.11 on slurmd gathers what jobs use of GPUs by itself, and counts what sharers use together as each one's.
	const off = "DisableGPUAcct"
	kind := e.Config["JobAcctGatherType"]
	e.when(!is.Before(text.Release{25, 11, 0}) && kind != "" && !strings.HasSuffix(kind, "/none") && !e.has("JobAcctGatherParams", off), "gpu-accounting", Note,
		"slurmd counts what jobs use of a GPU by itself", "of jobs that share one it can't tell them apart; the nodes' agents do",
		e.with("JobAcctGatherParams", off))
	e.usedGPUs(said)
}

// usedGPUs: releases that may give a job of a whole GPU one that is shared.
func (e *exam) usedGPUs(release string) {
	if release == "" || !text.GivesUsedGPUs(release) {
		return
	}
	var mixed, all []string
	for _, n := range e.gpus {
		for _, p := range n.Partitions {
			if n.Shares[e.sharing] == 0 || p == e.Settings.GatePartition {
				continue
			}
			all = append(all, p)
			if !slices.Contains(e.Settings.SharersOnly, p) {
				mixed = append(mixed, p)
			}
		}
	}
	slices.Sort(mixed)
	slices.Sort(all)
	e.when(mixed != nil, "used-gpus", Error,
		"Slurm "+release+" may give a job of a whole GPU one that a job with shares still uses, in partition "+strings.Join(slices.Compact(mixed), ", "),
		"it takes a GPU for free when the first of its sharers ends (SchedMD's bug 19110, mended in 23.11.5), so on nodes of such partitions the bridge lets no jobs share. "+
			"Where one GPU a job is enough, sharers_only makes job_submit.lua hand out only shares there: a request for one GPU becomes all of its shares, one for more is refused. Else move nodes to a partition of their own, or upgrade",
		setting("sharers_only: ["+strings.Join(slices.Compact(all), ", ")+"]"))
}

// slurmConf: single settings of slurm.conf.
func (e *exam) slurmConf() {
	mps, shard := e.has("GresTypes", "mps"), e.has("GresTypes", "shard")
	both := Warning
	if !e.form.TypesChecked {
		both = Error
	}
	e.when(mps && shard, "gres-both", both, "GresTypes has both mps and shard",
		"Slurm 22.05 then starts mps jobs without CUDA_VISIBLE_DEVICES, and two ways to share one GPU don't see each other", e.without("GresTypes", "shard"))
	e.when(!(mps && shard) && (!e.has("GresTypes", "gpu") || !mps && !shard), "gres-types", Error,
		fmt.Sprintf("GresTypes is %q: Slurm knows no shares of a GPU", e.Config["GresTypes"]),
		"the bridge starts jobs together by giving each a share: mps on nodes with one GPU, shard (or mps) on nodes with several", e.with("GresTypes", "gpu", e.sharing))
	e.when(!e.runs("SelectType", "select/cons_tres"), "select-type", Error, "SelectType is "+e.Config["SelectType"],
		"only select/cons_tres hands out GPUs and shares of them", e.conf("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory"))
	e.when(e.has("SelectTypeParameters", "MULTIPLE_SHARING_GRES_PJ"), "multiple-sharing", Error, "SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ",
		"Slurm may then give one job shares of several GPUs, next to jobs on each of them that nobody has compared it with", e.without("SelectTypeParameters", "MULTIPLE_SHARING_GRES_PJ"))
	several := nodesThat(e.gpus, func(n *text.Node) bool { return n.GPUCount() > 1 }) != ""
	e.when(several && e.has("SelectTypeParameters", "LL_SHARED_GRES"), "least-loaded", Warning, "SelectTypeParameters has LL_SHARED_GRES",
		"of a node's GPUs Slurm then takes the least loaded, so while several are idle no group can be put on one of them: "+
			"jobs start alone until one GPU is left, and the remaining GPUs are shared only as they become free", e.without("SelectTypeParameters", "LL_SHARED_GRES"))
	// A hook that is cut off drains its node.
	for _, name := range []string{"PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"} {
		d, ok := text.Seconds(e.Config[name])
		e.when(ok && d > 0 && d < time.Minute, "hook-timeout", Warning, fmt.Sprintf("%s is %s", name, d),
			"a hook that takes longer drains its node; slurmbridge-hook ends by itself within 30 s, the site's other hooks may not", e.conf(name+"=120"))
	}
	// The bridge learns from squeue --states=all how a run ended, after its record has arrived, and may put a poll off
	// for 30 s: while slurmctld fails it tries again within that time. 0 means that Slurm forgets no job.
	age, ok := text.Seconds(e.Config["MinJobAge"])
	e.when(ok && age != 0 && age < 30*time.Second, "min-job-age", Warning, fmt.Sprintf("MinJobAge is %s", age),
		"the bridge asks Slurm how a job ended once its record has come, seconds later; if Slurm has forgotten the job by "+
			"then, whether it failed isn't known, and the job is neither run again nor learned from correctly", e.conf("MinJobAge=300   # Slurm's default"))
	// Tried on 24.11.5 with small limits: root and SlurmUser were both held back, for five seconds at a time, so no user
	// is taken to be exempt.
	limits := e.Config["SlurmctldParameters"]
	e.when(e.has("SlurmctldParameters", "rl_enable") && !(text.HasOption(limits, "rl_bucket_size") && text.HasOption(limits, "rl_refill_rate")), "rate-limit", Warning,
		"SlurmctldParameters limits how often a user may ask (rl_enable)", "the bridge asks several times when a group starts; held back, its groups start seconds late",
		e.conf("SlurmctldParameters="+limits+",rl_bucket_size=100,rl_refill_rate=20"))
	// Slurm looks for jobs to preempt when a job may start, and one behind the gate may not. Where partitions rank jobs,
	// the bridge lets them go in time, and with these settings the site has decided about partitions.
	e.when(e.runs("PreemptType", "preempt/qos") && len(e.Settings.IncludePartitions)+len(e.Settings.ExcludePartitions) == 0, "preempt", Note,
		"a QOS may preempt others here (preempt/qos)", "jobs of two QOS don't share, and a shared job that should preempt waits behind the gate and preempts no job",
		setting("exclude_partitions: [NAME]   # partitions with preempting jobs"))
	e.when(text.PrivateJobs(e.Config["PrivateData"]), "private", Note, "Slurm hides other users' jobs (PrivateData="+e.Config["PrivateData"]+")",
		"status page and API leave users, accounts and applications out; slurmbridge why answers a job's owner, root and SlurmUser, by their MUNGE credential or, with key_file, their token of Slurm's")
	e.when(e.Settings.Mode == "shadow", "shadow", Note, "the bridge is in shadow mode", "it decides and records, and changes nothing", setting("mode: active"))
	for _, dir := range slices.Sorted(maps.Keys(e.Folders)) {
		e.when(!e.Folders[dir], "folder", Error, dir+" is not there", "the bridge keeps its state in it, and job_submit.lua reads the gate there",
			run("install -d -o "+e.slurmUser()+" -m 755 "+dir))
	}
	e.when(e.Federation != "", "federation", Warning, "the cluster is in a federation ("+e.Federation+")",
		"slurmbridge groups the jobs of its own cluster. Slurm gives a job to the other clusters once it depends on nothing, so one behind the gate doesn't start on a GPU that is idle there; sbatch's own choice of a cluster (-M) is as before",
		setting("mode: shadow   # where users count on starting anywhere"))
	// job_submit.lua runs where slurmctld does, and finds no gate on a host without a daemon.
	first, _, _ := strings.Cut(e.Config["SlurmctldHost[0]"], "(")
	second, _, _ := strings.Cut(e.Config["SlurmctldHost[1]"], "(")
	e.when(second != "", "two-controllers", Note, "slurmctld may move to "+second, "without a daemon there jobs that come meanwhile get whole GPUs",
		run("# slurmbridge with these settings on "+second+", too: one of both daemons is standby",
			`# on the nodes, in gpuprof.yaml and node.yaml: controller: "http://`+first+":9797,http://"+second+`:9797"`))
}

func (e *exam) slurmUser() string {
	name, _, _ := text.User(e.Config["SlurmUser"])
	return name
}

// shares: does each GPU have 100?
func (e *exam) shares() {
	if e.Nodes == nil {
		return
	}
	e.when(e.gpus == nil, "no-gpu", Error, "no node has a GPU", "there is nothing to share", e.conf("NodeName=NODE … Gres=gpu:TYPE:1,"+e.sharing+":100"))
	bare := map[string][]string{}
	var odd, kept []string
	for _, n := range e.gpus {
		want, got := 100*n.GPUCount(), sharesOf(n)
		switch one := n.Shares["mps"] == 0 || n.Shares["shard"] == 0; {
		case got == 0:
			line := gresLine(n, e.sharing)
			bare[line] = append(bare[line], n.Name)
		case one && got < want && got%100 == 0:
			kept = append(kept, fmt.Sprintf("%s has %d for %d GPUs", n.Name, got, n.GPUCount()))
		case one && got != want:
			odd = append(odd, fmt.Sprintf("%s has %d, should have %d", n.Name, got, want))
		}
	}
	count := "Name=" + e.sharing + " Count=100 File=/dev/nvidia0"
	for _, line := range slices.Sorted(maps.Keys(bare)) {
		names := strings.Join(bare[line], ",")
		e.add("node-shares", Error, "no shares on "+names, "jobs can be put on these GPUs only one at a time",
			e.conf("NodeName="+names+" … "+line), e.gres("# on "+names, "Name=gpu Type=TYPE File=/dev/nvidia0", count))
	}
	e.when(kept != nil, "gpu-without-shares", Warning, "not every GPU has shares: "+strings.Join(kept, "; "),
		"right where one is in MIG mode or kept out on purpose, and the others have 100 each: it is left alone. Otherwise Count in gres.conf is 100 for each File",
		e.gres(count+"   # a line for each GPU"))
	e.when(odd != nil, "share-count", Error, "the number of shares isn't 100 a GPU: "+strings.Join(odd, "; "),
		"the bridge deals in hundredths of a GPU; a group's shares must add up to the whole of one", e.gres(count))
	invalid := nodesThat(e.gpus, func(n *text.Node) bool { return strings.Contains(strings.ToUpper(n.State), "INVALID_REG") })
	e.when(invalid != "", "node-invalid", Error, "Slurm doesn't take "+invalid+": less is there than slurm.conf says",
		"mostly gres.conf on the node names fewer GPUs or shares than Gres= in slurm.conf, or another type",
		run("scontrol show node "+invalid+" | grep Reason", "slurmd -G   # on the node: what it finds", "systemctl restart slurmd   # on the node, when gres.conf is right"))
}

func gresLine(n *text.Node, sharing string) string {
	var parts []string
	for _, t := range slices.Sorted(maps.Keys(n.GPUs)) {
		parts = append(parts, fmt.Sprintf("gpu:%s:%d", cmp.Or(t, "TYPE"), n.GPUs[t]))
	}
	parts = append(parts, fmt.Sprintf("%s:%d", sharing, 100*n.GPUCount()))
	return "Gres=" + strings.Join(append(parts, n.OtherGres...), ",")
}

var includes = regexp.MustCompile(`(?im)^\s*include\s`)

// gresConf: slurm.conf promises shares; gres.conf says which device they are of.
func (e *exam) gresConf() {
	several := nodesThat(e.gpus, func(n *text.Node) bool { return n.GPUCount() > 1 && n.Shares["mps"] > 0 })
	e.when(several != "" && e.GresConf != nil && !strings.Contains(strings.ToLower(*e.GresConf), "all_sharing"), "one-sharing", Warning,
		"several GPUs and mps without all_sharing on "+several, "by default Slurm shares one GPU of a node at a time; jobs then wait next to idle GPUs",
		e.gres("Name=mps Count=… File=/dev/nvidia[0-…] Flags=all_sharing"))
	if e.ConfDir == "" {
		return
	}
	var missing []string
	fix := e.gres("Name=gpu Type=TYPE File=/dev/nvidia0")
	for _, kind := range []string{"mps", "shard"} {
		line := regexp.MustCompile(`(?im)^[^#\n]*\bname=` + kind + `\b`)
		if nodesThat(e.gpus, func(n *text.Node) bool { return n.Shares[kind] > 0 }) != "" &&
			(e.GresConf == nil || !line.MatchString(*e.GresConf) && !includes.MatchString(*e.GresConf)) {
			missing = append(missing, "Name="+kind)
			fix.Lines = append(fix.Lines, "Name="+kind+" Count=100 File=/dev/nvidia0")
		}
	}
	e.when(missing != nil && e.GresConf == nil, "gres-conf", Error, fix.File+" is not there", "nodes then find no GPU to give out, and Slurm takes them out of service", fix)
	e.when(missing != nil && e.GresConf != nil, "gres-conf", Warning, fix.File+" has no line of "+strings.Join(missing, ", "),
		"unless the nodes have a gres.conf of their own they don't know which GPU the shares are of", fix)
}

// cards: does the bridge know the GPUs?
func (e *exam) cards() {
	unknown := map[string][]string{}
	for _, n := range e.gpus {
		for t := range n.GPUs {
			if _, ok := e.Settings.Card(t); !ok && t != "" {
				unknown[t] = append(unknown[t], n.Name)
			}
		}
	}
	s, why := Warning, "the bridge doesn't know how much memory such a GPU has, and keeps groups off it"
	if !e.form.TypesChecked {
		s, why = Error, "Slurm 22.05 may start a whole-GPU job on an untyped GPU that shares are in use of, and the bridge doesn't know how much memory it has"
	}
	untyped := nodesThat(e.gpus, func(n *text.Node) bool { return n.GPUs[""] > 0 })
	e.when(untyped != "", "gpu-type", s, "GPUs without a type on "+untyped, why,
		e.conf("NodeName="+untyped+" … Gres=gpu:titanxp:1,"+e.sharing+":100   # and what these nodes have besides"), e.gres("Name=gpu Type=titanxp File=/dev/nvidia0"))
	for _, t := range slices.Sorted(maps.Keys(unknown)) {
		e.add("gpu-unknown", Warning, fmt.Sprintf("GPU type %s (on %s) is no card the bridge knows", t, strings.Join(unknown[t], ",")),
			"it doesn't know how much memory such a GPU has, and keeps groups off it",
			setting("gpu_types:", "  "+t+": {mem_mib: MEMORY}   # nvidia-smi --query-gpu=memory.total --format=csv"))
	}
}

const (
	// Signature is in the project's job_submit.lua, however it was renamed or
	// included.
	Signature = "slurmbridge"
	// PackagedLua is where packages put the script.
	PackagedLua = "/usr/share/slurmbridge/job_submit.lua"
	// luaFirst begins the project's own script.
	luaFirst = "-- slurmbridge:"
)

// lua: does job_submit.lua gate new jobs, and is it the one of this release?
func (e *exam) lua() {
	s, why := Error, "without it `sbatch --gres=gpu:shared` is refused"
	if e.form.RewritesTypes {
		why += ", unless a node's GPUs carry the type shared; the bridge then gates jobs only when it next looks"
		if e.Settings.Lua != "yes" {
			s = Warning
		}
	}
	name := e.nextTo("job_submit.lua")
	install := run("install -m 644 "+PackagedLua+" "+name, "scontrol reconfigure")
	switch {
	case e.Settings.Lua == "no":
		e.when(!e.form.RewritesTypes, "lua", Error, "the setting lua is no", "Slurm before 23.02.6 can't turn a request for a GPU into shares after the submission", setting("lua: auto"))
	case !e.runs("JobSubmitPlugins", "job_submit/lua"):
		e.add("lua", s, "JobSubmitPlugins has no lua", why, e.with("JobSubmitPlugins", "lua"), install)
	case e.ConfDir != "" && e.JobSubmitLua == nil:
		e.add("lua", Error, name+" is not there", "slurmctld won't start with JobSubmitPlugins=lua and no script", install)
	case e.ConfDir != "" && !strings.Contains(*e.JobSubmitLua, Signature):
		e.add("lua", s, name+" is a script of your own that doesn't call slurmbridge's", why, Fix{File: name, Lines: []string{
			`local there, slurmbridge = pcall(dofile, "` + PackagedLua + `")   -- slurmctld starts without the package, too`,
			"-- and as the last thing of your slurm_job_submit:", "return there and slurmbridge.submit(job_desc, part_list, submit_uid) or slurm.SUCCESS",
			"-- and of your slurm_job_modify:", "return there and slurmbridge.modify(job_desc, job_rec, part_list, modify_uid) or slurm.SUCCESS",
		}})
	case e.ConfDir != "" && !strings.HasPrefix(*e.JobSubmitLua, luaFirst) && !strings.Contains(*e.JobSubmitLua, ".modify("):
		e.add("lua-modify", Warning, name+" doesn't call slurmbridge.modify", "a user may change a job to a part of a GPU that no one checks, and out of the partitions' rules",
			Fix{File: name, Lines: []string{"-- as the last thing of your slurm_job_modify:", "return slurmbridge.modify(job_desc, job_rec, part_list, modify_uid)   -- or by the name that the script gives it"}})
	}
	if e.ConfDir == "" || e.JobSubmitLua == nil || !strings.HasPrefix(*e.JobSubmitLua, luaFirst) {
		return // a script of the site's, which calls ours
	}
	e.when(!strings.Contains(*e.JobSubmitLua, fmt.Sprintf("%q", e.Settings.GateFile)), "lua-gate-file", Error, name+" doesn't read "+e.Settings.GateFile,
		"the bridge keeps the gate there; jobs are not gated, and start alone",
		Fix{File: name, Lines: []string{fmt.Sprintf("gate = %q,", e.Settings.GateFile), fmt.Sprintf("wake = %q,", e.Settings.WakeFile)}})
	// Without a gate file, after a boot say, the script goes by its own word.
	e.when(e.sharing == "shard" && !strings.Contains(*e.JobSubmitLua, `gres = "shard"`), "lua-gres", Warning, name+" says that GPUs are shared by mps, and here it is shard",
		"from a boot until the daemon has polled, and on a host without it, requests for gpu:shared become mps then, which Slurm refuses",
		Fix{File: name, Lines: []string{`gres = "shard",`}})
	body := func(lua string) string { // without the settings at its beginning, which sites may change
		_, rest, cut := strings.Cut(lua, "local M = ")
		if !cut {
			return lua
		}
		return rest
	}
	e.when(e.PackagedLua != nil && body(*e.PackagedLua) != body(*e.JobSubmitLua), "lua-version", Warning,
		name+" isn't the job_submit.lua of this release", "script and daemon are made for each other", install)
}

// user checks that the bridge's user may submit the gate and change jobs.
func (e *exam) user() {
	if e.User == "" {
		return
	}
	slurm := e.slurmUser()
	unit := Fix{File: "systemctl edit slurmbridge", Lines: []string{"[Service]", "User=" + slurm, "Group="}}
	folder := run("echo 'd /run/slurmbridge 0755 "+slurm+" - -' >/etc/tmpfiles.d/slurmbridge.conf", "systemd-tmpfiles --create slurmbridge.conf")
	e.when(e.User == "root" && strings.EqualFold(e.Config["DisableRootJobs"], "yes"), "gate-rights", Error,
		"the bridge runs as root and DisableRootJobs is set", "it can't submit the gate", unit, folder)
	e.when(e.User != "root" && e.User != slurm, "gate-rights", Error, fmt.Sprintf("the bridge runs as %s, not as SlurmUser (%s)", e.User, slurm),
		"only they may change users' jobs", unit, folder)
	// Where limits are enforced each job needs an account, and the gate is a job.
	enforced := slices.ContainsFunc([]string{"associations", "limits", "qos", "safe", "wckeys", "all"}, func(w string) bool { return e.has("AccountingStorageEnforce", w) })
	s, what := Warning, "AccountingStorageEnforce requires an account of every submitter"
	if e.Account != nil {
		s, what = Error, e.User+" has no account, and AccountingStorageEnforce requires one of every submitter"
	}
	e.when(enforced && (e.Account == nil || !*e.Account), "gate-account", s, what, "the gate is a job of "+e.User+"'s: without an account it is refused, and then nothing is grouped",
		run("sacctmgr show assoc user="+e.User, "sacctmgr add user "+e.User+" account=ACCOUNT"))
}

// gatePartition: the gate is a job, which a partition must take: its own while that is up, or
// those where GPUs are shared. One that is down takes jobs all the same.
func (e *exam) gatePartition() {
	if e.Partitions == nil {
		return
	}
	name, usual := e.Settings.GatePartition, config.Default().GatePartition
	at := slices.IndexFunc(e.Partitions, func(p text.Partition) bool { return p.Name == name })
	seen := "all users' squeue lists it as a pending job, and a script that waits until the queue is empty waits for ever"
	up := func(name string) Fix { return run("scontrol update PartitionName=" + name + " State=UP") }
	order := e.orderOfLists(at >= 0)
	// Only root and SlurmUser put jobs there, and only they see it.
	line := func(name string) Fix {
		return e.conf("PartitionName=" + name + " Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1")
	}
	switch {
	case name != "" && at >= 0 && e.Partitions[at].State == "UP":
		e.when(!e.Partitions[at].Hidden && !e.has("PrivateData", "jobs"), "gate-seen", Note, "the gate's partition "+name+" isn't hidden", seen,
			e.conf("PartitionName="+name+" … Hidden=YES"))
		return
	case name != "" && at >= 0:
		e.add("gate-partition", Warning, "partition "+name+", the gate's own, is "+e.Partitions[at].State,
			"the gate is in the partitions of the jobs instead, where all see it", up(name))
	case name != "" && name != usual:
		e.add("gate-partition", Warning, "there is no partition "+name+", which gate_partition names",
			"the gate is in the partitions of the jobs instead, where all see it", append(order, line(name))...)
	case e.Settings.Mode != "shadow" && e.gpus != nil && !e.has("PrivateData", "jobs"):
		fix := append(order, line(usual))
		if name == "" {
			fix = append(fix, setting("gate_partition: "+usual))
		}
		e.add("gate-seen", Note, "the gate is in the partitions of the jobs", seen+"; in a hidden partition of its own users don't see it", fix...)
	}
	among := e.partitionsOf(func(n *text.Node) bool { return n.Shares[e.sharing] > 0 })
	if len(among) > 0 && !slices.ContainsFunc(among, func(p text.Partition) bool { return p.State != "DRAIN" && p.State != "INACTIVE" }) {
		p := among[0]
		e.add("gate-partition", Error, "partition "+p.Name+" is "+p.State+", and the gate can be in no other", "it takes no jobs, and the gate is one", up(p.Name))
	}
}

// orderOfLists is how job_submit.lua comes to run behind all_partitions, which puts the gate's partition into other jobs'
// lists; nil = it does already. there: the partition is.
func (e *exam) orderOfLists(there bool) []Fix {
	plugins := strings.Split(e.Config["JobSubmitPlugins"], ",")
	at := func(name string) int {
		return slices.IndexFunc(plugins, func(w string) bool { return text.HasPlugin(w, "job_submit/"+name) })
	}
	all, lua := at("all_partitions"), at("lua")
	if all < 0 || lua > all {
		return nil
	}
	if lua >= 0 {
		plugins = slices.Insert(plugins, all+1, plugins[lua])
		plugins = slices.Delete(plugins, lua, lua+1)
	} else {
		plugins = append(plugins, "lua")
	}
	fix := e.conf("JobSubmitPlugins=" + strings.Join(plugins, ","))
	e.when(there, "gate-in-lists", Error, "JobSubmitPlugins="+e.Config["JobSubmitPlugins"]+" puts the gate's partition "+e.Settings.GatePartition+" into the list of each job that names no partition",
		"Slurm refuses such a job (with EnforcePartLimits=ALL) or never starts it (PartitionTimeLimit, PartitionNodeLimit), whether it wants a GPU or not. If all_partitions comes first, job_submit.lua takes the gate's partition out again",
		fix, run("scontrol reconfigure", "scontrol delete PartitionName="+e.Settings.GatePartition+"   # instead, with its line in slurm.conf: the gate is then in the jobs' partitions, where all users see it"))
	return []Fix{fix}
}

// partitionsOf are the partitions of the jobs, not the gate's own, that have such a node with GPUs.
func (e *exam) partitionsOf(such func(*text.Node) bool) []text.Partition {
	return slices.DeleteFunc(slices.Clone(e.Partitions), func(p text.Partition) bool {
		return p.Name == e.Settings.GatePartition ||
			!slices.ContainsFunc(e.gpus, func(n *text.Node) bool { return slices.Contains(n.Partitions, p.Name) && such(n) })
	})
}

// memory: where memory is handed out, a job without --mem gets all of a node.
func (e *exam) memory() {
	if !strings.Contains(strings.ToUpper(e.Config["SelectTypeParameters"]), "MEMORY") || text.HasDefMem(e.Config) {
		return
	}
	lack, perGPU := []string{}, text.ParsePerGPU(e.Config["JobDefaults"]).MemMiB > 0
	for _, p := range e.partitionsOf(func(*text.Node) bool { return true }) {
		if !p.DefMem {
			lack = append(lack, p.Name)
			perGPU = perGPU || p.PerGPU.MemMiB > 0
		}
	}
	if len(lack) == 0 {
		return
	}
	if perGPU {
		e.add("default-memory", Warning, "DefMemPerGPU is the only default memory",
			"Slurm gives it to jobs of whole GPUs alone. While the bridge runs, job_submit.lua gives it to jobs that share a GPU as well; without the bridge such a job takes all of a node's memory, unless it says --mem")
		return
	}
	fix := e.conf()
	for _, name := range lack {
		fix.Lines = append(fix.Lines, "PartitionName="+name+" … DefMemPerCPU=2000   # MB; a node's memory divided by its cores is a good start")
	}
	e.add("default-memory", Error, "DefMemPerCPU is not set for partition "+strings.Join(lack, ", "),
		"a job that doesn't say --mem takes all of a node's memory, so no two such jobs ever run side by side", fix)
}

// hooks: do slurm.conf's lead to slurmbridge-hook?
func (e *exam) hooks() {
	if e.Hooks == nil {
		return
	}
	leads := func(hook string) bool { return slices.ContainsFunc(e.Hooks[hook], func(h Hook) bool { return h.Ours }) }
	// add is how a hook of ours is added to what the setting has.
	add := func(hook string) Fix {
		ours := "/usr/lib/slurmbridge/" + strings.Replace(strings.ToLower(hook), "epilogs", "epilog-s", 1)
		has := e.Config[hook]
		folder, all := strings.CutSuffix(has, "/*")
		switch {
		case has == "":
			return e.conf(hook + "=" + ours)
		case all && (hook == "Prolog" || hook == "Epilog"):
			return run("ln -s " + ours + " " + folder + "/50-slurmbridge")
		}
		return Fix{File: has, Lines: []string{ours + "   # a line of it, called with the same environment"}}
	}
	for _, h := range []struct{ name, why string }{
		{"Prolog", "no MPS daemon is started for a shared GPU, and no job's use is recorded"},
		{"Epilog", "records of jobs are never closed, and MPS daemons are never stopped"},
		{"TaskProlog", "jobs don't learn where their GPU's MPS daemon is, and share it by turns instead"},
	} {
		check := "hook-" + strings.ToLower(h.name)
		if n := len(e.Nodes) - len(e.gpus); n > 0 {
			h.why += fmt.Sprintf("; install gpuprof on the nodes without a GPU, too (%d): slurm.conf is for all nodes, and Slurm drains one that lacks its prolog", n)
		}
		hidden := slices.IndexFunc(e.Hooks[h.name], func(h Hook) bool { return !h.Seen })
		switch {
		case leads(h.name):
		case hidden >= 0:
			e.add(check, Note, "whether "+h.name+" leads to slurmbridge-hook can't be seen from here: "+e.Hooks[h.name][hidden].File+" is on the nodes", "if it doesn't, "+h.why, add(h.name))
		default:
			e.add(check, Error, h.name+" doesn't lead to slurmbridge-hook", h.why, add(h.name))
		}
	}
	e.when(!leads("EpilogSlurmctld"), "epilog-slurmctld", Warning,
		"EpilogSlurmctld doesn't wake the bridge", "it then notices that a GPU is free only at its next poll", add("EpilogSlurmctld"))
	// Tried on 22.05.8: with both a job's end is followed by a look within 0.1 s,
	// without an Epilog the next job begins 25 to 30 s later.
	e.when(e.Config["EpilogSlurmctld"] != "" && e.Config["Epilog"] == "", "epilog-order", Warning, "there is an EpilogSlurmctld and no Epilog",
		"it then ends later than the job's nodes, after which Slurm doesn't look at its queue: whatever waits for what "+
			"the job had waits for Slurm's next interval, 30 s by default", e.conf("Epilog=/usr/lib/slurmbridge/epilog"))
	// A node gets no more jobs after its prolog or epilog failed. Our hooks always exit with 0; a missing hook fails.
	var drained []string
	for i := range e.Nodes {
		if r := e.Nodes[i].Reason; strings.HasPrefix(r, "Prolog error") || strings.HasPrefix(r, "Epilog error") {
			drained = append(drained, e.Nodes[i].Name)
		}
	}
	all := strings.Join(drained, ",")
	e.when(all != "" && (leads("Prolog") || leads("Epilog")), "drained", Error, "Slurm drained "+all+": Prolog error or Epilog error",
		"a node that lacks the hooks which slurm.conf names ends so", run(
			"ls /usr/lib/slurmbridge /usr/sbin/slurmbridge-hook   # on each of them; the package gpuprof has both", "scontrol update NodeName="+all+" State=RESUME"))
}

// requeueDelay: a member that is requeued starts again with its share, on its node, unless
// it is given back what it had before Slurm looks at it.
func (e *exam) requeueDelay() {
	key, name := "AuthInfo", "cred_expire"
	if e.form.RequeueDelay && e.has("SchedulerParameters", "requeue_delay") {
		key, name = "SchedulerParameters", "requeue_delay"
	}
	params := e.Config[key]
	value, _ := text.Option(params, name)
	s, err := strconv.Atoi(value)
	if err != nil || s >= leastRequeueDelay {
		return
	}
	fixed := strings.Replace(params, name+"="+value, fmt.Sprintf("%s=%d", name, leastRequeueDelay), 1)
	e.add("requeue-delay", Warning, fmt.Sprintf("a requeued job may start again after %d s (%s)", s, name),
		"when a job that shared is requeued, the bridge needs a few seconds to give it a whole GPU again; if Slurm starts it sooner, it starts with its old shares, "+
			"next to jobs that nobody has compared it with",
		e.conf(key+"="+fixed))
}

// leastRequeueDelay is enough for the bridge to see a requeued job and to change it, seconds.
const leastRequeueDelay = 10

func (e *exam) accrue() {
	const behind = "a job that waits behind the gate has an unmet dependency, and gains no priority by age meanwhile"
	if !e.runs("PriorityType", "priority/multifactor") {
		return
	}
	always := e.has("PriorityFlags", "ACCRUE_ALWAYS")
	var limits []string
	for _, l := range e.Limits {
		if strings.Contains(l.Name, "Accrue") {
			limits = append(limits, l.Of+" "+l.Name+"="+l.TRES)
		}
	}
	switch {
	case always && limits != nil:
		e.add("accrue", Warning, "ACCRUE_ALWAYS makes Slurm ignore "+strings.Join(limits, ", "),
			"limits of jobs that gain priority by age don't work with it; without it "+behind)
	case limits != nil:
		e.add("accrue", Note, "accrual of priority is limited: "+strings.Join(limits, ", "),
			behind+"; ACCRUE_ALWAYS would change that, but Slurm ignores these limits with it")
	case !always:
		e.add("accrue", Warning, "PriorityFlags has no ACCRUE_ALWAYS",
			behind, e.with("PriorityFlags", "ACCRUE_ALWAYS"))
	}
}

// devices looks at whether a process can open GPUs that aren't its job's.
func (e *exam) devices() {
	constrains := e.Config["ConstrainDevices"]
	cgroup := e.runs("TaskPlugin", "task/cgroup")
	if constrains == "" && !cgroup || strings.EqualFold(constrains, "yes") && cgroup {
		return // control groups are off as a whole, or keep each job to its own devices
	}
	e.add("constrain-devices", Note, "Slurm keeps no process from GPUs that aren't its job's",
		"a job that ignores or changes CUDA_VISIBLE_DEVICES computes on other jobs' GPUs, next to their sharers and without MPS; it costs a job nothing to be kept from them",
		Fix{File: e.nextTo("cgroup.conf"), Lines: []string{"ConstrainDevices=yes"}}, e.conf("TaskPlugin=task/cgroup,task/affinity"))
}

// agents: do the nodes' agents answer, and what do they say?
func (e *exam) agents() {
	if e.Agents == nil {
		return
	}
	answers := func(n *text.Node) bool { a, asked := e.Agents[n.Name]; return asked && a.Err == "" }
	that := func(so func(Agent) bool) string {
		return nodesThat(e.gpus, func(n *text.Node) bool { return so(e.Agents[n.Name]) })
	}
	why := ""
	var sick []string
	for _, n := range e.gpus {
		a := e.Agents[n.Name]
		if a.Err != "" {
			why = " (" + a.Err + ")"
		}
		if a.Sick != "" {
			sick = append(sick, n.Name+" ("+a.Sick+")")
		}
		off := a.Ahead.Abs().Round(100 * time.Millisecond)
		e.when(answers(n) && off >= 2*time.Second, "clock", Warning, fmt.Sprintf("the clock of %s is %s off", n.Name, off),
			"records of who shared a GPU when no longer fit together, and those of a clock that is minutes off are refused", run("chronyc tracking   # on "+n.Name))
	}
	silent := nodesThat(e.gpus, func(n *text.Node) bool { return !answers(n) })
	e.when(silent != "", "agent", Warning, "no answer from gpuprof on "+silent+why, "jobs there run, but nothing is learned from them",
		run("systemctl enable --now gpuprof   # on each of them", "slurmbridge doctor --agents https://{node}:9798   # where they listen elsewhere"))
	e.when(sick != nil, "agent-sick", Warning, "gpuprof isn't well on "+strings.Join(sick, ", "), "little or nothing is learned from jobs there",
		run("journalctl -u gpuprof -n 50   # on each of them"))
	locked := that(func(a Agent) bool { return a.Locked != "" })
	e.when(locked != "", "agent-locked", Note, "gpuprof answers on "+locked+", and can't be read", "whether it is well is not known",
		run("slurmbridge doctor --agents https://{node}:9798 --client-config FILE   # tls_config, basic_auth: see --help"))
	unset := that(func(a Agent) bool { return a.Hooks != nil && !*a.Hooks })
	e.when(unset != "", "hook-settings", Warning, "settings of the hooks on "+unset+" make no sense", "jobs start there with defaults in their place",
		run("journalctl -t slurmbridge-hook -n 50   # on each of them, names the setting of /etc/slurmbridge/node.yaml"))
	noMPS := nodesThat(e.gpus, func(n *text.Node) bool { mps := e.Agents[n.Name].MPS; return sharesOf(n) > 0 && mps != nil && !*mps })
	e.when(noMPS != "", "mps-binary", Error, "no nvidia-cuda-mps-control on "+noMPS, "jobs that share a GPU there take turns instead of running side by side",
		run("apt-get install nvidia-cuda-mps   # or your driver's package, on each of them"))
	noLimits := nodesThat(e.gpus, func(n *text.Node) bool { no := e.Agents[n.Name].NoLimits; return sharesOf(n) > 0 && no != nil && *no })
	e.when(noLimits != "", "mps-memory-limit", Warning, "the driver on "+noLimits+" is too old to hold jobs that share a GPU to a part of its memory",
		"a job that takes more than it was given isn't stopped, and its neighbours run out of memory",
		run("# install a driver of CUDA 11.5 or later, or set memory_limits: false for these cards in gpu_types of slurmbridge.yaml"))
	unseen := nodesThat(e.gpus, func(n *text.Node) bool { return sharesOf(n) > 0 && answers(n) && e.Agents[n.Name].MPS == nil })
	e.when(unseen != "", "mps-unseen", Note, "whether "+unseen+" have nvidia-cuda-mps-control can't be seen from here",
		"where it is missing jobs that share a GPU take turns instead of running side by side",
		run("ls -l /usr/bin/nvidia-cuda-mps-control /usr/bin/nvidia-cuda-mps-server   # on each of them; mps_control of node.yaml names another place"))
}
