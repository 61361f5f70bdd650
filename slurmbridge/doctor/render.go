package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// WriteText prints the findings for people.
func WriteText(w io.Writer, findings []Finding) error {
	var b strings.Builder
	count := map[Severity]int{}
	for i := range findings {
		f := &findings[i]
		count[f.Severity]++
		fmt.Fprintf(&b, "%-8s %s\n%9s%s\n", f.Severity, f.What, "", sentence(f.Why))
		if f.Cost != "" {
			fmt.Fprintf(&b, "%9sCosts: %s\n", "", sentence(f.Cost))
		}
		for _, fix := range f.Fix {
			switch {
			case fix.File == "":
				fmt.Fprintf(&b, "%9srun:\n", "")
			case fix.File == settingsFile:
				fmt.Fprintf(&b, "%9sin %s, in place of the line that is there:\n", "", fix.File)
			case strings.Contains(fix.File, " "):
				fmt.Fprintf(&b, "%9swith %s:\n", "", fix.File)
			default:
				fmt.Fprintf(&b, "%9sin %s:\n", "", fix.File)
			}
			for _, l := range fix.Lines {
				fmt.Fprintf(&b, "%13s%s\n", "", l)
			}
		}
		b.WriteString("\n")
	}
	switch {
	case count[Error] > 0:
		fmt.Fprintf(&b, "%s, %s. slurmbridge can't do its work until the errors are gone.\n",
			plural(count[Error], "error"), plural(count[Warning], "warning"))
	case count[Warning] > 0:
		fmt.Fprintf(&b, "%s. slurmbridge works, and would work better without.\n", plural(count[Warning], "warning"))
	default:
		b.WriteString("Nothing is missing.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON prints the findings for programs: {"findings": […], "exit": N}.
func WriteJSON(w io.Writer, findings []Finding) error {
	if findings == nil {
		findings = []Finding{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(struct {
		Findings []Finding `json:"findings"`
		Exit     int       `json:"exit"`
	}{findings, Exit(findings)})
}

func sentence(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// restarts is what a change of GresTypes or of nodes' Gres costs.
const restarts = "all of Slurm's daemons restart (jobs go on); until slurm.conf and gres.conf agree on a node, it takes no jobs"

// gatesPartition is what the gate's own partition costs.
const gatesPartition = "a partition more, in which only root and SlurmUser may put jobs. For them sinfo and scontrol show partition list it, and all nodes a " +
	"second time. A program that starts nodes for pending jobs should ignore the job slurmbridge-gate, which never runs; jobs that wait for it have Reason=Dependency"

// costs is what following a piece of advice costs a site, by check: all that it changes for jobs and users that never ask
// to share, too. Advice to run a command or to change a setting of the bridge's own that touches no other job has none.
var costs = map[string]string{
	"gres-types":         restarts,
	"gres-both":          restarts + "; a job that asks for the kind that goes is refused",
	"gres-conf":          restarts,
	"no-gpu":             restarts,
	"shadow":             "jobs that ask to share wait behind the gate, for max_delay next to an idle GPU at most, and share",
	"node-shares":        restarts + "; anyone may then ask for a part of a GPU by hand",
	"gpu-without-shares": restarts,
	"share-count":        restarts + "; jobs that ask for a number of shares by hand get another part of a GPU",
	"gpu-type":           restarts,
	"select-type": "changing from select/linear or select/serial, Slurm forgets all jobs, pending and running: drain the cluster first (from select/cons_res " +
		"none is lost). Jobs then get cores and memory in place of whole nodes",
	"one-sharing": "slurmctld and the nodes' slurmds restart; a job that asks for mps by hand may then be on any of a node's GPUs, next to jobs of other users",
	"default-memory": "a job that doesn't say --mem gets this much and no more: where Slurm enforces memory, one that needs more is killed. " +
		"Announce it, and choose it from what sacct shows as MaxRSS",
	"lua":              "the script runs in slurmctld at each submission and change of a job, for a fraction of a millisecond",
	"gate-in-lists":    "where a job names no partition, your own rules in job_submit.lua see a list of all of them",
	"gate-partition":   gatesPartition,
	"gate-seen":        gatesPartition,
	"hook-prolog":      "each job starts some milliseconds later; a node without the program is drained by its next job: install the package on all nodes first",
	"hook-epilog":      "a node is free some milliseconds later; a node without the program is drained by its next job: install the package on all nodes first",
	"hook-taskprolog":  "each task starts some milliseconds later, with or without a GPU; a task fails on a node without the program: install the package on all nodes first",
	"epilog-slurmctld": "a short process on the controller at the end of each job; a job is completing until it has ended",
	"epilog-order":     "a node is free some milliseconds later; a node without the program is drained by its next job: install the package on all nodes first",
	"hook-timeout":     "a hook that hangs, the site's own too, keeps its node from other jobs for that long before the node is drained",
	"min-job-age":      "slurmctld keeps ended jobs for that long: they count toward MaxJobCount, and take some KiB of memory each",
	"requeue-delay":    "each requeued job, whether it shares or not, starts that much later",
	"accrue": "every job of the site then ages from its submission on, also while a dependency or begin time of its own keeps it, " +
		"so chains that are submitted early come first; limits like MaxJobsAccrue and GrpJobsAccrue have no effect",
	"rate-limit":        "every user may ask that often: more load on slurmctld from scripts that poll",
	"preempt":           "jobs of these partitions never share",
	"constrain-devices": "the nodes' slurmds restart; a job that opens a GPU, or another device of gres.conf, that it didn't ask for fails from then on",
	"multiple-sharing":  "a job that asks for more shares than one GPU has is refused",
	"least-loaded":      "jobs with shares by hand fill a node's GPUs one after the other; they are no longer spread",
	"compute-mode":      "the mode is changed for all jobs of these GPUs",
	"compute-exclusive": "a process that is left over, or one of a user who is logged in, may then compute beside a job of a whole GPU",
	"gpu-order":         restarts,
	"private-memory":    "the nodes' slurmds restart while no job runs; jobs then see each other's files in /dev/shm, whose owners protect them",
	"used-gpus": "in these partitions no job gets two GPUs (it is refused with a sentence), and accounting has shares in place of gres/gpu: " +
		"limits, weights and reports by gres/gpu don't see these jobs",
	"shares-accounted": "slurmctld restarts, and slurmdbd keeps the new resource for good: it can't be taken away again",
	"shares-limits":    "a job with shares beyond the limit waits, as one with whole GPUs does",
	"shares-billed":    "jobs with shares use up fair share and GrpTRESMins, those that users asked for by hand too; priorities change at once",
	"adopt-per-gpu":    "a job that asks for neither cores nor memory gets less of them, whether it shares or not; whole-GPU jobs too. Announce it",
	"gpu-accounting":   "sacct and sstat show no use of GPUs (gpuutil, gpumem) for any job",
	"host-share": "a job that asks for neither gets exactly these: one that had more by default may be killed for its memory or be slower, one that " +
		"needs less leaves cores idle",
}
