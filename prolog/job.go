// Package prolog is what happens on a node at a job's start and end: a file that
// tells the node agent of the job, and an MPS daemon for each GPU that is shared.
//
// A hook must never cost a job or a node: Slurm drains a node whose prolog fails.
// So nothing here may hang, and whoever calls it ends in exit 0 whatever it
// returns.
package prolog

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/renameio/v2"
)

// DefaultRunDir is where hooks and agent meet.
const DefaultRunDir = "/run/slurmbridge"

// Job is what the prolog writes of a job for the agent.
type Job struct {
	JobID       int64  `json:"job_id"`
	ArrayJobID  int64  `json:"array_job_id,omitempty"`
	ArrayTaskID int64  `json:"array_task_id,omitempty"`
	Restart     int    `json:"restart"`
	UID         uint32 `json:"uid"`
	User        string `json:"user"`
	Partition   string `json:"partition,omitempty"`
	Comment     string `json:"comment,omitempty"`
	// GPUs are gres.conf's indexes.
	GPUs []int `json:"gpus"`
	// Percent is the share of the GPU in percent, 0 = a whole GPU or not known:
	// gres/shard doesn't tell a prolog.
	Percent int       `json:"percent,omitempty"`
	Start   time.Time `json:"start"`
	// End is set by the epilog.
	End time.Time `json:"end,omitzero"`
	// Node is slurmd's name for this node, "" = the host's.
	Node string `json:"node,omitempty"`
}

// Errors of FromEnv.
var (
	// ErrNoGPU: the job has no GPU, and nothing is to be done for it.
	ErrNoGPU = errors.New("the job has no GPU")
	// ErrBadEnv: Slurm's variables make no sense.
	ErrBadEnv = errors.New("bad environment")
)

// FromEnv reads a job from the variables Slurm gives its hooks. get is os.Getenv.
// What users can set is bounded and cleaned. Returns ErrNoGPU and ErrBadEnv.
func FromEnv(get func(string) string, now time.Time) (*Job, error) {
	j := &Job{Start: now}
	var err error
	if j.JobID, err = number(get("SLURM_JOB_ID"), 1); err != nil {
		return nil, fmt.Errorf("%w: SLURM_JOB_ID %.32q", ErrBadEnv, get("SLURM_JOB_ID"))
	}
	uid, err := strconv.ParseUint(get("SLURM_JOB_UID"), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%w: SLURM_JOB_UID %.32q", ErrBadEnv, get("SLURM_JOB_UID"))
	}
	j.UID = uint32(uid)
	j.User = clean(get("SLURM_JOB_USER"), 255)
	j.Partition = clean(get("SLURM_JOB_PARTITION"), 255)
	j.Comment = clean(get("SLURM_JOB_COMMENT"), 1024)
	j.Node = clean(get("SLURMD_NODENAME"), 255)
	restart, _ := number(get("SLURM_JOB_RESTART_COUNT"), 0)
	j.Restart = int(min(restart, 1<<20))
	if id, err := number(get("SLURM_ARRAY_JOB_ID"), 1); err == nil {
		if task, err := number(get("SLURM_ARRAY_TASK_ID"), 0); err == nil {
			j.ArrayJobID, j.ArrayTaskID = id, task
		}
	}
	list := get("SLURM_JOB_GPUS")
	if list == "" {
		list = get("SLURM_STEP_GPUS")
	}
	if j.GPUs, err = indexes(list); err != nil {
		return nil, fmt.Errorf("%w: SLURM_JOB_GPUS %.64q", ErrBadEnv, list)
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

// indexes reads "0,2-3".
func indexes(list string) ([]int, error) {
	var out []int
	if list == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		if !ranged {
			hi = lo
		}
		a, err := strconv.ParseUint(lo, 10, 8)
		if err != nil {
			return nil, err
		}
		b, err := strconv.ParseUint(hi, 10, 8)
		if err != nil || b < a || len(out) > 64 {
			return nil, errors.New("not a range")
		}
		for i := a; i <= b; i++ {
			out = append(out, int(i))
		}
	}
	slices.Sort(out)
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

// Dir is the folder where hooks and agent meet:
//
//	jobs/ID.json    a job that runs
//	ended/ID.json   one that has ended, until the agent has closed its record
//	mps/gpuN/       one GPU's MPS daemon: pipe/, log/, lock
//	gpus.json       the node's GPUs, written by the agent
type Dir string

func (d Dir) path(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Jobs is the folder of the jobs that run.
func (d Dir) Jobs() string { return d.path("jobs") }

// Ended is the folder of the jobs that have ended.
func (d Dir) Ended() string { return d.path("ended") }

func (d Dir) file(folder string, id int64) string {
	return d.path(folder, strconv.FormatInt(id, 10)+".json")
}

// Make makes the folders. Only root may write there: users must not forge a job.
func (d Dir) Make() error {
	for _, sub := range []string{"", "jobs", "ended", "mps"} {
		if err := os.MkdirAll(d.path(sub), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Begin writes a job's file.
func (d Dir) Begin(j *Job) error {
	if err := d.Make(); err != nil {
		return fmt.Errorf("job %d: %w", j.JobID, err)
	}
	return d.write("jobs", j)
}

func (d Dir) write(folder string, j *Job) error {
	body, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("job %d: %w", j.JobID, err)
	}
	// Comments may be private: root only.
	if err := renameio.WriteFile(d.file(folder, j.JobID), body, 0o600, renameio.WithStaticPermissions(0o600)); err != nil {
		return fmt.Errorf("write job file: %w", err)
	}
	return nil
}

// End moves a job's file to the ended ones, with the time. A job without a file
// (its prolog failed, or it had no GPU) is no error.
func (d Dir) End(id int64, now time.Time) (*Job, error) {
	j, err := ReadJob(d.file("jobs", id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		// What can't be read helps nobody.
		return nil, errors.Join(err, os.Remove(d.file("jobs", id)))
	}
	j.End = now
	if err := d.write("ended", j); err != nil {
		return j, err
	}
	if err := os.Remove(d.file("jobs", id)); err != nil {
		return j, fmt.Errorf("remove job file: %w", err)
	}
	return j, nil
}

// ReadJob reads a job's file.
func ReadJob(path string) (*Job, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > 64<<10 {
		return nil, fmt.Errorf("%s is no job file", path)
	}
	body, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	j := new(Job)
	if err := json.Unmarshal(body, j); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if j.JobID <= 0 {
		return nil, fmt.Errorf("%s names no job", path)
	}
	return j, nil
}

// List reads the jobs of a folder, by number; files that can't be read are left
// out and reported together.
func List(folder string) ([]*Job, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*Job
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		j, err := ReadJob(filepath.Join(folder, e.Name()))
		switch {
		case errors.Is(err, os.ErrNotExist): // ended in between
		case err != nil:
			errs = append(errs, err)
		default:
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b *Job) int { return int(a.JobID - b.JobID) })
	return out, errors.Join(errs...)
}

// Forget removes an ended job's file, once its record is closed.
func (d Dir) Forget(id int64) error {
	if err := os.Remove(d.file("ended", id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
