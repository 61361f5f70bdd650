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

// What finds the hits of the table's rows, where that takes more than a line or two.

// has reports whether a setting of slurm.conf, a list, has a word; runs whether one names a plugin.
func (e *exam) has(key, word string) bool    { return text.HasOption(e.Config[key], word) }
func (e *exam) runs(key, plugin string) bool { return text.HasPlugin(e.Config[key], plugin) }

// within reports whether the release is one from a fault's first to before the one that mends it.
func (e *exam) within(from, mended text.Release) bool {
	return !e.release.Before(from) && e.release.Before(mended)
}

// wrong is what went wrong with something that was tried; "" = nothing, or it wasn't.
func wrong(said *string) string {
	if said == nil {
		return ""
	}
	return *said
}

// byMunge reports whether senders prove their identity by MUNGE.
func (e *exam) byMunge() bool { return e.Key == nil && e.runs("AuthType", "auth/munge") }

// is and isnt are both false for a fact that is unknown (nil).
func is(known *bool) bool   { return known != nil && *known }
func isnt(known *bool) bool { return known != nil && !*known }

// sharesOf is the number of a node's shares.
func sharesOf(n *text.Node) int { return n.Shares["mps"] + n.Shares["shard"] }

// on returns one hit that names the nodes with GPUs for which so is true, with the lines of their gres.conf.
func (e *exam) on(so func(*text.Node) bool) []hit {
	return e.saying(func(n *text.Node) (string, bool) { return "", so(n) }, "")
}

// saying returns one hit that names the nodes that of reports, with the text that it returns behind the names of the
// nodes that have it in common, and with the lines of slurm.conf (inConf) and of gres.conf (lines) for these nodes.
func (e *exam) saying(of func(*text.Node) (said string, is bool), between string) []hit {
	var texts, lines, gres []string
	saying, having := map[string][]string{}, map[string][]string{} // nodes by text, and by Gres=
	for _, n := range e.gpus {
		said, is := of(n)
		if !is {
			continue
		}
		if saying[said] == nil {
			texts = append(texts, said)
		}
		saying[said] = append(saying[said], n.Name)
		g := e.gresOf(n)
		if having[g] == nil {
			gres = append(gres, g)
		}
		if l := e.gresLines(n); !slices.Contains(lines, l) {
			lines = append(lines, l)
		}
		having[g] = append(having[g], n.Name)
	}
	var all, inConf []string
	for _, said := range texts {
		all = append(all, strings.TrimSpace(fold(saying[said])+" "+said))
	}
	for _, g := range gres {
		inConf = append(inConf, "NodeName="+fold(having[g])+" … Gres="+g)
	}
	return when(all != nil, "nodes", strings.Join(all, between), "inConf", strings.Join(inConf, "\n"), "lines",
		strings.Join(lines, "\n"))
}

// gresOf is what slurm.conf has to say of a node's GPUs and their shares, and says of its other resources.
func (e *exam) gresOf(n *text.Node) string {
	var parts []string
	for _, t := range slices.Sorted(maps.Keys(n.ByType)) {
		parts = append(parts, fmt.Sprintf("gpu:%s:%d", cmp.Or(t, "TYPE"), n.ByType[t]))
	}
	parts = append(parts, fmt.Sprintf("%s:%d", e.sharing, 100*n.GPUs))
	return strings.Join(append(parts, n.OtherGres...), ",")
}

// numbered is a host's name that ends in a number.
var numbered = regexp.MustCompile(`^(.*?)([0-9]{1,9})$`)

