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
	params, release := config["SelectTypeParameters"], config["SLURM_VERSION"]
	out, err := c.showAll(ctx, "nodes")
	if err != nil {
		return nil, err
	}
	nodes := gpuNodes(text.ParseNodes(out), params, release)
	if slices.ContainsFunc(nodes, func(n job.Node) bool {
		return slices.ContainsFunc(n.Cards, func(c job.Card) bool { return c.Units == 0 })
	}) {
		// Only the long answer says which GPUs have no shares.
		if out, err = c.showAll(ctx, "nodes", "-d"); err != nil {
			return nil, err
		}
		nodes = gpuNodes(text.ParseNodes(out), params, release)
	}
	return nodes, nil
}

// gpuNodes are the nodes that have GPUs, as the bridge sees them. params are Slurm's SelectTypeParameters.
func gpuNodes(nodes []text.Node, params, release string) []job.Node {
	var out []job.Node
	for i := range nodes {
		n := &nodes[i]
		if n.State == "" || n.GPUs == 0 {
			continue
		}
		n.TaskPerCore = text.HasOption(params, "CR_ONE_TASK_PER_CORE")
		// With CR_CPU, too, no two jobs share a core if Slurm knows its threads.
		if text.HasOption(params, "CR_SOCKET") || text.HasOption(params, "CR_SOCKET_MEMORY") {
			n.CPUsPerAlloc = n.CPUsPerSocket
		}
		alike := len(n.ByType) <= 1
		for k := range n.Cards {
			c := &n.Cards[k]
			if _, is := job.InstanceOf(c.Type); is && !text.SharesInstances(release) {
				c.Units = 0 // whatever Slurm shows
			}
			alike = alike && (n.Sharing == "" || c.Units == job.Units)
		}
		if alike {
			n.Cards = nil
		}
		out = append(out, n.Node)
	}
	return out
}

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

// partitionsEvery is how often the partitions' settings are read for polls.
const partitionsEvery = 5 * time.Minute

// limitsWithin is how long the commands may take that read accounting's settings.
const limitsWithin = 5 * time.Second

// gpuLimits are accounting's limits on whole GPUs, read once a minute; while they can't be read they are as they were.
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
		ctx, cancel := context.WithTimeout(ctx, limitsWithin) // a poll waits for it
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

// preemptions says which QOSes each preempts, read once a minute: scontrol doesn't show it. While it can't be read it
// is as it was, nil = it isn't known.
func (c *Client) preemptions(ctx context.Context) map[string][]string {
	known, _ := c.qos.get(c.Now(), time.Minute, func() (map[string][]string, error) {
		ctx, cancel := context.WithTimeout(ctx, limitsWithin) // a poll waits for it
		defer cancel()
		out, err := c.ask(ctx, "sacctmgr", "-n", "-P", "show", "qos", "format="+text.QOSPreempts)
		if err != nil {
			return c.qos.v, nil //nolint:nilerr // slurmdbd may be away for a while
		}
		return text.ParsePreemptions(string(out)), nil
	})
	return known
}

// oneNode is, by partition, how many CPUs a job may ask for that fits on each of its nodes with shares.
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

// settings adds to a poll what the partitions' settings say, and returns the partitions.
func (c *Client) settings(ctx context.Context, config map[string]string, snap *job.Snapshot) ([]text.Partition,
	error,
) {
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
	if snap.Ranks.ByQOS = text.HasPlugin(config["PreemptType"], "preempt/qos"); snap.Ranks.ByQOS {
		snap.Ranks.QOS = c.preemptions(ctx)
	}
	if config["PreemptType"] == "preempt/partition_prio" {
		snap.Ranks.Partitions = map[string]job.PartitionRank{}
	}
	snap.WholeNodes, snap.OneUser = map[string]bool{}, map[string]bool{}
	apart := map[string]bool{}
	for _, p := range partitions {
		snap.WholeNodes[p.Name], snap.OneUser[p.Name] = p.WholeNodes, p.OneUser
		apart[p.Name] = p.WholeNodes || p.OneUser
		if p.PerGPU != (job.PerGPU{}) {
			// Each that a partition doesn't set is the cluster's.
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
	c.parser.Apart = apart
	return partitions, nil
}

func (c *Client) partitions(ctx context.Context) ([]text.Partition, error) {
	out, err := c.showAll(ctx, "partitions")
	return text.ParsePartitions(out), err
}

// showAll is what scontrol shows of all things of a kind, hidden ones too.
func (c *Client) showAll(ctx context.Context, what string, more ...string) ([]byte, error) {
	return c.ask(ctx, "scontrol", append(more, "-o", "-a", "show", what)...)
}
