package contrib

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// What follows tries in a real slurmctld what sbatch makes of options, and what Slurm takes of the script's changes;
// job_submit_lua_test.go tries the script alone.

type cluster struct {
	*slurmtest.Cluster
	t *testing.T
}

func newCluster(t *testing.T, o slurmtest.Options) *cluster {
	t.Helper()
	o.Scheduler = slurmtest.Prompt
	return &cluster{slurmtest.New(t, o), t}
}

// gate writes the gate file: fresh for d.
func (c *cluster) gate(job, gres string, d time.Duration) {
	c.t.Helper()
	c.gateText(fmt.Sprintf("job=%s\nexpires=%d\ngres=%s\nunits=100\n", job, time.Now().Add(d).Unix(), gres))
}

func (c *cluster) gateText(text string) {
	c.t.Helper()
	must.OK(c.t, os.WriteFile(c.GateFile, []byte(text), 0o644))
}

func (c *cluster) submit(script string, args ...string) string {
	c.t.Helper()
	return must.Get(c.Submit(c.t.Context(), "nobody", script, args...))(c.t)
}

func (c *cluster) job(id string) map[string]string {
	c.t.Helper()
	return must.Get(c.Job(c.t.Context(), id))(c.t)
}

// held submits a job that is held.
func (c *cluster) held(args ...string) map[string]string {
	c.t.Helper()
	return c.job(c.submit("true", append(args, "--hold")...))
}

// asks fails the test unless a job asks for these GPUs, per node alone, and has this dependency.
func (c *cluster) asks(f map[string]string, gres, dependency, of string) {
	c.t.Helper()
	got := [3]string{request(f), f["Dependency"], f["TresPerJob"]}
	must.Equal(c.t, got, [3]string{gres, dependency, ""}, of)
}

// refused fails the test unless a user's command is refused, with a sentence of the script's; "" = by Slurm or the script.
func (c *cluster) refused(says, command string, args ...string) {
	c.t.Helper()
	out, err := c.RunAs(c.t.Context(), "nobody", command, args...)
	if err == nil || !strings.Contains(out, says) || says != "" && !strings.Contains(out, "slurmbridge: ") {
		c.t.Errorf("%s %q: %s %v, want %q", command, args, out, err, says)
	}
}

// request is a job's GPU request without the release's prefix.
func request(f map[string]string) string {
	return strings.NewReplacer("gres:", "", "gres/", "").Replace(f["TresPerNode"])
}

// What the script makes of requests, on one cluster.
func TestRequests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slurmtest.Options{
		Lua: "job_submit.lua", Nodes: 2, Extra: []string{"PartitionName=other Nodes=ALL State=UP"},
	})
	for _, situation := range []struct {
		name string
		is   func(t *testing.T, c *cluster)
	}{
		{"nonsense", nonsense},
		{"shared jobs", sharedJobs},
		{"sharers stay on one node", sharersStay},
		{"arguments are noted", argumentsNoted},
	} {
		t.Run(situation.name, func(t *testing.T) { situation.is(t, &cluster{c.Cluster, t}) })
	}
}

// A request for a shared GPU in any spelling becomes one for a whole GPU's shares, after the gate where that is fresh.
func sharedJobs(t *testing.T, c *cluster) {
	gate, first := c.submit("true", "--hold"), c.submit("true", "--hold")
	names := strings.NewReplacer("GATE", gate, "FIRST", first)
	const held = "after:GATE(unfulfilled)"
	shared := 0
	for _, k := range [][2]string{
		{"--gres=gpu:shared", held},
		{"--gres=gpu:shared:1", held},
		{"--gres=gpu:shared=1", held},
		{"--gpus=shared", held},
		{"--gpus=shared:1", held},
		{"--gpus-per-node=shared", held},
		{"--gpus-per-node=shared:1", held},
		{"--gres=gpu:shared --nodes=1", held},
		{"--gres=gpu:shared --nodes=1-2", held},
		{"--gres=gpu:shared --ntasks=4 --ntasks-per-node=4", held},
		{"--gres=gpu:shared --array=1-3", held},
		{"--gres=gpu:shared --begin=now+1hour", held},
		{"--gres=gpu:shared --dependency=afterany:FIRST", "afterany:FIRST(unfulfilled)," + held},
		{
			"--gres=gpu:shared --dependency=afterany:FIRST,afterok:FIRST",
			"afterany:FIRST(unfulfilled),afterok:FIRST(unfulfilled)," + held,
		},
		{
			"--gres=gpu:shared --dependency=afterany:FIRST?afterok:FIRST",
			"afterany:FIRST(unfulfilled)?afterok:FIRST(unfulfilled)",
		},
	} {
		args, want := strings.Fields(names.Replace(k[0])), names.Replace(k[1])
		c.gate(gate, "mps", time.Hour)
		c.asks(c.held(args...), "mps:100", want, k[0])
		// Without a fresh gate the request and the user's dependency stay the same.
		c.gate(gate, "mps", -time.Second)
		without := strings.TrimSuffix(strings.TrimSuffix(want, names.Replace(held)), ",")
		c.asks(c.held(args...), "mps:100", cmp.Or(without, "(null)"), k[0]+" without a gate")
		shared += 2
	}
	// A part of a heterogeneous job is rewritten and not gated.
	c.gate(gate, "mps", time.Hour)
	out, err := c.RunAs(t.Context(), "nobody", "sbatch", "--parsable", "--hold", "--gres=gpu:shared", "--wrap=true", ":",
		"--ntasks=1")
	must.OK(t, err)
	c.asks(c.job(strings.TrimSpace(out)), "mps:100", "(null)", "a part of a heterogeneous job")
	shared++
	text := string(must.Get(os.ReadFile(c.WakeFile))(t))
	must.Equal(t, strings.Count(text, "\n"), shared, "lines in the wake file, one for each shared job")
	must.OK(t, os.Remove(c.GateFile), os.Remove(c.WakeFile))
	c.asks(c.held("--gres=gpu:shared"), "mps:100", "(null)", "without files")
	c.gate(gate, "shard", time.Hour) // on a cluster of mps
	c.refused("", "sbatch", "--gres=gpu:shared", "--wrap=true")
}

