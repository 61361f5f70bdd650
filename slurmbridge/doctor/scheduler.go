package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Scheduler is the SchedulerParameters that doctor advises. A group is released when a GPU becomes free; where
// the node's Epilog has ended by then, Slurm starts the group batch_sched_delay later.
const Scheduler = "sched_interval=2,bf_interval=5,batch_sched_delay=1"

// pace is one of SchedulerParameters' times in seconds: Slurm's default
// (slurm.conf's manual, 22.05 to 24.11), the longest that does no harm, and
// what it is to Slurm.
type pace struct {
	name        string
	usual, fine int
	what        string
}

var paces = []pace{
	{"sched_interval", 60, 5, "looks at the whole queue"},
	{"bf_interval", 30, 10, "looks for jobs to start out of turn (backfill)"},
	{"batch_sched_delay", 3, 1, "looks again after a job has come, changed or ended"},
}

// scheduler gives advice on how often Slurm runs its scheduler. Most groups start within a second
// or two regardless: a job's end or release triggers a pass. These intervals matter in the
// remaining cases: a gate that opens, an EpilogSlurmctld that ends after the node's Epilog, or a
// job of higher priority that leaves the group to backfill.
func (e *exam) scheduler() {
	params := e.Config["SchedulerParameters"]
	var slow []string
	for _, p := range paces {
		if p.name == "bf_interval" && !e.runs("SchedulerType", "sched/backfill") {
			continue
		}
		s := seconds(params, p)
		switch {
		case s < 0:
			slow = append(slow, fmt.Sprintf("never by itself %s (%s=%d)", p.what, p.name, s))
		case s > p.fine:
			slow = append(slow, fmt.Sprintf("%s every %d s (%s)", p.what, s, p.name))
		}
	}
	if depth, need := e.depth(params); need > depth {
		slow = append(slow, fmt.Sprintf("looks at %d jobs at a time (%s), and some %d may share the GPUs here", depth, depthName, need))
	}
	if len(slow) == 0 {
		return
	}
	e.add("scheduler", Note, "Slurm "+strings.Join(slow, ", "),
		"groups that wait for such a look leave their GPU idle, and when the gate opens the jobs behind it start as late; "+
			"shorter times are advice, not a need",
		e.conf("SchedulerParameters="+e.advised(params)),
		run("sdiag | grep -i cycle   # before", "scontrol reconfigure", "sdiag | grep -i cycle   # after an hour"))
}

const depthName = "default_queue_depth"

// depth is at how many jobs Slurm looks after a change, and how many may be about to start on the GPUs
// here, three on each, within what costs slurmctld little. Slurm's default, 100 (slurm.conf's
// manual), makes a cluster with 40 idle GPUs wait for a second look.
func (e *exam) depth(params string) (is, need int) {
	is = 100
	if value, ok := text.Option(params, depthName); ok {
		if n, err := strconv.Atoi(value); err == nil && n >= 0 {
			is = n
		}
	}
	gpus := 0
	for _, n := range e.gpus {
		gpus += n.GPUCount()
	}
	return is, min(3*gpus, 1000)
}

// seconds is what params says of a time, or its default.
func seconds(params string, p pace) int {
	value, _ := text.Option(params, p.name)
	if n, err := strconv.Atoi(value); err == nil {
		return n
	}
	return p.usual
}

// advised is params with the times that are too long replaced; what is short
// already stays, and so does everything else.
func (e *exam) advised(params string) string {
	var out []string
	for w := range strings.SplitSeq(params, ",") {
		w = strings.TrimSpace(w)
		name, _, _ := strings.Cut(w, "=")
		k := slices.IndexFunc(paces, func(p pace) bool { return strings.EqualFold(name, p.name) })
		if w == "" || k >= 0 && (seconds(params, paces[k]) > paces[k].fine || seconds(params, paces[k]) < 0) {
			continue
		}
		out = append(out, w)
	}
	kept := strings.Join(out, ",")
	advice := Scheduler
	if depth, need := e.depth(params); need > depth {
		out = slices.DeleteFunc(out, func(w string) bool { return strings.HasPrefix(strings.ToLower(w), depthName+"=") })
		advice += fmt.Sprintf(",%s=%d", depthName, need)
		kept = strings.Join(out, ",")
	}
	for w := range strings.SplitSeq(advice, ",") {
		if name, _, _ := strings.Cut(w, "="); !text.HasOption(kept, name) {
			out = append(out, w)
		}
	}
	return strings.Join(out, ",")
}
