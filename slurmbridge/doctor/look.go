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

	"gonum.org/v1/gonum/floats"

	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/namespace"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// This file finds the hits of rows with a condition of more than a line or two.

// hasOption reports whether a list in slurm.conf has a word, hasPlugin whether it names a plugin.
func (e *exam) hasOption(key, word string) bool   { return text.HasOption(e.Config[key], word) }
func (e *exam) hasPlugin(key, plugin string) bool { return text.HasPlugin(e.Config[key], plugin) }

// within reports whether the release is from or later, but before fixed.
func (e *exam) within(from, fixed text.Release) bool {
	return !e.release.Before(from) && e.release.Before(fixed)
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// byMunge reports whether senders prove their identity by MUNGE.
func (e *exam) byMunge() bool { return e.Key == nil && e.hasPlugin("AuthType", "auth/munge") }

// isTrue and isFalse are both false for an unknown (nil) fact.
func isTrue(known *bool) bool  { return known != nil && *known }
func isFalse(known *bool) bool { return known != nil && !*known }

// sharesOf returns the number of a node's shares, of both kinds.
func sharesOf(n *text.Node) int { return n.Shares["mps"] + n.Shares["shard"] }

// nodesWhere returns one hit with the GPU nodes for which cond is true; see nodesByText.
func (e *exam) nodesWhere(cond func(*text.Node) bool) []hit {
	return e.nodesByText(func(n *text.Node) (string, bool) { return "", cond(n) }, "")
}

// nodesByText returns one hit with the GPU nodes for which textOf returns true. Nodes with the same text are listed
// together, followed by the text; sep separates the lists. The hit also has the lines of slurm.conf (inConf) and of
// gres.conf (lines) that these nodes need.
func (e *exam) nodesByText(textOf func(*text.Node) (string, bool), sep string) []hit {
	var texts, gres, lines []string
	byText := map[string][]string{} // names of nodes
	byGres := map[string][]string{}
	for _, n := range e.gpus {
		t, ok := textOf(n)
		if !ok {
			continue
		}
		if byText[t] == nil {
			texts = append(texts, t)
		}
		byText[t] = append(byText[t], n.Name)
		g := e.gresOf(n)
		if byGres[g] == nil {
			gres = append(gres, g)
		}
		byGres[g] = append(byGres[g], n.Name)
		l := e.gresLines(n)
		if !slices.Contains(lines, l) {
			lines = append(lines, l)
		}
	}
	var all, inConf []string
	for _, t := range texts {
		all = append(all, strings.TrimSpace(fold(byText[t])+" "+t))
	}
	for _, g := range gres {
		inConf = append(inConf, "NodeName="+fold(byGres[g])+" … Gres="+g)
	}
	return hitIf(all != nil, "nodes", strings.Join(all, sep), "inConf", strings.Join(inConf, "\n"), "lines",
		strings.Join(lines, "\n"))
}

// gresOf returns the Gres= that a node needs in slurm.conf: its GPUs, 100 shares for each, and its other resources.
func (e *exam) gresOf(n *text.Node) string {
	var parts []string
	for _, t := range slices.Sorted(maps.Keys(n.ByType)) {
		parts = append(parts, fmt.Sprintf("gpu:%s:%d", cmp.Or(t, "TYPE"), n.ByType[t]))
	}
	parts = append(parts, fmt.Sprintf("%s:%d", e.sharing, 100*n.GPUs))
	return strings.Join(append(parts, n.OtherGres...), ",")
}

// numbered matches a host name that ends in a number.
var numbered = regexp.MustCompile(`^(.*?)([0-9]{1,9})$`)

// fold writes host names as Slurm does, gpu[1-40,44], from three names with one prefix on.
func fold(names []string) string {
	var kinds []string // prefixes of numbered names, with a NUL, and other names
	numbers := map[string][]int{}
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		kind := name
		if m != nil && (m[2] == "0" || m[2][0] != '0') { // names with leading zeros are not folded
			kind = m[1] + "\x00"
			n, _ := strconv.Atoi(m[2]) // nine digits at most
			numbers[kind] = append(numbers[kind], n)
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	var out []string
	for _, kind := range kinds {
		prefix, isPrefix := strings.CutSuffix(kind, "\x00")
		all := slices.Compact(slices.Sorted(slices.Values(numbers[kind])))
		switch {
		case !isPrefix:
			out = append(out, kind)
		case len(all) < 3:
			for _, n := range all {
				out = append(out, prefix+strconv.Itoa(n))
			}
		default:
			out = append(out, prefix+"["+spans(all)+"]")
		}
	}
	return strings.Join(out, ",")
}

// spans writes ascending numbers as 1-40,44.
func spans(all []int) string {
	var out []string
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n] == all[0]+n {
			n++
		}
		span := strconv.Itoa(all[0])
		if n > 1 {
			span += "-" + strconv.Itoa(all[n-1])
		}
		out = append(out, span)
		all = all[n:]
	}
	return strings.Join(out, ",")
}