// fold writes hosts as Slurm does, gpu[1-40,44], from three of a kind on.
func fold(names []string) string {
	numbers, kinds := map[string][]int{}, []string{}
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		kind := name
		if m != nil && (m[2] == "0" || m[2][0] != '0') { // a number with zeros before it stands alone
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
		prefix, ends := strings.CutSuffix(kind, "\x00")
		all := slices.Compact(slices.Sorted(slices.Values(numbers[kind])))
		switch {
		case !ends:
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
		out, all = append(out, span), all[n:]
	}
	return strings.Join(out, ",")
}

// gresLines are the lines of gres.conf for a node's GPUs and their shares, which go together.
func (e *exam) gresLines(n *text.Node) string {
	flags := either(e.sharing == "mps" && n.GPUs > 1, " Flags=all_sharing", "")
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
		of := either(len(n.ByType) == 1, files, "/dev/nvidia…   # this type's")
		lines = append(lines, fmt.Sprintf("Name=gpu Type=%s File=%s", cmp.Or(t, "TYPE"), of))
	}
	lines = append(lines, fmt.Sprintf("Name=%s Count=%d File=%s%s", e.sharing, 100*n.GPUs, files, flags))
	return strings.Join(lines, "\n")
}

// agent is the answer of a node's agent; a node that power saving has put to sleep has none, and lacks none.
func (e *exam) agent(n *text.Node) Agent {
	if a, asked := e.Agents[n.Name]; asked || n.Asleep {
		return a
	}
	return Agent{Answer: Answer{Silent: "not asked"}}
}

// onAgents returns one hit naming the nodes for whose agents' answers so is true; why adds each node's reason.
func (e *exam) onAgents(so func(*text.Node, Agent) bool) []hit {
	return e.on(func(n *text.Node) bool { return so(n, e.agent(n)) })
}

func (e *exam) why(of func(Agent) string) []hit {
	return e.saying(func(n *text.Node) (string, bool) {
		said := of(e.agent(n))
		return "(" + said + ")", said != ""
	}, ", ")
}

func (e *exam) inMode(modes ...string) []hit {
	return e.onAgents(func(n *text.Node, a Agent) bool {
		return sharesOf(n) > 0 && slices.ContainsFunc(a.Modes, func(m string) bool { return slices.Contains(modes, m) })
	})
}

// exclusive finds GPUs that take one process at a time, where jobs reach their MPS server or do not.
func (e *exam) exclusive(reached bool) []hit {
	if reached == (len(e.namespaces(true)) > 0) {
		return nil
	}
	return e.inMode("exclusive_process", "exclusive_thread")
}

// clock is how far an agent's clock is off, "" where it doesn't matter.
func clock(a Agent) string {
	if off := a.Ahead.Abs().Round(100 * time.Millisecond); a.Silent == "" && off >= 2*time.Second {
		return off.String() + " off"
	}
	return ""
}

// byNodes are hits, one for each key, with the nodes that have it.
func byNodes(nodes map[string][]string, name string) (hits []hit) {
	for _, key := range slices.Sorted(maps.Keys(nodes)) {
		hits = append(hits, hit{name: key, "nodes": fold(nodes[key])})
	}
	return hits
}

// partitionsOf are the partitions of the jobs, not the gate's own, that have such a node with GPUs.
func (e *exam) partitionsOf(such func(*text.Node) bool) []text.Partition {
	return slices.DeleteFunc(slices.Clone(e.Partitions), func(p text.Partition) bool {
		has := func(n *text.Node) bool { return slices.Contains(n.Partitions, p.Name) && such(n) }
		return p.Name == e.Settings.GatePartition || !slices.ContainsFunc(e.gpus, has)
	})
}

// withShares returns the partitions in which jobs can share GPUs: those with shares that hand out parts of nodes.
func (e *exam) withShares() []text.Partition {
	return e.ofParts(func(n *text.Node) bool { return n.Shares[e.sharing] > 0 })
}

// ofParts are the partitions of such nodes with GPUs that hand out parts of nodes.
func (e *exam) ofParts(such func(*text.Node) bool) []text.Partition {
	return slices.DeleteFunc(e.partitionsOf(such), func(p text.Partition) bool { return p.WholeNodes })
}

// those is a hit with the names of the jobs' partitions with GPUs that a condition holds for.
func (e *exam) those(so func(p text.Partition) bool) []hit {
	var names []string
	for _, p := range e.partitionsOf(func(n *text.Node) bool { return n.Shares[e.sharing] > 0 }) {
		if so(p) {
			names = append(names, p.Name)
		}
	}
	return when(names != nil, "partitions", strings.Join(names, ", "))
}

