package slurm

import (
	"bytes"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// ParseNodes reads `scontrol show nodes -o` and returns the nodes that have GPUs.
//
// A field counts where it stands first, and nothing behind the first field of
// free text (Reason, Comment, Extra: operators write them) counts at all. A line
// that doesn't begin with NodeName= belongs to such a text, and of two lines for
// one node the first one is Slurm's.
func ParseNodes(out []byte) []job.Node {
	var nodes []job.Node
	seen := map[string]bool{}
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte("NodeName=")) {
			continue
		}
		n, ok := parseNode(line)
		if !ok || seen[n.Name] {
			continue
		}
		seen[n.Name] = true
		if n.GPUs > 0 {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// parseNode reads one node's line.
func parseNode(line []byte) (n job.Node, ok bool) {
	f := make(map[string]string, 24)
	for word := range bytes.FieldsSeq(line) {
		key, value, has := bytes.Cut(word, []byte{'='})
		if !has {
			continue
		}
		if k := string(key); k == "Reason" || k == "Comment" || k == "Extra" {
			break
		} else if _, seen := f[k]; !seen {
			f[k] = string(value)
		}
	}
	n.Name, n.State = f["NodeName"], f["State"]
	if n.Name == "" || n.State == "" {
		return n, false
	}
	n.Up, n.Reserved = inService(n.State)
	n.Asleep = strings.Contains(n.State, "POWERED_DOWN") || strings.Contains(n.State, "~")
	cpus := f["CPUEfctv"]
	if cpus == "" {
		cpus = f["CPUTot"]
	}
	n.CPUs, n.CPUsAlloc = number(cpus), number(f["CPUAlloc"])
	n.MemMiB = max(0, parseMiB([]byte(f["RealMemory"]))-parseMiB([]byte(f["MemSpecLimit"])))
	n.MemAlloc = parseMiB([]byte(f["AllocMem"]))
	if p := f["Partitions"]; p != "" {
		n.Partitions = strings.Split(p, ",")
	}
	units := map[string]int{}
	types := map[string]bool{}
	for item := range splitOutside(f["Gres"]) {
		name, typ, count, ok := parseGresItem(item)
		if !ok {
			continue
		}
		units[name] = min(units[name]+count, maxCount)
		if name == "gpu" {
			types[typ] = true
			n.GPUType = typ
		}
	}
	if len(types) > 1 {
		n.GPUType = "" // no one type speaks for them all
	}
	n.GPUs = units["gpu"]
	for _, s := range []job.Sharing{job.MPS, job.Shard} {
		if units[string(s)] > 0 {
			n.Sharing, n.Units = s, units[string(s)]
			break
		}
	}
	return n, true
}

// inService reads a node's state, such as IDLE, MIXED+PLANNED or DOWN*+DRAIN:
// whether jobs can start there, and whether a reservation or a maintenance keeps
// ordinary jobs away. A state this release doesn't know counts as out of service. A
// node that power saving has put to sleep is in service: a job wakes it.
func inService(state string) (up, reserved bool) {
	up = true
	silent, asleep := false, false
	for flag := range strings.SplitSeq(state, "+") {
		bare := strings.TrimRight(flag, "*~#!%$@^-")
		marks := flag[len(bare):]
		silent = silent || strings.Contains(marks, "*")
		asleep = asleep || strings.ContainsAny(marks, "~#") // powered down, or powering up
		if strings.ContainsAny(marks, "!%$@^") {
			up = false // on the way down, or rebooting
		}
		switch bare {
		case "IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "PERFCTRS", "NPC", "UNDRAIN", "RESUME":
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

func number(s string) int {
	n, _ := leading([]byte(s))
	return int(min(n, maxCount))
}
