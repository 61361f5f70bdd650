package text

import (
	"bytes"
	"strings"

	"github.com/slurmbridge/slurmbridge/prolog/hostlist"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Node is a node as scontrol shows it.
type Node struct {
	Name       string
	State      string // e.g. "MIXED+PLANNED"
	Addr       string // where it is reached, "" = not shown
	Up         bool   // in service: jobs can start there
	Reserved   bool   // a reservation or a maintenance keeps ordinary jobs away
	Asleep     bool   // power saving has put it to sleep
	Planned    bool   // Slurm keeps it for a pending job
	Partitions []string
	Reason     string // why it is out of service, in an operator's or Slurm's words
	CPUs       int
	CPUsAlloc  int
	// CPUsPerCore and CPUsPerSocket are how many of its CPUs a core and a socket hold: 1 and so
	// many cores where Slurm counts cores, not threads, as CPUs.
	CPUsPerCore, CPUsPerSocket int

	MemMiB   float64
	MemAlloc float64
	GPUs     map[string]int // by type; "" = no type
	Shares   map[string]int // by kind, "mps" or "shard"
	// OtherGres is what else the node has, as Slurm shows it ("nic:2").
	OtherGres []string
	// Cards are the GPUs by their indexes. Which of several alike have no shares only
	// `scontrol -d` says, and only from 23.02 on; else the last are taken for them.
	Cards []Card
}

// Card is one GPU of a node.
type Card struct {
	Type   string         // "" = none
	Shares map[string]int // by kind
}

// GPUCount is the number of the node's GPUs.
func (n *Node) GPUCount() int {
	sum := 0
	for _, c := range n.GPUs {
		sum += c
	}
	return min(sum, maxCount)
}

// ParseNodes reads `scontrol show nodes -o`.
//
// Operators write Reason, Comment and Extra: nothing counts from the first of them on.
// A line that doesn't begin with NodeName= belongs to such a text, and of two lines for
// one node the first is Slurm's.
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
	cpus := f["CPUEfctv"]
	if cpus == "" {
		cpus = f["CPUTot"]
	}
	n := Node{
		Name: f["NodeName"], State: f["State"], Addr: f["NodeAddr"],
		Asleep:  strings.Contains(f["State"], "POWERED_DOWN") || strings.Contains(f["State"], "~"),
		Planned: strings.Contains(f["State"], "PLANNED"),
		CPUs:    number(cpus), CPUsAlloc: number(f["CPUAlloc"]),
		MemMiB:   max(0, ParseMiB(f["RealMemory"])-ParseMiB(f["MemSpecLimit"])),
		MemAlloc: ParseMiB(f["AllocMem"]),
		GPUs:     map[string]int{}, Shares: map[string]int{},
	}
	n.Up, n.Reserved = inService(n.State)
	n.CPUsPerCore, n.CPUsPerSocket = grain(number(f["CPUTot"]), number(f["Sockets"]), number(f["CoresPerSocket"]),
		number(f["ThreadsPerCore"]))
	if _, reason, ok := bytes.Cut(line, []byte(" Reason=")); ok {
		why, _, _ := bytes.Cut(reason, []byte(" [")) // by whom, when
		n.Reason = strings.TrimSpace(string(why))
	}
	if p := f["Partitions"]; p != "" {
		n.Partitions = strings.Split(p, ",")
	}
	for g := range ParseGres(f["Gres"]) {
		switch {
		case g.Count == 0 || !g.ofGPU():
		case g.Name == "gpu":
			n.GPUs[g.Type] = min(n.GPUs[g.Type]+g.Count, maxCount)
			for range min(g.Count, maxGPUs-len(n.Cards)) {
				n.Cards = append(n.Cards, Card{Type: g.Type, Shares: map[string]int{}})
			}
		default:
			n.Shares[g.Name] = min(n.Shares[g.Name]+g.Count, maxCount)
		}
	}
	for item := range hostlist.Items(f["Gres"]) {
		if g, ok := parseGresItem(item); ok && !g.ofGPU() {
			bare, _, _ := strings.Cut(item, "(")
			n.OtherGres = append(n.OtherGres, bare)
		}
	}
	n.deal(f["Gres"], f["GresUsed"])
	return n
}

// grain is how many CPUs a core and a socket hold. As in Slurm (node_conf.c) threads are CPUs
// only where there are more CPUs than cores.
func grain(cpus, sockets, cores, threads int) (perCore, perSocket int) {
	perCore = 1
	if sockets > 0 && cores > 0 && threads > 1 && cpus > sockets*cores {
		perCore = threads
	}
	return perCore, min(max(1, cores)*perCore, max(1, cpus))
}

// deal gives each GPU its shares: Slurm names them by type.
func (n *Node) deal(gres, used string) {
	sums := map[[2]string]int{} // by kind and type
	for g := range ParseGres(gres) {
		if g.ofGPU() && g.Name != "gpu" {
			sums[[2]string{g.Name, g.Type}] += g.Count
		}
	}
	for key, sum := range sums {
		var of []int
		for i := range n.Cards {
			if key[1] == "" || n.Cards[i].Type == key[1] {
				of = append(of, i)
			}
		}
		counts := countsOf(used, key[0], key[1])
		for k, i := range of {
			part := min(job.Units, sum)
			if len(counts) == len(of) {
				part = counts[k]
			}
			n.Cards[i].Shares[key[0]] = part
			sum -= part
		}
	}
}

// countsOf are the shares of each GPU of a type in GresUsed, "shard:a:60(60/100,0/0)".
func countsOf(used, kind, typ string) []int {
	var out []int
	for item := range hostlist.Items(used) {
		if g, ok := parseGresItem(item); !ok || g.Name != kind || g.Type != typ {
			continue
		}
		_, in, _ := strings.Cut(item, "(")
		_, all, ok := parseShares(strings.TrimSuffix(in, ")"))
		if out = append(out, all...); !ok || len(out) > maxGPUs {
			return nil
		}
	}
	return out
}

// inService reads a node's state, such as IDLE, MIXED+PLANNED or DOWN*+DRAIN: whether
// jobs can start there, and whether ordinary jobs are kept away. A state that is not
// known counts as out of service. A node that power saving has put to sleep is in
// service: a job wakes it.
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

// ExpandHosts returns the names in a host list such as "n[1-3,07],login". One that can't be read stays as it is: such a
// name matches no node.
func ExpandHosts(list string) map[string]bool {
	names := map[string]bool{}
	for _, name := range hostlist.Names(list) {
		names[name] = true
	}
	return names
}
