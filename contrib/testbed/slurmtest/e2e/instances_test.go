package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// Jobs share MIG instances, each with room for its memory; whole instances, whole GPUs, arrays and requests by type
// keep what they had, and a restart of slurmctld changes nothing of it.
func TestJobsShareInstances(t *testing.T) {
	t.Parallel()
	sharesInstances(t)
	// A node of seven instances, one of two, and one with a whole GPU beside three instances.
	r := newRig(t, options{settings: settings{MemLimits: true}, Options: slurmtest.Options{Cards: [][]string{
		slices.Repeat([]string{"1g.10gb"}, 7), slices.Repeat([]string{"3g.40gb"}, 2),
		append([]string{"h100"}, slices.Repeat([]string{"2g.20gb"}, 3)...),
	}}})
	// request is what Slurm shows of a job's request for GPUs.
	request := func(id string) string { return strings.TrimPrefix(r.job(id)["TresPerNode"], "gres/") }
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
	sharers := slices.Concat(small, large, typed)
	r.reach("RUNNING COMPLETED", append(sharers, whole)...)
	if got := request(large[0]); !strings.HasPrefix(got, "shard:h100:") {
		t.Errorf("a job of 50,000 MiB requests %s", got)
	}
	for _, id := range typed {
		if got := request(id); !strings.HasPrefix(got, "shard:2g.20gb:") {
			t.Errorf("a job whose owner names the type requests %s", got)
		}
	}
	for _, id := range small {
		if got := request(id); !strings.HasPrefix(got, "shard:") || strings.HasPrefix(got, "shard:100") {
			t.Errorf("a small job requests %s", got)
		}
	}
	r.StopController()
	must.OK(t, r.StartController(t.Context()))
	r.reach("COMPLETED", append(sharers, whole, array)...)
	on := map[string]int{}
	for _, id := range small {
		if f := r.job(id); !strings.HasPrefix(f["NodeList"], "n1") {
			t.Errorf("job %s was on %s", id, f["NodeList"])
		}
		on[r.visible(id)]++
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
