package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// see is a program that writes down what its process sees of its GPU: see NAME. What isn't set is none.
const see = `#!/bin/sh
echo job=$SLURM_JOB_ID pipe=${CUDA_MPS_PIPE_DIRECTORY:-none} percent=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-none} \
	limit=${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT:-none} devices=${CUDA_VISIBLE_DEVICES:-none} \
	of=${SLURMBRIDGE_MPS_JOB:-none} frameworks=${TF_FORCE_GPU_ALLOW_GROWTH:-none} \
	$(scontrol -d show job "${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" |
		grep -o ' GRES=[^ ]*') >OUT/$1
case $1 in *[01]) sleep 1 ;; esac # beside its twin
`

// await is a program that waits until another process has seen: await NAME.
const await = "#!/bin/sh\nuntil test -e OUT/$1; do sleep 0.1; done\n"

// starts are ways in which a user starts processes on a GPU: a shell's words in which REQUEST are the options that ask
// for a part of a GPU. A name ends in the number of the process where a way has two. SEE NAME and AWAIT NAME are the
// programs; sbatch --wait would look after 2 s, 10 s and 42 s.
var starts = map[string]string{
	"a batch script":                     `sbatch REQUEST --wrap 'SEE batch'`,
	"tasks of an array":                  `sbatch --array=0-1 REQUEST --wrap 'SEE array$SLURM_ARRAY_TASK_ID'`,
	"srun":                               `srun REQUEST SEE srun`,
	"two tasks of an srun":               `srun REQUEST -n2 sh -c 'SEE task$SLURM_PROCID'`,
	"srun in a batch script":             `sbatch REQUEST --wrap 'srun SEE step'`,
	"steps side by side":                 `sbatch REQUEST --wrap 'for i in 0 1; do srun --overlap SEE beside$i & done; wait'`,
	"srun in salloc":                     `salloc REQUEST srun SEE allocated`,
	"the shell of salloc":                `salloc REQUEST srun --interactive --preserve-env SEE interactive`,
	"srun in the shell of salloc":        `salloc REQUEST srun --interactive --preserve-env srun --overlap SEE within`,
	"srun into a job that runs":          `salloc REQUEST sh -c 'env -u SLURM_JOB_ID srun --jobid=$SLURM_JOB_ID --overlap SEE into'`,
	"salloc in a batch script":           `sbatch REQUEST --wrap 'salloc REQUEST srun SEE nested'`,
	"a batch script from a step":         `srun REQUEST sh -c 'sbatch REQUEST --wrap "SEE from" && AWAIT from'`,
	"a batch script from a batch script": `sbatch REQUEST --wrap 'sbatch REQUEST --wrap "SEE chained" && AWAIT chained'`,
}

var way = regexp.MustCompile(`SEE ([a-z]+)(\S?)`)

// waysToStart tries each way with a request, one after the other on GPUs other than the first, and checks that each
// process sees what any other would on its GPU. limit is the memory limit that each is to have, "" = none. devices is
// what CUDA is to be told of the GPU with this number.
func (c *cards) waysToStart(request, limit string, devices func(gpu string) string, ways ...string) {
	c.t.Helper()
	for name, program := range map[string]string{"see": see, "await": await} {
		must.OK(c.t, os.WriteFile(c.Path("out", name), []byte(strings.ReplaceAll(program, "OUT", c.Path("out"))), 0o755))
	}
	words := strings.NewReplacer("REQUEST", request+" --time=5 --mem=100", "SEE", c.Path("out", "see"),
		"AWAIT", c.Path("out", "await"))
	for _, name := range ways {
		c.t.Run(name, func(t *testing.T) {
			m := way.FindStringSubmatch(starts[name])
			of, files := m[1], []string{m[1]}
			if m[2] == "$" {
				files = []string{of + "0", of + "1"}
			}
			for _, file := range files {
				_ = os.Remove(c.Path("out", file)) // what it saw under other circumstances
			}
			before := c.jobsOf(ann)
			said, err := c.RunAs(t.Context(), ann, "/bin/sh", "-c", words.Replace(starts[name]))
			states := map[string]string{}
			if err != nil || !c.Wait(t.Context(), time.Minute, func() bool {
				states = c.jobsOf(ann)
				maps.DeleteFunc(states, func(id, state string) bool { return before[id] != "" || state == "COMPLETED" })
				return len(states) == 0
			}) {
				jobs, _ := exec.Command("sh", "-c", "cat "+c.Path("out", "slurm-*.out")).CombinedOutput()
				t.Fatalf("%.500v; its jobs are %v and say %.500s", err, states, jobs)
			}
			for _, file := range files {
				text, err := os.ReadFile(c.Path("out", file))
				if err != nil {
					t.Fatalf("%s saw nothing: %v: %s", file, err, said)
				}
				saw := map[string]string{}
				for _, word := range strings.Fields(string(text)) {
					key, value, _ := strings.Cut(word, "=")
					saw[key] = value
				}
				gpu := gpuOf(saw["GRES"])
				delete(saw, "GRES")
				want := map[string]string{
					"job": saw["job"], "pipe": c.Path("node", "mps", "gpu"+gpu, "pipe"), "percent": "100",
					"limit": cmp.Or(limit, "none"), "devices": devices(gpu), "of": saw["job"], "frameworks": "true",
				}
				must.Equal(t, saw, want, "what %s sees", file)
			}
		})
	}
}

