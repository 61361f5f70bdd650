package drawn

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// Kinds of differences.
const (
	kindRefused = "refused"
	kindNever   = "never starts"
	kindLate    = "late"
	kindState   = "state"
	kindExit    = "exit"
	kindRan     = "ran"
	kindSize    = "size"
	kindOrder   = "order"
	kindStep    = "step"
	kindEnv     = "environment"
	kindPrefer  = "prefer"
	kindMPS     = "mps"
	kindShares  = "shares"
	kindGPU     = "gpu"
	kindBridge  = "bridge"
	kindBeside  = "beside"
	kindInUse   = "in use"
)

// difference is one between plain Slurm and Slurm with the bridge.
type difference struct {
	Job  string `json:"job"` // "" = the cluster's
	Kind string `json:"kind"`
	Text string `json:"text"`
	// Stated is the sentence of the pages that says so, "" = none does.
	Stated string `json:"stated,omitempty"`
}

func (d *difference) String() string {
	return fmt.Sprintf("%-6s %-12s %s", cmp.Or(d.Job, "(all)"), d.Kind, d.Text)
}

// rule is a difference that the pages state.
type rule struct {
	kind     string
	is       func(c *Case, j *Job, text string) bool
	sentence string
}

const onOneNode = "users.md: a job that shares is on one node, with --spread-job as well"

// covers reports whether the rule is of differences like d: one of sizes is of what steps see of them, too.
func (r *rule) covers(d *difference) bool {
	return r.kind == d.Kind || r.kind == kindSize && d.Kind == kindEnv && amounts.MatchString(afterSteps(d.Text))
}

var rules = []rule{
	{
		kindRefused, func(_ *Case, j *Job, text string) bool { return j.sharer() && strings.Contains(text, "slurmbridge: ") },
		"users.md: several GPUs or nodes, --cpus-per-gpu and --mem-per-gpu are refused with a sentence",
	},
	{
		kindRefused, func(c *Case, _ *Job, text string) bool { return !c.mixed() && strings.Contains(text, "slurmbridge: ") },
		"users.md: where nothing but shares is handed out the same options are refused, and a script whose srun asks for " +
			"a GPU again",
	},
	{
		kindRan, func(_ *Case, j *Job, text string) bool { return j.Exit != 0 && strings.Contains(text, "restarts") },
		"users.md: a first run under MPS that fails within 15 s runs again without MPS, once",
	},
	{
		kindEnv, func(_ *Case, _ *Job, text string) bool { return emptied.MatchString(afterSteps(text)) },
		"users.md: SLURM_GPUS and SLURM_GPUS_PER_NODE are empty where a job's GPU becomes all of its shares, and " +
			"SLURM_GRES is these shares where the job named a type, or one share of a MIG instance",
	},
	{
		kindEnv, func(_ *Case, j *Job, text string) bool {
			lists := strings.Contains(j.value("--partition"), ",")
			return lists && j.sharer() && strings.HasPrefix(afterSteps(text), "SLURM_JOB_PARTITION=")
		},
		"admins.md: of a list of partitions a job keeps those where it may share",
	},
	{
		kindStep, func(_ *Case, j *Job, text string) bool {
			none := strings.Contains(fmt.Sprint(j.Steps), "--gres=none")
			return none && j.has("--gpus-per-node") && strings.HasSuffix(text, `with "0", on plain Slurm with "1"`)
		},
		"users.md: SLURM_GPUS_PER_NODE is empty; on plain Slurm srun --gres=none fails beside it",
	},
	{
		kindStep, func(c *Case, j *Job, _ string) bool { return c.Instances != nil && j.sharer() && j.Client == "salloc" },
		"users.md: in a session on MIG instances srun needs --gres=shard:1",
	},
	{
		kindPrefer, func(c *Case, _ *Job, _ string) bool { return c.mixed() },
		"admins.md: elsewhere Slurm takes GPUs in use by shares for free (mixed_partitions: share)",
	},
	{
		kindInUse, func(c *Case, _ *Job, _ string) bool { return c.mixed() },
		"admins.md: before 23.11.5 a job of a whole GPU may get one that a sharer still uses (mixed_partitions: share)",
	},
	{
		kindLate, func(c *Case, _ *Job, text string) bool { return c.mixed() && strings.HasSuffix(text, wholeWaited) },
		"admins.md: before 25.05 no job starts behind one of a whole GPU that waits (mixed_partitions: share)",
	},
	{
		kindLate, func(c *Case, _ *Job, text string) bool {
			return c.apartGPUs() && slices.Contains(c.Settings, "sharers_only: []") && strings.HasSuffix(text, wholeWaited)
		},
		"admins.md: where a GPU of a node has no shares, Slurm 26.05.5 keeps jobs waiting for sharers there",
	},
	{
		kindLate, func(c *Case, j *Job, _ string) bool { return c.preemptsByQOS() && j.value("--qos") != "high" },
		"job_scheduler.c: a job that may preempt another one is sorted before it, in no strict order with those between them",
	},
	{
		kindSize, func(_ *Case, j *Job, _ string) bool { return j.value("--gres-flags") == "enforce-binding" },
		"sbatch(1): with --gres-flags=enforce-binding a job has CPUs that are bound to its GPU",
	},
	{kindSize, func(_ *Case, j *Job, _ string) bool { return j.sharer() && j.has("--spread-job") }, onOneNode},
	{kindEnv, func(_ *Case, j *Job, _ string) bool { return j.sharer() && j.has("--spread-job") }, onOneNode},
	{
		kindEnv, func(c *Case, _ *Job, text string) bool { return c.bound() && amounts.MatchString(afterSteps(text)) },
		"admins.md: a step gets those of its job's cores that its GPU is bound to",
	},
	{
		kindSize, func(_ *Case, j *Job, text string) bool { return j.spreads() && strings.HasPrefix(text, "nodes ") },
		"sbatch(1): of --nodes=1-2 a job gets as many as are free, without --nodes as many as its tasks or --gpus then take",
	},
	{
		kindSize, func(c *Case, j *Job, _ string) bool { return j.sharer() && c.dividesDefaults() },
		"users.md: jobs that start together divide the cores and memory that a partition gives a job of one GPU by default",
	},
}

