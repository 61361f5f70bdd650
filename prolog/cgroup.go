package prolog

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// jobGroup is a control group of Slurm's for a job: …/job_12 or …/job_12/step_extern. From
// 26.05 on it is named by the job's SLUID (sluid.c), with CgroupJobIdPaths=yes as before.
var jobGroup = regexp.MustCompile(`/(?:job_(\d+)|(` + sluidShape + `))(?:/|\n|$)`)

// sluidShape is a SLUID: 's' and 13 digits of Crockford's base 32.
const sluidShape = `s[0-9A-HJKMNP-TV-Z]{13}`

var sluid = regexp.MustCompile(`^` + sluidShape + `$`)

// InGroup reads which job's a process is in its /proc/PID/cgroup: the job's number, or its
// SLUID where the groups are named by that. Both are zero where it is in no job's group. A
// user can't leave it, and what a job makes below its own group doesn't count.
func InGroup(groups []byte) (job int64, sluid string) {
	m := jobGroup.FindSubmatch(groups)
	if m == nil {
		return 0, ""
	}
	job, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		job = 0
	}
	return job, string(m[2])
}

// ownGroup is the control group that MPS daemons run in which a job would take along.
const ownGroup = "slurmbridge"

// LeaveJob takes this process, and what it starts, out of the job's control groups:
// with PrologFlags=RunInJob a hook runs inside the job, and the MPS daemon that it
// starts for all sharers would end with this one, and count against its memory. root is
// "" but in tests. Elsewhere than in a job it does nothing.
func LeaveJob(root string) error {
	groups, err := os.ReadFile(filepath.Join(root, "/proc/self/cgroup"))
	if err != nil {
		return nil // no control groups here
	}
	var errs []error
	for line := range strings.Lines(string(groups)) {
		// HIERARCHY:CONTROLLERS:PATH, without controllers for version 2.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !jobGroup.MatchString(f[2]) {
			continue
		}
		mount := filepath.Join(root, "/sys/fs/cgroup", strings.TrimPrefix(f[1], "name="))
		if f[1] == "" {
			if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil {
				mount = filepath.Join(mount, "unified") // both versions at once
			}
		}
		into := filepath.Join(mount, ownGroup)
		if err := os.Mkdir(into, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
			continue
		}
		if f[1] == "cpuset" {
			inherit(mount, into)
		}
		errs = append(errs, os.WriteFile(filepath.Join(into, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o600))
	}
	return errors.Join(errs...)
}

// inherit gives a cpuset of version 1 its parent's: an empty one takes no process.
func inherit(parent, child string) {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if text, err := os.ReadFile(filepath.Join(parent, name)); err == nil {
			_ = os.WriteFile(filepath.Join(child, name), text, 0o600)
		}
	}
}
