package experiment

import (
	"fmt"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// PairMatrix is the thesis's Fig. 3: each application next to each other one, both started at once.
// Slowdown[i][j] is what i suffers from j; 0: memory doesn't suffice.
type PairMatrix struct {
	Apps     []string    `json:"apps"`
	Slowdown [][]float64 `json:"slowdown"`
}

// pairMatrix simulates the pairs of Fig. 3. Its CNN isn't named further; alexnet
// stands for it here (an assumption).
func pairMatrix() (*PairMatrix, error) {
	m := &PairMatrix{Apps: []string{"lammps", "gromacs", "alexnet", "vgg16", "googlenet"}}
	for _, a := range m.Apps {
		row := make([]float64, len(m.Apps))
		for j, b := range m.Apps {
			var err error
			if row[j], err = beside(a, b); err != nil {
				return nil, err
			}
		}
		m.Slowdown = append(m.Slowdown, row)
	}
	return m, nil
}

// beside simulates a with b, which is started again and again until a ends; 0 if memory doesn't
// suffice for both.
func beside(a, b string) (float64, error) {
	pa, ok := apps.ByName(a)
	pb, ok2 := apps.ByName(b)
	if !ok || !ok2 {
		return 0, fmt.Errorf("no application %q or %q", a, b)
	}
	cfg := sim.Config{GPUs: []rlcore.GPUSpec{rlcore.TitanXp}, Truth: sim.Law{Law: &contention.MPS}}
	cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: rlcore.Job{ID: "victim", Profile: pa}})
	for i := range 1 + int(8*pa.DurationS/pb.DurationS) {
		cfg.Jobs = append(cfg.Jobs, sim.Arrival{Job: rlcore.Job{ID: fmt.Sprint("aggressor", i), Profile: pb}})
	}
	s, err := sim.New(cfg)
	if err != nil {
		return 0, err
	}
	for s.Next() {
		// The victim first, then one aggressor after the other next to it; aggressors that are left
		// when it has ended run one by one.
		switch on := s.State().GPUs[0].Running; {
		case len(on) == 0, len(on) == 1 && on[0].ID == "victim":
			s.Start([]int{0})
		default:
			s.Start(nil)
		}
	}
	res, err := s.Result()
	if err != nil {
		return 0, err
	}
	if res.OOM > 0 {
		return 0, nil
	}
	return res.Jobs[0].Slowdown, nil
}
