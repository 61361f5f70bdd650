package experiment

import (
	"fmt"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// Learn gives the world a past: n job sets of the scenario, run under greedy, from which the
// interference model learns as a site's does, from the whole run times of jobs and their
// co-runners. From then on every contender starts with what was learned. The competition uses other
// job sets.
func (w *World) Learn(train Scenario, n int, seed uint64) error {
	m := w.Model()
	g := w.Guard
	g.Predictor = m
	for i := range n {
		cfg, err := train(rand.New(rand.NewPCG(seed^0x9a57, uint64(i))))
		if err != nil {
			return err
		}
		cfg.M, cfg.Predictor = w.M, m
		cfg.Observer = m.ObservePredicted
		d := &rlcore.Decider{Policy: baseline.NewThroughput("greedy", m, 0), Guard: &g, M: w.M}
		if _, err := sim.Run(cfg, d); err != nil {
			return fmt.Errorf("a past job set: %w", err)
		}
	}
	w.Model = m.Clone
	return nil
}