// A job that fits on one node stays on one: it has shares on each node that it is on.
func sharersStay(t *testing.T, c *cluster) {
	c.gateText("gres=mps\nunits=100\nsize=gpu:4\n")
	for args, one := range map[string]bool{
		"--nodes=1-2": true, "--ntasks=4": true, "--ntasks=2 --cpus-per-task=2": true, "--ntasks=2 --nodes=1-2": true,
		"--ntasks=5": false, "--ntasks=3 --cpus-per-task=2": false, "--ntasks=2 --mem-per-cpu=10": false,
		"--ntasks=2 --partition=other": false,
	} {
		plain := strings.Fields(args)
		want := c.held(plain...)["NumNodes"]
		if one {
			want = "1-1"
		}
		must.Equal(t, c.held(append(plain, "--gres=gpu:shared")...)["NumNodes"], want, args)
	}
}

// What can't be shared is refused with a sentence, and wakes nobody.
func nonsense(t *testing.T, c *cluster) {
	cases := map[string]string{
		"--gres=gpu:shared:3":                                                    "shares one GPU",
		"--gres=gpu:shared:0":                                                    "shares one GPU",
		"--gres=gpu:shared:1K":                                                   "shares one GPU",
		"--gpus=shared:2":                                                        "shares one GPU",
		"--gres=gpu:shared,gpu:shared":                                           "shares one GPU",
		"--gres=gpu:shared,gpu:titanxp:1":                                        "together with",
		"--gpus=titanxp:1,shared":                                                "together with",
		"--gpus-per-socket=shared --sockets-per-node=1":                          "per job",
		"--gres=gpu:shared --cpus-per-gpu=2":                                     "--cpus-per-gpu can't",
		"--gres=gpu:shared --mem-per-gpu=500":                                    "--mem-per-gpu can't",
		"--gpus=shared --ntasks-per-gpu=1":                                       "--ntasks-per-gpu can't",
		"--gres=gpu:shared --gpu-freq=high":                                      "--gpu-freq can't",
		"--gres=gpu:shared --nodes=2":                                            "2 nodes",
		"--gres=gpu:shared --comment=share:model=titanxp:1":                      "share:model=titanxp:1 isn't understood",
		"--gpus=shared --comment=share:max-slowdown=banana":                      "share:max-slowdown=1.15",
		"--gres=gpu:shared --ntasks=4 --ntasks-per-node=1":                       "4 nodes",
		"--gres=gpu:shared --gpus-per-socket=titanxp:1 -N1 --sockets-per-node=1": "together with",
	}
	if c.Release < "23" {
		cases["--gpus-per-task=shared --ntasks=1"] = "per job"
	} else {
		cases["--tres-per-task=gres/gpu:shared:1 --ntasks=1"] = "per job"
	}
	for args, says := range cases {
		c.refused(says, "sbatch", append(strings.Fields(args), "--wrap=true")...)
	}
	c.refused("slurmbridge: the script's srun --gres=gpu:1 finds no GPU of its own", "sbatch", "--gres=gpu:shared",
		"--wrap=srun --gres=gpu:1 hostname")
	if text, err := os.ReadFile(c.WakeFile); err != nil || len(text) > 0 {
		t.Errorf("refused jobs wake the bridge: %q %v", text, err)
	}
}

