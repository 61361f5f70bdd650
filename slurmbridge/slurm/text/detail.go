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

// detailLine is what scontrol -d prints of a job's part of some nodes.
var detailLine = regexp.MustCompile(`^     Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)\s*$`)

// ParseDetail reads one job's `scontrol -d show job` and returns the indexes of the job's GPUs on each of its nodes,
// which are given as squeue lists them. false: they are not known.
//
// Users put any text into a job's name, comment and paths, including lines like Slurm's own. Only plain tells the two
// apart: in `scontrol show job` of the same job, without -d, all such lines are the user's. Where plain is nil, two
// groups of such lines are too many.
func ParseDetail(out, plain []byte, nodes string) (gpus map[string][]int, ok bool) {
	users := map[string]int{}
	for line := range bytes.Lines(plain) {
		users[string(line)]++
	}
	groups, inside := 0, false
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

// parseIndexes finds the GPUs in "mps:60(IDX:0)", "gpu:titanxp:2(IDX:0-1)" or "gres/shard:50(50/100,0/100)". A job that
// asked for no type has "gpu:a:0(IDX:),gpu:b:1(IDX:2)" on a node of several types.
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
		if out = append(out, got...); !closed || len(out) > maxGPUs {
			return nil, false
		}
	}
	return out, true
}

// parseShares reads the shares of each GPU in turn, those in use (-1 = it isn't said) and all, "60/100,-/100".
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
		used, all = append(used, int(n)), append(all, int(of))
	}
	return used, all, true
}

// mailLine is where scontrol shows a job's --mail-user, of jobs with a --mail-type.
var mailLine = regexp.MustCompile(`(?m)^   MailUser=(\S+) MailType=[A-Z0-9_,]+ *$`)

// ParseMailUser reads one job's `scontrol show job` and returns its --mail-user, "" = it shows none. If a job's name or
// comment forges another line, it isn't known which one is Slurm's.
func ParseMailUser(out []byte) string {
	if all := mailLine.FindAllSubmatch(out, 2); len(all) == 1 {
		return string(all[0][1])
	}
	return ""
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

// Positions of the fields of a description, which only Slurm writes and '|' ends.
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

// DescriptionFormat is what squeue -O takes for ParseDescriptions.
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
