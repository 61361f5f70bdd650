package agent

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"strconv"

	"github.com/slurmbridge/slurmbridge/prolog"
)

// deepest bounds the walk from a process to its step.
const deepest = 64

// owner finds a process's job by its control group, or where Slurm doesn't use them
// by the step that is its ancestor. server is true for an MPS server, which
// belongs to no job. Where nothing is known both are zero.
func (a *Agent) owner(pid int) (job int64, server bool) {
	dir := a.process(pid)
	if groups, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil {
		job, sluid := prolog.InGroup(groups)
		if job == 0 && sluid != "" {
			job = a.jobNamed(sluid)
		}
		if job != 0 {
			return job, false
		}
	}
	if job := a.stepOf(pid); job != 0 {
		return job, false
	}
	// The kernel cuts nvidia-cuda-mps-server to 15 bytes.
	name, err := os.ReadFile(filepath.Join(dir, "comm"))
	return 0, err == nil && bytes.HasPrefix(name, []byte("nvidia-cuda-mps"))
}

func (a *Agent) process(pid int) string {
	return filepath.Join(cmp.Or(a.Proc, "/proc"), strconv.Itoa(pid))
}

// jobNamed is the job with a prolog that was given this SLUID; 0 = none is known.
func (a *Agent) jobNamed(sluid string) int64 {
	for r, t := range a.jobs {
		if t.job.SLUID == sluid {
			return r.ID
		}
	}
	return 0
}

// stepOf finds the step that a process descends from; 0 = none. The link is lost when a parent
// ends.
func (a *Agent) stepOf(pid int) int64 {
	for range deepest {
		stat, err := os.ReadFile(filepath.Join(a.process(pid), "stat"))
		if err != nil {
			return 0
		}
		// The name before may hold anything, brackets too.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			return 0
		}
		if pid, err = strconv.Atoi(string(fields[1])); err != nil || pid <= 1 {
			return 0
		}
		if job := prolog.StepOf(a.process(pid)); job != 0 {
			return job
		}
	}
	return 0
}