// mixed finds the partitions that hand out whole GPUs as well as shares, where Slurm mistakes GPUs in use by shares.
func (e *exam) mixed(mistakes bool) []hit {
	var mixed, all []string
	among := e.withShares()
	if len(among) == 0 { // there will be shares
		among = e.ofParts(func(*text.Node) bool { return true })
	}
	for _, p := range among {
		if all = append(all, p.Name); !slices.Contains(e.Settings.SharersOnly, p.Name) {
			mixed = append(mixed, p.Name)
		}
	}
	return when(mixed != nil && mistakes, "mixed", strings.Join(mixed, ", "), "all", strings.Join(all, ", "))
}

// absent finds partitions that settings of the bridge name and that aren't there.
func (e *exam) absent() (hits []hit) {
	s := e.Settings
	var there, byHand, adopted []string
	for _, p := range e.Partitions {
		there = append(there, p.Name)
	}
	for _, name := range s.HandShares {
		if p, is := strings.CutPrefix(name, "partition:"); is {
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
		isThere := func(p string) bool { return slices.Contains(there, p) }
		missing := slices.DeleteFunc(slices.Clone(named.partitions), isThere)
		hits = append(hits, when(len(missing) > 0, "setting", named.setting, "missing", strings.Join(missing, ", "), "there",
			strings.Join(there, ", "))...)
	}
	return hits
}

// withoutShares finds nodes without shares: those with MIG instances, if instances is set and Slurm can share
// instances, or those without.
func (e *exam) withoutShares(instances bool) []hit {
	if instances && !text.SharesInstances(e.Config["SLURM_VERSION"]) {
		return nil
	}
	return e.on(func(n *text.Node) bool { return sharesOf(n) == 0 && hasInstances(n) == instances })
}

// hasInstances reports whether some of a node's GPUs are MIG instances.
func hasInstances(n *text.Node) bool {
	for typ := range n.ByType {
		if _, is := job.InstanceOf(typ); is {
			return true
		}
	}
	return false
}

// counts finds nodes with one kind of shares, where so is true of the number of shares and of 100 a GPU.
func (e *exam) counts(so func(got, want int) bool) []hit {
	return e.saying(func(n *text.Node) (string, bool) {
		got, gpus := sharesOf(n), n.GPUs
		if both := n.Shares["mps"] > 0 && n.Shares["shard"] > 0; both || got == 0 || !so(got, 100*gpus) {
			return "", false
		}
		return fmt.Sprintf("has %d for %s", got, job.Count(gpus, "GPU")), true
	}, "; ")
}

// short finds settings of slurm.conf that are times, and not 0, shorter than so much.
func (e *exam) short(least time.Duration, names ...string) (hits []hit) {
	for _, name := range names {
		d, ok := text.Seconds(e.Config[name])
		hits = append(hits, when(ok && d > 0 && d < least, "name", name, "time", d.String())...)
	}
	return hits
}

// gresConfHas reports whether gres.conf has a line that expr matches, or includes a file that may have one.
func (e *exam) gresConfHas(expr string) bool {
	return regexp.MustCompile(`(?im)^\s*include\s|^[^#\n]*` + expr).MatchString(wrong(e.GresConf))
}

// unnamedShares finds kinds of shares that slurm.conf promises and gres.conf doesn't name.
func (e *exam) unnamedShares() []hit {
	var kinds []string
	for _, kind := range []string{"mps", "shard"} {
		named := e.gresConfHas(`\bname\s*=\s*"?` + kind + `\b`)
		if !named && slices.ContainsFunc(e.gpus, func(n *text.Node) bool { return n.Shares[kind] > 0 }) {
			kinds = append(kinds, "Name="+kind)
		}
	}
	if kinds == nil {
		return nil
	}
	hits := e.on(func(n *text.Node) bool { return sharesOf(n) > 0 })
	for _, h := range hits {
		h["kinds"] = strings.Join(kinds, ", ")
	}
	return hits
}

func (e *exam) unknownCards() []hit {
	unknown := map[string][]string{}
	for _, n := range e.gpus {
		for t := range n.ByType {
			if _, ok := e.Settings.Card(t); !ok && t != "" {
				unknown[t] = append(unknown[t], n.Name)
			}
		}
	}
	return byNodes(unknown, "type")
}

func (e *exam) countsMemory() bool {
	return strings.Contains(strings.ToUpper(e.Config["SelectTypeParameters"]), "MEMORY")
}

// noDefaultMemory finds partitions where memory is handed out and a job without --mem gets all of a node, which have no
// default at all, or one for each GPU.
func (e *exam) noDefaultMemory(ofGPU bool) []hit {
	if !e.countsMemory() || text.HasDefMem(e.Config) {
		return nil
	}
	var lack, lines []string
	perGPU := text.ParsePerGPU(e.Config["JobDefaults"]).MemMiB > 0
	for _, p := range e.partitionsOf(func(*text.Node) bool { return true }) {
		if !p.DefMem {
			lack, perGPU = append(lack, p.Name), perGPU || p.PerGPU.MemMiB > 0
			lines = append(lines, "PartitionName="+p.Name+
				" … DefMemPerCPU=2000   # MB; a node's memory divided by its cores is a good start")
		}
	}
	return when(lack != nil && perGPU == ofGPU,
		"partitions", strings.Join(lack, ", "), "lines", strings.Join(lines, "\n"))
}

// luaBody is the script without the settings at its beginning, which sites may change.
func luaBody(lua string) string {
	if _, rest, cut := strings.Cut(lua, "local M = "); cut {
		return rest
	}
	return lua
}

// gates is the partition of the gate's own; its State is "" where it isn't there.
func (e *exam) gates() text.Partition {
	for _, p := range e.Partitions {
		if p.Name == e.Settings.GatePartition {
			return p
		}
	}
	return text.Partition{}
}

// orderOfPlugins makes job_submit.lua run behind all_partitions, which puts the gate's partition into jobs' lists;
// "" = it does already.
func (e *exam) orderOfPlugins() string {
	plugins := e.Config["JobSubmitPlugins"]
	_, behind, all := strings.Cut(plugins, "all_partitions")
	if !all || text.HasPlugin(behind, "job_submit/lua") {
		return ""
	}
	isLua := func(w string) bool { return text.HasPlugin(w, "job_submit/lua") }
	return "JobSubmitPlugins=" + with(without(plugins, isLua), "lua")
}

// closed finds the first of the partitions where GPUs are shared if none of them takes the gate, which has no other.
func (e *exam) closed() []hit {
	among := e.withShares()
	takesJobs := func(p text.Partition) bool { return p.State != "DRAIN" && p.State != "INACTIVE" }
	if e.gates().State == "UP" || len(among) == 0 || slices.ContainsFunc(among, takesJobs) {
		return nil
	}
	return when(true, "name", among[0].Name, "state", among[0].State)
}

// leads reports whether a hook of slurm.conf leads to slurmbridge-hook.
func (e *exam) leads(hook string) bool {
	return slices.ContainsFunc(e.Hooks[hook], func(h Hook) bool { return h.Ours })
}

var addHook = in("$file", "$line")

// lost is what is missing where a hook doesn't lead to slurmbridge-hook.
var lost = map[string]string{
	"Prolog":     "no MPS daemon is started for a shared GPU, and no job's use is recorded",
	"Epilog":     "records of jobs are never closed, and MPS daemons are never stopped",
	"TaskProlog": "jobs don't learn where their GPU's MPS daemon is, and share it by turns instead",
}

// strays finds hooks of slurm.conf that don't lead to slurmbridge-hook: seen from here, or with files on the nodes.
func (e *exam) strays(seen bool, names ...string) (hits []hit) {
	for _, hook := range names {
		hidden := slices.IndexFunc(e.Hooks[hook], func(h Hook) bool { return !h.Seen })
		if e.leads(hook) || seen == (hidden >= 0) || hook == "TaskProlog" && e.containers() {
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
			h["file"], h["line"] = e.values["SLURM_CONF"], hook+"="+ours
		case glob >= 0: // a link that the pattern matches
			dir, name := filepath.Split(paths[glob])
			h["file"], h["line"] = "", "ln -s "+ours+" "+dir+strings.Replace(name, "*", "50-slurmbridge", 1)
		default:
			h["file"], h["line"] = paths[len(paths)-1], ours+"   # a line of it, called with the same environment"
		}
		if n := len(e.Nodes) - len(e.gpus); n > 0 {
			h["others"] = fmt.Sprintf("; install gpuprof on the nodes without a GPU, too (%d): slurm.conf is for all nodes, "+
				"and Slurm drains one that lacks its prolog", n)
		}
		hits = append(hits, h)
	}
	return hits
}

// plugged is the place of the first line of plugstack.conf that names a plugin, −1 = none does.
func (e *exam) plugged(plugin string) int {
	return slices.IndexFunc(e.PlugStack, func(line string) bool { return strings.Contains(line, plugin) })
}

// containers reports whether tasks get their variables by a SPANK plugin of ours, or have to, since another plugin
// enters containers.
func (e *exam) containers() bool { return e.plugged(pyxis) >= 0 || e.plugged(ourPlugin) >= 0 }

// ourPlugin and pyxis are in the lines of plugstack.conf that name our SPANK plugin and Pyxis.
const (
	ourPlugin = "slurmbridge"
	pyxis     = "pyxis"
)

// drained finds nodes that get no more jobs after a hook failed. Our hooks always exit with 0; a missing hook fails.
func (e *exam) drained() []hit {
	var names []string
	for i := range e.Nodes {
		if r := e.Nodes[i].Reason; strings.HasPrefix(r, "Prolog error") || strings.HasPrefix(r, "Epilog error") {
			names = append(names, e.Nodes[i].Name)
		}
	}
	return when(names != nil && (e.leads("Prolog") || e.leads("Epilog")), "nodes", strings.Join(names, ","))
}

// namespaces finds a plugin that gives each job a /dev/shm of its own, or may do so, and the line by which it doesn't.
func (e *exam) namespaces(seen bool) []hit {
	plugin := cmp.Or(e.Config["NamespaceType"], e.Config["JobContainerType"])
	file, line := namespace.File(plugin), "Dirs=/tmp   # in place of each Dirs=: all folders but /dev/shm"
	switch always := e.release.Before(text.Release{23, 2}); {
	case file == "namespace.yaml":
		line = `dirs: "/tmp"   # in place of each dirs and dir_confs: all folders but /dev/shm`
	case file == "":
		return nil
	case always:
		return when(seen, "plugin", plugin, "always", ", always before Slurm 23.02", "in", e.values["SLURM_CONF"], "line",
			"JobContainerType=job_container/none   # or a newer Slurm, with Dirs=/tmp in job_container.conf")
	}
	so := files(e.Facts) && seen == (e.Namespaces != nil) && namespace.HidesMemory(wrong(e.Namespaces))
	return when(so, "plugin", plugin, "in", filepath.Join(e.values["dir"], file), "line", line)
}

// ownLua reports whether job_submit.lua is a script of the site's.
func (e *exam) ownLua() bool {
	return e.JobSubmitLua != nil && !strings.HasPrefix(*e.JobSubmitLua, luaFirst)
}

// letPass lets the bridge's changes, or its gate, pass the site's own script; where there is none, Slurm's answers say
// more.
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

// gateless finds a daemon without a gate. bySite: a script of the site's may refuse the gate, as it refuses jobs
// without a GPU, say: Slurm names neither accounts nor limits.
func (e *exam) gateless(bySite bool) []hit {
	said := e.daemon.GateErr
	refused := strings.Contains(said, "create gate")
	ofAccount := regexp.MustCompile(`(?i)account|QOS|limit`).MatchString(said)
	file, lines := e.letPass(true)
	return when(e.daemon.gateless() && bySite == (refused && e.ownLua() && !ofAccount),
		"said", strings.TrimSuffix(": "+said, ": "), "file", file, "lines", lines)
}

// loadsFiles matches a call in Lua that loads another file.
var loadsFiles = regexp.MustCompile(`\b(dofile|loadfile|require)\b`)

// held finds a limit on a user's requests that is below what the bridge makes when a group starts; params are
// slurmctld's parameters without it.
func (e *exam) held() []hit {
	params := e.Config["SlurmctldParameters"]
	enough := func(name string, least int) bool {
		value, _ := text.Option(params, name)
		n, err := strconv.Atoi(value)
		return err == nil && n >= least
	}
	limit := func(w string) bool { return text.HasOption(w, "rl_bucket_size") || text.HasOption(w, "rl_refill_rate") }
	return when(text.HasOption(params, "rl_enable") && !(enough("rl_bucket_size", 100) && enough("rl_refill_rate", 20)),
		"params", without(params, limit))
}

// refused finds changes that Slurm doesn't take from the bridge.
func (e *exam) refused() (hits []hit) {
	file, lines := e.letPass(false)
	for i := range e.daemon.Refused {
		r := &e.daemon.Refused[i]
		severity, then := Warning, "after two refusals a job is left to Slurm: it waits for no other job, and runs without "+
			"sharing"
		switch {
		case r.Step == job.StepUngate:
			severity, then = Error, "after two refusals the gate is opened, for all jobs that wait; if that happens again "+
				"within an hour, nothing is shared for the next one"
		case r.Step == job.StepExtend:
			then = "sharing makes jobs slower, and without more time some may end at their time limits"
		case r.GivenUp == 0:
			severity, then = Note, "each job's change is tried twice; a single refusal does no harm"
		}
		hits = append(hits, hit{
			"severity": string(severity), "refused": r.String(), "then": then, "file": file, "lines": lines,
		})
	}
	return hits
}

// tracked reports whether accounting counts shares.
func (e *exam) tracked() bool { return e.has("AccountingStorageTRES", "gres/"+e.sharing) }

// gpusAlone are the values of a list of TRES for GPUs, else for each type of them, where it has none for shares and
// accounting could count these.
func (e *exam) gpusAlone(list string) []float64 {
	var all, typed []float64
	for w := range strings.SplitSeq(list, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(w), "=")
		kind, _, _ := strings.Cut(strings.ToLower(name), ":")
		switch n, is := text.TRESValue(w, name); {
		case !e.tracked() || kind == "gres/"+e.sharing:
			return nil
		case is && strings.EqualFold(name, "gres/gpu"):
			all = append(all, n)
		case is && kind == "gres/gpu":
			typed = append(typed, n)
		}
	}
	return either(all != nil, all, typed)
}