// jobsOf are the states of a user's jobs, by number.
func (c *cards) jobsOf(user string) map[string]string {
	out := map[string]string{}
	for _, f := range must.Get(c.Jobs(c.t.Context()))(c.t) {
		if strings.HasPrefix(f["UserId"], user+"(") {
			out[f["JobId"]] = f["JobState"]
		}
	}
	return out
}

var indexOf = regexp.MustCompile(`IDX:(\d+)|\(((?:\d+/\d+,?)+)\)`)

// gpuOf is Slurm's number of the GPU that a job of shares has, by what scontrol shows of the job: "mps:50(IDX:0)" up to
// 23.11.1, and from then on "mps:50(0/100,50/100)".
func gpuOf(gres string) string {
	m := indexOf.FindStringSubmatch(gres)
	if m == nil {
		return "unknown by " + gres
	}
	for i, part := range strings.Split(m[2], ",") {
		if m[1] == "" && !strings.HasPrefix(part, "0/") {
			return fmt.Sprint(i)
		}
	}
	return m[1]
}

// However a process of a sharer is started, it sees what the job's batch script would: its GPU's MPS daemon, its part
// of the threads, its memory limit, the GPU's name.
func TestWaysToStart(t *testing.T) {
	t.Parallel()
	for _, sharing := range []string{"mps", "shard"} {
		for _, gpus := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d GPUs", sharing, gpus), func(t *testing.T) {
				t.Parallel()
				c := newCards(t, cluster.Setup{Agents: true, Sharing: sharing, NodeGPUs: []int{gpus}})
				st := must.Get(gpusim.Open(c.State()))(t)
				defer st.Close()
				part, devices := "50", func(string) string { return "0" }
				if gpus > 1 {
					// The first GPU is taken, so that no number is right by chance.
					c.reach("RUNNING", must.Get(c.Submit(t.Context(), ann, "sleep 1000", "--gres="+sharing+":100"))(t))
					part, devices = "60", func(gpu string) string { return st.Device(int(gpu[0] - '0')).UUID() }
				}
				c.waysToStart("--gres="+sharing+":"+part, "", devices, slices.Sorted(maps.Keys(starts))...)
			})
		}
	}
}

// A component of a heterogeneous job sees its own GPU's daemon, though Slurm gives the tasks of all components the
// number of the first one, which has no GPU here.
func TestComponentOfAJob(t *testing.T) {
	t.Parallel()
	c := newCards(t, cluster.Setup{Agents: true, NodeGPUs: []int{1, 1}})
	for name, start := range map[string]string{
		"srun":           `srun FIRST true : SECOND TELL`,
		"srun in salloc": `salloc FIRST : SECOND srun --het-group=1 TELL`,
	} {
		file := c.Path("out", strings.ReplaceAll(name, " ", "-"))
		start = strings.NewReplacer("FIRST", "--time=5 --mem=100 -w n1", "SECOND", "--time=5 --mem=100 -w n2 --gres=mps:60",
			"TELL", "sh -c 'echo $CUDA_MPS_PIPE_DIRECTORY >"+file+"'").Replace(start)
		said, err := c.RunAs(t.Context(), ann, "timeout", "300", "/bin/sh", "-c", start)
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, said)
		}
		if pipe := string(must.Get(os.ReadFile(file))(t)); !strings.HasSuffix(pipe, "/mps/gpu0/pipe\n") {
			t.Errorf("%s: the pipe folder is %q", name, pipe)
		}
	}
}

