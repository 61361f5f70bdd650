package sim

import (
	"fmt"
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Of a job is expected what earlier runs with its limit took, also of one that came before they had ended; without
// Foretell it stays what its application's profile says.
func TestLengthsAreForetold(t *testing.T) {
	varied := *constant("a", 1000, .5, 100)
	varied.DurationSD = 1500
	other := *constant("b", 1000, .5, 100)
	other.DurationSD = 1500
	cfg := Config{Truth: Law{Law: &contention.MPS}, GPUs: []rlcore.GPUSpec{{MemMiB: 12000}}}
	job := func(p *rlcore.Profile, limitS float64) {
		cfg.Jobs = append(cfg.Jobs, Arrival{
			Job:   rlcore.Job{ID: fmt.Sprint(len(cfg.Jobs)), User: "u", Profile: p, LimitS: limitS},
			Truth: constant(p.App, 100, .5, 100),
		})
	}
	for range 5 {
		job(&varied, 600)
	}
	job(&other, 600)
	for _, cfg.Foretell = range []bool{true, false} {
		s := must.Get(New(cfg))(t)
		done := 0
		for s.Next() {
			if len(s.State().GPUs[0].Running) > 0 {
				s.Start(nil) // one at a time
				continue
			}
			want := map[string]float64{"a": 1000, "b": 1000}
			if done > 0 && cfg.Foretell {
				want["a"] = 100
			}
			for _, j := range s.State().Pending {
				if got := j.Profile.DurationS; math.Abs(got-want[j.Profile.App]) > 1e-6 {
					t.Errorf("foretell %v: after %d runs job %s is expected to take %v s, want %v", cfg.Foretell, done, j.ID, got,
						want[j.Profile.App])
				}
			}
			s.Start([]int{0})
			done++
		}
	}
}
