package job

import (
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// SetTypes describes the node's GPUs by their types.
func (n *Node) SetTypes(types []string) {
	n.GPUs, n.GPUType, n.ByIndex = len(types), "", nil
	if len(slices.Compact(slices.Clone(types))) == 1 {
		n.GPUType = types[0]
		return
	}
	for _, typ := range types {
		n.ByIndex = append(n.ByIndex, GPU{Type: typ, Units: Units})
	}
}

func TestInstanceOf(t *testing.T) {
	for name, want := range map[string]Instance{
		"1g.10gb":                           {"", "1g.10gb", 1, 10},
		"nvidia_a100-sxm4-40gb_3g.20gb":     {"nvidia_a100-sxm4-40gb", "3g.20gb", 3, 20},
		"NVIDIA H100 80GB HBM3 MIG 1g.20gb": {"NVIDIA H100 80GB HBM3", "1g.20gb", 1, 20},
		"a100_1g.5gb+me":                    {"a100", "1g.5gb+me", 1, 5},
		"a100l.2g.20gb":                     {"a100l", "2g.20gb", 2, 20},
		"h100-1g_10gb":                      {"h100", "1g.10gb", 1, 10},
		"3g_40gb":                           {"", "3g.40gb", 3, 40},
	} {
		of, ok := InstanceOf(name)
		if must.Equal(t, of, want, name); !ok {
			t.Errorf("%s is no instance", name)
		}
	}
	for _, name := range []string{
		"", "h100", "a100-80gb", "1c.3g.20gb", "a100_1c.3g.20gb", "a100.1c.3g_20gb", "9g.10gb", "1g.10gb,x",
		"1g.0gb", "11g.10gb",
	} {
		if of, ok := InstanceOf(name); ok {
			t.Errorf("%s is %+v", name, of)
		}
	}
}

// A record names what a GPU was: where the node is cut in another way now, it says nothing.
func TestCardsOfARecutNode(t *testing.T) {
	const small, large = "H100 MIG 1g.10gb", "H100 MIG 3g.40gb"
	n := Node{Name: "n"}
	n.SetTypes([]string{"3g.40gb", "1g.10gb"})
	seen := map[GPUAddr]string{{"n", 0}: small, {"n", 1}: small}
	must.Equal(t, NameModels(seen, []Node{n}), map[GPUAddr]string{{"n", 0}: UnseenModel, {"n", 1}: small})
	seen[GPUAddr{"n", 0}] = large
	must.Equal(t, NameModels(seen, []Node{n}), map[GPUAddr]string{{"n", 0}: large, {"n", 1}: small})
}

// Shares are asked for by type where instances are mixed with others, each type in a row, and in no other case.
func TestWhichNodesAreTyped(t *testing.T) {
	for _, c := range []struct {
		types   []string
		sharing Sharing
		want    bool
	}{
		{[]string{"h100", "2g.20gb"}, Shard, true},
		{[]string{"1g.10gb", "2g.20gb", "2g.20gb"}, Shard, true},
		{[]string{"h100", "2g.20gb"}, MPS, false},
		{[]string{"h100", "a100"}, Shard, false},
		{[]string{"2g.20gb", "2g.20gb"}, Shard, false},
		{[]string{"2g.20gb", "h100", "2g.20gb"}, Shard, false},
	} {
		n := Node{Sharing: c.sharing}
		if n.SetTypes(c.types); n.Typed() != c.want {
			t.Errorf("%v by %s: %v", c.types, c.sharing, !c.want)
		}
	}
	mixed, down := Node{Sharing: Shard}, Node{Sharing: Shard}
	mixed.SetTypes([]string{"h100", "2g.20gb", "2g.20gb"})
	down.SetTypes([]string{"a100"})
	must.Equal(t, (&Snapshot{Nodes: []Node{mixed, down}}).Models(), []string{"2g.20gb", "a100", "h100"})
	must.Equal(t, (&Snapshot{Nodes: []Node{down}}).Models(), nil)
	must.Equal(t, ParseTerms("share:model=2g.20gb"), Terms{Model: "2g.20gb"})
	if got := ParseTerms("share:model=a:b"); got.Model != "" || len(got.Ignored) != 1 {
		t.Errorf("%+v", got)
	}
}
