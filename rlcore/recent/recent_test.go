package recent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"

	"pgregory.net/rapid"
)

// owned names an owner in front of a slash.
func owned(k string) string { owner, _, _ := strings.Cut(k, "/"); return owner }

// One user who invents names keeps the last ones, and every other user keeps all of theirs.
func TestOneUsersNamesPushOutNobodyElses(t *testing.T) {
	m := New[string, int](1000, 3, owned)
	m.Put("ann/a", 1)
	for i := range 100 {
		m.Put(fmt.Sprintf("eve/%d", i), i)
	}
	got := slices.Sorted(maps.Keys(maps.Collect(m.All())))
	must.Equal(t, got, []string{"ann/a", "eve/97", "eve/98", "eve/99"})
}

// What is noted again is young again, and what was deleted leaves room.
func TestTheOldestGoesFirst(t *testing.T) {
	m := New[string, int](2, 2, func(string) string { return "" })
	m.Put("a", 1)
	m.Put("b", 1)
	m.Put("a", 2)
	m.Put("c", 1)
	if v, ok := m.Get("a"); !ok || v != 2 || m.Has("b") {
		t.Errorf("a is %v, %v; b is there: %v", v, ok, m.Has("b"))
	}
	m.Delete("c")
	m.Put("d", 1)
	if !m.Has("a") {
		t.Error("a is forgotten")
	}
}

// Whatever is noted and deleted, the bounds hold, the last entry is there, and a clone is another map.
func TestBoundsHoldWhateverIsNoted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const most, ofOwner = 6, 3
		m := New[string, int](most, ofOwner, owned)
		for i := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			k := rapid.SampledFrom([]string{"ann", "bob", "eve", ""}).Draw(rt, "owner") + "/" +
				rapid.StringMatching("[a-e]").Draw(rt, "name")
			if rapid.IntRange(0, 4).Draw(rt, "delete") == 0 {
				m.Delete(k)
				continue
			}
			before := m.Clone()
			m.Put(k, i)
			counts := map[string]int{}
			for k := range m.All() {
				counts[owned(k)]++
			}
			for owner, n := range counts {
				if owner != "" && n > ofOwner {
					rt.Fatalf("%d entries of %s", n, owner)
				}
			}
			if v, ok := m.Get(k); m.Len() > most || !ok || v != i || !maps.Equal(counts, m.counts) {
				rt.Fatalf("%d entries, %v of %s after %d", m.Len(), v, k, i)
			}
			if v, ok := before.Get(k); ok && v == i {
				rt.Fatal("a clone has changed")
			}
		}
	})
}
