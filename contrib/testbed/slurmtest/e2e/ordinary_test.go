package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// TestOrdinaryJobs submits the jobs of ordinary users, who have never heard of shared GPUs, to
// a cluster with the bridge as the admins' page sets it up and to one without, and compares what
// Slurm says of them, what they see and what comes of them, field by field.
func TestOrdinaryJobs(t *testing.T) {
	t.Parallel()
	const nodes = 5
	o := slurmtest.Options{
		Nodes: nodes, GPUs: 8, CPUs: 256, MemMiB: 100000, Extra: []string{
			"FirstJobId=" + firstJob, "Licenses=lic:1", "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
			"JobRequeue=1",
			"PartitionName=also Nodes=n1", "PartitionName=wide Nodes=n1,n2", "PartitionName=alone Nodes=n3",
			"PartitionName=low Nodes=n4", "PartitionName=high Nodes=n4 PriorityTier=10",
		},
	}
	bridged := o
	bridged.Prepare = etcHooks(8, 8, 8, 8, 8)
	bridged.Extra = append(slices.Clone(o.Extra), "PartitionName=gates Nodes=ALL Hidden=YES",
		"PriorityFlags=ACCRUE_ALWAYS")
	o.Sharing = "none"
	r, sides, both := besidePlain(t, options{Options: bridged, settings: settings{GatePartition: "gates"}}, o)
	both((*side).open)
	both(func(s *side) { s.submitAll(ordinaryJobs) })
	if r.gate() == "" {
		t.Error("the bridge has no gate, and makes no difference")
	}
	compare(t, sides, "submitted", (*side).fields)

	both(func(s *side) { s.partitions("UP") })
	both(func(s *side) { s.states(0, ordinaryJobs) })
	compare(t, sides, "running", (*side).fields)
	both(func(s *side) { s.runAll(ordinaryCommands, true) })
	compare(t, sides, "beside commands", (*side).fields)
	compare(t, sides, "seen by another user", (*side).seen)

	both(func(s *side) { s.runAll(ordinaryChanges, false) })
	both(func(s *side) { s.states(1, ordinaryJobs) })
	compare(t, sides, "changed", (*side).fields)

	both((*side).end)
	both(func(s *side) { s.states(2, ordinaryJobs) })
	compare(t, sides, "ended", (*side).fields)
	compare(t, sides, "output", (*side).files)
	compare(t, sides, "commands", func(s *side) map[string]string { return s.said })
}

// besidePlain starts a cluster with the bridge and one without; both does something on each of them at once.
func besidePlain(t *testing.T, bridged options, plain slurmtest.Options) (r *rig, sides [2]*side,
	both func(do func(s *side)),
) {
	t.Helper()
	r = newRig(t, bridged)
	plain.Scheduler = r.Cluster.Options.Scheduler
	c := slurmtest.New(t, plain)
	sides = [2]*side{{stage: stage{c, t}, Cluster: c}, {stage: r.stage, Cluster: r.Cluster}}
	return r, sides, func(do func(s *side)) {
		t.Helper()
		var all sync.WaitGroup
		for _, s := range sides {
			all.Go(func() { do(s) })
		}
		all.Wait()
		if sides[0].broken || sides[1].broken { // differences alone don't end the test
			t.FailNow()
		}
	}
}

// ordinary is a job of sbatch's, and the state that it is in while the others run, after
// ordinaryChanges, and at the end.
type ordinary struct {
	name   string // the job's; several may have one
	args   string // of sbatch, blanks between them; {x} is the number of the job x
	states string // "" = it runs until the end, and completes
	script string // "" = it waits for the end
}

const (
	waits   = "PENDING PENDING COMPLETED" // for another job's end
	never   = "PENDING PENDING CANCELLED" // starts
	changes = "RUNNING PENDING CANCELLED" // is put back, and cancelled at the end
	ends    = "COMPLETED COMPLETED COMPLETED"
	fails   = "FAILED FAILED FAILED"
	freed   = "PENDING RUNNING COMPLETED" // starts by a change
	// The second waits for the first.
	singletons = "RUNNING,singleton#2=PENDING RUNNING,singleton#2=PENDING COMPLETED"
)

