package compare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

// Workloads are closed, which is the thesis's five: all jobs are there before the first may
// start; or open: jobs come over time. The open ones differ by their seeds.
const openName = "open"

// openSeeds is how many open workloads there are.
const openSeeds = 3

// workloads names all there are, in the order of tables.
func workloads() []string {
	out := experiment.Workloads()
	for k := range openSeeds {
		out = append(out, fmt.Sprintf("%s-%d", openName, k+1))
	}
	return out
}

// isOpen reports whether a workload's jobs come over time.
func isOpen(wl string) bool { return strings.HasPrefix(wl, openName+"-") }

// pickWorkloads returns the workloads of these names, in the order of tables; none named: all.
// "open" means each of the open ones. An error names the known ones.
func pickWorkloads(names []string) ([]string, error) {
	all := workloads()
	if len(names) == 0 {
		return all, nil
	}
	chosen, err := choose("workload", names, append([]string{openName}, all...))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(wl string) bool {
		return !slices.Contains(chosen, wl) && !(isOpen(wl) && slices.Contains(chosen, openName))
	}), nil
}

// objective is what a workload is judged by, and what the bridge's decisions are to keep small
// there.
func objective(wl string) policy.Objective {
	if isOpen(wl) {
		return policy.Turnaround
	}
	return policy.Makespan
}

// of is the figure of an objective, GPU seconds.
func (f *figures) of(o policy.Objective) float64 {
	if o == policy.Turnaround {
		return f.MeanTurnaroundS
	}
	return f.MakespanS
}

// seedOf is the seed of a workload's draw.
func (o *options) seedOf(wl string) uint64 {
	if !isOpen(wl) {
		return o.seed
	}
	return o.seed + uint64(slices.Index(workloads(), wl)-len(experiment.Workloads()))
}

// jobsOf returns a workload's applications in the order of submission, and when each is
// submitted, GPU seconds after the beginning; nil = all before it. The same options give the
// same jobs at the same times. Open workloads have the applications of the thesis's random one,
// and come at random (Poisson): o.load times as much work as one GPU can do without sharing.
func (o *options) jobsOf(wl string) (names []string, at []float64, err error) {
	seed := o.seedOf(wl)
	if !isOpen(wl) {
		names, err = apps.Workload(wl, o.jobs, rand.NewPCG(seed, 0))
		return names, nil, err
	}
	if names, err = apps.Workload("random", o.jobs, rand.NewPCG(seed, 0)); err != nil {
		return nil, nil, err
	}
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a comparison is repeatable, not secret
	gap := cluster.SoloS(names) / float64(len(names)) / o.load
	at = make([]float64, len(names))
	for i := 1; i < len(at); i++ {
		at[i] = at[i-1] + gap*r.ExpFloat64()
	}
	return names, at, nil
}
