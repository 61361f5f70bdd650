package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// sharesInstances skips a test on a Slurm that shares no MIG instances.
func sharesInstances(t *testing.T) {
	t.Helper()
	if release := release(t); !text.SharesInstances(release) {
		t.Skip("Slurm " + release + " shares no MIG instances: make test-compat")
	}
}

// How a GPU is cut.
var (
	sevenths = slices.Repeat([]string{"1g.5gb"}, 7)
	thirds   = slices.Repeat([]string{"2g.10gb"}, 3)
)

// newCut is a node of GPUs that are cut, and the names of its parts in Slurm's order: as the stage writes gres.conf, GPU
// by GPU in NVML's order; or as Slurm's own means to play with GPUs find them where its NVML plugin would, whole GPUs
// first, then instances by their files, which are numbered the other way round than NVML's.
func newCut(t *testing.T, gpus int, card gpusim.Config, auto bool) (*cards, []string) {
	t.Helper()
	sharesInstances(t)
	// The UUIDs are those of the stage's GPUs.
	path := t.TempDir() + "/state"
	card.Model, card.GPUs = "a100", gpus
	must.OK(t, gpusim.Create(path, card))
	st := must.Get(gpusim.Open(path))(t)
	defer st.Close()
	whole, instances := st.Parts()
	var names, uncut, byFile []string
	fake := ""
	add := func(kind, links, files, name string) {
		// From 25.11 on the plugin asks for UUIDs in variables where it has found instances.
		fake += fmt.Sprintf("%s|16|0-15|%s|%s|%s|nvidia_gpu_env,env_uuid\n", kind, links, files, name)
	}
	for i, g := range whole {
		files := fmt.Sprintf("DIR/dev/nvidia%d", i)
		if slices.Contains(card.Uncut, i) {
			add("a100", "-1", files, "(null)")
			names, uncut = append(names, g.Name()), append(uncut, g.Name())
		}
		var of []string
		for _, in := range instances {
			if in.Index() == i {
				gi, ci := gpusim.Caps(i, card.GPUInstance(len(of)))
				add(card.Instances[0], "(null)",
					fmt.Sprintf("%s,DIR/dev/nvidia-caps/nvidia-cap%d,DIR/dev/nvidia-caps/nvidia-cap%d", files, gi, ci), in.Name())
				of = append(of, in.Name())
			}
		}
		names = append(names, of...)
		slices.Reverse(of)
		byFile = append(byFile, of...)
	}
	c := newCards(t, cluster.Setup{
		Agents: true, Sharing: "shard", NodeGPUs: []int{gpus}, Models: []string{"a100"}, Card: card,
		Adjust: func(o *slurmtest.Options) {
			if auto {
				names = slices.Concat(uncut, byFile)
				o.Files = map[string]string{
					"gres.conf":      fmt.Sprintf("AutoDetect=nvml\nName=shard Count=%d\n", 100*len(names)),
					"fake_gpus.conf": fake,
				}
			}
		},
	})
	c.app = "alexnet --duration-scale 0.4"
	return c, names
}

// On a node whose GPUs are cut into MIG instances sharers compute on the instance of Slurm's number, through an MPS
// server of its own, whoever numbers the instances; a sharer that is alone does without. Records name the instance.
// Jobs of whole instances and whole GPUs have theirs as before.
func TestMIGInstances(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]struct {
		gpus int
		card gpusim.Config
		auto bool
	}{
		"one GPU in seven":          {1, gpusim.Config{Instances: sevenths}, false},
		"two in three each, found":  {2, gpusim.Config{Instances: thirds}, true},
		"one whole, one cut":        {2, gpusim.Config{Instances: thirds, Uncut: []int{0}}, false},
		"one cut, one whole, found": {2, gpusim.Config{Instances: thirds, Uncut: []int{1}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, names := newCut(t, n.gpus, n.card, n.auto)
			var requests []string
			for range names {
				requests = append(requests, "shard:60", "shard:40")
			}
			on := map[string]int{}
			for _, r := range c.compute(requests...) {
				want := names[must.Get(strconv.Atoi(r.GPUs))(t)]
				if r.Device != want || !r.MPS || r.Visible != want || r.Record != want {
					t.Errorf("a sharer of %s, which is %s, computes on %s, MPS %v; it sees %s; its record is of %s",
						r.GPUs, want, r.Device, r.MPS, r.Visible, r.Record)
				}
				on[r.Device]++
			}
			must.Equal(t, len(on), len(names), "parts in use")
			for _, r := range c.compute(slices.Repeat([]string{"shard:100"}, len(names))...) {
				want := names[must.Get(strconv.Atoi(r.GPUs))(t)]
				must.Equal(t, r.Device, want)
				must.Equal(t, r.Record, want)
				must.Equal(t, r.MPS, false)
			}
			if !n.auto {
				return // without control groups Slurm tells a job of a whole instance a number that CUDA doesn't know
			}
			whole := slices.Repeat([]string{"gpu:1"}, len(names))
			if len(n.card.Uncut) > 0 { // nor of a whole GPU beside those that are cut
				whole = slices.Repeat([]string{"gpu:2g.10gb:1"}, len(n.card.Instances))
			}
			for _, r := range c.compute(whole...) {
				want := names[must.Get(strconv.Atoi(r.GPUs))(t)]
				must.Equal(t, r.Visible, want) // as Slurm itself names it
				must.Equal(t, r.Device, want)
				must.Equal(t, r.Record, want)
				must.Equal(t, r.MPS, false)
			}
		})
	}
}