// Each process of a sharer of a MIG instance is told the instance, whichever way Slurm has numbered it.
func TestWaysToStartOnInstances(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{false, true} {
		t.Run(fmt.Sprintf("AutoDetect %v", auto), func(t *testing.T) {
			t.Parallel()
			c, names := newCut(t, 1, gpusim.Config{Instances: thirds}, auto)
			c.reach("RUNNING", must.Get(c.Submit(t.Context(), ann, "sleep 1000", "--gres=shard:100"))(t))
			c.waysToStart("--gres=shard:60", "", func(gpu string) string { return names[gpu[0]-'0'] },
				"a batch script", "srun", "srun in a batch script", "srun in salloc", "salloc in a batch script")
		})
	}
}

// Each process of a session is held to the memory that its owner has asked for.
func TestSessionsAreHeld(t *testing.T) {
	t.Parallel()
	if release(t) < "23.02" {
		t.Skip("sessions by srun and salloc are from Slurm 23.02 on: make test-compat")
	}
	c := &cards{newWorld(t, cluster.Setup{Models: []string{"a100"}}), ""}
	c.waysToStart("--gres=gpu:shared --comment=share:interactive=8G", "0=8602M", func(string) string { return "0" },
		"a batch script", "srun", "srun in a batch script", "srun in salloc", "srun into a job that runs",
		"the shell of salloc")
}