// gresLines returns the lines of gres.conf for a node's GPUs and their shares.
func (e *exam) gresLines(n *text.Node) string {
	flags := choose(e.sharing == "mps" && n.GPUs > 1, " Flags=all_sharing", "")
	if hasInstances(n) {
		return fmt.Sprintf("AutoDetect=nvml   # or a line for each instance\nName=%s Count=%d%s   # without File", e.sharing,
			100*n.GPUs, flags)
	}
	files := "/dev/nvidia0"
	if n.GPUs > 1 {
		files = fmt.Sprintf("/dev/nvidia[0-%d]", n.GPUs-1)
	}
	var lines []string
	for _, t := range slices.Sorted(maps.Keys(n.ByType)) {
		file := choose(len(n.ByType) == 1, files, "/dev/nvidia…   # this type's")
		lines = append(lines, fmt.Sprintf("Name=gpu Type=%s File=%s", cmp.Or(t, "TYPE"), file))
	}
	lines = append(lines, fmt.Sprintf("Name=%s Count=%d File=%s%s", e.sharing, 100*n.GPUs, files, flags))
	return strings.Join(lines, "\n")
}

// agent returns the answer of a node's agent, a blank one for a node that power saving has put to sleep.
func (e *exam) agent(n *text.Node) Agent {
	a, asked := e.Agents[n.Name]
	if asked || n.Asleep {
		return a
	}
	return Agent{Answer: Answer{Silent: "not asked"}}
}

// agentsWhere returns one hit with the nodes for which cond is true of the agent's answer; see nodesByText.
func (e *exam) agentsWhere(cond func(*text.Node, Agent) bool) []hit {
	return e.nodesWhere(func(n *text.Node) bool { return cond(n, e.agent(n)) })
}

// agentsByText returns one hit with the nodes for which textOf is not "", and these texts in parentheses.
func (e *exam) agentsByText(textOf func(Agent) string) []hit {
	return e.nodesByText(func(n *text.Node) (string, bool) {
		t := textOf(e.agent(n))
		return "(" + t + ")", t != ""
	}, ", ")
}

func (e *exam) inMode(modes ...string) []hit {
	return e.agentsWhere(func(n *text.Node, a Agent) bool {
		return sharesOf(n) > 0 && slices.ContainsFunc(a.Modes, func(m string) bool { return slices.Contains(modes, m) })
	})
}

// exclusive finds GPUs that run one process at a time, if jobs can reach their MPS server (reached), or if they can't.
func (e *exam) exclusive(reached bool) []hit {
	if reached == (len(e.hidesMemory(true)) > 0) {
		return nil
	}
	return e.inMode("exclusive_process", "exclusive_thread")
}

// clock returns the error of an agent's clock, "" if it is below 2 s or unknown.
func clock(a Agent) string {
	off := a.Ahead.Abs().Round(100 * time.Millisecond)
	if a.Silent != "" || off < 2*time.Second {
		return ""
	}
	return off.String() + " off"
}

func (e *exam) hasShares(n *text.Node) bool { return n.Shares[e.sharing] > 0 }