// amounts are variables that say how many cores and how much memory a job has.
var amounts = regexp.MustCompile(`^((, )?SLURM_(MEM_PER|CPUS_ON|JOB_CPUS_PER|TASKS_PER|CPUS_PER)_[A-Z_0-9]*=[^ ]* ` +
	`\(plain: [^)]*\))*$`)

// emptied are variables by which srun would ask for a GPU again, without their values or with a GPU's shares, and
// amounts that Slurm gave for a GPU.
var emptied = regexp.MustCompile(`^((, )?SLURM_((GPUS|GRES)[A-Z_]*=|GRES=(mps|shard):1(00)?|MEM_PER_NODE=[0-9]+|` +
	`CPUS_PER_TASK=[0-9]+) \(plain: [^)]*\))+$`)

// dividesDefaults reports whether a partition gives cores or memory for a GPU.
func (c *Case) dividesDefaults() bool {
	return slices.ContainsFunc(c.Conf, func(l string) bool { return strings.Contains(l, "PerGPU=") })
}

// bound reports whether GPUs are bound to cores.
func (c *Case) bound() bool {
	return slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.Cores })
}

// mixed reports whether a site shares where whole GPUs are handed out, on a release that mistakes GPUs in use.
func (c *Case) mixed() bool { return slices.Contains(c.Settings, "mixed_partitions: share") }

// apartGPUs reports whether nodes have GPUs without shares. Which of them they are Slurm before 23.02 doesn't say.
func (c *Case) apartGPUs() bool {
	return slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.Unshared != nil })
}

