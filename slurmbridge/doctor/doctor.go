// Package doctor compares a cluster's configuration with what the bridge needs
// and says, in an admin's words, what is missing and which lines to write where.
// Examine is a pure function over Facts; Collect gathers them.
package doctor

import (
	"fmt"
	"maps"
	"path/filepath"
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

// exam carries the facts from check to check.
type exam struct {
	*Facts
	form *text.Form // of the release
	// sharing is the kind of shares the cluster has or should get.
	sharing string
	found   []Finding
}

// Examine returns what there is to say, errors first, in a fixed order.
func Examine(f *Facts) []Finding {
	e := &exam{Facts: f}
	if f.Config == nil {
		return []Finding{{
			Check: "slurmctld", Severity: Error, What: "slurmctld does not answer",
			Why: "everything else is read from it",
			Fix: []Fix{{Lines: []string{"scontrol ping", "systemctl status slurmctld"}}},
		}}
	}
	e.form = text.FormOf(f.Config["SLURM_VERSION"])
	e.sharing = "mps"
	if text.HasOption(f.Config["GresTypes"], "shard") && !text.HasOption(f.Config["GresTypes"], "mps") {
		e.sharing = "shard"
	}
	for _, check := range []func(){
		e.version, e.gpuAccounting, e.gresTypes, e.selectType, e.sharedGres, e.nodes, e.gresConf, e.invalid, e.cards, e.oneSharing, e.lua, e.luaFile, e.user, e.gateAccount, e.gatePartition, e.twoControllers,
		e.memory, e.host, e.hooks, e.drained, e.epilogSlurmctld, e.timeouts, e.minJobAge, e.requeueDelay, e.usedGPUs, e.accrue, e.scheduler, e.proof, e.folders, e.agents, e.rateLimit, e.preempt, e.privateJobs, e.daemon, e.mode, e.accounting,
	} {
		check()
	}
	rank := map[Severity]int{Error: 0, Warning: 1, Note: 2}
	slices.SortStableFunc(e.found, func(a, b Finding) int { return rank[a.Severity] - rank[b.Severity] })
	return e.found
}

func (e *exam) add(check string, s Severity, what, why string, fix ...Fix) {
	e.found = append(e.found, Finding{Check: check, Severity: s, What: what, Why: why, Fix: fix})
}

// slurmConf is the path of slurm.conf, for a Fix.
func (e *exam) slurmConf() string {
	if p := e.Config["SLURM_CONF"]; p != "" {
		return p
	}
	return "/etc/slurm/slurm.conf"
}

func (e *exam) beside(name string) string { return filepath.Join(filepath.Dir(e.slurmConf()), name) }

func (e *exam) conf(lines ...string) Fix { return Fix{File: e.slurmConf(), Lines: lines} }

func (e *exam) gresTypes() {
	types := e.Config["GresTypes"]
	gpu, mps, shard := text.HasOption(types, "gpu"), text.HasOption(types, "mps"), text.HasOption(types, "shard")
	switch {
	case mps && shard:
		s := Warning
		if !e.form.TypesChecked {
			s = Error
		}
		e.add("gres-both", s, "GresTypes has both mps and shard",
			"Slurm 22.05 then starts mps jobs without CUDA_VISIBLE_DEVICES, and two ways to share one GPU don't see each other",
			e.conf("GresTypes=gpu,mps"))
	case !gpu || !mps && !shard:
		e.add("gres-types", Error, fmt.Sprintf("GresTypes is %q: Slurm knows no shares of a GPU", types),
			"the bridge starts jobs together by giving each a share: mps on nodes with one GPU, shard (or mps) on nodes with several",
			e.conf("GresTypes=gpu,"+e.sharing))
	}
}

func (e *exam) selectType() {
	if s := e.Config["SelectType"]; s != "select/cons_tres" {
		e.add("select-type", Error, "SelectType is "+s, "only select/cons_tres hands out GPUs and shares of them",
			e.conf("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory"))
	}
}

// gpuNodes are the nodes that have GPUs.
func (e *exam) gpuNodes() []*text.Node {
	var out []*text.Node
	for i := range e.Nodes {
		if e.Nodes[i].GPUCount() > 0 {
			out = append(out, &e.Nodes[i])
		}
	}
	return out
}

func (e *exam) nodes() {
	if e.Nodes == nil {
		return
	}
	nodes := e.gpuNodes()
	if len(nodes) == 0 {
		e.add("no-gpu", Error, "no node has a GPU", "there is nothing to share",
			e.conf("NodeName=NODE … Gres=gpu:TYPE:1,"+e.sharing+":100"))
		return
	}
	bare := map[string][]string{}
	var odd, kept []string
	for _, n := range nodes {
		want := 100 * n.GPUCount()
		switch got := n.Shares["mps"] + n.Shares["shard"]; {
		case got == 0:
			line := gresLine(n, e.sharing)
			bare[line] = append(bare[line], n.Name)
		case got < want && got%100 == 0 && (n.Shares["mps"] == 0 || n.Shares["shard"] == 0):
			kept = append(kept, fmt.Sprintf("%s has %d for %d GPUs", n.Name, got, n.GPUCount()))
		case got != want && (n.Shares["mps"] == 0 || n.Shares["shard"] == 0):
			odd = append(odd, fmt.Sprintf("%s has %d, should have %d", n.Name, got, want))
		}
	}
	for _, line := range slices.Sorted(maps.Keys(bare)) {
		names := strings.Join(bare[line], ",")
		e.add("node-shares", Error, "no shares on "+names, "jobs can be put on these GPUs only one at a time",
			e.conf("NodeName="+names+" … "+line),
			Fix{File: e.beside("gres.conf"), Lines: []string{
				"# on " + names, "Name=gpu Type=TYPE File=/dev/nvidia0", "Name=" + e.sharing + " Count=100 File=/dev/nvidia0",
			}})
	}
	if len(kept) > 0 {
		e.add("gpu-without-shares", Warning, "not every GPU has shares: "+strings.Join(kept, "; "),
			"right where one is in MIG mode or kept out on purpose, and the others have 100 each: it is left alone. Otherwise Count in gres.conf is 100 for each File",
			Fix{File: e.beside("gres.conf"), Lines: []string{"Name=" + e.sharing + " Count=100 File=/dev/nvidia0   # a line for each GPU"}})
	}
	if len(odd) > 0 {
		e.add("share-count", Error, "the number of shares isn't 100 a GPU: "+strings.Join(odd, "; "),
			"the bridge deals in hundredths of a GPU; a group's shares must add up to the whole of one",
			Fix{File: e.beside("gres.conf"), Lines: []string{"Name=" + e.sharing + " Count=100 File=/dev/nvidia0"}})
	}
}

func gresLine(n *text.Node, sharing string) string {
	var parts []string
	for _, t := range slices.Sorted(maps.Keys(n.GPUs)) {
		if t == "" {
			parts = append(parts, fmt.Sprintf("gpu:TYPE:%d", n.GPUs[t]))
		} else {
			parts = append(parts, fmt.Sprintf("gpu:%s:%d", t, n.GPUs[t]))
		}
	}
	return fmt.Sprintf("Gres=%s,%s:%d", strings.Join(parts, ","), sharing, 100*n.GPUCount())
}

func (e *exam) cards() {
	untyped, unknown := []string{}, map[string][]string{}
	for _, n := range e.gpuNodes() {
		for _, t := range slices.Sorted(maps.Keys(n.GPUs)) {
			if t == "" {
				untyped = append(untyped, n.Name)
				continue
			}
			if e.Settings != nil {
				if _, ok := e.Settings.Card(t); !ok {
					unknown[t] = append(unknown[t], n.Name)
				}
			}
		}
	}
	if len(untyped) > 0 {
		s, why := Warning, "the bridge doesn't know how much memory such a GPU has, and keeps groups off it"
		if !e.form.TypesChecked {
			s, why = Error, "Slurm 22.05 may start a whole-GPU job on an untyped GPU that shares are in use of, and the bridge doesn't know how much memory it has"
		}
		names := strings.Join(untyped, ",")
		e.add("gpu-type", s, "GPUs without a type on "+names, why,
			e.conf("NodeName="+names+" … Gres=gpu:titanxp:1,"+e.sharing+":100"),
			Fix{File: e.beside("gres.conf"), Lines: []string{"Name=gpu Type=titanxp File=/dev/nvidia0"}})
	}
	for _, t := range slices.Sorted(maps.Keys(unknown)) {
		e.add("gpu-unknown", Warning, fmt.Sprintf("GPU type %s (on %s) is no card the bridge knows", t, strings.Join(unknown[t], ",")),
			"it doesn't know how much memory such a GPU has, and keeps groups off it",
			Fix{File: settingsFile, Lines: []string{
				"gpu_types:", "  " + t + ": {mem_mib: MEMORY}   # nvidia-smi --query-gpu=memory.total --format=csv",
			}})
	}
}

// oneSharing warns of Slurm's rule that only one GPU a node shares by mps.
func (e *exam) oneSharing() {
	if e.GresConf == nil || strings.Contains(strings.ToLower(*e.GresConf), "all_sharing") {
		return
	}
	var names []string
	for _, n := range e.gpuNodes() {
		if n.GPUCount() > 1 && n.Shares["mps"] > 0 {
			names = append(names, n.Name)
		}
	}
	if len(names) > 0 {
		e.add("one-sharing", Warning, "several GPUs and mps without all_sharing on "+strings.Join(names, ","),
			"by default Slurm shares one GPU of a node at a time; jobs then wait next to idle GPUs",
			Fix{File: e.beside("gres.conf"), Lines: []string{"Name=mps Count=… File=/dev/nvidia[0-…] Flags=all_sharing"}})
	}
}

// Signature is in the project's job_submit.lua, however it was renamed or
// included.
const Signature = "slurmbridge"

func (e *exam) lua() {
	s := Error
	why := "without it `sbatch --gres=gpu:shared` is refused"
	if e.form.RewritesTypes {
		why += ", unless a node's GPUs carry the type shared; the bridge then gates jobs only when it next looks"
		s = Warning
	}
	want := "auto"
	if e.Settings != nil {
		want = e.Settings.Lua
	}
	if want == "no" {
		if !e.form.RewritesTypes {
			e.add("lua", Error, "the setting lua is no", "Slurm before 23.02.6 can't turn a request for a GPU into shares after the submission",
				Fix{File: settingsFile, Lines: []string{"lua: auto"}})
		}
		return
	}
	if want == "yes" {
		s = Error
	}
	fix := []Fix{
		e.conf("JobSubmitPlugins=lua"),
		{Lines: []string{"install -m 644 /usr/share/slurmbridge/job_submit.lua " + e.beside("job_submit.lua"), "scontrol reconfigure"}},
	}
	switch {
	case !text.HasOption(e.Config["JobSubmitPlugins"], "lua"):
		e.add("lua", s, "JobSubmitPlugins has no lua", why, fix...)
	case e.ConfDir != "" && e.JobSubmitLua == nil:
		e.add("lua", Error, e.beside("job_submit.lua")+" is not there", "slurmctld won't start with JobSubmitPlugins=lua and no script", fix[1])
	case e.ConfDir != "" && !strings.Contains(*e.JobSubmitLua, Signature):
		e.add("lua", s, e.beside("job_submit.lua")+" is a script of your own that doesn't call slurmbridge's", why,
			Fix{File: e.beside("job_submit.lua"), Lines: []string{
				`local slurmbridge = dofile("/usr/share/slurmbridge/job_submit.lua")`,
				"-- and as the last thing of your slurm_job_submit:",
				"return slurmbridge.submit(job_desc, part_list, submit_uid)",
			}})
	}
}

// luaFile: the script next to slurm.conf reads the gate where the bridge writes it,
// and is no older than the daemon.
func (e *exam) luaFile() {
	if e.ConfDir == "" || e.JobSubmitLua == nil || !strings.HasPrefix(*e.JobSubmitLua, luaFirst) {
		return // a script of the site's, which calls ours
	}
	name := e.beside("job_submit.lua")
	if e.Settings != nil && !strings.Contains(*e.JobSubmitLua, fmt.Sprintf("%q", e.Settings.GateFile)) {
		e.add("lua-gate-file", Error, name+" doesn't read "+e.Settings.GateFile, "the bridge keeps the gate there; jobs are not gated, and start alone",
			Fix{File: name, Lines: []string{fmt.Sprintf("gate = %q,", e.Settings.GateFile), fmt.Sprintf("wake = %q,", e.Settings.WakeFile)}})
	}
	if e.PackagedLua != nil && body(*e.PackagedLua) != body(*e.JobSubmitLua) {
		e.add("lua-version", Warning, name+" isn't the job_submit.lua of this release", "script and daemon are made for each other",
			Fix{Lines: []string{"install -m 644 " + PackagedLua + " " + name, "scontrol reconfigure"}})
	}
}

// settingsFile is where the bridge's settings are.
const settingsFile = "/etc/slurmbridge/slurmbridge.yaml"

// PackagedLua is where packages put the script.
const PackagedLua = "/usr/share/slurmbridge/job_submit.lua"

// luaFirst begins the project's own script.
const luaFirst = "-- slurmbridge:"

// body is a script without the settings at its beginning, which sites may change.
func body(lua string) string {
	if _, rest, ok := strings.Cut(lua, "local M = "); ok {
		return rest
	}
	return lua
}

// user checks that the bridge's user may change jobs.
func (e *exam) user() {
	if e.User == "" {
		return
	}
	slurm, _, _ := text.User(e.Config["SlurmUser"])
	switch {
	case e.User == "root" && strings.EqualFold(e.Config["DisableRootJobs"], "yes"):
		e.add("gate-rights", Error, "the bridge runs as root and DisableRootJobs is set", "it can't submit the gate",
			Fix{File: "systemctl edit slurmbridge", Lines: []string{"[Service]", "User=" + slurm}})
	case e.User != "root" && e.User != slurm:
		e.add("gate-rights", Error, fmt.Sprintf("the bridge runs as %s, not as SlurmUser (%s)", e.User, slurm),
			"only they may change users' jobs",
			Fix{File: "systemctl edit slurmbridge", Lines: []string{"[Service]", "User=" + slurm}})
	}
}

// gatePartition: the gate is a job, which a partition must take: its own while that is up, or
// those where GPUs are shared. One that is down takes jobs all the same.
func (e *exam) gatePartition() {
	if e.Settings == nil || e.Partitions == nil {
		return
	}
	name, usual := e.Settings.GatePartition, config.Default().GatePartition
	at := slices.IndexFunc(e.Partitions, func(p text.Partition) bool { return p.Name == name })
	seen := "all users' squeue lists it as a pending job, and a script that waits until the queue is empty waits for ever"
	up := func(name string) Fix {
		return Fix{Lines: []string{"scontrol update PartitionName=" + name + " State=UP"}}
	}
	switch {
	case name != "" && at >= 0 && e.Partitions[at].State == "UP":
		if !e.Partitions[at].Hidden && !text.HasOption(e.Config["PrivateData"], "jobs") {
			e.add("gate-seen", Note, "the gate's partition "+name+" isn't hidden", seen, e.conf("PartitionName="+name+" … Hidden=YES"))
		}
		return
	case name != "" && at >= 0:
		e.add("gate-partition", Warning, "partition "+name+", the gate's own, is "+e.Partitions[at].State,
			"the gate is in the partitions of the jobs instead, where all see it", up(name))
	case name != "" && name != usual:
		e.add("gate-partition", Warning, "there is no partition "+name+", which gate_partition names",
			"the gate is in the partitions of the jobs instead, where all see it", e.gateLine(name))
	case e.Settings.Mode != "shadow" && len(e.gpuNodes()) > 0 && !text.HasOption(e.Config["PrivateData"], "jobs"):
		fix := []Fix{e.gateLine(usual)}
		if name == "" {
			fix = append(fix, Fix{File: settingsFile, Lines: []string{"gate_partition: " + usual}})
		}
		e.add("gate-seen", Note, "the gate is in the partitions of the jobs", seen+"; in a hidden partition of its own users don't see it", fix...)
	}
	var among []text.Partition
	for _, p := range e.Partitions {
		if slices.ContainsFunc(e.Nodes, func(n text.Node) bool { return n.Shares[e.sharing] > 0 && slices.Contains(n.Partitions, p.Name) }) {
			among = append(among, p)
		}
	}
	if len(among) > 0 && !slices.ContainsFunc(among, func(p text.Partition) bool { return p.State != "DRAIN" && p.State != "INACTIVE" }) {
		p := among[0]
		e.add("gate-partition", Error, "partition "+p.Name+" is "+p.State+", and the gate can be in no other", "it takes no jobs, and the gate is one", up(p.Name))
	}
}

// twoControllers: job_submit.lua runs where slurmctld does, and finds no gate on a host without a daemon.
func (e *exam) twoControllers() {
	host, _, _ := strings.Cut(e.Config["SlurmctldHost[1]"], "(")
	if host == "" {
		return
	}
	first, _, _ := strings.Cut(e.Config["SlurmctldHost[0]"], "(")
	e.add("two-controllers", Note, "slurmctld may move to "+host, "without a daemon there jobs that come meanwhile get whole GPUs",
		Fix{Lines: []string{
			"# slurmbridge with these settings on " + host + ", too: one of both daemons is standby",
			`# on the nodes, in gpuprof.yaml and node.yaml: controller: "http://` + first + ":9797,http://" + host + `:9797"`,
		}})
}

// gateLine is a partition for the gate alone: only root and SlurmUser put jobs there, and only
// they see it.
func (e *exam) gateLine(name string) Fix {
	return e.conf("PartitionName=" + name + " Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1")
}

// memory: where memory is handed out, a job without --mem gets all of a node.
func (e *exam) memory() {
	if !strings.Contains(strings.ToUpper(e.Config["SelectTypeParameters"]), "MEMORY") {
		return
	}
	if text.HasDefMem(e.Config) {
		return
	}
	if len(e.Partitions) > 0 && !slices.ContainsFunc(e.Partitions, func(p text.Partition) bool {
		return !p.DefMem && (e.Settings == nil || p.Name != e.Settings.GatePartition)
	}) {
		return
	}
	perGPU := func(p text.Partition) bool { return p.PerGPU.MemMiB > 0 }
	if text.ParsePerGPU(e.Config["JobDefaults"]).MemMiB > 0 || slices.ContainsFunc(e.Partitions, perGPU) {
		e.add("default-memory", Warning, "DefMemPerGPU is the only default memory",
			"Slurm gives it to jobs of whole GPUs alone. While the bridge runs, job_submit.lua gives it to jobs that share a GPU as well; without the bridge such a job takes all of a node's memory, unless it says --mem")
		return
	}
	e.add("default-memory", Error, "DefMemPerCPU is not set",
		"a job that doesn't say --mem takes all of a node's memory, so no two such jobs ever run side by side",
		e.conf("DefMemPerCPU=2000   # MB; a node's memory divided by its cores is a good start"))
}

func (e *exam) hooks() {
	if e.Hooks == nil {
		return
	}
	for _, h := range []struct{ name, fragment, why string }{
		{"Prolog", "prolog.d", "no MPS daemon is started for a shared GPU, and no job's use is recorded"},
		{"Epilog", "epilog.d", "records of jobs are never closed, and MPS daemons are never stopped"},
		{"TaskProlog", "", "jobs don't learn where their GPU's MPS daemon is, and share it by turns instead"},
	} {
		if slices.ContainsFunc(e.Hooks[h.name], func(f string) bool { return strings.Contains(f, "slurmbridge") }) {
			continue
		}
		sub := strings.ToLower(h.name)
		fix := e.conf(h.name + "=/usr/lib/slurmbridge/" + sub)
		if value := e.Config[h.name]; strings.HasSuffix(value, "/*") && h.fragment != "" {
			fix = Fix{Lines: []string{"ln -s /usr/lib/slurmbridge/" + sub + " " + strings.TrimSuffix(value, "*") + "50-slurmbridge"}}
		}
		why := h.why
		if n := len(e.Nodes) - len(e.gpuNodes()); n > 0 {
			why += fmt.Sprintf("; install gpuprof on the nodes without a GPU, too (%d): slurm.conf is for all nodes, and Slurm drains one that lacks its prolog", n)
		}
		e.add("hook-"+sub, Error, h.name+" doesn't lead to slurmbridge-hook", why, fix)
	}
}

// drained: a node gets no more jobs after its prolog or epilog failed. Our hooks always exit with
// 0; a missing hook fails.
func (e *exam) drained() {
	var names []string
	for i := range e.Nodes {
		if r := e.Nodes[i].Reason; strings.HasPrefix(r, "Prolog error") || strings.HasPrefix(r, "Epilog error") {
			names = append(names, e.Nodes[i].Name)
		}
	}
	ours := func(f string) bool { return strings.Contains(f, "slurmbridge") }
	if len(names) == 0 || !slices.ContainsFunc(slices.Concat(e.Hooks["Prolog"], e.Hooks["Epilog"]), ours) {
		return
	}
	all := strings.Join(names, ",")
	e.add("drained", Error, "Slurm drained "+all+": Prolog error or Epilog error", "a node that lacks the hooks which slurm.conf names ends so",
		Fix{Lines: []string{"ls /usr/lib/slurmbridge /usr/sbin/slurmbridge-hook   # on each of them; the package gpuprof has both", "scontrol update NodeName=" + all + " State=RESUME"}})
}

func (e *exam) epilogSlurmctld() {
	if !strings.Contains(e.Config["EpilogSlurmctld"], "slurmbridge") &&
		!slices.ContainsFunc(e.Hooks["EpilogSlurmctld"], func(f string) bool { return strings.Contains(f, "slurmbridge") }) {
		e.add("epilog-slurmctld", Warning, "EpilogSlurmctld doesn't wake the bridge",
			"it then notices that a GPU is free only at its next poll",
			e.conf("EpilogSlurmctld=/usr/lib/slurmbridge/epilog-slurmctld"))
	}
	// Tried on 22.05.8: with both a job's end is followed by a look within 0.1 s,
	// without an Epilog the next job begins 25 to 30 s later.
	if e.Config["EpilogSlurmctld"] != "" && e.Config["Epilog"] == "" {
		e.add("epilog-order", Warning, "there is an EpilogSlurmctld and no Epilog",
			"it then ends later than the job's nodes, after which Slurm doesn't look at its queue: whatever waits for what "+
				"the job had waits for Slurm's next interval, 30 s by default",
			e.conf("Epilog=/usr/lib/slurmbridge/epilog"))
	}
}

// timeouts: a hook that is cut off drains its node.
func (e *exam) timeouts() {
	for _, name := range []string{"PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"} {
		d, ok := text.Seconds(e.Config[name])
		if !ok || d <= 0 || d >= time.Minute {
			continue
		}
		e.add("hook-timeout", Warning, fmt.Sprintf("%s is %s", name, d),
			"a hook that takes longer drains its node; slurmbridge-hook ends by itself within 30 s, the site's other hooks may not",
			e.conf(name+"=120"))
	}
}

// minJobAge: the bridge learns from squeue --states=all how a run ended, after its record has
// arrived. 0 means that Slurm forgets no job.
func (e *exam) minJobAge() {
	d, ok := text.Seconds(e.Config["MinJobAge"])
	if !ok || d == 0 || d >= leastJobAge {
		return
	}
	e.add("min-job-age", Warning, fmt.Sprintf("MinJobAge is %s", d),
		"the bridge asks Slurm how a job ended once its record has come, seconds later; if Slurm has forgotten the job by "+
			"then, whether it failed isn't known, and the job is neither run again nor learned from correctly",
		e.conf("MinJobAge=300   # Slurm's default"))
}

// leastJobAge is the longest time for which the bridge may put off a poll by itself: while
// slurmctld fails it tries again within half a minute.
const leastJobAge = 30 * time.Second

// requeueDelay: a member that is requeued starts again with its share, on its node, unless
// it is given back what it had before Slurm looks at it.
func (e *exam) requeueDelay() {
	key, name := "AuthInfo", "cred_expire"
	if e.form.RequeueDelay && text.HasOption(e.Config["SchedulerParameters"], "requeue_delay") {
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
		"the bridge needs a few seconds to give a sharer that is requeued its whole GPU back; before, it starts with its share, "+
			"next to jobs that it was never compared with",
		e.conf(key+"="+fixed))
}

// leastRequeueDelay is enough for the bridge to see a requeued job and to change it, seconds.
const leastRequeueDelay = 10

func (e *exam) accrue() {
	const behind = "a job that waits behind the gate has an unmet dependency, and gains no priority by age meanwhile"
	if e.Config["PriorityType"] != "priority/multifactor" {
		return
	}
	always := text.HasOption(e.Config["PriorityFlags"], "ACCRUE_ALWAYS")
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
			behind+"; the flag lets every job age from its submission on, also one with a dependency or begin time of its own, and Slurm then ignores limits like MaxJobsAccrue",
			e.conf("PriorityFlags="+joinFlags(e.Config["PriorityFlags"], "ACCRUE_ALWAYS")))
	}
}