// TestSharedJobsRun runs shared jobs without a bridge, steps and all: each has a GPU to itself.
func TestSharedJobsRun(t *testing.T) {
	t.Parallel()
	for _, sharing := range []string{"mps", "shard"} {
		t.Run(sharing, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, slurmtest.Options{Lua: "job_submit.lua", Sharing: sharing, GPUs: 2})
			// After a bridge that is stopped, and one that has no gate.
			if c.gate("4711", sharing, -time.Second); sharing == "shard" {
				c.gateText("gres=shard\nunits=100\n")
			}
			for _, args := range []string{"--gres=gpu:shared", "--gpus=shared", "--gpus-per-node=shared"} {
				id := c.submit("echo $CUDA_VISIBLE_DEVICES; srun sh -c 'echo $CUDA_VISIBLE_DEVICES'; sleep 1", args)
				s, ok := c.WaitState(t.Context(), time.Minute, id, "COMPLETED")
				out, err := os.ReadFile(c.Path("out", id+".out"))
				lines := strings.Fields(string(out))
				if !ok || err != nil || len(lines) != 2 || lines[0] != lines[1] {
					t.Errorf("%s: %s, printed %q, %v", args, s, out, err)
				}
			}
			out, err := c.RunAs(t.Context(), "nobody", "timeout", "120", "salloc", "--gres=gpu:shared", "srun", "sh", "-c",
				"echo GPU=$CUDA_VISIBLE_DEVICES")
			if err != nil || !strings.Contains(out, "GPU=0") {
				t.Errorf("salloc: %q %v", out, err)
			}
			if out, err := c.RunAs(t.Context(), "nobody", "timeout", "120", "salloc", "--gpus=shared", "true"); err == nil ||
				!strings.Contains(out, "by --gres=gpu:shared") {
				t.Errorf("salloc --gpus: %q %v", out, err)
			}
			// srun alone works where its --gres follows the job's; otherwise srun reports an error.
			out, err = c.RunAs(t.Context(), "nobody", "timeout", "120", "srun", "--gres=gpu:shared", "sh", "-c",
				"echo GPU=$CUDA_VISIBLE_DEVICES")
			if c.Release < "23.02" {
				if err == nil || !strings.Contains(out, "sbatch --gres=gpu:shared") {
					t.Errorf("srun: %q %v", out, err)
				}
			} else if err != nil || !strings.Contains(out, "GPU=0") {
				t.Errorf("srun: %q %v", out, err)
			}
		})
	}
}

// A job that shares gets the cores and the memory that a job of a whole GPU gets by default, and what it asks for where
// it does.
func TestSharersGetAPartitionsDefaults(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slurmtest.Options{Lua: "job_submit.lua", CPUs: 16, Extra: []string{
		"PartitionName=per Nodes=n1 DefCpuPerGPU=4 DefMemPerGPU=300 State=UP",
	}})
	c.gateText("gres=mps\nunits=100\ncpus=per:4\nmem=per:300\ncpus=*:2\n")
	got := func(id string) string {
		t.Helper()
		f := c.job(c.ended(id))
		tres := map[string]string{}
		for item := range strings.SplitSeq(cmp.Or(f["AllocTRES"], f["TRES"]), ",") {
			key, value, _ := strings.Cut(item, "=")
			tres[key] = value
		}
		return tres["cpu"] + " " + tres["mem"]
	}
	whole, shared := map[string]string{}, map[string]string{}
	for _, args := range []string{
		"", "--ntasks=2", "--ntasks=6", "--cpus-per-task=2", "--cpus-per-task=1", "--mem=500", "--mem-per-cpu=50",
		"--ntasks=2 --cpus-per-task=3 --mem=200",
	} {
		more := append(strings.Fields(args), "--partition=per", "--nodes=1")
		whole[args], shared[args] = c.submit("true", append(more, "--gres=gpu:1")...),
			c.submit("true", append(more, "--gres=gpu:shared")...)
	}
	other := c.submit("true", "--gres=gpu:shared")
	for args := range whole {
		must.Equal(t, got(whole[args]), got(shared[args]), "of a whole GPU and a shared one: %s", args)
	}
	// Elsewhere it is the cluster's.
	if s := got(other); !strings.HasPrefix(s, "2 ") {
		t.Errorf("in the other partition: %s", s)
	}
}