var ordinaryJobs = []ordinary{
	{name: "plain"},
	{name: "short", states: ends, script: "echo out; echo err >&2"},
	{name: "failing", states: fails, script: "exit 3"},
	{name: "killed", states: fails, script: "kill -KILL $$"},
	{name: "array", args: "--array=0-2"},
	{name: "limited", args: "--array=0-1%1", states: "RUNNING,limited_1=PENDING RUNNING,limited_1=PENDING COMPLETED"},
	// Dependencies.
	{name: "afterany", args: "--dependency=afterany:{plain}", states: waits},
	{name: "afterok", args: "--dependency=afterok:{plain}", states: waits},
	{name: "afternotok", args: "--dependency=afternotok:{failing}"},
	{name: "afternever", args: "--dependency=afterok:{failing}", states: never},
	{
		name: "invalid", args: "--dependency=afterok:{failing} --kill-on-invalid-dep=yes",
		states: "CANCELLED CANCELLED CANCELLED",
	},
	{name: "after", args: "--dependency=after:{plain}"},
	{name: "minutes", args: "--dependency=after:{plain}+60", states: never},
	{name: "aftercorr", args: "--array=0-1 --dependency=aftercorr:{array}", states: waits},
	{name: "afterarray", args: "--dependency=afterok:{array}", states: waits},
	{name: "either", args: "--dependency=afterok:{failing}?afterany:{plain}", states: waits},
	{name: "two", args: "--dependency=afterany:{failing},afterok:{short}"},
	{name: "singleton", args: "--dependency=singleton", states: singletons},
	{name: "singleton", args: "--dependency=singleton", states: singletons},
	// Times.
	{name: "begin", args: "--begin=now+1hour --time=30 --time-min=10", states: never},
	{name: "deadline", args: "--deadline=now+2hours --time=30"},
	{name: "time", args: "--time=30"},
	{name: "nice", args: "--nice=100"},
	// What it needs.
	{name: "tasks", args: "--ntasks=8 --cpus-per-task=2"},
	{name: "nodes", args: "--partition=wide --nodes=2 --ntasks-per-node=2"},
	{name: "exclusive", args: "--partition=alone --exclusive"},
	{name: "excluded", args: "--partition=wide --exclude=n1"},
	{name: "there", args: "--partition=wide --nodelist=n2"},
	{name: "constraint", args: "--partition=wide --constraint=big"},
	{name: "memory", args: "--mem=500"},
	{name: "memcpu", args: "--mem-per-cpu=50 --ntasks=2"},
	{name: "partitions", args: "--partition=gpu,also"},
	{name: "reserved", args: "--reservation=ours"},
	{name: "licence", args: "--licenses=lic:1"},
	{name: "licence2", args: "--licenses=lic:1", states: waits},
	{name: "spread", args: "--partition=wide --spread-job --nodes=2"},
	{name: "oversubscribe", args: "--oversubscribe"},
	{name: "gpu", args: "--partition=wide --gres=gpu:1 --nodelist=n2"},
	{name: "typed", args: "--partition=wide --gres=gpu:titanxp:2 --nodelist=n2"},
	{name: "gpus", args: "--gpus=1 --nodelist=n1"},
	{name: "pertask", args: "--ntasks=2 --gpus-per-task=1 --nodelist=n1"},
	{name: "pernode", args: "--partition=wide --nodes=2 --gpus-per-node=1 --nodelist=n1,n2"},
	{name: "nogres", args: "--gres=none"},
	{name: "gpuwaits", args: "--partition=alone --gres=gpu:8", states: waits},
	// What is written on it.
	{name: "comment", args: "--comment=app=mine,share:no --account=lab --qos=normal --wckey=key"},
	{name: "mail", args: "--mail-type=NONE --no-requeue --open-mode=append --signal=B:USR1@60"},
	{name: "clean", args: "--export=NONE"},
	{name: "exported", args: "--export=OWN=1"},
	{name: "pair", script: "#SBATCH --partition=wide --ntasks=1\n#SBATCH hetjob\n#SBATCH --partition=wide --ntasks=2\n" +
		untilEnd},
	// Steps.
	{name: "steps", states: ends, args: "--ntasks=2", script: "srun -n2 -l sh -c 'env >" + outFile +
		".$SLURM_STEP_ID.$SLURM_PROCID; echo $SLURM_PROCID' | sort\nsrun -n1 sh -c 'exit 4'\necho $?\nsleep 1"},
	{
		name: "gpusteps", states: ends, args: "--gres=gpu:2 --ntasks=2 --nodelist=n1",
		script: "srun -n1 --gres=gpu:1 --exact sh -c 'env >" + outFile +
			".one; echo gpus=$CUDA_VISIBLE_DEVICES'\nsrun -n1 --gres=none sh -c 'echo gpus=$CUDA_VISIBLE_DEVICES'",
	},
	// Of these something is changed while they wait or run.
	{name: "held", args: "--hold", states: freed},
	{name: "held2", args: "--hold --gres=gpu:1", states: never},
	{name: "willhold", args: "--begin=now+1hour", states: never},
	{name: "edited", args: "--hold", states: never},
	{name: "nodep", args: "--dependency=afterany:{plain}", states: freed},
	{name: "shorter", args: "--time=60"},
	{name: "requeued", args: "--requeue", states: changes},
	{name: "requeuehold", args: "--requeue", states: changes},
	{name: "cancelled", states: "RUNNING CANCELLED CANCELLED"},
	{name: "signalled", states: "RUNNING COMPLETED COMPLETED", script: "trap 'echo caught; kill %1; exit 0' USR1\n" +
		untilEnd + " &\nwait\n"},
	{name: "suspended", states: "RUNNING SUSPENDED COMPLETED"},
	{name: "victim", args: "--partition=low --exclusive --requeue", states: changes},
	{name: "high", states: "- COMPLETED COMPLETED"}, // submitted by a change
	{name: "task", args: "--array=0-1", states: "RUNNING RUNNING,task_0=CANCELLED COMPLETED,task_0=CANCELLED"},
}

