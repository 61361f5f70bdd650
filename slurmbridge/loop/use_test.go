package loop_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
)

// during is a policy that calls a function while it decides, and then decides as exclusive
// does.
type during struct {
	baseline.Exclusive
	do func()
}

func (d *during) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	d.do()
	d.Exclusive.Score(dst, w, combos)
}

// broken values everything with NaN.
type broken struct{ baseline.Exclusive }

func (broken) Name() string { return "broken" }

func (broken) Score(dst []float64, _ *rlcore.Window, _ []rlcore.Combo) {
	for i := range dst {
		dst[i] = math.NaN()
	}
}

// named is exclusive under another name.
type named struct {
	baseline.Exclusive
	name string
}

func (n named) Name() string { return n.name }

// trained is a model's policy.
type trained struct{ named }

func (trained) Model() string { return "7" }

// Another policy decides from the next tick on: one that comes while a tick decides waits
// for its end.
func TestUse(t *testing.T) {
	m := newModel(node("n1", 2, 8))
	b := bridge(m, newMemory())
	tick(t, b, m, time.Second)
	submit := func() { m.submit("ann", time.Hour, app("a", 3600, 0.9, 9000), true) }
	asked := 0
	b.Use(&during{do: func() {
		asked++
		b.Use(named{name: "late"})
	}})
	if got := b.Status().Policy; got != "most" {
		t.Fatalf("before the next look %q decides", got)
	}
	submit()
	tick(t, b, m, time.Second)
	if got := b.Status().Policy; got != "exclusive" || asked == 0 {
		t.Errorf("%q decided, asked %d times, when another came in the middle", got, asked)
	}
	tick(t, b, m, time.Second)
	if got := b.Status().Policy; got != "late" {
		t.Errorf("%q decided after it", got)
	}
	// What is to be fallen back on comes with it, the model with its policy.
	b.Use(trained{named{name: "net"}})
	tick(t, b, m, time.Second)
	if got := b.Status(); got.Policy != "net" || got.Model != "7" {
		t.Errorf("%q decides by model %q", got.Policy, got.Model)
	}
	b.Use(broken{}, named{name: "instead"})
	submit()
	tick(t, b, m, time.Second)
	if got := b.Status().Model; got != "" {
		t.Errorf("after the fall back model %q is said to decide", got)
	}
	if got := b.Status().Policy; got != "instead" {
		t.Errorf("%q decided instead of one that values with NaN", got)
	}
}

// Policies may come from anywhere, at any time.
func TestUseConcurrently(t *testing.T) {
	m := newModel(node("n1", 1, 8))
	b := bridge(m, newMemory())
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for _, name := range []string{"x", "y"} {
		wg.Go(func() {
			for {
				b.Use(named{name: name}, baseline.Exclusive{})
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 20 {
		m.submit("ann", time.Second, app("a", 1, 0.5, 100), true)
		tick(t, b, m, time.Second)
	}
	close(stop)
	wg.Wait()
	tick(t, b, m, time.Second)
	if got := b.Status().Policy; got != "x" && got != "y" {
		t.Errorf("%q decides", got)
	}
}

// After a fall-back to exclusive, no shares are left for a second job, which never comes.
func TestFallBackThatNeverSharesGivesTheWholeGPU(t *testing.T) {
	for _, c := range []struct {
		policy rlcore.Policy
		shares int
	}{{named{name: "instead"}, 50}, {baseline.Exclusive{}, 100}} {
		m := newModel(node("n1", 1, 8))
		b := bridge(m, newMemory())
		b.Planner.Room, b.Planner.RoomAnyway, b.Planner.Join = true, true, true
		b.Use(broken{}, c.policy)
		tick(t, b, m, time.Second)
		j := m.submit("ann", time.Hour, app("a", 3600, 0.2, 1000), true)
		for range 5 {
			tick(t, b, m, time.Second)
		}
		if got := j.Request.Count; got != c.shares {
			t.Errorf("%s: the job has %d shares", c.policy.Name(), got)
		}
	}
}
