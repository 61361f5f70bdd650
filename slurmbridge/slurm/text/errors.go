package text

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// Errno is one of Slurm's errors.
type Errno struct {
	Number     int
	Name, Text string // ESLURM_INVALID_GRES, "Invalid generic resource (gres) specification"
}

// errnos are Slurm's errors by text, since its commands print no numbers.
var errnos = readErrnos()

//go:embed errno.tsv
var errnoTable string

func readErrnos() map[string]Errno {
	out := map[string]Errno{}
	for line := range strings.Lines(errnoTable) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if n, err := strconv.Atoi(f[0]); err == nil && len(f) == 3 {
			out[f[2]] = Errno{n, f[1], f[2]}
		}
	}
	return out
}

// gone: the job no longer exists or is no longer pending. later: slurmctld can't change the job yet.
var (
	gone = []string{
		"ESLURM_INVALID_JOB_ID", "ESLURM_JOB_NOT_PENDING", "ESLURM_JOB_FINISHED", "ESLURM_ALREADY_DONE",
		"ESLURM_JOB_NOT_PENDING_NOR_RUNNING",
	}
	later = []string{
		"ESLURM_IN_STANDBY_MODE", "ESLURM_IN_STANDBY_USE_BACKUP", "ESLURM_TRANSITION_STATE_NO_UPDATE",
		"ESLURM_JOB_SETTING_DB_INX",
	}
)

// Kind classifies an error of a change: job.ErrNoJob, job.ErrDown or job.ErrRefused. Errors of messages (1000 to 1899),
// sockets (5000 to 5999) and credentials (6000 to 6999) mean that slurmctld doesn't answer. All others are refusals,
// including "Unspecified error", which most job_submit plugins return.
func (e Errno) Kind() error {
	n := e.Number
	switch {
	case slices.Contains(gone, e.Name):
		return job.ErrNoJob
	case 1000 <= n && n < 1900, 5000 <= n && n < 7000, slices.Contains(later, e.Name):
		return job.ErrDown
	}
	return job.ErrRefused
}

// ErrnoOf finds Slurm's error in a command's message: "TEXT", "TEXT (message of a plugin)" or
// "sbatch: error: Batch job submission failed: TEXT".
func ErrnoOf(said string) (Errno, bool) {
	said = strings.TrimSpace(said)
	for i := len(said); i > 0; i = strings.LastIndex(said[:i], " (") {
		if e, ok := errnos[said[:i]]; ok {
			return e, true
		}
	}
	for rest, more := said, true; more; {
		if _, rest, more = strings.Cut(rest, ":"); more {
			if e, ok := errnos[strings.TrimSpace(rest)]; ok {
				return e, true
			}
		}
	}
	return Errno{}, false
}

// down are messages other than Slurm's errors which mean that slurmctld doesn't answer.
var down = []string{
	"Unable to contact slurm controller", "Connection refused", "Socket timed out", "Connection timed out",
	"Connection reset",
	"Unable to establish", "Communication connection failure", "Protocol authentication error", "in standby mode",
	"Unable to process configuration file", "Could not establish a configuration source", "No route to host",
	"Transport endpoint is not connected", "slurmctld is not responding",
}

// ErrorKind classifies a failed command by its standard error: job.ErrDown, else job.ErrRefused, else job.ErrNoJob.
func ErrorKind(stderr string) error {
	var kind error
	for _, line := range messages(stderr) {
		named := aboutJobs(line)
		message := line
		for _, m := range named {
			message = m
		}
		of := job.ErrRefused
		if e, ok := ErrnoOf(message); ok {
			of = e.Kind()
		} else if named == nil && slices.ContainsFunc(down, func(d string) bool { return strings.Contains(line, d) }) {
			of = job.ErrDown
		}
		switch {
		case errors.Is(of, job.ErrDown):
			return of
		case kind == nil || errors.Is(of, job.ErrRefused):
			kind = of
		}
	}
	if kind == nil {
		return job.ErrRefused
	}
	return kind
}

// messages splits standard error. A plugin's addition in parentheses to a job's message may have several lines.
func messages(stderr string) []string {
	var out []string
	open := false // the last message lacks a closing parenthesis
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		named := aboutJobs(line) != nil
		switch {
		case line == "":
		case open && !named:
			out[len(out)-1] += " " + line
		default:
			out = append(out, line)
			open = named && strings.Count(line, "(") > strings.Count(line, ")")
		}
	}
	return out
}

// JobErrorOf turns Slurm's message about a job into an error.
func JobErrorOf(said string) job.JobError {
	if e, ok := ErrnoOf(said); ok {
		return job.JobError{Kind: e.Kind(), Code: e.Name, Text: e.Text}
	}
	return job.JobError{Kind: job.ErrRefused, Code: job.CodeOther, Text: OneLine(said)}
}

// LacksExcNodes reports whether squeue's standard error rejects the field for excluded nodes.
func LacksExcNodes(stderr string) bool {
	return strings.Contains(stderr, "Invalid job format specification: "+free[fExcNodes])
}

// forJob and taskFirst match scontrol's errors about jobs: "Invalid job id specified for job 7", for an array task
// "22_2: Job dependency problem", for several tasks "22_0-3,7: …". From 26.05 on tasks are in brackets: "22_[2]: …".
var (
	forJob    = regexp.MustCompile(`^(?P<what>.*) for job (?P<job>[0-9]+(?:_[0-9]+)?)$`)
	taskFirst = regexp.MustCompile(`^(?P<job>[0-9]+)(?:_(?P<open>\[)?(?P<tasks>[0-9][0-9,-]*)(?P<close>\])?)?: (?P<what>.*)$`)
)

// maxTasks bounds the tasks of an array that are listed one by one.
const maxTasks = 10000

// UpdateErrors returns the messages about jobs in scontrol update's standard error, by job or array task.
func UpdateErrors(stderr string) map[string]string {
	jobs := map[string]string{}
	for _, line := range messages(stderr) {
		maps.Copy(jobs, aboutJobs(line))
	}
	return jobs
}

// aboutJobs returns the message of a line for each job that it names, nil = it names none.
func aboutJobs(line string) map[string]string {
	if m := forJob.FindStringSubmatch(line); m != nil {
		return map[string]string{m[forJob.SubexpIndex("job")]: m[forJob.SubexpIndex("what")]}
	}
	m := taskFirst.FindStringSubmatch(line)
	if m == nil {
		return nil
	}
	field := func(name string) string { return m[taskFirst.SubexpIndex(name)] }
	if (field("open") == "") != (field("close") == "") {
		return nil
	}
	jobs := map[string]string{}
	for _, ref := range tasksOf(field("job"), field("tasks")) {
		jobs[ref] = field("what")
	}
	return jobs
}

// tasksOf returns the names of an array's tasks "0-3,7". If they are unreadable or too many, it returns the array's.
func tasksOf(array, tasks string) []string {
	if tasks == "" {
		return []string{array}
	}
	numbers, ok := hostlist.Numbers(tasks, maxTasks)
	if !ok {
		return []string{array}
	}
	var refs []string
	for _, n := range numbers {
		refs = append(refs, fmt.Sprintf("%s_%d", array, n))
	}
	return refs
}