// ordinaryCommands are given at once while the jobs run.
var ordinaryCommands = []command{
	{"wait", ann, "sbatch --output=/dev/null --wait --parsable | --wrap=exit 3"},
	{"srun", ann, "srun -n2 -l sh -c | echo $SLURM_NTASKS"},
	{"srun env", ann, "srun -n1 env"},
	{"srun gpu env", ann, "srun --partition=wide -n1 --gres=gpu:1 --nodelist=n2 env"},
	{"srun fails", ann, "srun -n1 sh -c | exit 7"},
	{"srun nodes", ann, "srun --partition=wide --nodes=2 -l sh -c | echo $SLURMD_NODENAME"},
	{"srun task prolog", ann, "srun -n1 --task-prolog={dir}/taskprolog.user env"},
	{"srun hetjob", ann, "srun --partition=wide -n1 true : --partition=wide -n1 true"},
	{"salloc", ann, "salloc -n1 srun -n1 env"},
	{"test only", ann, "sbatch --test-only --wrap=true"},
	{"test only gpu", ann, "sbatch --test-only --gres=gpu:1 --wrap=true"},
	{"too many", ann, "sbatch --gres=gpu:100 --wrap=true"},
	{"no type", ann, "sbatch --gres=gpu:none:1 --wrap=true"},
	{"no feature", ann, "sbatch --constraint=nothing --wrap=true"},
	{"no partition", ann, "sbatch --partition=nothing --wrap=true"},
	{"no reservation", ann, "sbatch --reservation=nothing --wrap=true"},
	{"no licence", ann, "sbatch --licenses=nothing:1 --wrap=true"},
	{"too large", ann, "sbatch --mem=1T --wrap=true"},
	{"bad array", ann, "sbatch --array=x --wrap=true"},
	{"other user's job", bob, "scontrol update JobId={plain} Nice=5"},
	{"other user's cancel", bob, "scancel {plain}"},
}

