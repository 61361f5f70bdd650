package config

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// An instance is a part of its card, where that is known, and has the memory of its name; nothing need be written for
// it.
func TestAnInstanceIsAPartOfItsCard(t *testing.T) {
	c := must.Get(Load(write(t, "gpu_types:\n  h100: {same_user: false}\n  4g.40gb: {mem_mib: 39000}\n"), nil))(t)
	for typ, want := range map[string]rlcore.GPUSpec{
		"1g.10gb":                          {MemMiB: 9000, SameUser: true, MaxClients: 6, MemLimits: true},
		"h100_2g.20gb":                     {MemMiB: 18000, MaxClients: 13, MemLimits: true},
		"NVIDIA H100 MIG 7g.80gb":          {MemMiB: 72000, MaxClients: 48, MemLimits: true},
		"NVIDIA A100-SXM4-40GB MIG 1g.5gb": {MemMiB: 4500, SameUser: true, MaxClients: 6, MemLimits: true},
	} {
		want.Model = typ
		if spec, ok := c.Spec(typ); !ok || spec != want {
			t.Errorf("%s: %+v, want %+v", typ, spec, want)
		}
	}
	if spec, ok := c.Spec("NVIDIA H100 MIG 4g.40gb"); !ok || spec.MemMiB != 39000 {
		t.Errorf("what the settings say of an instance: %+v", spec)
	}
}

// A card is cut into instances by the names that NVIDIA's guide gives them.
func TestInstancesByNVIDIAsNames(t *testing.T) {
	c := must.Get(Load(write(t, ""), nil))(t)
	for typ, names := range map[string][3]string{
		"a100": {"a100_1g.5gb", "a100_2g.10gb", "a100_3g.20gb"}, "H100": {"H100_1g.10gb", "H100_2g.20gb", "H100_3g.40gb"},
		"h200": {"h200_1g.18gb", "h200_2g.35gb", "h200_3g.71gb"},
	} {
		for i, name := range names {
			if spec, ok := c.Cut(typ, i+1); !ok || spec.Model != name {
				t.Errorf("%s in %d: %+v, want %s", typ, i+1, spec, name)
			}
		}
	}
	for _, typ := range []string{"titanxp", "l40s", "1g.10gb", "unheard-of"} {
		if spec, ok := c.Cut(typ, 1); ok {
			t.Errorf("%s is cut: %+v", typ, spec)
		}
	}
}
