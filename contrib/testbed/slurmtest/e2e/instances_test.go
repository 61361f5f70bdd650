package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// many returns a type as often as a node has it.
func many(n int, typ string) (out []string) {
	for range n {
		out = append(out, typ)
	}
	return out
}

// instances is a cluster with a node of seven instances, one of two, and one with a whole GPU beside three instances.
func instances(t *testing.T) *rig {
	t.Helper()
	return newRig(t, options{
		quiet: true, settings: settings{MemLimits: true},
		Options: slurmtest.Options{
			Cards:   [][]string{many(7, "1g.10gb"), many(2, "3g.40gb"), append([]string{"h100"}, many(3, "2g.20gb")...)},
			Prepare: wakes,
		},
	})
}

// index is the GPU that a job's script saw.
func (r *rig) index(id string) string {
	return strings.TrimSpace(string(must.Get(os.ReadFile(r.Path("out", id+".gpu")))(r.t)))
}

// request is what Slurm shows of a job's request for GPUs.
func (r *rig) request(id string) string { return strings.TrimPrefix(r.job(id)["TresPerNode"], "gres/") }

// Jobs share MIG instances, each with room for its memory; whole instances, whole GPUs, arrays and requests by type
// keep what they had, and a restart of slurmctld changes nothing of it.
func TestJobsShareInstances(t *testing.T) {
	t.Parallel()
	r := instances(t)
	if !text.SharesInstances(r.Release) {
		t.Skipf("Slurm %s can't share MIG instances", r.Release)
	}
	r.start()
	var small, large, typed []string
	r.unseen(func() {
		for range 4 { // two of them have 6,000 of a 1g.10gb's 9,000 MiB
			small = append(small, r.submit(ann, "m3000g30d20", 20, "--nodelist=n1", "--time=3"))
		}
		large = append(large, r.submit(ann, "m50000g30d20", 20, "--time=3"))
		for range 2 {
			typed = append(typed, r.any(ann, 20, "--gres=gpu:shared", "--comment=app=m3000g30d20 share:model=2g.20gb",
				"--time=3"))
		}
	})
	whole := r.whole("3g.40gb:1", 5)
	array := must.Get(r.Submit(t.Context(), bob, "sleep 5\n", "--gres=gpu:1", "--array=0-2", "--time=3"))(t)
	for _, id := range append(append(append([]string{whole}, small...), large...), typed...) {
		r.reach("RUNNING COMPLETED", id)
	}
	if got := r.request(large[0]); !strings.HasPrefix(got, "shard:h100:") {
		t.Errorf("a job of 50,000 MiB requests %s", got)
	}
	for _, id := range typed {
		if got := r.request(id); !strings.HasPrefix(got, "shard:2g.20gb:") {
			t.Errorf("a job whose owner names the type requests %s", got)
		}
	}
	for _, id := range small {
		if got := r.request(id); !strings.HasPrefix(got, "shard:") || strings.HasPrefix(got, "shard:100") {
			t.Errorf("a small job requests %s", got)
		}
	}
	r.StopController()
	must.OK(t, r.StartController(t.Context()))
	for _, id := range append(append(append([]string{whole, array}, small...), large...), typed...) {
		r.reach("COMPLETED", id)
	}
	on := map[string]int{}
	for _, id := range small {
		if f := r.job(id); !strings.HasPrefix(f["NodeList"], "n1") {
			t.Errorf("job %s was on %s", id, f["NodeList"])
		}
		on[r.index(id)]++
	}
	for index, n := range on {
		if n > 3 {
			t.Errorf("%d jobs are on instance %s, where memory suffices for three: %v", n, index, on)
		}
	}
	if len(on) == len(small) {
		t.Errorf("no two small jobs share: %v", on)
	}
}

// Slurm before 23.02.7 makes fewer shares of an instance than it shows: a bridge leaves instances alone there, and jobs
// that ask to share get one each.
func TestInstancesOfAnOldSlurmAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := instances(t)
	if text.SharesInstances(r.Release) {
		t.Skipf("Slurm %s shares MIG instances", r.Release)
	}
	r.start()
	a := r.any(ann, 2, "--gres=gpu:1g.10gb:1", "--time=3")
	r.reach("COMPLETED", a)
	if text := fmt.Sprint(r.job(a)); strings.Contains(text, "slurmbridge:") {
		t.Errorf("%s", text)
	}
}