// ordinaryChanges come one after the other.
var ordinaryChanges = []command{
	{"release", ann, "scontrol release {held}"},
	{"hold", ann, "scontrol hold {willhold}"},
	// No new partition: without accounting 24.11 and later refuse it at times, EAGAIN, bridge or no bridge.
	{"edit", ann, "scontrol update JobId={edited} JobName=edited Nice=50 TimeLimit=25 Comment=new NumCPUs=2 Gres=gpu:2 " +
		"Features=big"},
	{"edit dependency", ann, "scontrol update JobId={edited} Dependency=afterany:{plain}"},
	{"edit gres", ann, "scontrol update JobId={held2} Gres=gpu:2"},
	{"no dependency", ann, "scontrol update JobId={nodep} Dependency="},
	{"shorten", ann, "scontrol update JobId={shorter} TimeLimit=50"},
	{"lengthen", ann, "scontrol update JobId={shorter} TimeLimit=500"},
	{"requeue", ann, "scontrol requeue {requeued}"},
	{"requeuehold", ann, "scontrol requeuehold {requeuehold}"},
	{"cancel", ann, "scancel {cancelled}"},
	{"cancel task", ann, "scancel {task}_0"},
	{"signal", ann, "scancel --batch --signal=USR1 {signalled}"},
	{"suspend", "", "scontrol suspend {suspended}"},
	{"high", ann, "sbatch --output={dir}/out/high.out --partition=high --exclusive | --wrap=sleep 1"},
}

// command is one of Slurm's as a user gives it; what follows a | is one argument.
type command struct{ name, as, line string }

const (
	// firstJob is the first job's number: no other number looks like one.
	firstJob = "700001"
	outFile  = `{dir}/out/$SLURM_JOB_NAME.$SLURM_ARRAY_TASK_ID$SLURM_HET_JOB_OFFSET`
	// untilEnd waits for the lock that the test holds.
	untilEnd = `exec flock --shared {dir}/lock true`
)

// side is one of two clusters.
type side struct {
	*slurmtest.Cluster
	stage
	lock *os.File
	// broken: it doesn't do what the test needs.
	broken bool
	first  map[string]string // the first job of each name
	labels map[string]string // of all jobs, by number
	said   map[string]string // by commands
}

// open prepares what jobs ask for; the partitions don't start any yet.
func (s *side) open() {
	s.first, s.labels, s.said = map[string]string{}, map[string]string{}, map[string]string{}
	for name, text := range map[string]string{
		"lock": "", "taskprolog.user": "#!/bin/sh\necho export OWN_PROLOG=1\necho print own prolog\n",
	} {
		if err := os.WriteFile(s.Path(name), []byte(text), 0o755); err != nil {
			s.fail("%v", err)
		}
	}
	var err error
	if s.lock, err = os.Open(s.Path("lock")); err != nil {
		s.fail("%v", err)
		return
	}
	s.t.Cleanup(func() { _ = s.lock.Close() })
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX); err != nil {
		s.fail("%v", err)
	}
	s.must("scontrol", "update", "NodeName=n2", "AvailableFeatures=big", "ActiveFeatures=big")
	s.must("scontrol", "create", "reservation", "ReservationName=ours", "Users="+ann, "Nodes=n5", "StartTime=now",
		"Duration=1:00:00", "PartitionName="+slurmtest.Partition)
	// Jobs that ask for no other partition run on the first node: the last is reserved.
	s.must("scontrol", "update", "PartitionName="+slurmtest.Partition, "Nodes=n1,n5")
	s.partitions("DOWN")
}

// fail ends the test, once the other side is done.
func (s *side) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Errorf(s.name()+": "+format, args...)
	s.broken = true
}

func (s *side) partitions(state string) {
	for _, p := range []string{slurmtest.Partition, "also", "wide", "alone", "low", "high"} {
		s.must("scontrol", "update", "PartitionName="+p, "State="+state)
	}
}

// must runs a command as root.
func (s *side) must(name string, args ...string) string {
	out, err := s.Run(s.t.Context(), name, args...)
	if err != nil {
		s.fail("%v", err)
	}
	return out
}

// fill puts a job's number and the cluster's folder into a text.
func (s *side) fill(text string) string {
	out := strings.ReplaceAll(text, "{dir}", s.Dir)
	for name, id := range s.first {
		out = strings.ReplaceAll(out, "{"+name+"}", id)
	}
	return out
}

