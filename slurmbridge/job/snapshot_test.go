package job

import (
	"testing"

	"pgregory.net/rapid"
)

// What Slurm takes for a job of so many CPUs. All but the last two were seen on 22.05.8.
func TestAllocates(t *testing.T) {
	for _, c := range []struct {
		what       string
		node       Node
		cpus, want int
	}{
		{"single CPUs", Node{CPUs: 16}, 3, 3},
		{"two threads a core", Node{CPUs: 16, CPUsPerAlloc: 2}, 1, 2},
		{"two threads a core", Node{CPUs: 16, CPUsPerAlloc: 2}, 3, 4},
		{"two threads a core", Node{CPUs: 16, CPUsPerAlloc: 2}, 4, 4},
		{"a socket", Node{CPUs: 16, CPUsPerAlloc: 8}, 1, 8},
		{"three tasks, a core each", Node{CPUs: 16, CPUsPerAlloc: 2, TaskPerCore: true}, 3, 6},
		{"no more than there is", Node{CPUs: 16, CPUsPerAlloc: 2, TaskPerCore: true}, 12, 16},
		{"too large", Node{CPUs: 15, CPUsPerAlloc: 2}, 17, 18},
	} {
		if got := c.node.Allocates(c.cpus); got != c.want {
			t.Errorf("%s: %d CPUs take %d, want %d", c.what, c.cpus, got, c.want)
		}
	}
}

// A node never takes fewer CPUs than a job asks for, nor makes one that fits too large.
func TestAllocatesEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := Node{CPUs: rapid.IntRange(0, 64).Draw(t, "CPUs"), CPUsPerAlloc: rapid.IntRange(0, 8).Draw(t, "per"), TaskPerCore: rapid.Bool().Draw(t, "tasks")}
		cpus := rapid.IntRange(0, 80).Draw(t, "asks")
		if got := n.Allocates(cpus); got < cpus || cpus <= n.CPUs && got > n.CPUs {
			t.Errorf("%d", got)
		}
	})
}

// Memory by the CPU grows with the CPUs that are allocated, memory by the node doesn't. Seen on 22.05.8.
func TestTakes(t *testing.T) {
	n := Node{CPUs: 16, CPUsPerAlloc: 2}
	for want, j := range map[float64]Job{
		300: {CPUs: 1, HostMemMiB: 300}, 600: {CPUs: 1, HostMemMiB: 300, MemPerCPU: true},
		1200: {CPUs: 3, HostMemMiB: 900, MemPerCPU: true}, 0: {MemPerCPU: true},
	} {
		if got := n.Takes(&j); got != want {
			t.Errorf("%+v takes %v, want %v", j, got, want)
		}
	}
}
