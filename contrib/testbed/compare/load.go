package main

import (
	"fmt"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// loadText says how busy this machine's CPUs were since l began to watch.
func loadText(l *cluster.Load) string {
	part, ok := l.Since()
	if !ok {
		return "How busy this machine's CPUs were is unknown."
	}
	out := fmt.Sprintf("This machine's CPUs were busy for %.0f %% of the time.", 100*part)
	if part > 0.85 {
		out += " That makes Slurm's pauses longer: fewer clusters\nat a time (--parallel) or a smaller --scale give truer figures."
	}
	return out
}
