package compare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

// variant is one way to give jobs a GPU.
type variant struct {
	name    string
	gres    string // each job's request
	policy  string // the bridge's; "" = plain Slurm
	sharing string // "" = mps
	hooks   bool
	// mayFail: Slurm shares the GPU without knowing of its memory, so jobs may fail for want of it.
	mayFail bool
	// settings are further lines of slurmbridge.yaml.
	settings []string
}

// variants are all, in the order of tables.
func variants() []variant {
	out := []variant{
		{name: "whole", gres: "gpu:titanxp:1"},
		{name: "shard_half", gres: "shard:50", sharing: "shard", mayFail: true},
		{name: "mps_half", gres: "mps:50", hooks: true, mayFail: true},
	}
	for _, name := range []string{"tetris", "greedy", "srpt", "lookahead", "dqn"} {
		out = append(out, variant{name: name, gres: "gpu:shared", policy: name})
	}
	dqn := out[len(out)-1]
	return append(out, variant{
		name: adopted, gres: out[0].gres, policy: dqn.policy, settings: []string{
			"sharers_only: []", "adopt: [{partition: " + slurmtest.Partition + "}]", "adopt_mode: active", "adopt_percent: 100",
			"adopt_charge: nothing",
		},
	})
}

// adopted is the variant in which jobs ask for whole GPUs, and share by a rule of the site. It takes Slurm 23.11.5.
const adopted = "adopted"

// variantNames are the names of all variants, in the order of tables.
func variantNames() (out []string) {
	for _, v := range variants() {
		out = append(out, v.name)
	}
	return out
}

// choose returns which of the known names are named, in the known order; none named: all. "open" names each of the open
// workloads.
func choose(names, known []string) ([]string, error) {
	is := func(name, known string) bool { return name == known || name == openName && isOpen(known) }
	for _, n := range names {
		if !slices.ContainsFunc(known, func(k string) bool { return is(n, k) }) {
			return nil, fmt.Errorf("there is no %q; there are %s", n, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(known), func(k string) bool {
		return len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool { return is(n, k) })
	}), nil
}

// Workloads are closed, which is the thesis's five: all jobs are there before the first may
// start; or open: jobs come over time. The open ones differ by their seeds.
const (
	openName  = "open"
	openSeeds = 3
)

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
	seed, open := o.seedOf(wl), isOpen(wl)
	if open {
		wl = "random"
	}
	if names, err = apps.Workload(wl, o.jobs, rand.NewPCG(seed, 0)); err != nil || !open {
		return names, nil, err
	}
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a comparison is repeatable, not secret
	gap := cluster.SoloS(names) / float64(len(names)) / o.load
	at = make([]float64, len(names))
	for i := 1; i < len(at); i++ {
		at[i] = at[i-1] + gap*r.ExpFloat64()
	}
	return names, at, nil
}
