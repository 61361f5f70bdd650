package schedule

import (
	"encoding/json"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// A set has what it was made of, in order, once, and comes through JSON.
func TestASetHasWhatItWasMadeOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.SliceOf(rapid.IntRange(-2, 20)).Draw(t, "GPUs")
		n := rapid.IntRange(0, 25).Draw(t, "of so many")
		s := NewGPUSet(of...)
		var want []int
		for g := range n {
			if slices.Contains(of, g) {
				want = append(want, g)
			}
			if s.Has(g) != slices.Contains(of, g) {
				t.Fatalf("%v has %d: %v", of, g, s.Has(g))
			}
		}
		if got := slices.Collect(s.Of(n)); !slices.Equal(got, want) || s.Len(n) != len(want) {
			t.Fatalf("of %d GPUs it has %v, which are %d; want %v", n, got, s.Len(n), want)
		}
		b, err := json.Marshal(s)
		var again GPUSet
		if err != nil || json.Unmarshal(b, &again) != nil || !slices.Equal(again.list, s.list) {
			t.Fatalf("%s, %v: %v", b, err, again.list)
		}
	})
}

// nil is the set of all GPUs, and a stored set of impossible ones is refused.
func TestGPUSetOfAll(t *testing.T) {
	var all *GPUSet
	if !all.Has(7) || all.Len(3) != 3 || !slices.Equal(slices.Collect(all.Of(3)), []int{0, 1, 2}) {
		t.Errorf("it has %v of 3", slices.Collect(all.Of(3)))
	}
	for _, text := range []string{"[-1]", "[1048576]", `["a"]`, "{}"} {
		var s GPUSet
		must.Fail(t, json.Unmarshal([]byte(text), &s), "", text)
	}
}