// submitAll submits jobs as ann, one after the other.
func (s *side) submitAll(jobs []ordinary) {
	for _, j := range jobs {
		if strings.HasPrefix(j.states, "-") {
			continue
		}
		script := j.script
		if script == "" {
			script = untilEnd
		}
		if !strings.HasPrefix(script, "#SBATCH") {
			script = "env >" + outFile + ".env\n" + script
		}
		args := strings.Fields(s.fill(j.args))
		args = append([]string{"--time=100", "--job-name=" + j.name, "--output=" + s.Path("out", "%x.%a.out")}, args...)
		id, err := s.Submit(s.t.Context(), ann, s.fill(script), args...)
		if err != nil {
			s.fail("%v", err)
			continue
		}
		s.first[j.name] = cmp.Or(s.first[j.name], id)
	}
}

// runAll gives commands, at once or one after the other, and keeps what they say, line by line.
func (s *side) runAll(commands []command, atOnce bool) {
	var all sync.WaitGroup
	said := make([]map[string]string, len(commands))
	for i, c := range commands {
		all.Go(func() {
			line, last, ok := strings.Cut(s.fill(c.line), " | ")
			args := strings.Fields(line)
			if ok {
				args = append(args, last)
			}
			if args[0] != "scontrol" && args[0] != "scancel" {
				args = slices.Insert(args, 1, "--job-name="+c.name, "--time=100")
			}
			ctx, cancel := context.WithTimeout(s.t.Context(), patience)
			defer cancel()
			out, err := s.RunAs(ctx, c.as, args[0], args[1:]...)
			lines := map[string]string{c.name + "/end": "0"}
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				lines[c.name+"/end"] = exit.String()
			}
			for line := range strings.Lines(anyNumber.ReplaceAllString(s.nameless(out), "JOB")) {
				s.line(lines, c.name, line)
			}
			said[i] = lines
		})
		if !atOnce {
			all.Wait()
		}
	}
	all.Wait()
	for _, lines := range said {
		maps.Copy(s.said, lines)
	}
}

// jobs are all jobs but the gate, by label: their name, and where there are several
// of it, task, component or which of them.
func (s *side) jobs() map[string]map[string]string {
	list, err := s.Jobs(s.t.Context())
	if err != nil {
		s.fail("%v", err)
	}
	all, labels := map[string]map[string]string{}, map[string]string{}
	for _, f := range list {
		if f["JobName"] == job.GateName {
			labels[f["JobId"]] = "gate"
			continue
		}
		label := f["JobName"]
		labels[f["ArrayJobId"]] = label
		if task, ok := f["ArrayTaskId"]; ok {
			label += "_" + strings.SplitN(task, "%", 2)[0]
		}
		if part, ok := f["HetJobOffset"]; ok {
			label += "+" + part
		}
		name := label
		for n := 2; all[label] != nil; n++ {
			label = fmt.Sprintf("%s#%d", name, n)
		}
		all[label] = f
		if id := f["JobId"]; id != f["ArrayJobId"] { // Slurm gives the last task the array's number
			labels[id] = label
		}
	}
	s.labels = labels
	return all
}

// states waits until each job is in the state that it is in at a stage.
func (s *side) states(stage int, jobs []ordinary) {
	want := map[string]string{}
	for _, j := range jobs {
		all := strings.Fields(cmp.Or(j.states, "RUNNING RUNNING COMPLETED"))
		for w := range strings.SplitSeq(all[stage], ",") {
			if label, state, ok := strings.Cut(w, "="); ok {
				want[label] = state
			} else {
				want[j.name] = w
			}
		}
	}
	var last []string
	if !slurmtest.Wait(s.t.Context(), patience, func() bool {
		time.Sleep(200 * time.Millisecond) // many look at once
		last = nil
		missing := maps.Clone(want)
		maps.DeleteFunc(missing, func(_, state string) bool { return state == "-" })
		for label, f := range s.jobs() {
			delete(missing, label)
			delete(missing, f["JobName"])
			if w := cmp.Or(want[label], want[f["JobName"]]); w != "" && w != "-" && f["JobState"] != w {
				last = append(last, fmt.Sprintf("%s: %s (%s), want %s", label, f["JobState"], f["Reason"], w))
			}
		}
		last = slices.AppendSeq(last, maps.Keys(missing))
		return len(last) == 0
	}) {
		slices.Sort(last)
		s.fail("stage %d:\n%s", stage, strings.Join(last, "\n"))
	}
}