// apart reports whether each job has a GPU of its own whatever the bridge does: a reservation draws all jobs into it,
// or a node has two GPUs or more, and two sockets, of which each job takes one.
func (c *Case) apart() bool {
	if slices.ContainsFunc(c.Before, func(l string) bool { return strings.Contains(l, "MAGNETIC") }) {
		return true
	}
	few := func(n Node) bool { return strings.Contains(n.More, "Sockets=2") && len(n.Types) > 1 }
	return slices.Contains(c.Conf, "SelectTypeParameters=CR_Socket_Memory") && slices.ContainsFunc(c.Nodes, few)
}

// preempts reports whether jobs preempt others, which is a matter of timing.
func (c *Case) preempts() bool {
	return slices.ContainsFunc(c.Conf, func(l string) bool { return strings.HasPrefix(l, "PreemptType=") })
}

// preemptsByQOS reports whether jobs of one QOS preempt those of another.
func (c *Case) preemptsByQOS() bool { return slices.Contains(c.Conf, "PreemptType=preempt/qos") }

// afterSteps is a text about the environment without the steps that it is of.
func afterSteps(text string) string {
	_, what, _ := strings.Cut(text, ": ")
	return what
}

// Times that are no difference: what Slurm's whole seconds, a loaded machine and the bridge's rounds take.
const (
	slackS    = 12
	faultS    = 75  // more where faults are played: a lease, max_delay and slurmctld's return
	loaded    = 30  // times what squeue takes: on a loaded machine each of the bridge's rounds takes longer
	contract  = 2.5 // how much slower a job may compute for sharing, the default
	slackPart = 0.1 // of a job's length, the default grace
	ranSlackS = 5
	besideS   = 3 // a job beside which another one starts starts by then: it was there as that was killed
	eventS    = 2 // an event meets jobs alike that start so near to each other
)

// judge compares a case's two results.
func judge(c *Case, plain, bridge *result) []difference {
	v := &verdict{c: c, plain: plain, bridge: bridge, slack: slackS, ranSlack: ranSlackS}
	for _, name := range slices.Sorted(maps.Keys(plain.Met)) {
		if name != "" && !slices.Equal(plain.Met[name], bridge.Met[name]) {
			v.apart = append(v.apart, name)
			v.slack = 2 * slackS // other jobs feel what this one did differently
		}
	}
	if len(c.Faults) > 0 {
		v.slack += faultS
	}
	load := max(plain.AskS, bridge.AskS)
	v.slack += loaded * load
	v.ranSlack += loaded * load / 2
	for i := range c.Jobs {
		v.job(&c.Jobs[i])
	}
	v.cluster()
	v.inUse()
	for i := range v.out {
		d := &v.out[i]
		for _, r := range rules {
			if j := c.find(d.Job); r.covers(d) && j != nil && r.is(c, j, d.Text) {
				d.Stated = r.sentence
			}
		}
	}
	return v.out
}

// together puts tasks of an array that differ alike into one.
func together(all []difference) (out []difference) {
	for _, d := range all {
		array, task, _ := strings.Cut(d.Job, "_")
		i := slices.IndexFunc(out, func(o difference) bool {
			return task != "" && strings.HasPrefix(o.Job, array+"_") && o.Kind == d.Kind && o.Text == d.Text
		})
		if i < 0 {
			out = append(out, d)
			continue
		}
		out[i].Job += "," + task
	}
	return out
}

// find returns a job by its name, or that of a task, nil = there is none.
func (c *Case) find(name string) *Job {
	name, _, _ = strings.Cut(name, "_")
	for i := range c.Jobs {
		if c.Jobs[i].Name == name {
			return &c.Jobs[i]
		}
	}
	return nil
}

// verdict is a judgement under way. apart are jobs that an event met in different states on the two sides.
type verdict struct {
	c             *Case
	plain, bridge *result
	apart         []string
	slack         float64 // by which a start may be later, s, and a run longer or shorter
	ranSlack      float64
	out           []difference
}

func (v *verdict) add(job, kind, format string, args ...any) {
	v.out = append(v.out, difference{Job: job, Kind: kind, Text: fmt.Sprintf(format, args...)})
}