func joinFlags(have, flag string) string {
	if have == "" {
		return flag
	}
	return have + "," + flag
}

func (e *exam) folders() {
	for _, dir := range slices.Sorted(maps.Keys(e.Folders)) {
		if e.Folders[dir] {
			continue
		}
		slurm, _, _ := text.User(e.Config["SlurmUser"])
		e.add("folder", Error, dir+" is not there", "the bridge keeps its state in it, and job_submit.lua reads the gate there",
			Fix{Lines: []string{fmt.Sprintf("install -d -o %s -m 755 %s", slurm, dir)}})
	}
}

func (e *exam) agents() {
	if e.Agents == nil {
		return
	}
	var silent, sick, locked, noMPS, unseen, unset []string
	why := ""
	for _, n := range e.gpuNodes() {
		a, ok := e.Agents[n.Name]
		if !ok || a.Err != "" {
			silent = append(silent, n.Name)
			if a.Err != "" {
				why = " (" + a.Err + ")"
			}
		} else {
			e.clock(n.Name, a.Ahead)
		}
		if a.Locked != "" {
			locked = append(locked, n.Name)
		}
		if a.Sick != "" {
			sick = append(sick, n.Name+" ("+a.Sick+")")
		}
		if a.Hooks != nil && !*a.Hooks {
			unset = append(unset, n.Name)
		}
		switch {
		case n.Shares["mps"]+n.Shares["shard"] == 0:
		case a.MPS == nil && (!ok || a.Err != ""):
			// one thing after the other
		case a.MPS == nil:
			unseen = append(unseen, n.Name)
		case !*a.MPS:
			noMPS = append(noMPS, n.Name)
		}
	}
	if len(silent) > 0 {
		e.add("agent", Warning, "no answer from gpuprof on "+strings.Join(silent, ",")+why,
			"jobs there run, but nothing is learned from them",
			Fix{Lines: []string{"systemctl enable --now gpuprof   # on each of them", "slurmbridge doctor --agents https://{node}:9798   # where they listen elsewhere"}})
	}
	if len(sick) > 0 {
		e.add("agent-sick", Warning, "gpuprof isn't well on "+strings.Join(sick, ", "), "little or nothing is learned from jobs there",
			Fix{Lines: []string{"journalctl -u gpuprof -n 50   # on each of them"}})
	}
	if len(locked) > 0 {
		e.add("agent-locked", Note, "gpuprof answers on "+strings.Join(locked, ",")+", and can't be read", "whether it is well is not known",
			Fix{Lines: []string{"slurmbridge doctor --agents https://{node}:9798 --client-config FILE   # tls_config, basic_auth: see --help"}})
	}
	if len(unset) > 0 {
		e.add("hook-settings", Warning, "settings of the hooks on "+strings.Join(unset, ",")+" make no sense",
			"jobs start there with defaults in their place",
			Fix{Lines: []string{"journalctl -t slurmbridge-hook -n 50   # on each of them, names the setting of /etc/slurmbridge/node.yaml"}})
	}
	if len(noMPS) > 0 {
		e.add("mps-binary", Error, "no nvidia-cuda-mps-control on "+strings.Join(noMPS, ","),
			"jobs that share a GPU there take turns instead of running side by side",
			Fix{Lines: []string{"apt-get install nvidia-cuda-mps   # or your driver's package, on each of them"}})
	}
	if len(unseen) > 0 {
		e.add("mps-unseen", Note, "whether "+strings.Join(unseen, ",")+" have nvidia-cuda-mps-control can't be seen from here",
			"where it is missing jobs that share a GPU take turns instead of running side by side",
			Fix{Lines: []string{"ls -l /usr/bin/nvidia-cuda-mps-control /usr/bin/nvidia-cuda-mps-server   # on each of them; mps_control of node.yaml names another place"}})
	}
}

