package prolog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// jobGroup is a control group of Slurm's for a job: …/job_12 or …/job_12/step_extern. From
// 26.05 on it is named by the job's SLUID (sluid.c), with CgroupJobIdPaths=yes as before.
var jobGroup = pattern.Lazy(`/(?:job_(\d+)|(` + sluidShape + `))(?:/|\n|$)`)

// InGroup reads which job's a process is in its /proc/PID/cgroup: the job's number, or its
// SLUID where the groups are named by that. Both are zero where it is in no job's group. A
// user can't leave it, and what a job makes below its own group doesn't count.
func InGroup(groups []byte) (job int64, sluid string) {
	for line := range bytes.Lines(groups) {
		m := jobGroup().FindSubmatch(line)
		if m == nil || loginGroup().Match(line) {
			continue
		}
		if job, err := strconv.ParseInt(string(m[1]), 10, 64); err == nil {
			return job, ""
		}
		return 0, string(m[2])
	}
	return 0, ""
}

// loginGroup is a group of a user's own session, where the user names groups, say like a job's.
var loginGroup = pattern.Lazy(`^\d+:[^:]*:/user\.slice/`)

// v2 is the folder of a job's control group of version 2.
const v2 = "system.slice/*slurmstepd.scope/%s/"

// inGroups is the file or folder that a pattern names for the job; "" = there is none, or two clusters on one machine
// have one.
func (j *Job) inGroups(groups, pattern string) string {
	for _, name := range []string{fmt.Sprintf("job_%d", j.JobID), j.SLUID} {
		if found, _ := filepath.Glob(filepath.Join(groups, fmt.Sprintf(pattern, name))); name != "" && len(found) == 1 {
			return found[0]
		}
	}
	return ""
}

// HostUse returns what a job has used of its node by its control group: CPU time, s, and the most memory it
// held, MiB; −1 = there is no such figure. Where cgroup.conf lets Slurm account or constrain, the group is
// system.slice/slurmstepd.scope/job_12 (version 2; with several slurmds NODE_slurmstepd.scope), or
// slurm/uid_1000/job_12 below cpuacct and memory (version 1). groups is /sys/fs/cgroup.
func HostUse(groups string, j *Job) (cpuS, mib float64) {
	read := func(unit float64, patterns ...string) float64 {
		for _, pattern := range patterns {
			text, err := os.ReadFile(j.inGroups(groups, pattern))
			f := strings.Fields(strings.TrimPrefix(string(text), "usage_usec "))
			if err != nil || len(f) == 0 {
				continue
			}
			if n, err := strconv.ParseUint(f[0], 10, 63); err == nil {
				return float64(n) / unit
			}
		}
		return -1
	}
	cpuS = read(1e6, v2+"cpu.stat")
	if cpuS < 0 {
		cpuS = read(1e9, "cpuacct/slurm*/uid_*/%s/cpuacct.usage")
	}
	// Linux before 5.19 keeps no peak in version 2.
	return cpuS, read(1<<20, v2+"memory.peak", v2+"memory.current", "memory/slurm*/uid_*/%s/memory.max_usage_in_bytes")
}

// ownGroup is the control group that MPS daemons run in which a job or slurmd would take along.
const ownGroup = "slurmbridge"

// slurmdGroup is a control group of slurmd itself, where hooks run: its unit's, and with MemSpecLimit or CoreSpecCount
// the group "system" to which these are limits (cgroup_v2.c, SYSTEM_CGDIR; version 1: slurm/system, slurm_NODE/system).
var slurmdGroup = pattern.Lazy(`/(?:slurmd\.service|[^/]*slurmstepd\.scope/system|slurm[^/]*/system)(?:/|\n|$)`)

// LeaveSlurm takes this process, and what it starts, out of Slurm's control groups. With PrologFlags=RunInJob a hook
// runs inside the job: the MPS daemon that it starts for all sharers would end with the job, and count against its
// memory. Otherwise it runs beside slurmd: the daemon and its servers would get by on what MemSpecLimit and
// CoreSpecCount leave to slurmd, and outlive its unit's restart by KillMode=process only. root is "" but in tests.
// Elsewhere it does nothing.
func LeaveSlurm(root string) error {
	groups, err := os.ReadFile(filepath.Join(root, "/proc/self/cgroup"))
	if err != nil {
		return nil // no control groups here
	}
	var errs []error
	for line := range strings.Lines(string(groups)) {
		// HIERARCHY:CONTROLLERS:PATH, without controllers for version 2.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !jobGroup().MatchString(f[2]) && !slurmdGroup().MatchString(f[2]) {
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