// A server that is killed on one instance takes its own clients along and nobody on another instance, though slurmctld
// starts anew meanwhile; a whole instance is one that nobody shares; and the next sharers, an array's tasks, compute on
// all of them.
func TestServerKilledOnAnInstance(t *testing.T) {
	t.Parallel()
	c, names := newCut(t, 1, gpusim.Config{Instances: sevenths}, true)
	c.app = "alexnet"
	ids := c.start("shard:60", "shard:40", "shard:60", "gpu:1")
	st := must.Get(gpusim.Open(c.State()))(t)
	defer st.Close()
	servers := map[string]int{} // by instance
	c.until("sharers on two instances, and a job on a third", func() bool {
		clients := 0
		for _, p := range must.Get(st.Device(0).Snapshot())(t).Processes {
			switch p.Kind {
			case gpusim.Server:
				servers[gpusim.Part{Device: st.Device(0), Instance: p.Instance}.Name()] = p.PID
			default:
				clients++
			}
		}
		return clients == 4 && len(servers) == 2
	})
	c.StopController()
	must.OK(t, syscall.Kill(servers[names[0]], syscall.SIGKILL))
	must.OK(t, c.StartController(t.Context()))
	for i, r := range c.ran(ids...) {
		on := []int{0, 0, 1, 2}[i]
		must.Equal(t, r.GPUs, strconv.Itoa(on))
		must.Equal(t, r.Device, names[on])
		must.Equal(t, r.Record, names[on])
		must.Equal(t, r.Status == "finished", on > 0, "job %d: %s", i, r.Status)
	}
	script := fmt.Sprintf("GPUSIM_STATE=%s %s run alexnet --duration-scale 0.1 --report %s/$SLURM_ARRAY_TASK_ID.task\n",
		c.State(), c.Bin("gpusim"), c.Path("out"))
	id := must.Get(c.Submit(t.Context(), ann, script, "--gres=shard:50", "--array=1-14", "--time=5",
		"--output=/dev/null"))(t)
	for task := range 14 {
		c.reach("COMPLETED", fmt.Sprintf("%s_%d", id, task+1))
	}
	for task := range 14 {
		said := string(must.Get(os.ReadFile(c.Path("out", fmt.Sprintf("%d.task", task+1))))(t))
		must.Contain(t, said, `"mps":true`, "task %d", task+1)
		must.Contain(t, said, `"status":"finished"`, "task %d", task+1)
	}
}

// The whole of slurmbridge on a GPU that is cut: two jobs that it puts together compute on one instance, and how much
// they computed is known.
func TestBridgeOnInstances(t *testing.T) {
	t.Parallel()
	sharesInstances(t)
	r := newWorld(t, cluster.Setup{
		Sharing: "shard", NodeGPUs: []int{1}, Models: []string{"h200"},
		Card: gpusim.Config{Instances: []string{"1g.18gb"}},
	})
	ids := r.atOnce(2, func(int) string { return r.run("alexnet", "", "alexnet --duration-scale 0.3") })
	r.reach("COMPLETED", ids...)
	device := regexp.MustCompile(`"device":"(MIG-[^"]+)".*"mps":true`)
	on := map[string]bool{}
	for _, id := range ids {
		said := must.Get(os.ReadFile(r.job(id)["StdOut"]))(t)
		m := device.FindSubmatch(said)
		if m == nil {
			t.Fatalf("job %s: %s", id, said)
		}
		on[string(m[1])] = true
		r.until("what job "+id+" used", func() bool {
			out, err := r.ask("slurm", "why", id)
			return err == nil && strings.Contains(out, "it computed ")
		})
	}
	must.Equal(t, len(on), 1, "instances")
}
