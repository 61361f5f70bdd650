package compare

import (
	"fmt"
	"image/color"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
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
	// repeatable: the simulator can repeat the run. Its law is MPS's, so jobs must
	// share through MPS or not at all; and none may fail for memory.
	repeatable bool
}

// lease is longer than it takes to submit all jobs while the bridge is stopped.
const lease = 90 * time.Second

// variants are all, in the order of tables.
func variants() []variant {
	out := []variant{
		{name: "whole", colour: figure.Grey, gres: "gpu:titanxp:1", repeatable: true},
		{name: "shard_half", colour: figure.Orange, gres: "shard:50", sharing: "shard"},
		{name: "mps_half", colour: figure.Purple, gres: "mps:50", hooks: true},
	}
	for _, name := range []string{"tetris", "greedy", "srpt", "lookahead", "dqn"} {
		spec, _ := policy.Named(name)
		out = append(out, variant{name: name, colour: spec.Colour, gres: "gpu:shared", policy: name, repeatable: true})
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

// pick returns the variants of these names, in the order of tables; none named: all. An error names
// the known ones.
func pick(names []string) ([]variant, error) {
	if len(names) == 0 {
		return variants(), nil
	}
	chosen, err := choose("variant", names, variantNames())
	return slices.DeleteFunc(variants(), func(v variant) bool { return !slices.Contains(chosen, v.name) }), err
}

// choose returns which of the known names are among names, in the known order.
func choose(kind string, names, known []string) ([]string, error) {
	want := map[string]bool{}
	for _, n := range names {
		want[strings.ToLower(strings.TrimSpace(n))] = true
	}
	out := slices.DeleteFunc(slices.Clone(known), func(n string) bool { return !want[n] })
	delete(want, "") // a comma too many
	for _, n := range out {
		delete(want, n)
	}
	if len(want) > 0 {
		unknown := strings.Join(slices.Sorted(maps.Keys(want)), ", ")
		return nil, fmt.Errorf("there is no %s %q; there are %s", kind, unknown, strings.Join(known, ", "))
	}
	return out, nil
}
