package job

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// CommentPrefix begins what the bridge and the job_submit script write into a job's AdminComment.
const CommentPrefix = "slurmbridge: "

// Defaults are the cores and the memory that a job has from its partition's defaults per GPU; 0 = its owner requested
// them, or there is no default.
type Defaults struct {
	CPUs   int   `json:"cpus,omitempty"`
	MemMiB int64 `json:"mem_mib,omitempty"`
}

// Note is what the job_submit script notes of a submission, at the beginning of the AdminComment.
type Note struct {
	Defaults Defaults
	// Args are the script's arguments and the variables of --export, separated by spaces; see NoteArgs.
	Args string
	// App is what the job's owner calls its application by SLURMBRIDGE_APP in its environment.
	App string
}

// noteShape is what a note looks like.
var noteShape = regexp.MustCompile(`^` + CommentPrefix +
	`(?:\(default(?: cpus=([0-9]{1,6}))?(?: mem=([0-9]{1,9}))?\) ?)?(?:\(app ([A-Za-z0-9_.-]{1,64})\) ?)?(?:\(args ([A-Za-z0-9_.=~+ -]{1,300})\) ?)?`)

// ParseNote reads the note at the beginning of an AdminComment, and returns the comment without it; "" = there is no
// more.
func ParseNote(adminComment string) (n Note, rest string) {
	m := noteShape.FindStringSubmatch(adminComment)
	if m == nil {
		return n, adminComment
	}
	n.Defaults.CPUs, _ = strconv.Atoi(m[1])
	n.Defaults.MemMiB, _ = strconv.ParseInt(m[2], 10, 64)
	n.App, n.Args = m[3], m[4]
	if rest = adminComment[len(m[0]):]; rest != "" {
		rest = CommentPrefix + rest
	}
	return n, rest
}

// Comment returns an AdminComment with the note and the text.
func (n Note) Comment(text string) string {
	note := ""
	if n.Defaults != (Defaults{}) {
		note = "(default"
		if n.Defaults.CPUs > 0 {
			note += fmt.Sprintf(" cpus=%d", n.Defaults.CPUs)
		}
		if n.Defaults.MemMiB > 0 {
			note += fmt.Sprintf(" mem=%d", n.Defaults.MemMiB)
		}
		note += ") "
	}
	if n.App != "" {
		note += "(app " + n.App + ") "
	}
	if n.Args != "" {
		note += "(args " + n.Args + ") "
	}
	if note == "" {
		return CommentPrefix + text
	}
	return strings.TrimSpace(CommentPrefix + note + text)
}

// Of divides a default among the members of a group; each gets at least 1.
func (d Defaults) Of(members int) Defaults {
	part := d
	if d.CPUs > 0 {
		part.CPUs = max(1, d.CPUs/members)
	}
	if d.MemMiB > 0 {
		part.MemMiB = max(1, d.MemMiB/int64(members))
	}
	return part
}

// Has reports whether a pending job has these cores and this memory.
func (d Defaults) Has(j *Job) bool { return d.hasCPUs(j) && d.hasMem(j) }

func (d Defaults) hasCPUs(j *Job) bool { return d.CPUs == 0 || d.CPUs == j.CPUs }

// Slurm may round the memory that it prints.
func (d Defaults) hasMem(j *Job) bool {
	return d.MemMiB == 0 || math.Abs(float64(d.MemMiB)-j.HostMemMiB) < .01*float64(d.MemMiB)
}

// Missing returns what a pending job that got a part of its defaults lacks of them; 0 = it has them all, or somebody
// has changed them since.
func (d Defaults) Missing(j *Job, part Defaults) Defaults {
	if part.CPUs == 0 || d.hasCPUs(j) || !part.hasCPUs(j) {
		d.CPUs = 0
	}
	if part.MemMiB == 0 || d.hasMem(j) || !part.hasMem(j) {
		d.MemMiB = 0
	}
	return d
}
