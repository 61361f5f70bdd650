package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// cards is a cluster with hooks, and without a bridge, whose jobs compute on simulated GPUs. Without agents the files
// of jobs that have ended stay.
type cards struct {
	*world
	// app is what jobs run, and how.
	app string
}

func newCards(t *testing.T, setup cluster.Setup) *cards {
	t.Helper()
	setup.Hooks = true
	c := &cards{start(t, setup), "gromacs"}
	if setup.Agents {
		must.OK(t, c.StartAgents())
		c.until("the list of the node's cards", func() bool { return there(c.Path("node", "gpus.json")) })
	}
	return c
}

func there(file string) bool { _, err := os.Stat(file); return err == nil }

// ran is what a job that computes says of itself.
type ran struct {
	app.Report
	GPUs, Visible string // its variables
	Record        string // the card that its record names
}

var uuid = regexp.MustCompile(`"uuid":"((GPU|MIG)-[^"]+)"`)

// record is the card in a job's record, "" = there is none yet.
func (c *cards) record(id string) string {
	files, _ := filepath.Glob(c.Path("spool-agent", "*"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if m := uuid.FindSubmatch(text); err == nil && m != nil && bytes.Contains(text, []byte(`"job_id":`+id+`,`)) {
			return string(m[1])
		}
	}
	return ""
}

// compute submits jobs that run an application for some seconds, and returns what each says once all have ended.
func (c *cards) compute(requests ...string) []ran {
	c.t.Helper()
	out := c.ran(c.start(requests...)...)
	for i := range out {
		must.Equal(c.t, out[i].Status, "finished", "%s: %+v", requests[i], out[i])
	}
	return out
}

// start submits jobs that run the application.
func (c *cards) start(requests ...string) (ids []string) {
	c.t.Helper()
	for _, r := range requests {
		script := fmt.Sprintf(`out=%[1]s/$SLURM_JOB_ID
echo "$SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES" >$out.vars
GPUSIM_STATE=%[2]s %[3]s run %[4]s --report $out.report 2>$out.err
`, c.Path("out"), c.State(), c.Bin("gpusim"), c.app)
		ids = append(ids, must.Get(c.Submit(c.t.Context(), ann, script, "--gres="+r, "--time=5", "--output=/dev/null"))(c.t))
	}
	return ids
}

// ran returns what jobs say of themselves once all have ended.
func (c *cards) ran(ids ...string) []ran {
	c.t.Helper()
	out := make([]ran, len(ids))
	for i, id := range ids {
		c.reach("COMPLETED FAILED", id)
		vars := must.Get(os.ReadFile(c.Path("out", id+".vars")))(c.t)
		out[i].GPUs, out[i].Visible, _ = strings.Cut(strings.TrimSpace(string(vars)), " ")
		// The agent's record, which is of the card that the job's file names.
		c.until("a record of job "+id, func() bool { out[i].Record = c.record(id); return out[i].Record != "" })
		text := must.Get(os.ReadFile(c.Path("out", id+".report")))(c.t)
		must.OK(c.t, json.Unmarshal(text, &out[i].Report))
		if complaint, _ := os.ReadFile(c.Path("out", id+".err")); len(complaint) > 0 {
			c.t.Logf("job %s: %s", id, complaint)
		}
	}
	return out
}

// Device files, NVML and Slurm, which finds the GPUs itself, number a node's GPUs each in its own order: a sharer
// computes through MPS on the very card that a job of a whole GPU with Slurm's number has, and its record names it.
// TestNumberingIsSlurms shows what numbers mean in other orders.
func TestNumbersOfGPUs(t *testing.T) {
	t.Parallel()
	c := newCards(t, cluster.Setup{
		Agents: true, Sharing: "shard", NodeGPUs: []int{3}, Card: gpusim.Config{Minors: []int{2, 0, 1}},
		Adjust: func(o *slurmtest.Options) {
			// Slurm's own means to play with GPUs that it finds, as its NVML plugin would, in NVML's order: it sorts by links.
			o.Files = map[string]string{
				"gres.conf": "AutoDetect=nvml\nName=shard Count=300\n",
				"fake_gpus.conf": "titan_xp|16|0-15|0,-1,0|DIR/dev/nvidia0|(null)|nvidia_gpu_env\n" +
					"titan_xp|16|0-15|0,0,-1|DIR/dev/nvidia1|(null)|nvidia_gpu_env\n" +
					"titan_xp|16|0-15|-1,0,0|DIR/dev/nvidia2|(null)|nvidia_gpu_env\n",
			}
			o.Cards = [][]string{slices.Repeat([]string{"titan_xp"}, 3)} // a part of what NVML calls the cards
		},
	})
	of := map[string]string{} // the card of each number
	for _, r := range c.compute("gpu:1", "gpu:1", "gpu:1") {
		of[r.GPUs] = r.Device
		must.Equal(t, r.Record, r.Device)
		must.Equal(t, r.MPS, false)
		must.Equal(t, r.Visible, r.GPUs)
	}
	must.Equal(t, len(of), 3)
	for _, r := range c.compute("shard:50", "shard:50", "shard:50", "shard:50", "shard:50", "shard:50") {
		if r.Device != of[r.GPUs] || !r.MPS || r.Visible != r.Device || r.Record != r.Device {
			t.Errorf("a sharer of GPU %s (%s) computes on %s, MPS %v; it sees %s; its record is of %s", r.GPUs, of[r.GPUs],
				r.Device, r.MPS, r.Visible, r.Record)
		}
	}
}

// Each job has a /dev/shm of its own, unless the site's settings say otherwise: sharers compute either way, and where
// they reach their server through it.
func TestMemoryOfItsOwn(t *testing.T) {
	t.Parallel()
	const exclusive = "as by default, on a GPU that takes one process" // which a server would be
	for name, dirs := range map[string]string{"as by default": "", "without /dev/shm": " Dirs=/tmp", exclusive: ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sharing := "shard"
			if name == exclusive {
				sharing = "mps" // a prolog sees who shares
			}
			card := gpusim.Config{Exclusive: name == exclusive}
			c := newCards(t, cluster.Setup{Agents: true, Sharing: sharing, Card: card, Adjust: func(o *slurmtest.Options) {
				o.Files = map[string]string{"job_container.conf": "BasePath=DIR/private AutoBasePath=true" + dirs + "\n"}
				o.OneCPU = true
				// The job has a /tmp of its own, too.
				o.Dir = must.Get(os.MkdirTemp("/var/tmp", "sb"))(t)
				t.Cleanup(func() { must.OK(t, os.RemoveAll(o.Dir)) })
				must.OK(t, os.Chmod(o.Dir, 0o755))
				plugin, release := "JobContainerType=job_container/tmpfs", release(t)
				if release >= "25.11" {
					plugin = "NamespaceType=namespace/tmpfs"
				}
				if release < "23.02" && dirs != "" {
					t.Skip("Slurm " + release + " has no Dirs")
				}
				o.Extra = append(o.Extra, plugin, "PrologFlags=Contain")
			}})
			// One by one: two jobs that begin at once can hinder each other in making their namespaces.
			for range 2 {
				must.Equal(t, c.compute(sharing + ":50")[0].MPS, dirs != "", "computed through MPS")
			}
		})
	}
}

