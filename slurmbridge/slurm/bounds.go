package slurm

import (
	"cmp"
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

// partitionsEvery is how often the partitions' settings are read for polls.
const partitionsEvery = 5 * time.Minute

// settings adds to a poll what the partitions' settings say.
func (c *Client) settings(ctx context.Context, config map[string]string, snap *job.Snapshot) {
	partitions, _ := c.parts.get(c.now(), partitionsEvery, func() ([]text.Partition, error) {
		partitions, err := c.partitions(ctx)
		if err != nil {
			return c.parts.v, nil //nolint:nilerr // as they were; the queue, which is read next, says what is wrong
		}
		return partitions, nil
	})
	snap.PerGPU = map[string]job.PerGPU{}
	cluster := text.ParsePerGPU(config["JobDefaults"])
	if cluster != (job.PerGPU{}) {
		snap.PerGPU[job.AllPartitions] = cluster
	}
	snap.Ranks.ByQOS = config["PreemptType"] == "preempt/qos"
	if config["PreemptType"] == "preempt/partition_prio" {
		snap.Ranks.Partitions = map[string]job.PartitionRank{}
	}
	for _, p := range partitions {
		if p.PerGPU != (job.PerGPU{}) {
			// Each that a partition doesn't set is the cluster's.
			snap.PerGPU[p.Name] = job.PerGPU{CPUs: cmp.Or(p.PerGPU.CPUs, cluster.CPUs), MemMiB: cmp.Or(p.PerGPU.MemMiB, cluster.MemMiB)}
		}
		if snap.Ranks.Partitions != nil {
			snap.Ranks.Partitions[p.Name] = job.PartitionRank{Tier: p.Tier, Preemptible: p.PreemptMode != "OFF"}
		}
	}
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
