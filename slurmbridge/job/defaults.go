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

// Defaults are the cores and the memory that a job has by its partition's defaults for a GPU, not by
// its owner's word; 0 = by its owner's, or it has none.
type Defaults struct {
	CPUs   int   `json:"cpus,omitempty"`
	MemMiB int64 `json:"mem_mib,omitempty"`
}

// defaultsShape is how the job_submit script notes defaults, at the beginning of an AdminComment.
var defaultsShape = regexp.MustCompile(`^` + CommentPrefix + `\(default(?: cpus=([0-9]{1,6}))?(?: mem=([0-9]{1,9}))?\) ?`)

// ParseDefaults reads what the job_submit script noted in an AdminComment, and returns the comment
// without it.
func ParseDefaults(adminComment string) (d Defaults, rest string) {
	m := defaultsShape.FindStringSubmatch(adminComment)
	if m == nil {
		return d, adminComment
	}
	d.CPUs, _ = strconv.Atoi(m[1])
	d.MemMiB, _ = strconv.ParseInt(m[2], 10, 64)
	return d, CommentPrefix + adminComment[len(m[0]):]
}

// Comment is the AdminComment that says the text and keeps the note of the defaults.
func (d Defaults) Comment(text string) string {
	if d == (Defaults{}) {
		return CommentPrefix + text
	}
	note := "(default"
	if d.CPUs > 0 {
		note += fmt.Sprintf(" cpus=%d", d.CPUs)
	}
	if d.MemMiB > 0 {
		note += fmt.Sprintf(" mem=%d", d.MemMiB)
	}
	return strings.TrimSpace(CommentPrefix + note + ") " + text)
}

// Of is the part of a default for each of so many members of a group, at least 1.
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

// Slurm may round what it prints.
func (d Defaults) hasMem(j *Job) bool {
	return d.MemMiB == 0 || math.Abs(float64(d.MemMiB)-j.HostMemMiB) < .01*float64(d.MemMiB)
}

// Missing is what a pending job that was given a part of its defaults lacks of them; 0 = it has them, or
// they were changed since.
func (d Defaults) Missing(j *Job, part Defaults) Defaults {
	if part.CPUs == 0 || d.hasCPUs(j) || !part.hasCPUs(j) {
		d.CPUs = 0
	}
	if part.MemMiB == 0 || d.hasMem(j) || !part.hasMem(j) {
		d.MemMiB = 0
	}
	return d
}
