package prolog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// Programs of MPS.
const (
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
	shortName   = "nvidia-cuda-mps" // of both, which the kernel cuts after 15 characters
)

// kill ends with SIGKILL the processes of the named programs that belong to the
// GPU's pipe directory, and returns how many there were.
func (m *MPS) kill(gpu int, names ...string) int { return m.killOf(gpu, m.Dir.served(gpu), names...) }

// killOf is kill where the served user is known.
func (m *MPS) killOf(gpu int, served int64, names ...string) (n int) {
	for _, pid := range pids(m.Proc) {
		is := func() bool { return m.runs(gpu, pid, served, names) }
		if is() && killIf(pid, is) {
			n++
		}
	}
	return n
}

// killIf ends a process with SIGKILL if it is still the one that is meant: between a look at /proc and the signal it
// may have ended, and its number be another's. FindProcess holds it, by a pidfd (Linux 5.4), while is looks again.
func killIf(pid int, is func() bool) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer func() { _ = p.Release() }()
	return is() && p.Kill() == nil
}

// running are the processes of the named programs that belong to the GPU's pipe directory.
func (m *MPS) running(gpu int, names ...string) (found []int) {
	served := m.Dir.served(gpu)
	for _, pid := range pids(m.Proc) {
		if m.runs(gpu, pid, served, names) {
			found = append(found, pid)
		}
	}
	return found
}

// runs reports whether a process is of one of the named programs and belongs to the GPU's pipe directory. It is known
// by its program's name and by the environment that it was started with: a pid file may be of a process that has long
// been another. Any user can start processes like that, by the thousand. So a daemon is root's, or this process's own
// user's, a server that (one for all users is root's, seen on 555) or the served user's, and of others nothing more is
// read.
func (m *MPS) runs(gpu, pid int, served int64, names []string) bool {
	if !short(m.Proc, pid) {
		return false
	}
	of := owner(m.Proc, pid)
	ours := of == 0 || of == int64(os.Geteuid())
	if !ours && of != served {
		return false
	}
	name := program(m.Proc, pid)
	return slices.Contains(names, name) && (ours || name == serverName) &&
		has(m.Proc, pid, "CUDA_MPS_PIPE_DIRECTORY="+m.Pipe(gpu))
}

// outlived are the processes that a job has left behind: its task prolog has named it to them, and they are in no other
// job. With ProctrackType=proctrack/cgroup there are none.
func (h *Hook) outlived(j *Job) (found []int) {
	for _, pid := range pids(h.Proc) {
		if h.outlives(j, pid) {
			found = append(found, pid)
		}
	}
	return found
}

// outlives reports whether a process is one that a job has left behind.
func (h *Hook) outlives(j *Job, pid int) bool {
	if owner(h.Proc, pid) != int64(j.UID) || !has(h.Proc, pid, fmt.Sprintf("%s=%d", JobEnv, j.JobID)) {
		return false
	}
	job, sluid := InGroup(procFile(h.Proc, pid, "cgroup"))
	above := StepAbove(h.Proc, pid)
	return (job == 0 || job == j.JobID) && (sluid == "" || sluid == j.SLUID) && (above == 0 || above == j.JobID)
}

// pids are the processes, but for the first and this one.
func pids(proc string) (out []int) {
	entries, _ := os.ReadDir(cmp.Or(proc, "/proc"))
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid > 1 && pid != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

// procDir is a process's folder of /proc.
func procDir(proc string, pid int) string {
	return filepath.Join(cmp.Or(proc, "/proc"), strconv.Itoa(pid))
}

// procFile is what a file of a process says, nothing of a process that has gone.
func procFile(proc string, pid int, name string) []byte {
	text, _ := os.ReadFile(filepath.Join(procDir(proc, pid), name))
	return text
}

// has reports whether a process was started with a variable, NAME=value.
func has(proc string, pid int, variable string) bool {
	return slices.ContainsFunc(bytes.Split(procFile(proc, pid, "environ"), []byte{0}),
		func(kv []byte) bool { return string(kv) == variable })
}

// statOf are the fields of a process's stat from the state on (proc(5)). The name before may hold anything, blanks and
// brackets too.
func statOf(proc string, pid int) [][]byte {
	stat := procFile(proc, pid, "stat")
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}

// short reports whether a process has the short name of MPS's programs, which the kernel keeps. It is read first: who
// reads a process's command line or environment waits while the memory of that process is locked, as it is in a page
// fault on a dead file system.
func short(proc string, pid int) bool {
	return strings.TrimSpace(string(procFile(proc, pid, "comm"))) == shortName
}

// program is the name of the program of MPS that a process was started as, "" = it has gone, or is another.
func program(proc string, pid int) string {
	if !short(proc, pid) {
		return ""
	}
	name, _, _ := strings.Cut(string(procFile(proc, pid, "cmdline")), "\x00")
	return name[strings.LastIndexByte(name, '/')+1:]
}

// owner is the user that a process runs as, −1 = it has gone.
func owner(proc string, pid int) int64 {
	for line := range strings.Lines(string(procFile(proc, pid, "status"))) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "Uid:" {
			if uid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
				return int64(uid)
			}
		}
	}
	return -1
}

// exiting is the kernel's mark on a process that is ending (PF_EXITING, linux/sched.h):
// it is set before the process's sockets are closed.
const exiting = 0x4

// started is when a process began, in ticks since the boot, 0 = it has gone or is going.
// It distinguishes the process that was meant from a later one with the same pid.
func started(proc string, pid int) uint64 {
	f := statOf(proc, pid) // with the flags in place 6, and the time in place 19
	if len(f) < 20 || string(f[0]) == "Z" {
		return 0
	}
	flags, err1 := strconv.ParseUint(string(f[6]), 10, 64)
	ticks, err2 := strconv.ParseUint(string(f[19]), 10, 64)
	if err1 != nil || err2 != nil || flags&exiting != 0 {
		return 0
	}
	return ticks
}

// jobGroup is a control group of Slurm's for a job: …/job_12 or …/job_12/step_extern. From
// 26.05 on it is named by the job's SLUID (sluid.c), with CgroupJobIdPaths=yes as before.
var jobGroup = pattern.Lazy(`/(?:job_(\d+)|(` + sluidShape + `))(?:/|\n|$)`)

// sluidShape is a SLUID: 's' and 13 digits of Crockford's base 32.
const sluidShape = `s[0-9A-HJKMNP-TV-Z]{13}`

var sluid = pattern.Lazy(`^` + sluidShape + `$`)

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
