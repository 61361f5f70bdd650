package gpusim

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Instances run beside each other; processes of one instance take turns.
func TestInstancesAreApart(t *testing.T) {
	s, now := machine(t, Config{Model: "a100", Instances: []string{"3g.20gb", "3g.20gb"}})
	d := s.Device(0)
	must.Is(t, must.Err(d.Claim(Claimant{}, steady("whole", 1, rlcore.Use{}))), ErrNoInstance,
		"the whole of a card that is cut")
	// It wants the whole card: 42 of 108 SMs take 108/42 as long.
	use := rlcore.Use{GPU: 1, Core: 1, MemMiB: 12000}
	a := claim(t, d, Claimant{PID: process(t), Instance: 1}, steady("a", 10, use))
	b := claim(t, d, Claimant{PID: process(t), Instance: 2}, steady("b", 10, use))
	*now = 5
	for _, slot := range []*Slot{a, b} {
		p, err := slot.Progress()
		if err != nil || p.Slowdown != 1 || math.Abs(p.DurationS-10*108/42.) > 1e-9 {
			t.Errorf("%+v, %v", p, err)
		}
	}
	// The card's memory would hold it, the instance's doesn't.
	must.Is(t, must.Err(d.Claim(Claimant{PID: process(t), Instance: 1}, steady("c", 10, use))), ErrOOM, "12 GB more in 20")
	use.MemMiB = 100
	c := claim(t, d, Claimant{PID: process(t), Instance: 1}, steady("c", 10, use))
	*now = 6
	for slot, slowed := range map[*Slot]bool{a: true, b: false, c: true} {
		must.Equal(t, must.Get(slot.Progress())(t).Slowdown > 1.5, slowed)
	}
	snap, err := d.Snapshot()
	if err != nil || math.Abs(snap.GPU-2*42/108.) > 1e-3 || snap.Processes[0].Instance != 1 {
		t.Errorf("%+v, %v", snap, err)
	}
}
