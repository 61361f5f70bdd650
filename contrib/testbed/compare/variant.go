package main

import (
	"fmt"
	"image/color"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// variant is one way to give jobs a GPU.
type variant struct {
	name  string
	what  string // for people
	gres  string // each job's request
	setup cluster.Setup
	// colour in pictures; a policy has that of its spec.
	colour color.Color
	// repeatable: the simulator can repeat the run. Its law is MPS's, so jobs must
	// share through MPS or not at all; and none may fail for memory.
	repeatable bool
}

// lease is longer than it takes to submit all jobs while the bridge is stopped.
const lease = 90 * time.Second

// variants are all, in the order of tables.
func variants() []variant {
	out := []variant{
		{name: "whole", colour: figure.Grey, what: "plain Slurm, whole GPUs", gres: "gpu:titanxp:1", repeatable: true},
		{name: "shard_half", colour: figure.Orange, what: "plain Slurm, gres/shard, every job half", gres: "shard:50", setup: cluster.Setup{Sharing: "shard"}},
		{name: "mps_half", colour: figure.Purple, what: "plain Slurm, gres/mps, every job half", gres: "mps:50", setup: cluster.Setup{Hooks: true}},
	}
	for _, name := range []string{"tetris", "greedy", "srpt", "lookahead", "dqn"} {
		spec, _ := policy.Named(name)
		out = append(out, variant{
			name: name, colour: spec.Colour, what: "the bridge with policy " + name, gres: "gpu:shared", repeatable: true,
			setup: cluster.Setup{Policy: name, Lease: lease},
		})
	}
	return out
}

// variantNames are the names of all variants, in the order of tables.
func variantNames() []string {
	var out []string
	for _, v := range variants() {
		out = append(out, v.name)
	}
	return out
}

// bridged reports whether the bridge decides.
func (v *variant) bridged() bool { return v.setup.Policy != "" }

// pick returns the variants of these names, in the order of tables; none named: all. An error names
// the known ones.
func pick(names []string) ([]variant, error) {
	all := variants()
	if len(names) == 0 {
		return all, nil
	}
	chosen, err := choose("variant", names, variantNames())
	if err != nil {
		return nil, err
	}
	var out []variant
	for i := range all {
		for _, n := range chosen {
			if n == all[i].name {
				out = append(out, all[i])
			}
		}
	}
	return out, nil
}

// choose returns which of the known names are among names, in the known order.
func choose(kind string, names, known []string) ([]string, error) {
	want := map[string]bool{}
	for _, n := range names {
		want[strings.ToLower(strings.TrimSpace(n))] = true
	}
	var out []string
	for _, n := range known {
		if want[n] {
			out = append(out, n)
			delete(want, n)
		}
	}
	delete(want, "") // a comma too many
	if len(want) > 0 {
		unknown := strings.Join(slices.Sorted(maps.Keys(want)), ", ")
		return nil, fmt.Errorf("there is no %s %q; there are %s", kind, unknown, strings.Join(known, ", "))
	}
	return out, nil
}