// job compares one job, or all tasks of an array.
func (v *verdict) job(j *Job) {
	if v.plain.Refused[j.Name] != "" || slices.Contains(v.apart, j.Name) {
		return // what plain Slurm refuses counts for nothing
	}
	text := v.bridge.Refused[j.Name]
	if strings.HasPrefix(text, errNoJob) || strings.Contains(text, "DUE TO PREEMPTION") && v.c.preempts() {
		return // a job that it names was refused; or it ran, and another one had its GPU
	}
	if text != "" {
		if !v.hit(j, nil, v.bridge) { // a slurmctld that has just come back knows no node yet
			v.add(j.Name, kindRefused, "%s", message(text))
		}
		return
	}
	var tasks []string
	for _, name := range slices.Sorted(maps.Keys(v.plain.Jobs)) {
		if v.c.find(name) != j {
			continue
		}
		tasks = append(tasks, name)
		p, b := v.plain.Jobs[name], v.bridge.Jobs[name]
		if b == nil {
			b = v.waitingTasks(name)
		}
		if math.IsNaN(p.Start) {
			continue // plain Slurm didn't start it, either
		}
		if v.hit(j, p, v.plain) || v.hit(j, b, v.bridge) {
			if b != nil && !ended(b.State) && ended(p.State) {
				v.add(name, kindNever, "%s, %s, after a fault", b.State, b.Reason)
			}
			continue
		}
		v.times(j, name, p, b)
		if b != nil && !math.IsNaN(b.Start) {
			v.same(j, name, p, b)
		}
	}
	v.order(tasks)
}

// waitingTasks is what the bridge's side shows of an array's tasks that wait together, nil = nothing.
func (v *verdict) waitingTasks(name string) *seen {
	name, _, _ = strings.Cut(name, "_")
	for k, s := range v.bridge.Jobs {
		if strings.HasPrefix(k, name+"_") && s.State == "PENDING" && strings.ContainsAny(s.Task, "-,%") {
			return s
		}
	}
	return nil
}

// hit reports whether a fault hit a job that plain Slurm's jobs feel as well, or that ends an MPS server: nothing
// protects a job from that. A slurmctld that is killed forgets its last seconds.
func (v *verdict) hit(j *Job, s *seen, on *result) bool {
	return slices.ContainsFunc(on.Suffered, func(f suffered) bool {
		kind := (&Fault{Name: f.Name}).kind()
		if !kind.Plain && !strings.HasPrefix(f.Name, "MPS") && f.Name != "hook killed" {
			return false
		}
		if s == nil || f.From < float64(j.AtS+10) && f.To > float64(j.AtS-2) {
			return kind.Slurm
		}
		there := f.Node == "" || s.Where == "" || s.Where == f.Node
		return there && !(f.To < s.Start-10 || f.From > s.End+10)
	})
}

// inUse reports each job whose whole GPU another job used at the same time.
func (v *verdict) inUse() {
	all := v.bridge.Jobs
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		j := v.c.find(name) // Slurm 26.05 shows of some jobs no request
		if strings.Contains(s.Gres, v.c.Sharing) || s.Gres == "" && j != nil && j.sharer() || len(s.Places) == 0 {
			continue
		}
		for _, other := range slices.Sorted(maps.Keys(all)) {
			o := all[other]
			if o != s && min(s.End, o.End)-max(s.Start, o.Start) > ranSlackS && meet(s.last(), o.last()) {
				v.add(name, kindInUse, "has %s whole, and %s was there", strings.Join(s.last(), " "), other)
			}
		}
	}
}

// last are the GPUs of a job's last run.
func (s *seen) last() []string {
	return s.Places[slices.Max(append(slices.Collect(maps.Keys(s.Places)), 0))]
}

// meet reports whether two lists of GPUs have one in common.
func meet(a, b []string) bool {
	return slices.ContainsFunc(a, func(gpu string) bool { return slices.Contains(b, gpu) })
}

