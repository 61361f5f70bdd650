package slurm

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Nodes returns the nodes with GPUs.
func (c *Client) Nodes(ctx context.Context) ([]job.Node, error) {
	config, err := c.Config(ctx)
	if err != nil {
		return nil, err
	}
	params := config["SelectTypeParameters"]
	release := config["SLURM_VERSION"]
	out, err := c.showAll(ctx, "nodes")
	if err != nil {
		return nil, err
	}
	nodes := gpuNodes(text.ParseNodes(out), params, release)
	if slices.ContainsFunc(nodes, func(n job.Node) bool {
		return slices.ContainsFunc(n.ByIndex, func(c job.GPU) bool { return c.Units == 0 })
	}) {
		// Only the detailed output shows which GPUs have no shares.
		out, err = c.showAll(ctx, "nodes", "-d")
		if err != nil {
			return nil, err
		}
		nodes = gpuNodes(text.ParseNodes(out), params, release)
	}
	return nodes, nil
}

// gpuNodes returns the nodes with GPUs. params are SelectTypeParameters.
func gpuNodes(nodes []text.Node, params, release string) []job.Node {
	var out []job.Node
	for i := range nodes {
		n := &nodes[i]
		if n.State == "" || n.GPUs == 0 {
			continue
		}
		n.TaskPerCore = text.HasOption(params, "CR_ONE_TASK_PER_CORE")
		// Even with CR_CPU no two jobs share a core, if Slurm knows its threads.
		if text.HasOption(params, "CR_SOCKET") || text.HasOption(params, "CR_SOCKET_MEMORY") {
			n.CPUsPerAlloc = n.CPUsPerSocket
		}
		alike := len(n.ByType) <= 1
		for k := range n.ByIndex {
			c := &n.ByIndex[k]
			if _, is := job.InstanceOf(c.Type); is && !text.SharesInstances(release) {
				c.Units = 0 // this release shows shares that don't work
			}
			alike = alike && (n.Sharing == "" || c.Units == job.Units)
		}
		if alike {
			n.ByIndex = nil
		}
		out = append(out, n.Node)
	}
	return out
}

// Bounds reads the bounds on raised time limits: Slurm lets SlurmUser raise them past MaxTime and into reservations.
func (c *Client) Bounds(ctx context.Context) (*job.Bounds, error) {
	partitions, err := c.partitions(ctx)
	if err != nil {
		return nil, err
	}
	reservations, err := c.showAll(ctx, "reservations")
	if err != nil {
		return nil, err
	}
	b := &job.Bounds{
		MaxTime: map[string]time.Duration{}, Reservations: text.ParseReservations(reservations), Closed: map[string]bool{},
	}
	for _, p := range partitions {
		b.MaxTime[p.Name] = p.MaxTime
		if p.State == "DOWN" || p.State == "INACTIVE" {
			b.Closed[p.Name] = true
		}
	}
	return b, nil
}

// partitionsEvery is how long the partitions' settings stay cached for polls.
const partitionsEvery = time.Minute

// limitsWithin is the timeout for reading accounting's settings. A poll waits for them.
const limitsWithin = 5 * time.Second

// gpuLimits returns accounting's limits on whole GPUs, read once a minute. If reading fails, the old limits stay.
func (c *Client) gpuLimits(ctx context.Context, config map[string]string, partitions []text.Partition) []job.GPULimit {
	enforced := config["AccountingStorageEnforce"]
	if !c.GPULimits || !text.HasOption(enforced, "limits") && !text.HasOption(enforced, "safe") {
		return nil
	}
	before := []job.GPULimit{{Of: "sacctmgr doesn't show its limits", Uncounted: true}}
	if !c.limits.at.IsZero() {
		before = c.limits.v
	}
	limits, _ := c.limits.get(c.Now(), time.Minute, func() ([]job.GPULimit, error) {
		ctx, cancel := context.WithTimeout(ctx, limitsWithin)
		defer cancel()
		assocs, err := c.ask(ctx, "sacctmgr", "-n", "-P", "show", "assoc", "cluster="+config["ClusterName"],
			"format="+text.AssocLimits)
		if err != nil {
			return before, nil //nolint:nilerr // slurmdbd may be away for a while
		}
		qos, err := c.ask(ctx, "sacctmgr", "-n", "-P", "show", "qos", "format="+text.QOSLimits)
		if err != nil {
			return before, nil //nolint:nilerr // see above
		}
		return text.ParseGPULimits(string(assocs), string(qos), partitions), nil
	})
	return limits
}