// The arguments of a script and the variables of --export stand in the AdminComment of a job that shares, as NoteArgs
// has them.
func argumentsNoted(t *testing.T, c *cluster) {
	c.gateText("gres=mps\nunits=100\nmem=*:300\n")
	script := c.Path("train.sh")
	must.OK(t, os.WriteFile(script, []byte("#!/bin/sh\ntrue\n"), 0o755))
	for _, k := range []struct{ options, args, noted, app string }{
		{"--gres=gpu:shared", "", "", ""},
		{"--gres=gpu:shared", "small -n 128 --lr=1e-3 -b64 --key=s3cret", "small -n 128 --lr=1e-3 -b64 --key=s3cret", ""},
		{"--gres=gpu:shared --export=ALL,N=4096,MODEL=llama", "", "N=4096 MODEL=llama", ""},
		{"--gres=gpu:shared --export=ALL,SLURMBRIDGE_APP=md-1.2", "64", "64", "md-1.2"},
		{"--gres=gpu:shared --export=ALL,SLURMBRIDGE_APP=../md", "64", "64", ""},
	} {
		line := append(strings.Fields(k.options), "--hold", "--parsable", "--chdir=/", "--output=/dev/null", script)
		id := must.Get(c.RunAs(t.Context(), "nobody", "sbatch", append(line, strings.Fields(k.args)...)...))(t)
		said := c.job(strings.TrimSpace(id))["AdminComment"]
		must.Equal(t, strings.Contains(said, "llama") || strings.Contains(said, "s3cret"), false, said)
		n, _ := job.ParseNote(said)
		must.Equal(t, n, job.Note{
			Args: job.NoteArgs(strings.Fields(k.noted)), App: k.app, Defaults: job.Defaults{MemMiB: 300},
		}, k)
	}
	must.Equal(t, c.held("--gres=gpu:1")["AdminComment"], "", "a job that doesn't share")
}

// ended waits for a job's end.
func (c *cluster) ended(id string) string {
	c.t.Helper()
	if !slurmtest.Wait(c.t.Context(), time.Minute, func() bool { return c.job(id)["JobState"] == "COMPLETED" }) {
		c.t.Fatalf("job %s: %v", id, c.job(id))
	}
	return id
}

// Where only shares are handed out (sharers_only), a request for one GPU becomes all of its shares, and one for more is
// refused; elsewhere, and for the bridge, nothing changes.
func TestSharersOnly(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slurmtest.Options{
		Lua: "job_submit.lua", GPUs: 2,
		Extra: []string{
			"PartitionName=other Nodes=n1 State=UP", "PartitionName=whole Nodes=n1 State=UP OverSubscribe=EXCLUSIVE",
		},
	})
	c.gateText("gres=mps\nunits=100\nuid=1\nshares=gpu\n")
	// A bare srun asks for what sbatch has handed on to it, and a job of whole nodes starts with no shares of theirs.
	var run []string
	for _, args := range []string{
		"--gpus=1", "--gpus-per-node=1", "--gpus=titanxp:1", "--gres=gpu:1 --exclusive", "--gres=gpu:1 --partition=whole",
		"--gres=gpu:shared --exclusive", "--gres=gpu:shared --partition=whole,gpu",
	} {
		run = append(run, c.submit("srun true", strings.Fields(args)...))
	}
	for _, id := range run {
		c.ended(id)
	}
	for args, want := range map[string]string{
		"--gres=gpu:1": "mps:100", "--gres=gpu": "mps:100", "--gpus=1": "mps:100", "--gpus-per-node=1": "mps:100",
		"--gres=gpu:titanxp:1":           "mps:100",
		"--gres=gpu:1 --partition=other": "gpu:1", "--gres=gpu:2 --partition=other": "gpu:2", "": "",
		"--gres=mps:100": "mps:100",
	} {
		f := c.held(strings.Fields(args)...)
		must.Equal(t, strings.TrimSuffix(request(f), "(null)")+f["TresPerJob"], want, args)
	}
	for _, args := range []string{
		"--gres=gpu:2", "--gpus=2", "--gres=gpu:1 --nodes=2", "--gpus-per-task=1 --ntasks=1",
		"--gres=gpu:1 --partition=gpu,other --nodes=2",
	} {
		c.refused("in partition gpu GPUs are shared", "sbatch", append(strings.Fields(args), "--hold", "--wrap=true")...)
	}
	elsewhere := c.held("--gres=gpu:2", "--partition=other")["JobId"]
	c.refused("", "scontrol", "update", "JobId="+elsewhere, "Partition=gpu")
	// A job that was there before keeps what it has when its owner changes something else.
	c.gateText("gres=mps\nunits=100\nuid=1\n")
	before := c.held("--gres=gpu:2")["JobId"]
	c.gateText("gres=mps\nunits=100\nuid=1\nshares=gpu\n")
	must.Get(c.RunAs(t.Context(), "nobody", "scontrol", "update", "JobId="+before, "TimeLimit=2"))(t)
	must.Equal(t, request(c.job(before)), "gpu:2", "after another change")
	must.Get(c.RunAs(t.Context(), "", "sbatch", "--gres=gpu:2", "--hold", "--wrap=true"))(t) // root
}