func (e *exam) clock(node string, ahead time.Duration) {
	off := ahead.Abs().Round(100 * time.Millisecond)
	if off < 2*time.Second {
		return
	}
	e.add("clock", Warning, fmt.Sprintf("the clock of %s is %s off", node, off),
		"records of who shared a GPU when no longer fit together, and those of a clock that is minutes off are refused",
		Fix{Lines: []string{"chronyc tracking   # on " + node}})
}

// rateLimit: slurmctld holds back users with many requests. Tried on 24.11.5 with
// small limits: root and SlurmUser were both held back, for five seconds at a
// time, so no user is taken to be exempt.
func (e *exam) rateLimit() {
	p := e.Config["SlurmctldParameters"]
	if !text.HasOption(p, "rl_enable") || text.HasOption(p, "rl_bucket_size") && text.HasOption(p, "rl_refill_rate") {
		return
	}
	e.add("rate-limit", Warning, "SlurmctldParameters limits how often a user may ask (rl_enable)",
		"the bridge asks several times when a group starts; held back, its groups start seconds late",
		e.conf("SlurmctldParameters="+p+",rl_bucket_size=100,rl_refill_rate=20"))
}

// preempt: Slurm looks for jobs to preempt when a job may start, and one behind the gate
// may not.
func (e *exam) preempt() {
	switch {
	case e.Config["PreemptType"] != "preempt/qos": // where partitions rank jobs, the bridge lets them go in time
	case e.Settings != nil && len(e.Settings.IncludePartitions)+len(e.Settings.ExcludePartitions) > 0:
		// the site has decided about partitions
	default:
		e.add("preempt", Note, "a QOS may preempt others here (preempt/qos)",
			"jobs of two QOS don't share, and a shared job that should preempt waits behind the gate and preempts no job",
			Fix{File: settingsFile, Lines: []string{"exclude_partitions: [NAME]   # partitions with preempting jobs"}})
	}
}

// privateJobs: what Slurm hides the daemon hides, too.
func (e *exam) privateJobs() {
	if text.PrivateJobs(e.Config["PrivateData"]) {
		e.add("private", Note, "Slurm hides other users' jobs (PrivateData="+e.Config["PrivateData"]+")",
			"status page and API leave users, accounts and applications out; slurmbridge why answers a job's owner, root and SlurmUser, by their MUNGE credential or, with key_file, their token of Slurm's")
	}
}

func (e *exam) mode() {
	if e.Settings != nil && e.Settings.Mode == "shadow" {
		e.add("shadow", Note, "the bridge is in shadow mode", "it decides and records, and changes nothing",
			Fix{File: settingsFile, Lines: []string{"mode: active"}})
	}
}
