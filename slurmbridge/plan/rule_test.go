package plan

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// What was seen on 22.05.8 (shard, and mps with all_sharing) and 26.05.5 (shard): one node of four idle
// GPUs, jobs released by one update.
func TestWhereSlurmPutsRequests(t *testing.T) {
	for _, c := range []struct{ shares, want []int }{
		{[]int{70, 60, 40, 30}, []int{0, 1, 1, 0}},
		{[]int{34, 33, 33, 34, 33, 33, 34, 33, 33, 34, 33, 33}, []int{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}},
		{[]int{90, 80, 70, 30, 20, 10, 100}, []int{0, 1, 2, 2, 1, 0, 3}},
		{[]int{60, 60, 60, 60, 60}, []int{0, 1, 2, 3, -1}},
	} {
		free := []int{100, 100, 100, 100}
		for i, s := range c.shares {
			g := firstFit.pick(free, s)
			must.Equal(t, g, c.want[i], "%v: where request %d lands", c.shares, i)
			if g >= 0 {
				free[g] -= s
			}
		}
	}
}

func TestLeastLoaded(t *testing.T) {
	must.Equal(t, leastLoaded.pick([]int{100, 100}, 50), 0)
	must.Equal(t, leastLoaded.pick([]int{50, 100}, 50), 1)
	must.Equal(t, leastLoaded.pick([]int{40, 60, 60}, 30), 1)
	must.Equal(t, leastLoaded.pick([]int{10, 20}, 30), -1)
}

// Numbers that are found are right: each request lands where it is meant to, chosen ones get their
// least at least, given ones stay, and nothing but what is to be spared is left.
func TestEachRequestLandsWhereItIsMeant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "GPUs")
		free, spare := make([]int, n), make([]int, n)
		for g := range free {
			free[g] = rapid.SampledFrom([]int{0, 33, 50, 100}).Draw(t, "free")
			spare[g] = rapid.IntRange(0, free[g]/2).Draw(t, "spare")
		}
		var requests []placement
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			q := placement{gpu: rapid.IntRange(0, n-1).Draw(t, "gpu"), least: rapid.IntRange(1, 20).Draw(t, "least")}
			if rapid.IntRange(0, 3).Draw(t, "given") == 0 {
				q.Shares = rapid.IntRange(1, 60).Draw(t, "shares")
			}
			requests = append(requests, q)
		}
		r := rapid.SampledFrom([]rule{firstFit, leastLoaded}).Draw(t, "rule")
		was := slices.Clone(requests)
		if !r.number(free, spare, 0, requests) {
			if !slices.Equal(was, requests) {
				t.Fatal("requests were changed in vain")
			}
			return
		}
		left, chosen := slices.Clone(free), make([]bool, n)
		for i, q := range requests {
			if q.gpu != was[i].gpu || was[i].Shares > 0 && q != was[i] || was[i].Shares == 0 && q.Shares < q.least {
				t.Fatalf("%+v became %+v", was[i], q)
			}
			if g := r.pick(left, q.Shares); g != q.gpu {
				t.Fatalf("request %d lands on %d: %+v", i, g, requests)
			}
			left[q.gpu] -= q.Shares
			chosen[q.gpu] = chosen[q.gpu] || was[i].Shares == 0
		}
		for g := range left {
			if chosen[g] && left[g] != spare[g] {
				t.Fatalf("GPU %d keeps %d, not %d", g, left[g], spare[g])
			}
		}
	})
}

// Where firstFit has numbers, they are found: compared with a search through all of them.
func TestNumberFindsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const whole = 6
		n := rapid.IntRange(2, 3).Draw(t, "GPUs")
		free, spare := make([]int, n), make([]int, n)
		for g := range free {
			free[g] = rapid.IntRange(0, whole).Draw(t, "free")
		}
		requests := make([]placement, rapid.IntRange(1, 5).Draw(t, "requests"))
		for i := range requests {
			requests[i].gpu = rapid.IntRange(0, n-1).Draw(t, "gpu")
		}
		if found, exists := firstFit.number(free, spare, 0, slices.Clone(requests)),
			search(free, requests, 0); found != exists {
			t.Fatalf("free %v, %+v: found %v, exists %v", free, requests, found, exists)
		}
	})
}

// search reports whether numbers exist that fill each GPU that a request is meant for.
func search(free []int, requests []placement, at int) bool {
	if at == len(requests) {
		left := slices.Clone(free)
		for _, q := range requests {
			left[q.gpu] -= q.Shares
		}
		isLeft := func(q placement) bool { return left[q.gpu] != 0 }
		return !slices.ContainsFunc(requests, isLeft) && firstFit.lands(free, 0, requests)
	}
	found := false
	for s := 1; s <= free[requests[at].gpu] && !found; s++ {
		requests[at].Shares = s
		found = search(free, requests, at+1)
	}
	requests[at].Shares = 0
	return found
}