func (s *side) name() string {
	if s.Options.Lua == "" {
		return "plain"
	}
	return "bridged"
}

// end lets all jobs end: who would never start is cancelled.
func (s *side) end() {
	all := s.jobs()
	args := []string{}
	for _, j := range ordinaryJobs {
		for _, f := range all {
			if f["JobName"] == j.name && f["JobState"] == "PENDING" && strings.HasSuffix(j.states, "CANCELLED") {
				args = append(args, f["JobId"])
			}
		}
	}
	s.must("scancel", args...)
	s.must("scontrol", "resume", s.fill("{suspended}"))
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN); err != nil {
		s.fail("%v", err)
	}
}

// fields is what scontrol and squeue say of each job.
func (s *side) fields() map[string]string {
	out := map[string]string{}
	for label, f := range s.jobs() {
		for field, value := range f {
			out[label+"/"+field] = s.plain(value)
		}
	}
	table := s.must("squeue", "--all", "--states=all", "--format=%all")
	var header []string
	for line := range strings.Lines(table) {
		columns := strings.Split(strings.TrimRight(line, "\n"), "|")
		if header == nil {
			header = columns
			continue
		}
		label, ok := s.labels[columns[slices.Index(header, "JOBID")]]
		if !ok || label == "gate" {
			continue
		}
		for i, value := range columns {
			key := label + "/squeue " + header[i]
			if _, twice := out[key]; twice {
				key += " 2"
			}
			out[key] = s.plain(value)
		}
	}
	return out
}

