package agent

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// jobGroup is how Slurm names a job's control group; a user can't leave it.
var jobGroup = regexp.MustCompile(`/job_(\d+)(?:/|\n|$)`)

// owner tells a process's job by its control group. server is true for an MPS
// server, which is nobody's. Where neither is known both are zero: Slurm here
// doesn't use control groups, or the process isn't a job's.
func (a *Agent) owner(pid int) (job int64, server bool) {
	dir := filepath.Join(cmp.Or(a.Proc, "/proc"), strconv.Itoa(pid))
	if groups, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil {
		if m := jobGroup.FindSubmatch(groups); m != nil {
			if id, err := strconv.ParseInt(string(m[1]), 10, 64); err == nil {
				return id, false
			}
		}
	}
	// The kernel cuts nvidia-cuda-mps-server to 15 bytes.
	name, err := os.ReadFile(filepath.Join(dir, "comm"))
	return 0, err == nil && bytes.HasPrefix(name, []byte("nvidia-cuda-mps"))
}
