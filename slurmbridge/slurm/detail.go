package slurm

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
)

// detailLine is what scontrol -d prints of a job's part of some nodes.
var detailLine = regexp.MustCompile(`^     Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)\s*$`)

// ParseDetail reads one job's `scontrol -d show job` and returns the indexes of
// the GPUs it has on the node. nil, false: it has none there, or it can't be told.
//
// A job's name and comment may hold anything, a line like Slurm's own included.
// Such lines stand apart from Slurm's: where there are two groups of them, which
// one is Slurm's can't be told, and the answer is that it isn't known.
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
		if string(m[1]) == node {
			gres = append(gres, string(m[2]))
		}
	}
	if groups != 1 || len(gres) != 1 {
		return nil, false
	}
	return parseIndexes(gres[0])
}

// parseIndexes finds the GPUs in "mps:60(IDX:0)", "gpu:titanxp:2(IDX:0-1)" or
// "gres/shard:50(50/100,0/100)".
func parseIndexes(gres string) ([]int, bool) {
	var out []int
	for item := range splitOutside(gres) {
		if _, _, _, ok := parseGresItem(item); !ok {
			continue
		}
		_, in, ok := strings.Cut(item, "(")
		in, closed := strings.CutSuffix(in, ")")
		if !ok || !closed {
			return nil, false
		}
		if list, isIdx := strings.CutPrefix(in, "IDX:"); isIdx {
			got, ok := parseRanges(list)
			if !ok {
				return nil, false
			}
			out = append(out, got...)
			continue
		}
		// Shares of each GPU in turn: used/all.
		for i, part := range strings.Split(in, ",") {
			used, _, ok := strings.Cut(part, "/")
			n, err := strconv.Atoi(used)
			if !ok || err != nil || n < 0 {
				return nil, false
			}
			if n > 0 {
				out = append(out, i)
			}
		}
	}
	return out, len(out) > 0
}

// maxGPUs is more than any node has.
const maxGPUs = 1024

// parseRanges reads "0-1,3".
func parseRanges(list string) ([]int, bool) {
	var out []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, errA := strconv.ParseUint(from, 10, 16)
		b, errB := strconv.ParseUint(to, 10, 16)
		if errA != nil || errB != nil || a > b || b >= maxGPUs {
			return nil, false
		}
		for i := a; i <= b; i++ {
			out = append(out, int(i))
		}
	}
	return out, len(out) <= maxGPUs
}
