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
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
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
			"sharers_only: []", "mixed_partitions: share", "adopt: [{partition: " + slurmtest.Partition + "}]",
			"adopt_mode: active", "adopt_percent: 100",
		},
	})
}

// adopted is the variant in which jobs ask for whole GPUs, and share by a rule of the site. It takes Slurm 23.11.5.
const adopted = "adopted"

// namesOf are the variants' names.
func namesOf(all []variant) (out []string) {
	for _, v := range all {
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

// workload is the applications of its jobs, in the order of submission. Workloads are closed, which is the thesis's
// five: all jobs are there before the first may start; or open: jobs come over time. The open ones differ by their
// seeds.
type workload struct {
	name string
	apps []string
	at   []float64 // when each is submitted, GPU seconds after the beginning; nil = all before it
	seed uint64    // of the draw
}

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
func isOpen(name string) bool { return strings.HasPrefix(name, openName+"-") }

// objective is what a workload is judged by, and what the bridge's decisions are to keep small there.
func objective(name string) policy.Objective {
	if isOpen(name) {
		return policy.Turnaround
	}
	return policy.Makespan
}

// networkFor is the policy with the network that is built in for an objective.
func networkFor(o policy.Objective) string {
	return map[policy.Objective]string{policy.Turnaround: pretrained.Name, policy.Makespan: pretrained.ForMakespan}[o]
}

// of is the figure of an objective, GPU seconds.
func (f *figures) of(o policy.Objective) float64 {
	if o == policy.Turnaround {
		return f.MeanTurnaroundS
	}
	return f.MakespanS
}

// workload draws a workload. The same options give the same jobs at the same times. Open ones have the applications of
// the thesis's random one, and come at random (Poisson): o.load times as much work as one GPU can do without sharing.
func (o *options) workload(name string) (w workload, err error) {
	w.name, w.seed = name, o.seed
	if !isOpen(name) {
		w.apps, err = apps.Workload(name, o.jobs, rand.NewPCG(w.seed, 0))
		return w, err
	}
	w.seed += uint64(slices.Index(workloads(), name) - len(experiment.Workloads()))
	if w.apps, err = apps.Workload("random", o.jobs, rand.NewPCG(w.seed, 0)); err != nil {
		return w, err
	}
	r := rand.New(rand.NewPCG(w.seed, 1)) //nolint:gosec // a comparison is repeatable, not secret
	gap := cluster.SoloS(w.apps) / float64(len(w.apps)) / o.load
	w.at = make([]float64, len(w.apps))
	for i := 1; i < len(w.at); i++ {
		w.at[i] = w.at[i-1] + gap*r.ExpFloat64()
	}
	return w, nil
}