// partitionsOf returns the partitions for jobs that have a GPU node for which cond is true, without the gate's own.
func (e *exam) partitionsOf(cond func(*text.Node) bool) []text.Partition {
	var out []text.Partition
	for _, p := range e.Partitions {
		has := slices.ContainsFunc(e.gpus, func(n *text.Node) bool {
			return slices.Contains(n.Partitions, p.Name) && cond(n)
		})
		if has && p.Name != e.Settings.GatePartition {
			out = append(out, p)
		}
	}
	return out
}

// withShares returns the partitions in which jobs can share GPUs: they have shares and don't allocate whole nodes.
func (e *exam) withShares() []text.Partition { return e.sharedPartitions(e.hasShares) }

// sharedPartitions is partitionsOf without partitions that allocate whole nodes.
func (e *exam) sharedPartitions(cond func(*text.Node) bool) []text.Partition {
	return slices.DeleteFunc(e.partitionsOf(cond), func(p text.Partition) bool { return p.WholeNodes })
}

// partitionsWhere returns one hit with the names of the partitions with shares for which cond is true.
func (e *exam) partitionsWhere(cond func(p text.Partition) bool) []hit {
	var names []string
	for _, p := range e.partitionsOf(e.hasShares) {
		if cond(p) {
			names = append(names, p.Name)
		}
	}
	return hitIf(names != nil, "partitions", strings.Join(names, ", "))
}

// mixed finds partitions that hand out both whole GPUs and shares, if Slurm mistakes GPUs in use by shares as free.
func (e *exam) mixed(mistakes bool) []hit {
	partitions := e.withShares()
	if len(partitions) == 0 { // the cluster has no shares yet
		partitions = e.sharedPartitions(func(*text.Node) bool { return true })
	}
	var mixed, all []string
	for _, p := range partitions {
		all = append(all, p.Name)
		if !slices.Contains(e.Settings.SharersOnly, p.Name) {
			mixed = append(mixed, p.Name)
		}
	}
	return hitIf(mixed != nil && mistakes, "mixed", strings.Join(mixed, ", "), "all", strings.Join(all, ", "))
}

// absentPartitions finds partitions that settings of the bridge name but Slurm doesn't have.
func (e *exam) absentPartitions() (hits []hit) {
	s := e.Settings
	var there, byHand, adopted []string
	for _, p := range e.Partitions {
		there = append(there, p.Name)
	}
	for _, name := range s.HandShares {
		p, ok := strings.CutPrefix(name, "partition:")
		if ok {
			byHand = append(byHand, p)
		}
	}
	for i := range s.Adopt {
		adopted = append(adopted, s.Adopt[i].Partitions...)
	}
	for _, named := range []struct {
		setting    string
		partitions []string
	}{
		{"include_partitions", s.IncludePartitions},
		{"exclude_partitions", s.ExcludePartitions},
		{"sharers_only", s.SharersOnly},
		{"interactive_partitions", s.InteractivePartitions},
		{"hand_shares", byHand},
		{"adopt", adopted},
	} {
		var missing []string
		for _, p := range named.partitions {
			if !slices.Contains(there, p) {
				missing = append(missing, p)
			}
		}
		hits = append(hits, hitIf(len(missing) > 0, "setting", named.setting, "missing", strings.Join(missing, ", "), "there",
			strings.Join(there, ", "))...)
	}
	return hits
}

// withoutShares finds nodes without shares: with MIG instances, if instances is set and Slurm can share these, or none.
func (e *exam) withoutShares(instances bool) []hit {
	if instances && !text.SharesInstances(e.Config["SLURM_VERSION"]) {
		return nil
	}
	return e.nodesWhere(func(n *text.Node) bool { return sharesOf(n) == 0 && hasInstances(n) == instances })
}

func hasInstances(n *text.Node) bool {
	for gpuType := range n.ByType {
		_, ok := job.InstanceOf(gpuType)
		if ok {
			return true
		}
	}
	return false
}

// shareCounts finds nodes with one kind of shares for which cond is true of got, their number, and want, 100 a GPU.
func (e *exam) shareCounts(cond func(got, want int) bool) []hit {
	return e.nodesByText(func(n *text.Node) (string, bool) {
		got := sharesOf(n)
		both := n.Shares["mps"] > 0 && n.Shares["shard"] > 0
		if both || got == 0 || !cond(got, 100*n.GPUs) {
			return "", false
		}
		return fmt.Sprintf("has %d for %s", got, job.Count(n.GPUs, "GPU")), true
	}, "; ")
}

