package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// torment causes faults until the context ends, about one in everyS seconds, and mends all.
func (c *campaign) torment(ctx context.Context, rnd *rand.Rand) {
	kinds := slices.DeleteFunc(slices.Clone(cluster.Faults), func(f cluster.Fault) bool { return c.o.plain && !f.Slurm })
	sum := 0
	for i := range kinds {
		sum += kinds[i].Weight
	}
	var mend sync.WaitGroup
	for wait(ctx, rnd.ExpFloat64()*c.o.everyS) {
		pick, i := rnd.IntN(sum), 0
		for ; pick >= kinds[i].Weight; i++ {
			pick -= kinds[i].Weight
		}
		f, node := &kinds[i], rnd.IntN(len(c.o.nodeGPUs))
		s := f.Least + (f.Most-f.Least)*rnd.Float64()
		own := rand.New(rand.NewPCG(rnd.Uint64(), 0)) //nolint:gosec // repeatable, not secret
		mend.Go(func() { c.strike(ctx, f, node, s, own) })
	}
	mend.Wait()
}

// strike causes one fault and notes it.
func (c *campaign) strike(ctx context.Context, f *cluster.Fault, node int, s float64, rnd *rand.Rand) {
	from := now()
	name, err := f.Play(ctx, c.s, node, s, rnd)
	if errors.Is(err, cluster.ErrNothing) {
		return
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "soak: %s: %v\n", f.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[f.Name]++
	if f.Plain && name == "" {
		c.outages = append(c.outages, outage{interval{from, now()}, -1, "", true})
	}
	c.faults = append(c.faults, fault{interval{from, now()}, f.Name, name, f.Plain})
}

// pulse notes since when the bridge doesn't answer.
func (c *campaign) pulse(ctx context.Context) {
	client := &http.Client{Timeout: time.Second}
	for wait(ctx, 1) {
		resp, err := client.Get(c.s.URL + "/-/healthy")
		c.mu.Lock()
		switch {
		case err == nil:
			_ = resp.Body.Close()
			c.dead = 0
		case c.dead == 0:
			c.dead = now()
		}
		c.mu.Unlock()
	}
}

// wait sleeps, unless the context ends.
func wait(ctx context.Context, s float64) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(s * float64(time.Second))):
		return true
	}
}