// times compares when a job started and how it ended.
func (v *verdict) times(j *Job, name string, p, b *seen) {
	switch {
	case b == nil:
		v.add(name, kindNever, "Slurm doesn't have it; plain Slurm started it at %.0f s", p.Start)
		return
	case math.IsNaN(b.Start):
		v.add(name, kindNever, "%s, %s; plain Slurm started it at %.0f s", b.State, b.Reason, p.Start)
		return
	case p.Restarts != b.Restarts:
	case j.App != "" && b.End > p.End+v.slack+slackPart*float64(j.LengthS):
		v.add(name, kindLate, "ends at %.0f s, on plain Slurm at %.0f s%s", b.End, p.End, v.wholeWaited(p, b))
	case j.App == "" && b.Start > p.Start+v.slack+slackPart*float64(j.LengthS):
		v.add(name, kindLate, "starts at %.0f s, on plain Slurm at %.0f s%s", b.Start, p.Start, v.wholeWaited(p, b))
	}
	if !ended(p.State) || len(j.Events) > 0 && math.Abs(p.Start-b.Start) > eventS {
		return
	}
	switch {
	case !ended(b.State):
		return // it is late, or plain Slurm had more luck
	case p.State != b.State:
		v.add(name, kindState, "%s (%s, exit %s), on plain Slurm %s (exit %s)", b.State, b.Reason, b.Exit, p.State, p.Exit)
	case p.Exit != b.Exit && p.State != "CANCELLED": // which of a cancelled job's processes ends first is luck
		v.add(name, kindExit, "%s, on plain Slurm %s", b.Exit, p.Exit)
	case p.Restarts != b.Restarts && v.c.preempts():
	case p.Restarts != b.Restarts:
		v.add(name, kindRan, "%s restarts, on plain Slurm %s", b.Restarts, p.Restarts)
	case len(j.Events) == 0 && !j.runsAs(b.End-b.Start, p.End-p.Start, v.ranSlack):
		v.add(name, kindRan, "%.0f s, on plain Slurm %.0f s", b.End-b.Start, p.End-p.Start)
	}
}

// wholeWaited says whether a job of whole GPUs waited, with the bridge, for most of the time that another job was late.
func (v *verdict) wholeWaited(p, b *seen) string {
	for name, s := range v.bridge.Jobs {
		j := v.c.find(name)
		if j == nil || s == b || j.sharer() || !strings.Contains(fmt.Sprint(j.Args), "gpu") {
			continue
		}
		until := s.Start
		if math.IsNaN(until) {
			until = math.Inf(1)
		}
		if waited := min(until, b.Start) - max(float64(j.AtS), p.Start); waited > (b.Start-p.Start)/2 {
			return wholeWaited
		}
	}
	return ""
}

const wholeWaited = ", and a job of a whole GPU waited meanwhile"

// runsAs reports whether a job runs for as long as on plain Slurm; one that computes may be slower, by its contract.
func (j *Job) runsAs(s, plainS, slack float64) bool {
	if j.App == "" {
		return math.Abs(s-plainS) <= slack
	}
	return s >= plainS-slack && s <= contract*plainS+faultS
}

// spreads reports whether a job has one node or several as cores or GPUs are free: it asks for one or two, has several
// tasks and no GPU, or two GPUs anywhere.
func (j *Job) spreads() bool {
	tasks := j.value("--ntasks")
	switch {
	case j.has("--nodes"):
		return j.value("--nodes") == "1-2"
	case j.value("--gpus") == "2":
		return true
	}
	return tasks != "" && tasks != "1" && !strings.Contains(fmt.Sprint(j.Args), "gpu")
}

func ended(state string) bool {
	return !slices.Contains([]string{
		"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED",
		"REQUEUE_HOLD", "SPECIAL_EXIT",
	}, state)
}

