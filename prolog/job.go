// Package prolog holds the hooks at a job's start and end on a node: a file announces the job to the node agent, and
// each shared GPU has an MPS daemon.
//
// A hook must never cost a job or a node: Slurm drains a node whose prolog fails. So nothing here may hang, and the
// callers always exit with 0.
//
// Files call down this list only: settings; prolog, epilog, taskprolog; hook, server; numbers, slurmconf; controller,
// steps, groups, mps, run, processes; cards, dir, job.
package prolog

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// JobFile is what the prolog writes of a job for the agent.
type JobFile struct {
	JobID int64 `json:"job_id"`
	// SLUID names this run of the job (Slurm 25.11 and later), "" = not known.
	SLUID       string `json:"sluid,omitempty"`
	ArrayJobID  int64  `json:"array_job_id,omitempty"`
	ArrayTaskID int64  `json:"array_task_id,omitempty"`
	Restart     int    `json:"restart"`
	UID         uint32 `json:"uid"`
	User        string `json:"user"`
	Comment     string `json:"comment,omitempty"`
	// GPUs are indexes in gres.conf's order, UUIDs the names of the same GPUs in NVML and CUDA, "" = unknown.
	GPUs  []int    `json:"gpus"`
	UUIDs []string `json:"uuids,omitempty"`
	// Percent is the share of the GPU, 0 = a whole GPU or unknown: a prolog doesn't see shares of gres/shard.
	Percent int       `json:"percent,omitempty"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"-"` // the time of its file in ended; zero = it runs
	// Node is slurmd's name for this node, "" = the host's.
	Node string `json:"node,omitempty"`
	// MPS: an MPS daemon was ready for the job when it began.
	MPS bool `json:"mps,omitempty"`
	// MemLimitMiB limits the GPU memory of each of the job's processes, by its profile; 0 = no limit.
	MemLimitMiB int64 `json:"mem_limit_mib,omitempty"`
	// ByHand: the job's owner, not the bridge, chose its part of the GPU.
	ByHand bool `json:"by_hand,omitempty"`
	// MPSFault is when the hooks found that the job's MPS server had faulted or died, or that the job has no server on a
	// GPU that it can't use without; zero = neither. A fault of one client ends the work of all, so the job may be victim
	// or cause.
	MPSFault time.Time `json:"mps_fault,omitzero"`
	// MPSFaultBy lists the pids that the MPS server blamed.
	MPSFaultBy []int `json:"mps_fault_by,omitempty"`
}

// Sharer reports whether the job is known to have a part of a GPU.
func (j *JobFile) Sharer() bool { return j.Percent > 0 && j.Percent < 100 }

// Errors of FromEnv.
var (
	// ErrNoGPU: the job has no GPU and needs nothing.
	ErrNoGPU = errors.New("the job has no GPU")
	// ErrBadEnv: Slurm's variables make no sense.
	ErrBadEnv = errors.New("bad environment")
)

// FromEnv reads a job from the variables Slurm gives its hooks. get is os.Getenv.
// What users can set is bounded and cleaned. Returns ErrNoGPU and ErrBadEnv.
func FromEnv(get func(string) string, now time.Time) (*JobFile, error) {
	j := &JobFile{Start: now}
	var err error
	if j.JobID, err = number(get("SLURM_JOB_ID"), 1); err != nil {
		return nil, fmt.Errorf("%w: SLURM_JOB_ID %.32q", ErrBadEnv, get("SLURM_JOB_ID"))
	}
	uid, err := strconv.ParseUint(get("SLURM_JOB_UID"), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%w: SLURM_JOB_UID %.32q", ErrBadEnv, get("SLURM_JOB_UID"))
	}
	j.UID = uint32(uid)
	if id := get("SLURM_JOB_SLUID"); sluid().MatchString(id) {
		j.SLUID = id
	}
	j.User = clean(get("SLURM_JOB_USER"), 255)
	j.Comment = clean(get("SLURM_JOB_COMMENT"), 1024)
	j.Node = clean(get("SLURMD_NODENAME"), 255)
	restart, _ := number(get("SLURM_JOB_RESTART_COUNT"), 0)
	j.Restart = int(min(restart, 1<<20))
	if id, err := number(get("SLURM_ARRAY_JOB_ID"), 1); err == nil {
		if task, err := number(get("SLURM_ARRAY_TASK_ID"), 0); err == nil {
			j.ArrayJobID = id
			j.ArrayTaskID = task
		}
	}
	if j.GPUs, err = indexes(get("SLURM_JOB_GPUS")); err != nil {
		return nil, fmt.Errorf("%w: SLURM_JOB_GPUS %.64q", ErrBadEnv, get("SLURM_JOB_GPUS"))
	}
	if len(j.GPUs) == 0 {
		return nil, ErrNoGPU
	}
	if p, err := number(get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), 1); err == nil && p <= 100 {
		j.Percent = int(p)
	}
	return j, nil
}

func number(s string, least int64) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && n < least {
		return 0, fmt.Errorf("%d is under %d", n, least)
	}
	return n, err
}

// mostGPUs is more than any node has.
const mostGPUs = 256

// indexes reads "0,2-3".
func indexes(list string) ([]int, error) {
	if list == "" {
		return nil, nil
	}
	out, ok := hostlist.Numbers(list, mostGPUs)
	slices.Sort(out)
	if !ok || out[len(out)-1] >= mostGPUs {
		return nil, errors.New("no list of GPUs")
	}
	return slices.Compact(out), nil
}

// clean makes a user's text printable and no longer than n bytes.
func clean(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s[:min(len(s), 4*n)])
	for len(s) > n {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// sluidShape matches a SLUID: 's' and 13 digits of Crockford's base 32.
const sluidShape = `s[0-9A-HJKMNP-TV-Z]{13}`

var sluid = pattern.Lazy(`^` + sluidShape + `$`)