var (
	anyTime   = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\b(\.\d+)?`)
	passed    = regexp.MustCompile(`\b(RunTime|Scheduler)=\S+`)
	anyNumber = regexp.MustCompile(`7000\d\d`)
	// gpuNumbers are the variables that say which GPUs a job has.
	gpuNumbers = regexp.MustCompile(`^(gpus|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK|SLURM_(JOB|STEP)_GPUS)$`)
	anyDigits  = regexp.MustCompile(`\d+`)
	// whichGPU is the index of a job's GPU on its node: which of several free ones it gets depends on which job starts
	// first.
	whichGPU = regexp.MustCompile(`\(IDX:[\d,-]+\)`)
)

// plain is a text without what is bound to differ from one cluster to another: folder, name,
// jobs' numbers, and times but for whether they are about now.
func (s *side) plain(text string) string {
	text = s.nameless(text)
	text = passed.ReplaceAllString(text, "$1")
	text = whichGPU.ReplaceAllString(text, "")
	text = anyTime.ReplaceAllStringFunc(text, func(at string) string {
		when, err := time.Parse("2006-01-02T15:04:05", at[:len("2006-01-02T15:04:05")])
		switch {
		case err != nil:
			return at
		case time.Until(when) > 20*time.Minute:
			return "LATER"
		}
		return "NOW"
	})
	return anyNumber.ReplaceAllStringFunc(text, func(id string) string {
		if label, ok := s.labels[id]; ok {
			return "<" + label + ">"
		}
		return id
	})
}

// nameless is a text without the cluster's name, which is a number, too.
func (s *side) nameless(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, s.Dir, "DIR"), filepath.Base(s.Dir), "CLUSTER")
}

// seen is what a user sees of the cluster, line by line.
func (s *side) seen() map[string]string {
	out := map[string]string{}
	for _, line := range []string{
		"squeue --noheader --format=%i_%j_%u_%T_%P_%D_%r", "squeue --noheader --start --format=%i_%j_%T",
		"squeue --noheader --only-job-state",
		"squeue --noheader --array --format=%i_%j", "sinfo --noheader", "sinfo --noheader --Node --long",
		"sinfo --noheader --summarize",
		"scontrol show partition", "scontrol --oneliner show reservation", "scontrol show job {plain}",
	} {
		args := strings.Fields(s.fill(line))
		text, err := s.RunAs(s.t.Context(), bob, args[0], args[1:]...)
		out[line+"/error"] = fmt.Sprint(err != nil)
		for one := range strings.Lines(s.plain(text)) {
			out[line+"/"+strings.TrimSpace(one)] = "there"
		}
	}
	return out
}

// files are what jobs have written, line by line.
func (s *side) files() map[string]string {
	out := map[string]string{}
	names, err := filepath.Glob(s.Path("out", "*"))
	if err != nil {
		s.fail("%v", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			s.fail("%v", err)
		}
		base := filepath.Base(name)
		out[base] = "there"
		for line := range strings.Lines(string(text)) {
			s.line(out, base, line)
		}
	}
	return out
}

// line is one line of an output, which may be a variable.
func (s *side) line(out map[string]string, where, line string) {
	line = strings.TrimRight(line, "\n")
	if passing.MatchString(line) {
		return
	}
	if name, value, ok := strings.Cut(line, "="); ok {
		if gpuNumbers.MatchString(name) { // which ones, Slurm chooses by what runs there
			value = anyDigits.ReplaceAllString(value, "N")
		}
		out[where+"/"+name] = s.plain(value)
		return
	}
	out[where+"/"+s.plain(line)] = "there"
}

// compare fails the test where the clusters say different things. What is about to settle is given time.
func compare(t *testing.T, sides [2]*side, what string, say func(*side) map[string]string) {
	t.Helper()
	may := func(key, _ string) bool {
		_, one := differences[key]
		_, all := differences[key[strings.LastIndex(key, "/")+1:]]
		return one || all
	}
	differ := ""
	slurmtest.Wait(t.Context(), time.Minute, func() bool {
		plain, bridged := say(sides[0]), say(sides[1])
		if len(plain) == 0 {
			t.Errorf("%s: nothing to compare", what)
		}
		maps.DeleteFunc(plain, may)
		maps.DeleteFunc(bridged, may)
		differ = gocmp.Diff(plain, bridged)
		return differ == ""
	})
	must.Equal(t, differ, "", "%s, plain and bridged", what)
}

// differences are the fields and variables that may differ, some of one job alone, and why.
var differences = map[string]string{
	"RunTime":                  "seconds since the start",
	"SecsPreSuspend":           "",
	"squeue TIME":              "",
	"squeue TIME_LEFT":         "",
	"Priority":                 "counts down by one with each job, the gate among them",
	"squeue PRIORITY":          "",
	"squeue PRIORITY 2":        "",
	"CPU_IDs":                  "which CPUs, Slurm chooses by what runs there",
	"AllocNode:Sid":            "the session of the command that submitted it",
	"Scheduler":                "which of Slurm's two schedulers looked last, and when",
	"LastSchedEval":            "",
	"SLUID":                    "the run's own name, from 25.11 on",
	"squeue SLUID":             "",
	"SLURM_JOB_SLUID":          "",
	"SLURM_JOB_START_TIME":     "seconds",
	"SLURM_JOB_END_TIME":       "",
	"SLURM_TASK_PID":           "a process",
	"SLURM_WORKING_CLUSTER":    "slurmctld's port",
	"SLURM_SRUN_COMM_PORT":     "srun's",
	"SLURM_STEP_LAUNCHER_PORT": "",
	"AccrueTime": "PriorityFlags=ACCRUE_ALWAYS, which sharers need, lets jobs gain age while they are " +
		"held or wait for others",
	"squeue --noheader --only-job-state/<gate> PD": "this command hides nothing from anybody",
	"DerivedExitCode":             "of a step whose end is reported as its job ends",
	"invalid/StartTime":           "a look of backfill's while the job is cancelled resets it",
	"invalid/PreemptEligibleTime": "",
	"invalid/PreemptTime":         "",
	"invalid/squeue START_TIME":   "",
}

// passing is what srun and salloc say where two things happen at once.
var passing = regexp.MustCompile(`step creation temporarily disabled|Step created for|has been revoked|Pending job allocation|queued and waiting|allocated resources`)
