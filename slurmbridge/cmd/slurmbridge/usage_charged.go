package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// errNoBilling: no partition charges for GPUs.
var errNoBilling = errors.New("no partition has a weight for gres/gpu in its TRESBillingWeights: GPUs are charged nothing")

// loadWeights reads from Slurm what its partitions charge for GPUs.
func loadWeights(ctx context.Context, cfg *config.Config) (map[string]usage.Weights, error) {
	cl, err := client(cfg, nil)
	if err != nil {
		return nil, err
	}
	out, err := cl.Show(ctx, "scontrol", "show", "partitions", "--oneliner", "--all")
	if err != nil {
		return nil, fmt.Errorf("what GPUs are charged isn't known: %w", err)
	}
	return weightsOf(text.ParsePartitions([]byte(out)))
}

// weightsOf are the weights of GPUs and their shares, by partition.
func weightsOf(partitions []text.Partition) (map[string]usage.Weights, error) {
	all := map[string]usage.Weights{}
	weight := func(list, name string) float64 {
		v, _ := text.Option(list, name)
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f > 0) {
			return 0
		}
		return f
	}
	for i := range partitions {
		p := &partitions[i]
		w := usage.Weights{GPU: weight(p.Billing, "gres/gpu"), Share: max(weight(p.Billing, "gres/mps"), weight(p.Billing, "gres/shard"))}
		if w.GPU > 0 {
			all[p.Name] = w
		}
	}
	if len(all) == 0 {
		return nil, errNoBilling
	}
	return all, nil
}
