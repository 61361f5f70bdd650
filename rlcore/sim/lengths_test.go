package sim

import (
	"fmt"
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Each run that has ended makes what is expected of a job more like those runs, also of a job that came before they had
// ended; without Foretell it stays what its application's profile says.
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
		last := math.Inf(1) // of application a
		for s.Next() {
			if len(s.State().GPUs[0].Running) > 0 {
				s.Start(nil) // one at a time
				continue
			}
			pending := s.State().Pending
			for i := range pending {
				j := &pending[i]
				got := j.Profile.DurationS
				switch {
				case j.Profile.App == "b" || !cfg.Foretell:
					near(t, "job "+j.ID, got, 1000)
				case got < 100 || got > 1000 || got >= last && i == 0:
					t.Errorf("job %s is expected to take %v s, the one before it %v", j.ID, got, last)
				case i == 0:
					last = got
				default:
					near(t, "job "+j.ID, got, last)
				}
			}
			s.Start([]int{0})
		}
		if cfg.Foretell && last > 200 {
			t.Errorf("after four runs of 100 s the fifth is expected to take %v s", last)
		}
	}
}