// The part of a GPU that the owner of a session asks for by hand stays what Slurm makes of it.
func TestSessionsByHand(t *testing.T) {
	t.Parallel()
	c := newWorld(t, cluster.Setup{Models: []string{"a100"}, Settings: []string{"hand_shares: [" + ann + "]"}})
	for name, start := range map[string]string{
		"srun": "srun REQUEST TELL", "srun in salloc": "salloc REQUEST srun TELL",
		"a batch script": "sbatch --wait --output=FILE REQUEST --wrap 'TELL'",
	} {
		words := strings.NewReplacer("REQUEST", "--gres=mps:10 --time=5 --mem=100", "FILE", c.Path("out", "hand"), "TELL",
			"printenv CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
		said := must.Get(c.RunAs(t.Context(), ann, "timeout", "300", "/bin/sh", "-c", words.Replace(start)))(t)
		if strings.Contains(start, "FILE") {
			said = string(must.Get(os.ReadFile(c.Path("out", "hand")))(t))
		}
		must.Contain(t, said, "/mps/gpu0/pipe\n10\n", name)
	}
}

// container is a SPANK plugin that enters a namespace in which the node's programs aren't there, as Pyxis enters a
// container: in the call that its second argument names. Both are what versions of Pyxis do.
const container = `#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <slurm/spank.h>
SPANK_PLUGIN(container, 1)
static int enter(const char *hides, int flags)
{
	return unshare(CLONE_NEWNS | flags) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	       mount("none", hides, "tmpfs", 0, NULL) ? -1 : 0;
}
int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
	return strcmp(av[1], "root") ? 0 : enter(av[0], 0);
}
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	return strcmp(av[1], "user") ? 0 : enter(av[0], CLONE_NEWUSER);
}
`

// plugin builds a SPANK plugin for the Slurm that tests run on.
func plugin(t *testing.T, c *slurmtest.Cluster, source string) error {
	t.Helper()
	include := filepath.Join(c.Options.Root, "/usr/include")
	if _, err := os.Stat(filepath.Join(include, "slurm", "spank.h")); err != nil {
		slurmtest.Need(t, fmt.Errorf("SPANK plugins need slurm/spank.h (apt-get install libslurm-dev): %w", err))
	}
	to := c.Path(strings.TrimSuffix(filepath.Base(source), ".c") + ".so")
	cc := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-isystem", include, "-o", to, source)
	if said, err := cc.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

// In containers that a SPANK plugin enters, as Pyxis does, Slurm's TaskProlog= ends each task, of jobs without a GPU,
// too. Our plugin gives tasks there what the task prolog gives others. Wherever our plugin stands in plugstack.conf, and
// where it is missing or another release's, tasks run.
func TestStartsInAContainer(t *testing.T) {
	t.Parallel()
	const ours, theirs = "optional DIR/slurmbridge.so DIR/bin/of-node\n", "required DIR/container.so DIR/bin "
	cases := map[string]struct {
		stack      string // plugstack.conf
		taskProlog bool
		runs, mps  bool
	}{
		"TaskProlog":                      {theirs + "user\n", true, false, false},
		"plugin":                          {ours + theirs + "user\n", false, true, true},
		"plugin, entered as root":         {ours + theirs + "root\n", false, true, true},
		"plugin behind":                   {theirs + "user\n" + ours, false, true, true},
		"plugin behind, entered as root":  {theirs + "root\n" + ours, false, true, false},
		"plugin that isn't there":         {"optional DIR/gone.so\n" + theirs + "user\n", false, true, false},
		"plugin that is of another Slurm": {"optional DIR/other.so\n" + theirs + "user\n", false, true, false},
	}
	for _, taskProlog := range []bool{true, false} {
		t.Run(fmt.Sprint("TaskProlog ", taskProlog), func(t *testing.T) {
			t.Parallel()
			c := newCards(t, cluster.Setup{Adjust: func(o *slurmtest.Options) { containers(t, o, taskProlog) }})
			// Each step, and each command that starts one, reads plugstack.conf.
			for name, n := range cases {
				if n.taskProlog != taskProlog {
					continue
				}
				t.Run(name, func(t *testing.T) {
					c.t = t
					stack := strings.ReplaceAll(n.stack, "DIR", c.Dir)
					must.OK(t, os.WriteFile(c.Path("plugstack.conf"), []byte(stack), 0o644))
					c.startsInAContainer(n.runs, n.mps)
				})
			}
		})
	}
}

// containers has a cluster's tasks run in containers; taskProlog: with the task prolog, too.
func containers(t *testing.T, o *slurmtest.Options, taskProlog bool) {
	prepare := o.Prepare
	o.Prepare = func(c *slurmtest.Cluster) error {
		if err := prepare(c); err != nil {
			return err
		}
		// TaskProlog is told its node's name, which chooses the settings of this test's node.
		hook := fmt.Sprintf("#!/bin/sh\ngrep -E '^(Uid|Gid|Cap(Inh|Prm|Eff|Amb)):' /proc/self/status >%s\n"+
			"SLURMD_NODENAME=n1 exec %s\n", c.Path("out", "rights"), c.Options.TaskProlog)
		if !taskProlog {
			c.Options.TaskProlog = ""
		}
		text, err := os.ReadFile("../../../spank/slurmbridge.c")
		other := strings.Replace(string(text), "SPANK_PLUGIN(", "#undef SLURM_VERSION_NUMBER\n"+
			"#define SLURM_VERSION_NUMBER 0x150800\nSPANK_PLUGIN(", 1)
		for file, text := range map[string]string{
			"container.c": container, "other.c": other, "slurmbridge.c": string(text), "bin/of-node": hook,
		} {
			err = errors.Join(err, os.WriteFile(c.Path(file), []byte(text), 0o755))
		}
		return errors.Join(err, plugin(t, c, c.Path("container.c")), plugin(t, c, c.Path("slurmbridge.c")),
			plugin(t, c, c.Path("other.c")))
	}
}

// startsInAContainer checks whether tasks run, and whether they see what other tasks of sharers do.
func (c *cards) startsInAContainer(runs, mps bool) {
	t := c.t
	if mps {
		_ = os.Remove(c.Path("out", "rights"))
		c.waysToStart("--gres=mps:50", "", func(string) string { return "0" }, "a batch script", "srun",
			"the shell of salloc")
		// The plugin is root's; what it runs has the rights of the job's user alone.
		rights := strings.Fields(string(must.Get(os.ReadFile(c.Path("out", "rights")))(t)))
		user := must.Get(slurmtest.IDs(ann))(t)
		uid, gid, none := fmt.Sprint(user.Uid), fmt.Sprint(user.Gid), "0000000000000000"
		must.Equal(t, rights, []string{
			"Uid:", uid, uid, uid, uid, "Gid:", gid, gid, gid, gid, "CapInh:", none,
			"CapPrm:", none, "CapEff:", none, "CapAmb:", none,
		})
		return
	}
	said, err := c.RunAs(t.Context(), ann, "srun", "--gres=mps:50", "--mem=100", "sh", "-c",
		"echo pipe=${CUDA_MPS_PIPE_DIRECTORY:-none}")
	must.Equal(t, err == nil, runs, "it runs: %s %v", said, err)
	must.Equal(t, strings.Contains(said, "pipe=none"), runs, said)
	_, err = c.RunAs(t.Context(), ann, "srun", "--mem=100", "true")
	must.Equal(t, err == nil, runs, "a job without a GPU runs: %v", err)
	c.inService()
}