// same compares what a job got and what its steps saw.
func (v *verdict) same(j *Job, name string, p, b *seen) {
	if j.spreads() && p.Nodes != b.Nodes {
		v.add(name, kindSize, "nodes %s, on plain Slurm %s", b.Nodes, p.Nodes)
		return // it has other amounts, too, and sees them
	}
	for _, f := range [][3]string{
		{"CPUs", p.CPUs, b.CPUs}, {"memory", p.Mem, b.Mem}, {"nodes", p.Nodes, b.Nodes}, {"tasks", p.Tasks, b.Tasks},
	} {
		if f[1] != f[2] {
			v.add(name, kindSize, "%s %s, on plain Slurm %s", f[0], f[2], f[1])
		}
	}
	if f := j.value("--prefer"); f != "" && v.lies(p.Where, f) && !v.lies(b.Where, f) && v.idle(f, b) {
		v.add(name, kindPrefer, "on %s, on plain Slurm on %s, which it prefers", b.Where, p.Where)
	}
	if p.State != b.State || p.Restarts != b.Restarts || len(j.Events) > 0 && math.Abs(p.Start-b.Start) > eventS {
		return
	}
	for _, step := range slices.Sorted(maps.Keys(p.Steps)) {
		if p.Steps[step] != b.Steps[step] {
			v.add(name, kindStep, "%s with %q, on plain Slurm with %q", step, b.Steps[step], p.Steps[step])
		}
	}
	v.environment(j, name, p, b)
	v.mps(j, name, b)
}

// mps reports the steps of a job with a part of a GPU that don't compute under MPS. A batch job that has it in no step
// says nothing: on a loaded machine its prolog may not have had the time.
func (v *verdict) mps(j *Job, name string, b *seen) {
	if !b.part() {
		return
	}
	var steps []string
	with := false
	for _, step := range slices.Sorted(maps.Keys(b.Environment)) {
		env := b.Environment[step]
		if env["CUDA_VISIBLE_DEVICES"] == "" {
			continue
		}
		if env["mps"] == "gone" || env["CUDA_MPS_PIPE_DIRECTORY"] == "" {
			steps = append(steps, step)
		} else {
			with = true
		}
	}
	if steps != nil && (with || j.Client != "sbatch") {
		v.add(name, kindMPS, "%s: without MPS beside others, with %s", strings.Join(steps, " "), b.Gres)
	}
}

// idle reports whether a node with a feature had an idle GPU as a job started elsewhere.
func (v *verdict) idle(feature string, b *seen) bool {
	for i, n := range v.c.Nodes {
		name := slurmtest.NodeName(i)
		if !v.lies(name, feature) {
			continue
		}
		busy := map[string]bool{}
		for _, o := range v.bridge.Jobs {
			if o == b || !(o.Start <= b.Start+1 && o.End >= b.Start-1) {
				continue
			}
			for _, gpu := range o.last() {
				if strings.HasPrefix(gpu, name+":") {
					busy[gpu] = true
				}
			}
		}
		if len(busy) < len(n.Types) {
			return true
		}
	}
	return false
}

// lies reports whether a node has a feature.
func (v *verdict) lies(where, feature string) bool {
	for i, n := range v.c.Nodes {
		if where == fmt.Sprint("n", i+1) {
			return strings.Contains(n.More, "Features="+feature)
		}
	}
	return false
}

// names returns a pattern that matches each variable of a list, which blanks separate.
func names(list string) *regexp.Regexp {
	return regexp.MustCompile("^(" + strings.Join(strings.Fields(list), "|") + ")$")
}

var (
	// unlike are variables that differ between two clusters, or two runs on one; and what the probe adds.
	unlike = names(`at status mps _ PWD OLDPWD SHLVL HOSTNAME TMPDIR .*PORT .*_ADDR SLURM_.*NODELIST SLURMD_NODENAME
		SLURM_TASK_PID SLURM_LAUNCH_NODE_IPADDR SLURM_SRUN_COMM_HOST SLURM_JOB_(START|END)_TIME SLURM_JOB_?ID
		SLURM_ARRAY_JOB_ID SLURM_CLUSTER_NAME SLURM_WORKING_CLUSTER SLURM_SUBMIT_DIR SLURM_CONF SLURM_NODEID SLURM_JOB_SLUID
		SLURM_SCRIPT_CONTEXT SLURM_LOCALID SLURM_STEP_?ID SLURM_JOB_DEPENDENCY SLURM_JOB_RESERVATION SLURM_STEPMGR`)
	// devices are variables that name GPUs: it counts how many.
	devices = names(`SLURM_JOB_GPUS SLURM_STEP_GPUS CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL
		ZE_AFFINITY_MASK`)
	// ours are variables that the nodes' hooks set; users.md and operate.md name them.
	ours = names(`CUDA_MPS_.* SLURMBRIDGE_.* TF_FORCE_GPU_ALLOW_GROWTH XLA_PYTHON_CLIENT_PREALLOCATE`)
	// counted are variables that count whole GPUs, of which a sharer has none.
	counted = names(`SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK
		SLURM_SHARDS_ON_NODE SLURM_STEP_GRES SLURM_JOB_GRES`)
)

