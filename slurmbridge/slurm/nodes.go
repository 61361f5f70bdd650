package slurm

import (
	"context"
	"slices"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Nodes returns the nodes with GPUs.
func (c *Client) Nodes(ctx context.Context) ([]job.Node, error) {
	nodes, err := c.nodes.get(c.now(), c.NodesEvery, func() ([]job.Node, error) {
		config, err := c.Config(ctx)
		if err != nil {
			return nil, err
		}
		params := config["SelectTypeParameters"]
		out, _, err := c.run(ctx, command{name: "scontrol show nodes", prog: "scontrol", args: []string{"-o", "-a", "show", "nodes"}})
		if err != nil {
			return nil, err
		}
		nodes := gpuNodes(text.ParseNodes(out), params)
		if slices.ContainsFunc(nodes, func(n job.Node) bool {
			return slices.ContainsFunc(n.Cards, func(c job.Card) bool { return c.Units == 0 })
		}) {
			// Only the long answer says which GPUs have no shares.
			if out, _, err = c.run(ctx, command{name: "scontrol show nodes", prog: "scontrol", args: []string{"-d", "-o", "-a", "show", "nodes"}}); err != nil {
				return nil, err
			}
			nodes = gpuNodes(text.ParseNodes(out), params)
		}
		return nodes, nil
	})
	return slices.Clone(nodes), err
}

// gpuNodes are the nodes that have GPUs, as the bridge sees them. params are Slurm's
// SelectTypeParameters.
func gpuNodes(nodes []text.Node, params string) []job.Node {
	var out []job.Node
	for i := range nodes {
		n := &nodes[i]
		if n.State == "" || n.GPUCount() == 0 {
			continue
		}
		j := job.Node{
			Name: n.Name, State: n.State, Up: n.Up, Reserved: n.Reserved, Asleep: n.Asleep, Planned: n.Planned, Partitions: n.Partitions,
			CPUs: n.CPUs, CPUsAlloc: n.CPUsAlloc, CPUsPerAlloc: n.CPUsPerCore, TaskPerCore: text.HasOption(params, "CR_ONE_TASK_PER_CORE"), MemMiB: n.MemMiB, MemAlloc: n.MemAlloc, GPUs: n.GPUCount(),
		}
		// With CR_CPU, too, no two jobs share a core if Slurm knows its threads.
		if text.HasOption(params, "CR_SOCKET") || text.HasOption(params, "CR_SOCKET_MEMORY") {
			j.CPUsPerAlloc = n.CPUsPerSocket
		}
		if len(n.GPUs) == 1 { // otherwise they have no common type
			for typ := range n.GPUs {
				j.GPUType = typ
			}
		}
		for _, kind := range []job.Sharing{job.Shard, job.MPS} { // the latter where a node has both
			if units := n.Shares[string(kind)]; units > 0 {
				j.Sharing, j.Units = kind, units
			}
		}
		j.Cards = cardsOf(n, j.Sharing)
		out = append(out, j)
	}
	return out
}

// cardsOf are the GPUs of a node where they aren't all alike, nil = they are.
func cardsOf(n *text.Node, sharing job.Sharing) []job.Card {
	alike := len(n.GPUs) <= 1
	var out []job.Card
	for i := range n.Cards {
		c := job.Card{Type: n.Cards[i].Type, Units: n.Cards[i].Shares[string(sharing)]}
		alike = alike && (sharing == "" || c.Units == job.Units)
		out = append(out, c)
	}
	if alike {
		return nil
	}
	return out
}
