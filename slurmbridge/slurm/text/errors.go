package text

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// down and gone are what Slurm's commands say when slurmctld doesn't answer, and when a
// job is not there or not pending any more. From slurm_errno.c of 22.05 and 24.11.
var (
	down = []string{
		"Unable to contact slurm controller", "Connection refused", "Socket timed out",
		"Zero Bytes were transmitted or received", "Connection timed out", "Connection reset",
		"Unable to establish", "Communication connection failure", "Invalid authentication credential",
		"Protocol authentication error", "in standby mode", "Unable to process configuration file",
		"Could not establish a configuration source", "Insane message length", "No route to host",
		"Transport endpoint is not connected", "slurmctld is not responding",
		"Unspecified error",
		"Unexpected message received", // what 22.05's scontrol update says of a closed port
	}
	gone = []string{
		"Invalid job id specified", "Job is no longer pending execution", "Job has already finished",
		"Job/step already completing or completed", "Job is not pending nor running",
	}
)

// ErrorKind classifies a failed command by its standard error: job.ErrDown, job.ErrRefused or
// job.ErrNoJob. If jobs failed for several reasons, ErrNoJob is the weakest.
func ErrorKind(stderr string) error {
	var kind error
	for line := range strings.Lines(stderr) {
		has := func(message string) bool { return strings.Contains(line, message) }
		switch {
		case strings.TrimSpace(line) == "":
		case slices.ContainsFunc(down, has):
			return job.ErrDown
		case !slices.ContainsFunc(gone, has):
			kind = job.ErrRefused
		case kind == nil:
			kind = job.ErrNoJob
		}
	}
	if kind == nil {
		return job.ErrRefused
	}
	return kind
}

// LacksExcNodes reports whether squeue's standard error says that the release has no
// field for excluded nodes.
func LacksExcNodes(stderr string) bool {
	return strings.Contains(stderr, "Invalid job format specification: "+free[fExcNodes])
}

// forJob and taskFirst are how scontrol names the job that an error is about: "Invalid job
// id specified for job 7", and for the tasks of an array "22_2: Job dependency problem", of
// several "22_0-3,7: …". From 26.05 on the tasks stand in brackets: "22_[2]: …".
var (
	forJob    = regexp.MustCompile(`^(?P<what>.*) for job (?P<job>[0-9]+(?:_[0-9]+)?)$`)
	taskFirst = regexp.MustCompile(`^(?P<job>[0-9]+)(?:_(?P<open>\[)?(?P<tasks>[0-9][0-9,-]*)(?P<close>\])?)?: (?P<what>.*)$`)
)

// maxTasks bounds how many tasks of an array are named one by one.
const maxTasks = 10000

// UpdateErrors returns what scontrol update's standard error says of each job it names,
// array tasks one by one.
func UpdateErrors(stderr string) map[string]string {
	jobs := map[string]string{}
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if m := forJob.FindStringSubmatch(line); m != nil {
			jobs[m[forJob.SubexpIndex("job")]] = m[forJob.SubexpIndex("what")]
			continue
		}
		m := taskFirst.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		field := func(name string) string { return m[taskFirst.SubexpIndex(name)] }
		if (field("open") == "") != (field("close") == "") {
			continue
		}
		for _, ref := range tasksOf(field("job"), field("tasks")) {
			jobs[ref] = field("what")
		}
	}
	return jobs
}

// tasksOf are the names of an array's tasks "0-3,7". Where they can't be read, or are too
// many, it is the array's own.
func tasksOf(array, tasks string) []string {
	if tasks == "" {
		return []string{array}
	}
	var refs []string
	for part := range strings.SplitSeq(tasks, ",") {
		r, ok := parseRange(part)
		if !ok || r.hi-r.lo >= int64(maxTasks-len(refs)) {
			return []string{array}
		}
		for i := r.lo; i <= r.hi; i++ {
			refs = append(refs, fmt.Sprintf("%s_%d", array, i))
		}
	}
	return refs
}
