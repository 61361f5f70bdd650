package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// What a reason costs is how long jobs wait for it beside a GPU that had room.
func TestWhatRefusalsCost(t *testing.T) {
	of := func(user string, j Arrival) Arrival {
		j.User = user
		return j
	}
	large := func(id string, submitS float64) Arrival {
		return Arrival{Job: rlcore.Job{ID: id, SubmitS: submitS, Profile: constant("large", 100, .1, 5000)}}
	}
	card := rlcore.GPUSpec{MemMiB: 8000, SameUser: true}
	for _, c := range []struct {
		what string
		gpus []rlcore.GPUSpec
		jobs []Arrival
		want string
	}{
		{
			"one user at a time: bob waits for ann's hundred seconds, and eve behind him for his",
			[]rlcore.GPUSpec{card},
			[]Arrival{of("ann", single("a", 0, 100)), of("bob", single("b", 20, 100)), of("eve", single("c", 30, 100))},
			"user: 2 jobs, 180 s",
		},
		{
			"two GPUs at a time are in use: one job waits once",
			[]rlcore.GPUSpec{card, card},
			[]Arrival{of("ann", single("a", 0, 100)), of("bob", single("b", 0, 100)), of("eve", single("c", 40, 100))},
			"user: 1 jobs, 60 s",
		},
		{"memory", []rlcore.GPUSpec{{MemMiB: 8000}}, []Arrival{large("a", 0), large("b", 10)}, "memory: 1 jobs, 90 s"},
		{
			"a whole GPU has no room",
			[]rlcore.GPUSpec{{MemMiB: 8000}},
			[]Arrival{whole("a", 0, 100, 1, 1), single("b", 10, 100)},
			"",
		},
		{
			"the second of two GPUs is left to the job of both",
			[]rlcore.GPUSpec{{MemMiB: 8000}, {MemMiB: 8000}},
			[]Arrival{of("ann", large("a", 0)), whole("two", 1, 50, 2, 1), of("bob", large("long", 10))},
			"turn: 1 jobs, 90 s",
		},
	} {
		guard := rlcore.NewGuard(rlcore.Rules{Predictor: knowing(Pairs{})})
		cfg := Config{GPUs: c.gpus, Truth: Pairs{}, Predictor: guard.Predictor, Jobs: c.jobs}
		r := run(t, cfg, &rlcore.Decider{Policy: choice(crowd), Guard: guard, M: 5})
		var got []string
		for _, k := range r.VetoCosts {
			got = append(got, fmt.Sprintf("%s: %d jobs, %.0f s", k.Reason.Name(), k.Jobs, k.WaitS))
		}
		must.Equal(t, strings.Join(got, "; "), c.want, c.what)
	}
}