// tooShort finds durations in slurm.conf that are set and shorter than least.
func (e *exam) tooShort(least time.Duration, names ...string) (hits []hit) {
	for _, name := range names {
		d, ok := text.Seconds(e.Config[name])
		hits = append(hits, hitIf(ok && d > 0 && d < least, "name", name, "time", d.String())...)
	}
	return hits
}

// gresConfHas reports whether a line of gres.conf matches expr, or includes a file, where one may match.
func (e *exam) gresConfHas(expr string) bool {
	return regexp.MustCompile(`(?im)^\s*include\s|^[^#\n]*` + expr).MatchString(orEmpty(e.GresConf))
}

// unnamedShares finds kinds of shares that nodes have in slurm.conf but that gres.conf doesn't name.
func (e *exam) unnamedShares() []hit {
	var kinds []string
	for _, kind := range []string{"mps", "shard"} {
		named := e.gresConfHas(`\bname\s*=\s*"?` + kind + `\b`)
		if !named && e.anyShares(kind) {
			kinds = append(kinds, "Name="+kind)
		}
	}
	if kinds == nil {
		return nil
	}
	hits := e.nodesWhere(func(n *text.Node) bool { return sharesOf(n) > 0 })
	for _, h := range hits {
		h["kinds"] = strings.Join(kinds, ", ")
	}
	return hits
}

func (e *exam) unknownCards() (hits []hit) {
	unknown := map[string][]string{} // names of nodes by GPU type
	for _, n := range e.gpus {
		for t := range n.ByType {
			_, known := e.Settings.Spec(t)
			if !known && t != "" {
				unknown[t] = append(unknown[t], n.Name)
			}
		}
	}
	for _, t := range slices.Sorted(maps.Keys(unknown)) {
		hits = append(hits, hit{"type": t, "nodes": fold(unknown[t])})
	}
	return hits
}

func (e *exam) countsMemory() bool {
	return strings.Contains(strings.ToUpper(e.Config["SelectTypeParameters"]), "MEMORY")
}

// noDefaultMemory finds partitions where a job without --mem gets all memory of a node: Slurm allocates memory and has
// no default for it. ofGPU: there is a default by GPU (DefMemPerGPU), else none at all.
func (e *exam) noDefaultMemory(ofGPU bool) []hit {
	if !e.countsMemory() || text.HasDefMem(e.Config) {
		return nil
	}
	var lack, lines []string
	perGPU := text.ParsePerGPU(e.Config["JobDefaults"]).MemMiB > 0
	for _, p := range e.partitionsOf(func(*text.Node) bool { return true }) {
		if !p.DefMem {
			lack = append(lack, p.Name)
			perGPU = perGPU || p.PerGPU.MemMiB > 0
			lines = append(lines, "PartitionName="+p.Name+
				" … DefMemPerCPU=2000   # MB; a node's memory divided by its cores is a good start")
		}
	}
	return hitIf(lack != nil && perGPU == ofGPU,
		"partitions", strings.Join(lack, ", "), "lines", strings.Join(lines, "\n"))
}

// luaBody returns the script without the settings at its beginning, which sites may change.
func luaBody(lua string) string {
	_, body, found := strings.Cut(lua, "local M = ")
	return choose(found, body, lua)
}

// gatePartition returns the gate's own partition; its State is "" if there is none.
func (e *exam) gatePartition() text.Partition {
	for _, p := range e.Partitions {
		if p.Name == e.Settings.GatePartition {
			return p
		}
	}
	return text.Partition{}
}

// orderOfPlugins returns the line of slurm.conf that has job_submit.lua run after all_partitions, which adds the gate's
// partition to jobs' lists; "" = no change needed.
func (e *exam) orderOfPlugins() string {
	plugins := e.Config["JobSubmitPlugins"]
	_, after, found := strings.Cut(plugins, "all_partitions")
	if !found || text.HasPlugin(after, "job_submit/lua") {
		return ""
	}
	isLua := func(w string) bool { return text.HasPlugin(w, "job_submit/lua") }
	return "JobSubmitPlugins=" + withWords(withoutWords(plugins, isLua), "lua")
}