// gpuLimits finds limits on GPUs that hold no job with shares.
func (e *exam) gpuLimits() []hit {
	var of, lines []string
	for _, l := range e.Limits {
		if gpus := e.gpusAlone(l.TRES); gpus != nil {
			shares := 100 * floats.Sum(gpus)
			of = append(of, l.Of)
			lines = append(lines, fmt.Sprintf("sacctmgr modify %s set %s=gres/%s=%g", l.Of, l.Name, e.sharing, shares))
		}
	}
	const most = 10
	more := ""
	if n := len(of) - most; n > 0 {
		of, lines, more = of[:most], lines[:most], fmt.Sprintf(" and %d more", n)
	}
	return when(of != nil, "of", strings.Join(of, ", ")+more, "lines", strings.Join(lines, "\n"))
}

// gpuBills finds partitions that bill GPUs and no shares. hinder: those in which this keeps jobs from being adopted;
// otherwise the other partitions.
func (e *exam) gpuBills(hinder bool) (hits []hit) {
	for i := range e.Partitions {
		p := &e.Partitions[i]
		weight := slices.Max(append(e.gpusAlone(p.Billing), 0))
		hinders := e.adopts(p.Name) && e.Settings.AdoptCharge == "shares"
		hits = append(hits, when(weight > 0 && hinders == hinder, "name", p.Name,
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

// adoptsPerGPU finds partitions with defaults by the GPU where rules for unchanged jobs come to nothing.
func (e *exam) adoptsPerGPU() []hit {
	var names []string
	everywhere := text.ParsePerGPU(e.Config["JobDefaults"]) != job.PerGPU{}
	for _, p := range e.withShares() {
		if (everywhere || p.PerGPU != job.PerGPU{}) && e.adopts(p.Name) {
			names = append(names, p.Name)
		}
	}
	return when(names != nil, "partitions", strings.Join(names, ", "))
}
