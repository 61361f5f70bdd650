package e2e

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Before 23.11.5 Slurm takes a GPU for free when the first of its sharers ends, and before 25.05 it plans as if GPUs of
// sharers were free. No job of a whole GPU gets one in use: in a partition of sharers it asks for all shares, and where it
// could ask for the GPU itself, nobody shares.
func TestNoWholeGPUIsInUse(t *testing.T) {
	t.Parallel()
	for name, only := range map[string][]string{
		"partition of sharers": {slurmtest.Partition},
		"partition of all":     {"none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{settings: settings{SharersOnly: only}})
			ids := r.atOnce(2, func(i int) string { return r.submit(ann, small, []float64{12, 2}[i], "--time=3") })
			long, short := ids[0], ids[1]
			r.reach("COMPLETED", short)
			whole := r.whole("1", 1)
			r.reach("COMPLETED", whole, long)
			if from, to := r.span(whole), r.span(long); from[0].Before(to[1]) && to[0].Before(from[1]) {
				t.Errorf("the job of a whole GPU ran from %s to %s, next to one that ran from %s to %s", from[0], from[1], to[0],
					to[1])
			}
			a, b := r.span(long), r.span(short)
			shared := a[0].Before(b[1]) && b[0].Before(a[1])
			must.Equal(t, shared, name == "partition of sharers" || !text.MistakesGPUs(r.Release),
				"on %s jobs shared", r.Release)
		})
	}
}