// gateLockedOut finds the first partition with shares if no partition takes the gate.
func (e *exam) gateLockedOut() []hit {
	partitions := e.withShares()
	takesJobs := func(p text.Partition) bool { return p.State != "DRAIN" && p.State != "INACTIVE" }
	if e.gatePartition().State == "UP" || len(partitions) == 0 || slices.ContainsFunc(partitions, takesJobs) {
		return nil
	}
	return hitIf(true, "name", partitions[0].Name, "state", partitions[0].State)
}

// isOurs reports whether a hook setting of slurm.conf leads to slurmbridge-hook.
func (e *exam) isOurs(hook string) bool {
	return slices.ContainsFunc(e.Hooks[hook], func(h Hook) bool { return h.Ours })
}

var addHook = in("$file", "$line")

// lost says what is missing if a hook doesn't lead to slurmbridge-hook.
var lost = map[string]string{
	"Prolog":     "no MPS daemon is started for a shared GPU, and no job's use is recorded",
	"Epilog":     "records of jobs are never closed, and MPS daemons are never stopped",
	"TaskProlog": "jobs don't learn where their GPU's MPS daemon is, and share it by turns instead",
}

// strays finds hook settings of slurm.conf that don't lead to slurmbridge-hook. seen: this machine has all of the
// hook's files, else some are on the nodes only.
func (e *exam) strays(seen bool, names ...string) (hits []hit) {
	for _, hook := range names {
		hidden := slices.IndexFunc(e.Hooks[hook], func(h Hook) bool { return !h.Seen })
		if e.isOurs(hook) || seen == (hidden >= 0) || hook == "TaskProlog" && e.containers() {
			continue
		}
		h := hit{"hook": hook, "kind": strings.ToLower(hook), "lost": lost[hook]}
		if !seen {
			h["hidden"] = e.Hooks[hook][hidden].File
		}
		ours := "/usr/lib/slurmbridge/" + strings.Replace(h["kind"], "epilogs", "epilog-s", 1)
		paths := strings.Split(e.Config[hook], ",")
		glob := slices.IndexFunc(paths, func(p string) bool { return strings.Contains(filepath.Base(p), "*") })
		switch {
		case e.Config[hook] == "":
			h["file"] = e.values["SLURM_CONF"]
			h["line"] = hook + "=" + ours
		case glob >= 0: // make a link that the pattern matches
			dir, name := filepath.Split(paths[glob])
			h["file"] = ""
			h["line"] = "ln -s " + ours + " " + dir + strings.Replace(name, "*", "50-slurmbridge", 1)
		default:
			h["file"] = paths[len(paths)-1]
			h["line"] = ours + "   # call it there, in the same environment"
		}
		others := len(e.Nodes) - len(e.gpus)
		if others > 0 {
			h["others"] = fmt.Sprintf("; install gpuprof on the nodes without a GPU, too (%d): slurm.conf is for all nodes, "+
				"and Slurm drains a node that lacks its prolog", others)
		}
		hits = append(hits, h)
	}
	return hits
}

// stackIndex returns the index of the first line of plugstack.conf that names a plugin, −1 if none does.
func (e *exam) stackIndex(plugin string) int {
	return slices.IndexFunc(e.PlugStack, func(line string) bool { return strings.Contains(line, plugin) })
}

// containers reports whether our SPANK plugin replaces TaskProlog, or should, because Pyxis starts containers.
func (e *exam) containers() bool { return e.stackIndex(pyxis) >= 0 || e.stackIndex(ourPlugin) >= 0 }

// A line of plugstack.conf that contains one of these loads our SPANK plugin, or Pyxis.
const (
	ourPlugin = "slurmbridge"
	pyxis     = "pyxis"
)

// drained finds nodes that Slurm drained because a hook failed. Our hooks always exit with 0; a missing hook fails.
func (e *exam) drained() []hit {
	var names []string
	for i := range e.Nodes {
		n := &e.Nodes[i]
		if strings.HasPrefix(n.Reason, "Prolog error") || strings.HasPrefix(n.Reason, "Epilog error") {
			names = append(names, n.Name)
		}
	}
	return hitIf(names != nil && (e.isOurs("Prolog") || e.isOurs("Epilog")), "nodes", strings.Join(names, ","))
}

