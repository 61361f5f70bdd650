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

// errnos are Slurm's errors by their texts: its commands print no numbers.
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

// gone are the errors that say that a job is not there or not pending any more, and later those that say nothing of the
// job, but that slurmctld can't change it yet.
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

// Kind is what an error means for a change: job.ErrNoJob, job.ErrDown or job.ErrRefused. slurmctld doesn't answer where
// messages fail (1000 to 1899, and sockets' 5000 to 5999) or their credentials (6000 to 6999). Everything else is a
// refusal, "Unspecified error", too, which is what a job_submit plugin mostly returns.
func (e Errno) Kind() error {
	switch n := e.Number; {
	case slices.Contains(gone, e.Name):
		return job.ErrNoJob
	case 1000 <= n && n < 1900, 5000 <= n && n < 7000, slices.Contains(later, e.Name):
		return job.ErrDown
	}
	return job.ErrRefused
}

// ErrnoOf finds the error of Slurm's in what a command says: "TEXT", "TEXT (the words of a plugin)" or
// "sbatch: error: Batch job submission failed: TEXT". false: there is none.
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

// down is what commands say where slurmctld doesn't answer, besides Slurm's errors.
var down = []string{
	"Unable to contact slurm controller", "Connection refused", "Socket timed out", "Connection timed out",
	"Connection reset",
	"Unable to establish", "Communication connection failure", "Protocol authentication error", "in standby mode",
	"Unable to process configuration file", "Could not establish a configuration source", "No route to host",
	"Transport endpoint is not connected", "slurmctld is not responding",
}

// ErrorKind classifies a failed command by its standard error: job.ErrDown, job.ErrRefused or
// job.ErrNoJob. If jobs failed for several reasons, ErrNoJob is the weakest.
func ErrorKind(stderr string) error {
	var kind error
	for _, line := range messages(stderr) {
		named := aboutJobs(line)
		says := func(message string) bool { return strings.Contains(line, message) }
		what, is := line, job.ErrRefused
		for _, said := range named {
			what = said
		}
		if e, ok := ErrnoOf(what); ok {
			is = e.Kind()
		} else if named == nil && slices.ContainsFunc(down, says) {
			is = job.ErrDown
		}
		switch {
		case errors.Is(is, job.ErrDown):
			return is
		case kind == nil || errors.Is(is, job.ErrRefused):
			kind = is
		}
	}
	if kind == nil {
		return job.ErrRefused
	}
	return kind
}

// messages are the messages of a standard error. The words that a plugin adds to what is said of a job stand in
// brackets behind it, and may go on for several lines.
func messages(stderr string) []string {
	var out []string
	open := false // the last one's brackets
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

// JobErrorOf is what Slurm says of a job whose change it didn't make.
func JobErrorOf(said string) job.JobError {
	if e, ok := ErrnoOf(said); ok {
		return job.JobError{Kind: e.Kind(), Code: e.Name, Text: e.Text}
	}
	return job.JobError{Kind: job.ErrRefused, Code: job.CodeOther, Text: OneLine(said)}
}

// LacksExcNodes reports whether squeue's standard error says that the release has no field for excluded nodes.
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

// UpdateErrors returns what scontrol update's standard error says of each job it names, array tasks one by one.
func UpdateErrors(stderr string) map[string]string {
	jobs := map[string]string{}
	for _, line := range messages(stderr) {
		maps.Copy(jobs, aboutJobs(line))
	}
	return jobs
}

// aboutJobs is what a line says of each job it names, nil = it names none.
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

// tasksOf are the names of an array's tasks "0-3,7". Where they can't be read, or are too many, it is the array's own.
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
