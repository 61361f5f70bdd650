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
	partitions, err := c.partitions(ctx)
	if err != nil {
		return nil, err
	}
	reservations, err := c.showAll(ctx, "reservations")
	if err != nil {
		return nil, err
	}
	b := &job.Bounds{MaxTime: map[string]time.Duration{}, Reservations: text.ParseReservations(reservations)}
	for _, p := range partitions {
		b.MaxTime[p.Name] = p.MaxTime
	}
	return b, nil
}

func (c *Client) partitions(ctx context.Context) ([]text.Partition, error) {
	out, err := c.showAll(ctx, "partitions")
	return text.ParsePartitions(out), err
}

// showAll is what scontrol shows of all things of a kind, hidden ones too.
func (c *Client) showAll(ctx context.Context, what string) ([]byte, error) {
	out, _, err := c.run(ctx, command{name: "scontrol show " + what, prog: "scontrol", args: []string{"-o", "-a", "show", what}})
	return out, err
}