// In the mode EXCLUSIVE_PROCESS jobs of whole GPUs find them free of servers, and sharers compute through one.
func TestExclusiveGPUs(t *testing.T) {
	t.Parallel()
	c := newCards(t, cluster.Setup{Agents: true, Sharing: "shard", Card: gpusim.Config{Exclusive: true}})
	for range 2 {
		for i, r := range c.compute("gpu:1", "shard:50", "shard:50") {
			must.Equal(t, r.MPS, i > 0, "job %d", i)
			must.Equal(t, r.Visible, "0") // a number, which programs read
		}
	}
}

// A part of a GPU that a user asks for by hand stays what Slurm makes of it, in each step; a part that a user asks for
// through the script doesn't limit threads.
func TestPartsByHandStay(t *testing.T) {
	t.Parallel()
	c := newCards(t, cluster.Setup{Adjust: func(o *slurmtest.Options) { o.Lua = ours }})
	for request, want := range map[string]string{"mps:10": "10 10", "gpu:shared": "100 100"} {
		script := fmt.Sprintf("a=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\necho \"$a $(srun printenv "+
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)\" >%s/$SLURM_JOB_ID.vars\n", c.Path("out"))
		id := must.Get(c.Submit(t.Context(), ann, script, "--gres="+request, "--time=5", "--output=/dev/null"))(t)
		c.reach("COMPLETED FAILED", id)
		got := must.Get(os.ReadFile(c.Path("out", id+".vars")))(t)
		must.Equal(t, strings.TrimSpace(string(got)), want, request)
	}
}
