package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// TestFiguresOfHooks measures what the hooks cost jobs without a GPU: the time of srun without
// hooks, with hooks that are a shell which does nothing, and with ours, by turns.
func TestFiguresOfHooks(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("SLURMBRIDGE_FIGURES"))
	if err != nil {
		t.Skip("make bench runs it")
	}
	if rounds == 1 {
		rounds = 40
	}
	nothing := func(c *slurmtest.Cluster) error {
		path := c.Path("nothing")
		c.Options.Prolog, c.Options.Epilog, c.Options.TaskProlog, c.Options.EpilogSlurmctld = path, path, path, path
		return os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o755)
	}
	sites := []struct {
		name    string
		prepare func(*slurmtest.Cluster) error
		*slurmtest.Cluster
		took map[int][]time.Duration
	}{{name: "no hooks"}, {name: "hooks that do nothing", prepare: nothing}, {name: "ours", prepare: etcHooks(1, 1, 1, 1)}}
	tasks := []int{1, 4}
	for i := range sites {
		s := &sites[i]
		s.Cluster = slurmtest.New(t, slurmtest.Options{Nodes: 4, Prepare: s.prepare})
		// A job with a GPU has been here.
		must.Get(s.RunAs(t.Context(), ann, "srun", "-N4", "--gres=gpu:1", "true"))(t)
		s.took = map[int][]time.Duration{}
	}
	for range rounds {
		for _, n := range tasks {
			for _, s := range sites {
				start := time.Now()
				must.Get(s.RunAs(t.Context(), ann, "srun", fmt.Sprintf("-N%d", n), "true"))(t)
				s.took[n] = append(s.took[n], time.Since(start))
				time.Sleep(200 * time.Millisecond) // its epilog is no part of the next one
			}
		}
	}
	for _, n := range tasks {
		for _, s := range sites {
			t.Logf("srun -N%d true, %d times, %s: p50 %v p90 %v", n, rounds, s.name, quantile(s.took[n], .5),
				quantile(s.took[n], .9))
		}
	}
}

func quantile(v []time.Duration, q float64) time.Duration {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))].Round(100 * time.Microsecond)
}
