package text

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// detailLine matches scontrol -d's line for a job's allocation on some nodes.
var detailLine = regexp.MustCompile(`^     Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)\s*$`)

// ParseDetail reads one job's `scontrol -d show job` and returns the indexes of the job's GPUs on each of its nodes.
// nodes is squeue's list of them. ok is false if the GPUs are unknown.
//
// A job's name, comment and paths may contain lines that look like Slurm's own. plain is `scontrol show job` of the
// same job without -d, where all such lines are the user's. If plain is nil, two groups of such lines are ambiguous.
func ParseDetail(out, plain []byte, nodes string) (gpus map[string][]int, ok bool) {
	users := map[string]int{}
	for line := range bytes.Lines(plain) {
		users[string(line)]++
	}
	groups := 0
	inside := false // the last line was one of a group
	gpus = map[string][]int{}
	for line := range bytes.Lines(out) {
		if !bytes.Contains(line, []byte("CPU_IDs=")) {
			inside = false
			continue
		}
		if users[string(line)] > 0 {
			users[string(line)]--
			continue
		}
		if !inside {
			groups++
			inside = true
		}
		m := detailLine.FindSubmatch(bytes.TrimRight(line, "\r\n"))
		if m == nil {
			return nil, false
		}
		has, ok := parseIndexes(string(m[2]))
		for _, node := range hostlist.Names(string(m[1])) {
			if _, twice := gpus[node]; !ok || twice {
				return nil, false
			}
			gpus[node] = has
		}
	}
	on := ExpandHosts(nodes)
	for node := range gpus {
		ok = on[node]
		if !ok {
			return nil, false
		}
	}
	return gpus, len(gpus) == len(on) && (groups == 1 || plain != nil)
}

// maxGPUs is more than any node has.
const maxGPUs = 1024

// parseIndexes finds the GPUs in "mps:60(IDX:0)", "gpu:titanxp:2(IDX:0-1)" or "gres/shard:50(50/100,0/100)". On a node
// with several types a job that requested no type has "gpu:a:0(IDX:),gpu:b:1(IDX:2)".
func parseIndexes(gres string) ([]int, bool) {
	out := []int{}
	for item := range hostlist.Items(gres) {
		if g, ok := parseGresItem(item); !ok || !g.ofGPU() || g.Count == 0 {
			continue
		}
		_, in, _ := strings.Cut(item, "(")
		in, closed := strings.CutSuffix(in, ")")
		if !closed {
			return nil, false
		}
		var got []int
		if list, isIdx := strings.CutPrefix(in, "IDX:"); isIdx {
			got, closed = hostlist.Numbers(list, maxGPUs)
			closed = closed && slices.Max(got) < maxGPUs
		} else {
			var used []int
			used, _, closed = parseShares(in)
			for i, n := range used {
				if closed = closed && n >= 0; n > 0 {
					got = append(got, i)
				}
			}
		}
		out = append(out, got...)
		if !closed || len(out) > maxGPUs {
			return nil, false
		}
	}
	return out, true
}

// parseShares reads each GPU's shares in use (-1 = not shown) and in all, from "60/100,-/100".
func parseShares(list string) (used, all []int, ok bool) {
	for part := range strings.SplitSeq(list, ",") {
		a, b, isShare := strings.Cut(part, "/")
		n, isNumber := digits(a)
		of, ok := digits(b)
		if !isShare || !ok || max(n, of) > maxCount || len(used) >= maxGPUs {
			return nil, nil, false
		}
		if !isNumber {
			n = -1
		}
		used = append(used, int(n))
		all = append(all, int(of))
	}
	return used, all, true
}

// mailLine matches scontrol's line with a job's --mail-user. Only jobs with a --mail-type have it.
var mailLine = regexp.MustCompile(`(?m)^   MailUser=(\S+) MailType=[A-Z0-9_,]+ *$`)

// ParseMailUser returns the --mail-user in one job's `scontrol show job`. It returns "" if there is none, or if the
// job's name or comment forges another such line.
func ParseMailUser(out []byte) string {
	if all := mailLine.FindAllSubmatch(out, 2); len(all) == 1 {
		return string(all[0][1])
	}
	return ""
}

// MemPerCPU reports whether a job's memory is per CPU, from its `scontrol show job`. A name that forges Slurm's line
// can't hide this. Unreadable output counts as per CPU.
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

// Positions of the fields of a description. Only Slurm writes them; each ends with '|'.
const (
	dArray = iota
	dTask
	dState
	dRequeue
	dStart
	dEnd
	numDescribed
)

var described = [numDescribed]string{"arrayjobid", "arraytaskid", "state", "requeue", "starttime", "endtime"}

// DescriptionFormat is the format for squeue -O that ParseDescriptions reads.
func DescriptionFormat() string { return strings.Join(described[:], ":|,") + ":|" }

// ParseDescriptions reads squeue's rows in DescriptionFormat, by job or array task.
func ParseDescriptions(out []byte) (map[string]job.Description, error) {
	jobs := map[string]job.Description{}
	for line := range bytes.Lines(out) {
		f := bytes.Split(bytes.TrimSuffix(line, []byte("|\n")), []byte{'|'})
		if len(f) != numDescribed {
			return nil, fmt.Errorf("%w: a description is %.80q", ErrRow, line)
		}
		ref := string(f[dArray])
		if task := string(f[dTask]); !IsNone(task) {
			ref += "_" + task
		}
		if !ValidRef(ref) {
			continue // several tasks in one row
		}
		jobs[ref] = job.Description{
			State: string(f[dState]), Requeue: string(f[dRequeue]) == "1", Start: parseTime(f[dStart]),
			End: parseTime(f[dEnd]),
		}
	}
	return jobs, nil
}
