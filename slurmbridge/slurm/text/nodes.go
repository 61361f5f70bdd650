package text

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// Node is a node as scontrol shows it. CPUsPerAlloc is the number of CPUs in a core: 1 if Slurm counts cores, not
// threads, as CPUs. Cards holds all GPUs, with their shares of the node's kind. Only `scontrol -d` shows which GPUs of
// a type have no shares, and only from 23.02 on; otherwise these are assumed to be the last ones.
type Node struct {
	job.Node
	State         string         // e.g. "MIXED+PLANNED"
	Addr          string         // NodeAddr, "" = not shown
	Reason        string         // why the node is out of service, by an operator or Slurm
	CPUsPerSocket int            // cores if Slurm counts cores as CPUs
	ByType        map[string]int // the number of GPUs; "" = no type
	Shares        map[string]int // by kind, "mps" or "shard"
	OtherGres     []string       // other resources, as Slurm shows them ("nic:2")
}

// ParseNodes reads `scontrol show nodes -o`.
//
// Operators write Reason, Comment and Extra: ParseNodes ignores the rest of a line from the first of them on. A line
// that doesn't begin with NodeName= belongs to such a text. Of two lines for one node the first is Slurm's.
func ParseNodes(out []byte) []Node {
	var nodes []Node
	seen := map[string]bool{}
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte("NodeName=")) {
			continue
		}
		if n := parseNode(line); n.Name != "" && !seen[n.Name] {
			seen[n.Name] = true
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func parseNode(line []byte) Node {
	f := record(line, "Reason", "Comment", "Extra")
	n := Node{
		Node: job.Node{
			Name:    f["NodeName"],
			Asleep:  strings.Contains(f["State"], "POWERED_DOWN") || strings.Contains(f["State"], "~"),
			Planned: strings.Contains(f["State"], "PLANNED"),
			CPUs:    number(cmp.Or(f["CPUEfctv"], f["CPUTot"])), CPUsAlloc: number(f["CPUAlloc"]),
			MemMiB:   max(0, ParseMiB(f["RealMemory"])-ParseMiB(f["MemSpecLimit"])),
			MemAlloc: ParseMiB(f["AllocMem"]), Weight: number(f["Weight"]),
		},
		State: f["State"], Addr: f["NodeAddr"], ByType: map[string]int{}, Shares: map[string]int{},
	}
	n.Up, n.Reserved = inService(n.State)
	if owner, _, ok := User(f["Owner"]); ok { // otherwise it is N/A
		n.Owner = owner
	}
	n.CPUsPerAlloc, n.CPUsPerSocket = grain(number(f["CPUTot"]), number(f["Sockets"]), number(f["CoresPerSocket"]),
		number(f["ThreadsPerCore"]))
	if _, reason, ok := bytes.Cut(line, []byte(" Reason=")); ok {
		why, _, _ := bytes.Cut(reason, []byte(" [")) // "[USER@TIME]" follows
		n.Reason = strings.TrimSpace(string(why))
	}
	if p := f["Partitions"]; p != "" {
		n.Partitions = strings.Split(p, ",")
	}
	for item := range hostlist.Items(f["Gres"]) {
		switch g, ok := parseGresItem(item); {
		case !ok:
		case !g.ofGPU():
			bare, _, _ := strings.Cut(item, "(")
			n.OtherGres = append(n.OtherGres, bare)
		case g.Count == 0:
		case g.Name == "gpu":
			n.ByType[g.Type] = min(n.ByType[g.Type]+g.Count, maxCount)
			n.GPUs = min(n.GPUs+g.Count, maxCount)
			n.GPUType = g.Type
			n.ByIndex = append(n.ByIndex, slices.Repeat([]job.GPU{{Type: g.Type}}, min(g.Count, maxGPUs-len(n.ByIndex)))...)
		default:
			n.Shares[g.Name] = min(n.Shares[g.Name]+g.Count, maxCount)
		}
	}
	if len(n.ByType) > 1 {
		n.GPUType = "" // no common type
	}
	for _, kind := range []job.Sharing{job.Shard, job.MPS} { // MPS if the node has both
		if units := n.Shares[string(kind)]; units > 0 {
			n.Sharing = kind
			n.Units = units
		}
	}
	n.deal(f["Gres"], f["GresUsed"])
	return n
}

// grain returns the CPUs in a core and in a socket. Threads are CPUs if there are more CPUs than cores (node_conf.c).
func grain(cpus, sockets, cores, threads int) (perCore, perSocket int) {
	perCore = 1
	if sockets > 0 && cores > 0 && threads > 1 && cpus > sockets*cores {
		perCore = threads
	}
	return perCore, min(max(1, cores)*perCore, max(1, cpus))
}

// deal sets each GPU's shares, from Slurm's sums by type.
func (n *Node) deal(gres, used string) {
	sums := map[string]int{}
	for item := range hostlist.Items(gres) {
		if g, ok := parseGresItem(item); ok && g.Name == string(n.Sharing) {
			sums[g.Type] += g.Count
		}
	}
	for typ, sum := range sums {
		var of []*job.GPU
		for i := range n.ByIndex {
			if typ == "" || n.ByIndex[i].Type == typ {
				of = append(of, &n.ByIndex[i])
			}
		}
		counts := countsOf(used, string(n.Sharing), typ)
		for k, card := range of {
			card.Units = min(job.Units, sum)
			if len(counts) == len(of) {
				card.Units = counts[k]
			}
			sum -= card.Units
		}
	}
}

// countsOf returns the shares of each GPU of a type, from GresUsed: "shard:a:60(60/100,0/0)".
func countsOf(used, kind, typ string) []int {
	var out []int
	for item := range hostlist.Items(used) {
		if g, ok := parseGresItem(item); !ok || g.Name != kind || g.Type != typ {
			continue
		}
		_, in, _ := strings.Cut(item, "(")
		_, all, ok := parseShares(strings.TrimSuffix(in, ")"))
		out = append(out, all...)
		if !ok || len(out) > maxGPUs {
			return nil
		}
	}
	return out
}

// inService reads from a node's state, such as IDLE, MIXED+PLANNED or DOWN*+DRAIN, whether jobs can start there, and
// whether the node is reserved. An unknown state counts as out of service. Jobs can start on a sleeping node.
func inService(state string) (up, reserved bool) {
	up = true
	silent, asleep := false, false
	for flag := range strings.SplitSeq(state, "+") {
		bare := strings.TrimRight(flag, "*~#!%$@^-")
		marks := flag[len(bare):]
		silent = silent || strings.Contains(marks, "*")
		asleep = asleep || strings.ContainsAny(marks, "~#") // powered down, or powering up
		if strings.ContainsAny(marks, "!%$@^") {
			up = false // powering down, or rebooting
		}
		switch bare {
		case "IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "PERFCTRS",
			"NPC", "UNDRAIN", "RESUME":
		case "RESERVED", "MAINT", "MAINTENANCE":
			reserved = true
		case "POWERED_DOWN", "POWERING_UP", "POWER_UP":
			asleep = true
		case "NOT_RESPONDING":
			silent = true
		default:
			up = false
		}
	}
	return up && (asleep || !silent), reserved
}

// ExpandHosts returns the names in a host list such as "n[1-3,07],login". An unreadable item stays as it is.
func ExpandHosts(list string) map[string]bool {
	names := map[string]bool{}
	for _, name := range hostlist.Names(list) {
		names[name] = true
	}
	return names
}
