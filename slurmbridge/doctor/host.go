package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Request is what a job of one GPU held of its node.
type Request struct{ CPUs, MemMiB float64 }

// mostRequests bounds the jobs of the last week that are looked at, and askFor the time that accounting may take.
const (
	mostRequests = 200_000
	askFor       = 20 * time.Second
)

// askRequests adds what accounting knows of the last week's jobs of one GPU, or a part of one.
func askRequests(ctx context.Context, ask Ask, f *Facts) {
	if !accounts(f.Config) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	out, err := ask(ctx, "sacct", "-a", "-X", "-n", "-P", "-S", "now-7days", "-o", "AllocTRES")
	if err != nil {
		return
	}
	for line := range strings.Lines(out) {
		tres := strings.TrimSpace(line)
		gpus, _ := tresValue(tres, "gres/gpu")
		mps, _ := tresValue(tres, "gres/mps")
		shard, _ := tresValue(tres, "gres/shard")
		nodes, _ := tresValue(tres, "node")
		if nodes != 1 || gpus > 1 || gpus+mps+shard == 0 || len(f.Requests) == mostRequests {
			continue
		}
		cpus, _ := tresValue(tres, "cpu")
		mem, _ := text.Option(tres, "mem")
		f.Requests = append(f.Requests, Request{cpus, text.ParseMiB(mem)})
	}
}

// host: jobs that share a GPU need cores and memory of its node, too.
func (e *exam) host() {
	typical, of := Request{}, "by default"
	if n := len(e.Requests); n > 0 {
		middle := func(of func(Request) float64) float64 {
			var all []float64
			for _, r := range e.Requests {
				all = append(all, of(r))
			}
			slices.Sort(all)
			return all[n/2]
		}
		typical = Request{middle(func(r Request) float64 { return r.CPUs }), middle(func(r Request) float64 { return r.MemMiB })}
		of = fmt.Sprintf("as the median of the last week's %d jobs of one GPU does", n)
	}
	kinds := map[string][]string{}
	for _, n := range e.gpuNodes() {
		gpus := float64(n.GPUCount())
		byDefault := e.perGPU(n)
		r := typical
		if len(e.Requests) == 0 {
			r = Request{float64(byDefault.CPUs), float64(byDefault.MemMiB)}
		}
		// What a job has by default the members of a group divide.
		if e.Settings == nil || e.Settings.HostShare != "keep" {
			if r.CPUs > 0 && r.CPUs == float64(byDefault.CPUs) {
				r.CPUs = 1
			}
			if r.MemMiB == float64(byDefault.MemMiB) {
				r.MemMiB = 0
			}
		}
		var short []string
		if float64(n.CPUs)/gpus < 2*r.CPUs {
			short = append(short, fmt.Sprintf("%.0f of its %d CPUs", r.CPUs, n.CPUs))
		}
		if n.MemMiB/gpus < 2*r.MemMiB && strings.Contains(strings.ToUpper(e.Config["SelectTypeParameters"]), "MEMORY") {
			short = append(short, fmt.Sprintf("%.0f of its %.0f MiB", r.MemMiB, n.MemMiB))
		}
		if len(short) > 0 && n.Shares["mps"]+n.Shares["shard"] > 0 {
			what := fmt.Sprintf("a node with %s has no room for two jobs a GPU where each takes %s, %s", plural(n.GPUCount(), "GPU"), strings.Join(short, " and "), of)
			kinds[what] = append(kinds[what], n.Name)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(kinds)) {
		n := e.node(kinds[what][0])
		e.add("host-share", Warning, strings.Join(kinds[what], ",")+": "+what,
			"a job that finds no cores or memory waits, however idle the GPU is. What jobs have by default the bridge divides among those that share (host_share: divide); what a user asks for it never touches, so users should ask for no more than they use",
			e.conf(fmt.Sprintf("PartitionName=%s … DefCpuPerGPU=%d DefMemPerGPU=%.0f   # for jobs that don't ask: a GPU's part of the node",
				strings.Join(n.Partitions, ","), max(1, n.CPUs/n.GPUCount()), n.MemMiB/float64(n.GPUCount()))))
	}
}

// perGPU is what a job of one GPU has by default on a node: by its first partition's settings, else the cluster's.
func (e *exam) perGPU(n *text.Node) job.PerGPU {
	for i := range e.Partitions {
		if p := &e.Partitions[i]; p.PerGPU != (job.PerGPU{}) && slices.Contains(n.Partitions, p.Name) {
			return p.PerGPU
		}
	}
	return text.ParsePerGPU(e.Config["JobDefaults"])
}

// node is the node of a name.
func (e *exam) node(name string) *text.Node {
	return &e.Nodes[slices.IndexFunc(e.Nodes, func(n text.Node) bool { return n.Name == name })]
}
