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

// jobGroup matches a job's control group: …/job_12 or …/job_12/step_extern. From 26.05 on it is named by the job's
// SLUID (sluid.c) unless CgroupJobIdPaths=yes.
var jobGroup = pattern.Lazy(`/(?:job_(\d+)|(` + sluidShape + `))(?:/|\n|$)`)

// InGroup returns the job of a process by its /proc/PID/cgroup: the job's number, or its SLUID if groups are named by
// that. Both are zero outside of jobs. Users can't leave their job's group, and groups below it don't count.
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

// loginGroup matches groups of a user's own session, which the user may name like a job's.
var loginGroup = pattern.Lazy(`^\d+:[^:]*:/user\.slice/`)

// v2 is the folder of a job's control group of version 2.
const v2 = "system.slice/*slurmstepd.scope/%s/"

// inGroups returns the path that a pattern matches for the job, "" if there is none, or several because two clusters on
// the machine have such a job.
func (j *JobFile) inGroups(groups, pattern string) string {
	for _, name := range []string{fmt.Sprintf("job_%d", j.JobID), j.SLUID} {
		if found, _ := filepath.Glob(filepath.Join(groups, fmt.Sprintf(pattern, name))); name != "" && len(found) == 1 {
			return found[0]
		}
	}
	return ""
}

// HostUse returns a job's CPU time, s, and peak memory, MiB, by its control group; −1 = unknown. The group exists if
// cgroup.conf has Slurm account or constrain: system.slice/slurmstepd.scope/job_12 in version 2 (with several slurmds
// NODE_slurmstepd.scope), slurm/uid_1000/job_12 below cpuacct and memory in version 1. groups is /sys/fs/cgroup.
func HostUse(groups string, j *JobFile) (cpuS, mib float64) {
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

// ownGroup is the control group for MPS daemons that would otherwise end with a job or with slurmd.
const ownGroup = "slurmbridge"

// slurmdGroup matches slurmd's own control group, in which hooks run: its unit's, or with MemSpecLimit or CoreSpecCount
// the limited group "system" (cgroup_v2.c, SYSTEM_CGDIR; version 1: slurm/system, slurm_NODE/system).
var slurmdGroup = pattern.Lazy(`/(?:slurmd\.service|[^/]*slurmstepd\.scope/system|slurm[^/]*/system)(?:/|\n|$)`)

// LeaveSlurm moves this process, and so what it starts, out of Slurm's control groups. With PrologFlags=RunInJob a hook
// runs inside the job, whose end would end the shared MPS daemon, and whose memory limit would count it. Otherwise the
// hook runs beside slurmd: MemSpecLimit and CoreSpecCount would limit the daemon and its servers, and they would
// survive a restart of slurmd's unit only with KillMode=process. Outside of Slurm's groups LeaveSlurm does nothing.
// root is "" except in tests.
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

// inherit copies the parent's settings to a cpuset of version 1, which takes no process while it is empty.
func inherit(parent, child string) {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if text, err := os.ReadFile(filepath.Join(parent, name)); err == nil {
			_ = os.WriteFile(filepath.Join(child, name), text, 0o600)
		}
	}
}