// hidesMemory finds a plugin that gives each job a /dev/shm of its own, and the line that keeps it from doing so. seen:
// the plugin's settings are known to do so, else they are not on this machine.
func (e *exam) hidesMemory(seen bool) []hit {
	plugin := cmp.Or(e.Config["NamespaceType"], e.Config["JobContainerType"])
	file := namespace.File(plugin)
	line := "Dirs=/tmp   # in place of each Dirs=: all folders but /dev/shm"
	switch {
	case file == "namespace.yaml":
		line = `dirs: "/tmp"   # in place of each dirs and dir_confs: all folders but /dev/shm`
	case file == "":
		return nil
	case e.release.Before(text.Release{23, 2}):
		return hitIf(seen, "plugin", plugin, "always", ", always before Slurm 23.02", "in", e.values["SLURM_CONF"], "line",
			"JobContainerType=job_container/none   # or a newer Slurm, with Dirs=/tmp in job_container.conf")
	}
	hides := files(e.Facts) && seen == (e.Namespaces != nil) && namespace.HidesMemory(orEmpty(e.Namespaces))
	return hitIf(hides, "plugin", plugin, "in", filepath.Join(e.values["dir"], file), "line", line)
}

// ownLua reports whether job_submit.lua is the site's own script.
func (e *exam) ownLua() bool {
	return e.JobSubmitLua != nil && !strings.HasPrefix(*e.JobSubmitLua, luaFirst)
}

// letPass returns the file and lines that let the gate, or else the bridge's changes, pass the site's own
// job_submit.lua. If the site has none, they are a command that shows Slurm's answers.
func (e *exam) letPass(gate bool) (file, lines string) {
	if !e.ownLua() {
		return "", e.expand("journalctl -u slurmbridge -g refused   # each with Slurm's words; plugins here: "+
			"$JobSubmitPlugins", nil)
	}
	_, uid, _ := text.User(e.Config["SlurmUser"])
	if e.User == "root" {
		uid = 0
	}
	const first = "-- the first line of your slurm_job_"
	if gate {
		return e.values["lua"], fmt.Sprintf(first+"submit(job_desc, part_list, submit_uid)\n"+
			"if submit_uid == %d then return slurm.SUCCESS end   -- the bridge's gate passes", uid)
	}
	return e.values["lua"], fmt.Sprintf(first+"modify(job_desc, job_rec, part_list, modify_uid)\n"+
		"if modify_uid == %d then return slurm.SUCCESS end   -- the bridge's changes pass", uid)
}

// gateless finds a daemon without a gate. bySite: the site's own job_submit.lua may have refused the gate, since
// Slurm's error names no account and no limit.
func (e *exam) gateless(bySite bool) []hit {
	said := e.daemon.GateErr
	refused := strings.Contains(said, "create gate")
	ofAccount := regexp.MustCompile(`(?i)account|QOS|limit`).MatchString(said)
	file, lines := e.letPass(true)
	return hitIf(e.daemon.gateless() && bySite == (refused && e.ownLua() && !ofAccount),
		"said", strings.TrimSuffix(": "+said, ": "), "file", file, "lines", lines)
}

// loadsFiles matches a Lua call that loads another file.
var loadsFiles = regexp.MustCompile(`\b(dofile|loadfile|require)\b`)

// lowRateLimit finds a rate limit too low for the start of a group. params are SlurmctldParameters without it.
func (e *exam) lowRateLimit() []hit {
	params := e.Config["SlurmctldParameters"]
	enough := func(name string, least int) bool {
		value, _ := text.Option(params, name)
		n, err := strconv.Atoi(value)
		return err == nil && n >= least
	}
	tooLow := !enough("rl_bucket_size", 100) || !enough("rl_refill_rate", 20)
	limit := func(w string) bool { return text.HasOption(w, "rl_bucket_size") || text.HasOption(w, "rl_refill_rate") }
	return hitIf(text.HasOption(params, "rl_enable") && tooLow, "params", withoutWords(params, limit))
}