// environment compares what the steps of a job see.
func (v *verdict) environment(j *Job, name string, p, b *seen) {
	shares := strings.Contains(b.Gres, v.c.Sharing)
	steps := map[string][]string{} // by what differs
	for _, step := range slices.Sorted(maps.Keys(p.Environment)) {
		was, is := p.Environment[step], b.Environment[step]
		if is == nil {
			v.add(name, kindStep, "%s didn't run", step)
			continue
		}
		var differ []string
		all := maps.Clone(was)
		maps.Copy(all, is)
		for _, k := range slices.Sorted(maps.Keys(all)) {
			x, in := was[k]
			y, out := is[k]
			switch {
			case unlike.MatchString(k), ours.MatchString(k), shares && counted.MatchString(k) && j.sharer():
				continue
			case devices.MatchString(k):
				if in == out && strings.Count(x, ",") == strings.Count(y, ",") {
					continue
				}
			case x == y && in == out:
				continue
			}
			differ = append(differ, fmt.Sprintf("%s=%s (plain: %s)", k, said(y, out), said(x, in)))
		}
		if what := strings.Join(differ, ", "); differ != nil {
			steps[what] = append(steps[what], step)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(steps)) {
		v.add(name, kindEnv, "%s: %s", strings.Join(steps[what], " "), what)
	}
}

func said(value string, there bool) string {
	if !there {
		return "unset"
	}
	return value
}

// order compares in which order an array's tasks start.
func (v *verdict) order(tasks []string) {
	for _, x := range tasks {
		for _, y := range tasks {
			px, py, bx, by := v.plain.Jobs[x], v.plain.Jobs[y], v.bridge.Jobs[x], v.bridge.Jobs[y]
			again := func(s *seen) bool { return s != nil && s.Restarts != "0" }
			if again(px) || again(py) || again(bx) {
				continue // Start is that of its last run
			}
			if bx != nil && by != nil && px.Start+1 < py.Start && bx.Start > by.Start+1 {
				v.add(x, kindOrder, "starts at %.0f s, after %s at %.0f s; on plain Slurm before it", bx.Start, y, by.Start)
			}
		}
	}
}

// cluster judges what isn't one job's.
func (v *verdict) cluster() {
	waited, shared := map[string]int{}, map[string]int{} // jobs, by partition
	for i := range v.c.Jobs {
		j := &v.c.Jobs[i]
		partition := cmp.Or(j.value("--partition"), slurmtest.Partition)
		if v.mayShare(j) {
			waited[partition]++
		}
		if b := v.bridge.Jobs[j.Name]; b != nil && v.bridge.together(b) {
			shared[partition]++
		}
	}
	for _, partition := range slices.Sorted(maps.Keys(waited)) {
		if n := waited[partition]; n > 3 && shared[partition] == 0 && !v.c.apart() {
			v.add("", kindShares, "no job of partition %s shared a GPU, though %d that may share waited", partition, n)
		}
	}
	v.beside()
	// Jobs may end between plan and start; the bridge's metrics say so. Where GPUs are bound to cores, admins.md does.
	// On a loaded machine that takes long.
	few := v.bridge.Misplaced < 2 || 4*v.bridge.Misplaced <= float64(v.bridge.parts())
	if !few && !v.c.bound() && !v.c.apartGPUs() && loaded*v.bridge.AskS < slackS {
		v.add("", kindGPU, "%.0f jobs ran on another GPU than planned", v.bridge.Misplaced)
	}
	for _, s := range v.bridge.Says {
		v.add("", kindBridge, "%s", s)
	}
}

// mayShare reports whether a job waited on plain Slurm for a GPU that it might have shared: for neither a node or a
// partition that an operator had closed nor the turn of a job of several GPUs.
func (v *verdict) mayShare(j *Job) bool {
	p, fromS := v.plain.Jobs[j.Name], float64(j.AtS)
	for _, e := range v.c.Events {
		fromS = max(fromS, float64(e.AtS))
	}
	if p == nil || !(p.Start > fromS+5) || !j.sharer() || v.bridge.Refused[j.Name] != "" {
		return false
	}
	for name, s := range v.plain.Jobs {
		if o := v.c.find(name); o != nil && o.several() && float64(o.AtS) < p.Start && !(s.Start <= float64(j.AtS)) {
			return false
		}
	}
	session := strings.Contains(j.value("--comment"), "share:interactive") // it starts as a job of a whole GPU does
	free := len(j.Events) == 0 && !j.has("--begin") && !j.has("--dependency") && !session
	return free && !j.ownGPU() && !v.c.ofWholeNodes(cmp.Or(j.value("--partition"), slurmtest.Partition))
}

// beside reports each job that was killed next to another job and put back beside it: the cause may still be there.
func (v *verdict) beside() {
	for _, name := range slices.Sorted(maps.Keys(v.bridge.Jobs)) {
		s := v.bridge.Jobs[name]
		for _, other := range slices.Sorted(maps.Keys(v.bridge.Jobs)) {
			o := v.bridge.Jobs[other]
			again := meet(s.Places[0], s.Places[1]) && meet(o.Places[0], s.Places[0])
			if o != s && again && o.Start < s.Began+besideS && o.End > s.Start+1 && o.part() {
				v.add(name, kindBeside, "put back beside %s on %s, where it had been killed", other, strings.Join(s.Places[0], " "))
			}
		}
	}
}

// several reports whether a job asks for several GPUs.
func (j *Job) several() bool {
	gres := j.value("--gres")
	two := strings.HasPrefix(gres, "gpu:") && strings.HasSuffix(gres, ":2")
	return two || j.value("--gpus") == "2" || gres == "gpu:1" && j.value("--nodes") == "2"
}

// ownGPU reports whether by the users' page a job has a GPU of its own.
func (j *Job) ownGPU() bool {
	return slices.ContainsFunc(table, func(r row) bool {
		return r.mark == "own" && (j.has(r.option) || r.kind == "comment" && strings.Contains(j.value("--comment"), r.option))
	})
}

var partOfGPU = regexp.MustCompile(`(?:mps|shard):(?:[a-z0-9._+-]+:)?([0-9]+)`)

// part reports whether a job has, or had, a part of a GPU.
func (s *seen) part() bool {
	m := partOfGPU.FindStringSubmatch(s.Gres)
	return m != nil && m[1] != "100" && !math.IsNaN(s.Start)
}

// together reports whether a job shared a GPU with another one for a while.
func (r *result) together(s *seen) bool {
	return s.part() && slices.ContainsFunc(slices.Collect(maps.Values(r.Jobs)), func(o *seen) bool {
		return o != s && o.part() && min(s.End, o.End)-max(s.Start, o.Start) > 1 && meet(s.last(), o.last())
	})
}

// parts counts the jobs that shared a GPU.
func (r *result) parts() (n int) {
	for _, s := range r.Jobs {
		if r.together(s) {
			n++
		}
	}
	return n
}

// message is what a client said, without its command.
func message(text string) string {
	_, said, is := strings.Cut(text, "exit status ")
	if !is {
		said = text
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	for _, l := range lines {
		if strings.Contains(l, "slurmbridge: ") {
			return l
		}
	}
	return strings.Join(lines, " / ")
}
