package text

import (
	"bytes"
	"regexp"
	"strings"
)

// detailLine is what scontrol -d prints of a job's part of some nodes.
var detailLine = regexp.MustCompile(`^     Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)\s*$`)

// ParseDetail reads one job's `scontrol -d show job` and returns the indexes of the GPUs that it
// has on the node. false: it has none there, or they are not known.
//
// A job's name and comment may hold any text, including lines like Slurm's own. Such lines are
// separated from Slurm's: if there are two groups of them, it isn't known which group is Slurm's,
// and neither are the GPUs.
func ParseDetail(out []byte, node string) ([]int, bool) {
	var gres []string
	groups, inside := 0, false
	for line := range bytes.Lines(out) {
		m := detailLine.FindSubmatch(bytes.TrimRight(line, "\r\n"))
		if m == nil {
			// A forged line that is cut or padded differently is no less forged.
			if bytes.Contains(line, []byte("CPU_IDs=")) {
				return nil, false
			}
			inside = false
			continue
		}
		if !inside {
			groups++
			inside = true
		}
		if nodes, of := m[1], m[2]; string(nodes) == node {
			gres = append(gres, string(of))
		}
	}
	if groups != 1 || len(gres) != 1 {
		return nil, false
	}
	return parseIndexes(gres[0])
}

// maxGPUs is more than any node has.
const maxGPUs = 1024

// parseIndexes finds the GPUs in "mps:60(IDX:0)", "gpu:titanxp:2(IDX:0-1)" or
// "gres/shard:50(50/100,0/100)".
func parseIndexes(gres string) ([]int, bool) {
	var out []int
	for item := range items(gres) {
		if g, ok := parseGresItem(item); !ok || !g.ofGPU() {
			continue
		}
		_, in, _ := strings.Cut(item, "(")
		in, closed := strings.CutSuffix(in, ")")
		if !closed {
			return nil, false
		}
		read := usedShares
		if list, isIdx := strings.CutPrefix(in, "IDX:"); isIdx {
			in, read = list, parseRanges
		}
		got, ok := read(in)
		if out = append(out, got...); !ok || len(out) > maxGPUs {
			return nil, false
		}
	}
	return out, len(out) > 0
}

// usedShares reads the shares in use of each GPU in turn, "60/100,0/100".
func usedShares(list string) (gpus []int, ok bool) {
	i := 0
	for part := range strings.SplitSeq(list, ",") {
		used, _, isShare := strings.Cut(part, "/")
		n, ok := digits(used)
		if !isShare || !ok || i >= maxGPUs {
			return nil, false
		}
		if n > 0 {
			gpus = append(gpus, i)
		}
		i++
	}
	return gpus, true
}

// parseRanges reads "0-1,3".
func parseRanges(list string) (gpus []int, ok bool) {
	for part := range strings.SplitSeq(list, ",") {
		r, ok := parseRange(part)
		if !ok || r.hi >= maxGPUs || len(gpus) > maxGPUs {
			return nil, false
		}
		for i := r.lo; i <= r.hi; i++ {
			gpus = append(gpus, int(i))
		}
	}
	return gpus, true
}

// MemPerCPU reads one job's `scontrol show job`: whether its memory is by the CPU. A name that forges
// Slurm's line can't hide it. What can't be read counts as by the CPU.
func MemPerCPU(out []byte) bool {
	node := false
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte("   MinCPUsNode=")) {
			continue
		}
		if bytes.Contains(line, []byte(" MinMemoryCPU=")) {
			return true
		}
		node = node || bytes.Contains(line, []byte(" MinMemoryNode="))
	}
	return !node
}
