package slurm

import (
	"context"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Bounds reads what no time limit may be raised beyond: Slurm itself lets SlurmUser raise one past its
// partition's MaxTime and into a reservation.
func (c *Client) Bounds(ctx context.Context) (*job.Bounds, error) {
	show := func(what string) ([]byte, error) {
		out, _, err := c.run(ctx, command{name: "scontrol show " + what, prog: "scontrol", args: []string{"-o", "-a", "show", what}})
		return out, err
	}
	partitions, err := show("partitions")
	if err != nil {
		return nil, err
	}
	reservations, err := show("reservations")
	if err != nil {
		return nil, err
	}
	b := &job.Bounds{MaxTime: map[string]time.Duration{}, Reservations: text.ParseReservations(reservations)}
	for _, p := range text.ParsePartitions(partitions) {
		b.MaxTime[p.Name] = p.MaxTime
	}
	return b, nil
}
