package sim

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// stepped is a profile of two phases that ask for nothing but memory.
func stepped(app string, firstS, firstMiB, thenS, thenMiB float64) *rlcore.Profile {
	p := &rlcore.Profile{App: app, DurationS: firstS + thenS, PeriodS: firstS}
	p.Series = []rlcore.Use{{MemMiB: firstMiB}, {MemMiB: thenMiB}}
	return p
}

// A job that outgrows the card's memory loses its run, tries once more with co-runners,
// and then waits for a GPU of its own.
func TestRestartsByHand(t *testing.T) {
	cfg := config(1, constant("a", 100, 0, 8000), stepped("b", 10, 1000, 90, 6000))
	d := &rlcore.Decider{Policy: choice(crowd), Guard: Bare()}
	s := must.Get(New(cfg))(t)
	for s.Next() {
		s.Take(s.Decide(d))
	}
	r := must.Get(s.Result())(t)
	a, b := &r.Jobs[0], &r.Jobs[1]
	near(t, "a", a.EndS, 100)
	near(t, "b starts for good", b.StartS, 100)
	near(t, "b", b.EndS, 200)
	must.Equal(t, [3]int{a.Failures, b.Failures, r.OOM}, [3]int{0, 2, 2}, "failures of a, of b and in all")
	near(t, "b's slowdown counts the run that succeeded", b.Slowdown, 1)
	near(t, "the turnaround counts all", r.MeanTurnaroundS, 150)
	near(t, "work done, lost runs' included", s.WorkS(0), 100+10+10+100)
}

// A job that needs more memory than is left fails; a later one that fits doesn't.
func TestTheJobThatDoesNotFitFails(t *testing.T) {
	cfg := config(1, constant("a", 100, 0, 8000), constant("b", 10, 0, 6000), constant("c", 10, 0, 200))
	r := run(t, cfg, &rlcore.Decider{Policy: choice(crowd), Guard: Bare()})
	if got := []int{r.Jobs[0].Failures, r.Jobs[1].Failures, r.Jobs[2].Failures}; got[0] != 0 || got[1] == 0 ||
		got[2] != 0 {
		t.Errorf("failures %v, only b's start asks for too much", got)
	}
	near(t, "c", r.Jobs[2].EndS, 10)
}