func (e *exam) refusedChanges() (hits []hit) {
	file, lines := e.letPass(false)
	for i := range e.daemon.Refused {
		r := &e.daemon.Refused[i]
		severity := Warning
		then := "after two refusals a job is left to Slurm: it waits for no other job, and runs without sharing"
		switch {
		case r.Step == job.StepUngate:
			severity = Error
			then = "after two refusals the gate is opened for all waiting jobs; if that happens again within an hour, nothing " +
				"is shared for the next hour"
		case r.Step == job.StepExtend:
			then = "sharing makes jobs slower, and without more time some may end at their time limits"
		case r.GivenUp == 0:
			severity = Note
			then = "each job's change is tried twice; a single refusal does no harm"
		}
		hits = append(hits, hit{
			"severity": string(severity), "refused": r.String(), "then": then, "file": file, "lines": lines,
		})
	}
	return hits
}

func (e *exam) tracked() bool { return e.hasOption("AccountingStorageTRES", "gres/"+e.sharing) }

// gpusAlone returns a TRES list's value for GPUs, or its values for types of GPUs. It returns none if the list has a
// value for shares, or accounting doesn't count shares.
func (e *exam) gpusAlone(list string) []float64 {
	var all, typed []float64
	for w := range strings.SplitSeq(list, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(w), "=")
		kind, _, _ := strings.Cut(strings.ToLower(name), ":")
		n, ok := text.TRESValue(w, name)
		switch {
		case !e.tracked() || kind == "gres/"+e.sharing:
			return nil
		case ok && strings.EqualFold(name, "gres/gpu"):
			all = append(all, n)
		case ok && kind == "gres/gpu":
			typed = append(typed, n)
		}
	}
	return choose(all != nil, all, typed)
}

// gpuLimits finds limits on GPUs that don't apply to jobs with shares.
func (e *exam) gpuLimits() []hit {
	var of, lines []string
	for _, l := range e.Limits {
		gpus := e.gpusAlone(l.TRES)
		if gpus == nil {
			continue
		}
		shares := 100 * floats.Sum(gpus)
		of = append(of, l.Of)
		lines = append(lines, fmt.Sprintf("sacctmgr modify %s set %s=gres/%s=%g", l.Of, l.Name, e.sharing, shares))
	}
	const most = 10
	more := ""
	if len(of) > most {
		more = fmt.Sprintf(" and %d more", len(of)-most)
		of = of[:most]
		lines = lines[:most]
	}
	return hitIf(of != nil, "of", strings.Join(of, ", ")+more, "lines", strings.Join(lines, "\n"))
}

// gpuBills finds partitions that bill GPUs but not shares: if hinder, where this prevents adoption, else the others.
func (e *exam) gpuBills(hinder bool) (hits []hit) {
	for i := range e.Partitions {
		p := &e.Partitions[i]
		weight := slices.Max(append(e.gpusAlone(p.Billing), 0))
		hits = append(hits, hitIf(weight > 0 && e.adopts(p.Name) == hinder, "name", p.Name,
			"weights", fmt.Sprintf("%s,GRES/%s=%g", p.Billing, e.sharing, weight/100))...)
	}
	return hits
}

// adopts reports whether a rule may adopt jobs of a partition.
func (e *exam) adopts(partition string) bool {
	return slices.ContainsFunc(e.Settings.Adopt, func(r adopt.Rule) bool {
		return !r.Never && (len(r.Partitions) == 0 || slices.Contains(r.Partitions, partition))
	})
}

// adoptsPerGPU finds partitions whose defaults by GPU keep the site's rules from adopting jobs.
func (e *exam) adoptsPerGPU() []hit {
	var names []string
	everywhere := text.ParsePerGPU(e.Config["JobDefaults"]) != job.PerGPU{}
	for _, p := range e.withShares() {
		if (everywhere || p.PerGPU != job.PerGPU{}) && e.adopts(p.Name) {
			names = append(names, p.Name)
		}
	}
	return hitIf(names != nil, "partitions", strings.Join(names, ", "))
}
