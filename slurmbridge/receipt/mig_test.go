package receipt

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// cuttable is a world of one GPU of 10,000 MiB that can be cut into slices of 1,250 MiB.
func cuttable() *World {
	w := world()
	w.Cut = func(typ string, n int) (rlcore.GPUSpec, bool) {
		return rlcore.GPUSpec{Model: fmt.Sprint(n), MemMiB: float64(1250 * n)}, typ == "x"
	}
	return w
}

// small is an application that uses so many parts of a GPU's SMs, and a slice's memory.
func small(core, mib float64) *rlcore.Profile {
	return &rlcore.Profile{
		App: "small", DurationS: 3600, PeriodS: 3600,
		Series: []rlcore.Use{{GPU: .3, Core: core, MemMiB: mib}}, Runs: 3,
	}
}

// waiting are jobs of an hour on a whole GPU that came at once.
func waiting(n int, p *rlcore.Profile) (out []history.Run) {
	for i := range n {
		out = append(out, wholly(fmt.Sprint(p.App, i), "ann", 0, float64(60*i), p))
	}
	return out
}

func (x *Layouts) row(t *testing.T, name string, shared bool) *Layout {
	t.Helper()
	for i := range x.Layouts {
		if l := &x.Layouts[i]; l.Name == name && l.Shared == shared {
			return l
		}
	}
	t.Fatalf("no layout %s in %+v", name, x.Layouts)
	return nil
}

// Of seven jobs that keep a fifth of the SMs busy, each takes 2.3 hours on an eighth of them, all at once; on a whole
// GPU they take an hour each, in turn.
func TestManySmallJobsWantSlices(t *testing.T) {
	x := must.Get(cuttable().MIG(waiting(7, small(.2, 1000))))(t)
	near(t, "whole", x.row(t, "whole", false).Turnaround, 4)
	near(t, "cut in seven", x.row(t, "7 × 1g", false).Turnaround, 2.3)
	if l := x.row(t, "3 × 2g + 1g", false); l.GPUs != 4 || !(l.Turnaround > 1) || l.refuses() {
		t.Errorf("%+v", l)
	}
	must.Equal(t, [4]int{x.Jobs, x.Cut, x.Whole, len(x.Layouts)}, [4]int{7, 1, 0, 8}, "jobs, GPUs cut and whole, layouts")
}

// A layout that has no room for a job's memory isn't the best, however early the others end there.
func TestNoneIsRefusedUnderTheBestLayout(t *testing.T) {
	jobs := append(waiting(14, small(.05, 1000)), wholly("big", "bob", 0, 840, &rlcore.Profile{
		App: "big", DurationS: 60, PeriodS: 60, Series: []rlcore.Use{
			{GPU: .9, Core: .9, MemMiB: 100},
			{GPU: .9, Core: .9, MemMiB: 3000},
		}, Runs: 3,
	}))
	x := must.Get(cuttable().MIG(jobs))(t)
	for _, l := range x.Layouts {
		if fits := l.Name == "whole" || l.Name == "2 × 3g"; l.refuses() == fits || l.Several > 0 {
			t.Errorf("%+v", l)
		}
	}
	best := x.Layouts[x.Best]
	if cut := x.row(t, "7 × 1g", false); best.refuses() || !(cut.Turnaround < x.row(t, "whole", false).Turnaround) {
		t.Errorf("best %+v, cut in seven %+v", best, cut)
	}
	var text strings.Builder
	x.Text(&text)
	for _, want := range []string{"each GPU as " + best.Name, "No GPU is changed", "15 jobs were run"} {
		must.Contain(t, text.String(), want)
	}
}

// A job of two GPUs can't have instances, and of a job without a profile nothing is known on a slice.
func TestWhatNoSliceCanBe(t *testing.T) {
	w := cuttable()
	w.Nodes[0].GPUs = 2
	two := wholly("two", "bob", 0, 60, small(.2, 1000))
	two.WholeGPUs, two.GPUs = 2, []int{0, 1}
	x := must.Get(w.MIG(append(waiting(3, small(.2, 1000)), two, wholly("u", "eve", 0, 120, nil))))(t)
	if x.row(t, "whole", true).Several != 0 || x.row(t, "2 × 3g", false).Several != 1 ||
		x.Layouts[x.Best].Name != "whole" ||
		x.LeftOut["what it used isn't known"] != 1 || x.Jobs != 4 {
		t.Errorf("%+v", x)
	}
	w.Nodes = []job.Node{{Name: "n1", GPUs: 1, GPUType: "y", Partitions: []string{"gpu"}}}
	must.Is(t, must.Err(w.MIG(waiting(3, small(.2, 1000)))), ErrReplay, "no GPU has MIG")
}