// preemptions returns the QOSes that each QOS preempts, which scontrol doesn't show, read once a minute. If reading
// fails, the old answer stays; nil = unknown.
func (c *Client) preemptions(ctx context.Context) map[string][]string {
	known, _ := c.qos.get(c.Now(), time.Minute, func() (map[string][]string, error) {
		ctx, cancel := context.WithTimeout(ctx, limitsWithin)
		defer cancel()
		out, err := c.ask(ctx, "sacctmgr", "-n", "-P", "show", "qos", "format="+text.QOSPreempts)
		if err != nil {
			return c.qos.v, nil //nolint:nilerr // slurmdbd may be away for a while
		}
		return text.ParsePreemptions(string(out)), nil
	})
	return known
}

// oneNode returns, by partition, the most CPUs that a job may request and fit on each of the nodes with shares.
func oneNode(partitions []text.Partition, config map[string]string, nodes []job.Node) map[string]int {
	out := map[string]int{}
	for _, p := range partitions {
		mem := p.DefMemPerCPU
		if !p.DefMem {
			mem = text.ParseMiB(config["DefMemPerCPU"])
		}
		for i := range nodes {
			n := &nodes[i]
			if n.Units == 0 || !slices.Contains(n.Partitions, p.Name) {
				continue
			}
			most := n.Tasks()
			if p.MaxCPUsPerNode > 0 {
				most = min(most, p.MaxCPUsPerNode)
			}
			if mem > 0 {
				most = min(most, int(n.MemMiB/mem))
			}
			if before, is := out[p.Name]; is {
				most = min(most, before)
			}
			out[p.Name] = most
		}
	}
	return out
}

// settings adds the partitions' settings to a poll, and returns the partitions.
func (c *Client) settings(ctx context.Context, config map[string]string, snap *job.Snapshot) ([]text.Partition, error) {
	partitions, err := c.parts.get(c.Now(), partitionsEvery, func() ([]text.Partition, error) { return c.partitions(ctx) })
	if err != nil && partitions == nil {
		return nil, err
	}
	snap.GPULimits = c.gpuLimits(ctx, config, partitions)
	snap.PerGPU = map[string]job.PerGPU{}
	cluster := text.ParsePerGPU(config["JobDefaults"])
	if cluster != (job.PerGPU{}) {
		snap.PerGPU[job.AllPartitions] = cluster
	}
	snap.Ranks.ByQOS = text.HasPlugin(config["PreemptType"], "preempt/qos")
	if snap.Ranks.ByQOS {
		snap.Ranks.QOS = c.preemptions(ctx)
	}
	if config["PreemptType"] == "preempt/partition_prio" {
		snap.Ranks.Partitions = map[string]job.PartitionRank{}
	}
	snap.WholeNodes = map[string]bool{}
	snap.OneUser = map[string]bool{}
	apart := map[string]bool{}
	tiers := map[string]int{}
	for _, p := range partitions {
		snap.WholeNodes[p.Name] = p.WholeNodes
		snap.OneUser[p.Name] = p.OneUser
		apart[p.Name] = p.WholeNodes || p.OneUser
		tiers[p.Name] = p.Tier
		if p.PerGPU != (job.PerGPU{}) {
			// A default that the partition doesn't set is the cluster's.
			snap.PerGPU[p.Name] = job.PerGPU{
				CPUs:   cmp.Or(p.PerGPU.CPUs, cluster.CPUs),
				MemMiB: cmp.Or(p.PerGPU.MemMiB, cluster.MemMiB),
			}
		}
		if p.BillsGPUsAlone() {
			snap.Unbilled = append(snap.Unbilled, p.Name)
		}
		if snap.Ranks.Partitions != nil {
			snap.Ranks.Partitions[p.Name] = job.PartitionRank{Tier: p.Tier, Preemptible: p.PreemptMode != "OFF"}
		}
	}
	c.parser.Apart, c.parser.Tiers = apart, tiers
	return partitions, nil
}

func (c *Client) partitions(ctx context.Context) ([]text.Partition, error) {
	out, err := c.showAll(ctx, "partitions")
	return text.ParsePartitions(out), err
}

// showAll returns what scontrol shows of all objects of a kind, including hidden ones.
func (c *Client) showAll(ctx context.Context, what string, more ...string) ([]byte, error) {
	return c.ask(ctx, "scontrol", append(more, "-o", "-a", "show", what)...)
}
