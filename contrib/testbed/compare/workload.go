package compare

import (
	"fmt"
	"image/color"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// variant is one way to give jobs a GPU.
type variant struct {
	name    string
	gres    string      // each job's request
	colour  color.Color // in pictures; a policy has that of its spec
	policy  string      // the bridge's; "" = plain Slurm
	sharing string      // "" = mps
	hooks   bool
	// mayFail: Slurm shares the GPU without knowing of its memory, so jobs may fail for want of it.
	mayFail bool
	// settings are further lines of slurmbridge.yaml.
	settings []string
}

// variants are all, in the order of tables.
func variants() []variant {
	out := []variant{
		{name: "whole", colour: figure.Grey, gres: "gpu:titanxp:1"},
		{name: "shard_half", colour: figure.Orange, gres: "shard:50", sharing: "shard", mayFail: true},
		{name: "mps_half", colour: figure.Purple, gres: "mps:50", hooks: true, mayFail: true},
	}
	for _, name := range []string{"tetris", "greedy", "srpt", "lookahead", "dqn"} {
		spec, _ := policy.Named(name)
		out = append(out, variant{name: name, colour: spec.Colour, gres: "gpu:shared", policy: name})
	}
	dqn := out[len(out)-1]
	return append(out, variant{
		name: adopted, colour: figure.Green, gres: out[0].gres, policy: dqn.policy, settings: []string{
			"sharers_only: []", "adopt: [{partition: " + slurmtest.Partition + "}]", "adopt_mode: active", "adopt_percent: 100", "adopt_charge: nothing",
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

// pick returns the variants of these names, in the order of tables; none named: all. An error names
// the known ones.
func pick(names []string) ([]variant, error) {
	chosen, err := choose("variant", names, variantNames())
	return slices.DeleteFunc(variants(), func(v variant) bool { return !slices.Contains(chosen, v.name) }), err
}

// choose returns which of the known names are among names, in the known order; none named: all. "open" means each of the open
// workloads.
func choose(kind string, names, known []string) ([]string, error) {
	if len(names) == 0 {
		return known, nil
	}
	want := map[string]bool{}
	for _, n := range names {
		want[strings.ToLower(strings.TrimSpace(n))] = true
	}
	out := slices.DeleteFunc(slices.Clone(known), func(n string) bool { return !want[n] && !(isOpen(n) && want[openName]) })
	maps.DeleteFunc(want, func(n string, _ bool) bool {
		return n == "" || slices.Contains(known, n) || n == openName && slices.ContainsFunc(known, isOpen) // "" is a comma too many
	})
	if len(want) > 0 {
		if slices.ContainsFunc(known, isOpen) {
			known = append([]string{openName}, known...)
		}
		return nil, fmt.Errorf("there is no %s %q; there are %s", kind, strings.Join(slices.Sorted(maps.Keys(want)), ", "), strings.Join(known, ", "))
	}
	return out, nil
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
