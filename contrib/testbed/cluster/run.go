package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// Work is what to run on a stack.
type Work struct {
	Apps []string // a job each, in the order of submission
	Gres string   // what each asks for, e.g. "gpu:shared"
	Args []string // more of sbatch's
	// Command is a shell command that runs an application. Default the catalogue's, on the first node's GPU.
	Command func(app string) string
	// At are the submission times, GPU seconds after the beginning, ascending; earlier jobs run
	// meanwhile. A job that is late on a busy machine is submitted at once. nil = all at the
	// beginning.
	At []float64
	// Hold: no job starts before the last one is there. Not with At.
	Hold bool
	// Every is how often Progress is called. Default 500 ms.
	Every time.Duration
	// Progress may be nil; gpu is nil where the GPU could not be looked at.
	Progress func(ended, running int, gpu *gpusim.Snapshot)
	// Limit ends a run that takes longer with an error. Default 10 minutes.
	Limit time.Duration
}

// Job is what became of one job.
type Job struct {
	ID, App string
	// SubmitS is when it really was submitted, GPU seconds after the beginning; 0 without
	// Work.At.
	SubmitS   float64
	Node, GPU string // where it ran; GPU is CUDA_VISIBLE_DEVICES
	// Began and Ended are its command's; zero = it did not come that far.
	Began, Ended time.Time
	// Report is the application's own.
	app.Report
}

// Finished reports whether the job did all its work.
func (j *Job) Finished() bool {
	return !j.Ended.IsZero() && j.Status == gpusim.Finished.String()
}

// Ran is what became of all jobs.
type Ran struct {
	Jobs  []Job     // in Work's order
	Began time.Time // when the first could start
	// Before and After are the GPU as the work began and after its end; nil where none is simulated.
	Before, After *gpusim.Snapshot
}

// GPU is the GPU as it is now, with the sums since it was made; nil of a bare stack.
func (s *Stack) GPU() (*gpusim.Snapshot, error) {
	if s.Setup.Bare {
		return nil, nil
	}
	out, err := exec.Command(s.Bin("gpusim"), "smi", "--json", "--state", s.State()).Output()
	if err != nil {
		return nil, fmt.Errorf("gpusim smi: %w", err)
	}
	var all struct {
		GPUs []gpusim.Snapshot `json:"gpus"`
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("gpusim smi: %w", err)
	}
	if len(all.GPUs) != 1 {
		return nil, fmt.Errorf("gpusim smi shows %d GPUs", len(all.GPUs))
	}
	return &all.GPUs[0], nil
}

// Do submits the jobs, waits for the last one's end and reads what they left.
func (s *Stack) Do(ctx context.Context, w Work) (*Ran, error) {
	if w.At != nil && (w.Hold || len(w.At) != len(w.Apps)) {
		return nil, fmt.Errorf("%d jobs are to be submitted at %d times, hold %v", len(w.Apps), len(w.At), w.Hold)
	}
	reports, err := s.reports()
	if err != nil {
		return nil, err
	}
	r := &Ran{}
	begin := func() error {
		r.Before, err = s.GPU()
		r.Began = time.Now()
		return err
	}
	if w.Hold {
		err = s.hold(ctx)
	} else {
		err = begin()
	}
	if err != nil {
		return nil, err
	}
	var came atomic.Int64
	submit := func(ctx context.Context) (err error) {
		r.Jobs, err = s.submitAll(ctx, &w, reports, r.Began, &came)
		return err
	}
	if w.At != nil {
		both, ctx := errgroup.WithContext(ctx)
		both.Go(func() error { return submit(ctx) })
		both.Go(func() error { return s.watch(ctx, &w, &came) })
		if err := both.Wait(); err != nil {
			return nil, err
		}
	} else {
		if err := submit(ctx); err != nil {
			return nil, err
		}
		if w.Hold {
			if err := s.free(ctx, begin); err != nil {
				return nil, err
			}
		}
		if err := s.watch(ctx, &w, &came); err != nil {
			return nil, err
		}
	}
	if r.After, err = s.GPU(); err != nil {
		return nil, err
	}
	for i := range r.Jobs {
		r.Jobs[i].read(reports)
	}
	return r, nil
}

// submitAll submits each job when its time has come, and counts the submitted ones in came.
func (s *Stack) submitAll(ctx context.Context, w *Work, reports string, began time.Time, came *atomic.Int64) ([]Job, error) {
	var out []Job
	for i, name := range w.Apps {
		j := Job{App: name}
		if w.At != nil {
			due := began.Add(time.Duration(w.At[i] / s.Setup.Scale * float64(time.Second)))
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Until(due)):
			}
			j.SubmitS = time.Since(began).Seconds() * s.Setup.Scale
		}
		run := fmt.Sprintf("%s run %s --report %s/$SLURM_JOB_ID.json", s.Bin("gpusim"), name, reports)
		if w.Command != nil {
			run = w.Command(name)
		}
		script := fmt.Sprintf("#!/bin/sh\nexport GPUSIM_STATE=%s\nat=$(date +%%s.%%N)\n%s\nrc=$?\necho $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES:--} $at $(date +%%s.%%N) >%s/$SLURM_JOB_ID.end\nexit $rc\n",
			s.State(), run, reports)
		var err error
		if j.ID, err = s.Submit(ctx, Owner, script, append(w.Args, "--gres="+w.Gres, "--comment=app="+name, "--job-name="+name)...); err != nil {
			return nil, err
		}
		out = append(out, j)
		came.Add(1)
	}
	return out, nil
}

// reports makes the folder that jobs report to.
func (s *Stack) reports() (string, error) {
	u, err := user.Lookup(Owner)
	if err != nil {
		return "", err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return "", err
	}
	dir := s.Path("reports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, os.Chown(dir, uid, -1)
}

// hold keeps jobs from starting, and the bridge from deciding on some of them before all are there.
func (s *Stack) hold(ctx context.Context) error {
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	_, err := s.Run(ctx, "scontrol", "update", "PartitionName="+slurmtest.Partition, "State=DOWN")
	return err
}

// free ends a hold; begin is called right before.
func (s *Stack) free(ctx context.Context, begin func() error) error {
	if err := begin(); err != nil {
		return err
	}
	if _, err := s.Run(ctx, "scontrol", "update", "PartitionName="+slurmtest.Partition, "State=UP"); err != nil {
		return err
	}
	return s.signal(syscall.SIGCONT)
}

// signal sends the bridge a signal, if there is one.
func (s *Stack) signal(sig syscall.Signal) error {
	if p := s.Daemon("slurmbridge"); p != nil {
		return p.Process.Signal(sig)
	}
	return nil
}

// watch reports the progress until every job has ended; came counts the submitted ones.
func (s *Stack) watch(ctx context.Context, w *Work, came *atomic.Int64) error {
	every, limit := w.Every, w.Limit
	if every == 0 {
		every = 500 * time.Millisecond
	}
	if limit == 0 {
		limit = 10 * time.Minute
	}
	end := time.Now().Add(limit)
	for {
		there := int(came.Load()) // before the look, so that none of them is missing in it
		out, err := s.Run(ctx, "squeue", "-h", "-u", Owner, "-o", "%T")
		if err != nil {
			return err
		}
		left, running := 0, 0
		for _, st := range strings.Fields(out) {
			left++
			if st == "RUNNING" {
				running++
			}
		}
		ended := max(0, there-left) // more may have come since
		if w.Progress != nil {
			gpu, err := s.GPU()
			if err != nil {
				gpu = nil // it only decorates
			}
			w.Progress(ended, running, gpu)
		}
		if left == 0 && there == len(w.Apps) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d jobs have not ended after %.0f minutes", len(w.Apps)-ended, limit.Minutes())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

// read fills in what the job left. One that left nothing, or half of it, stays
// without: it has failed.
func (j *Job) read(dir string) {
	if body, err := os.ReadFile(filepath.Join(dir, j.ID+".json")); err == nil {
		if json.Unmarshal(body, &j.Report) != nil {
			j.Report = app.Report{}
		}
	}
	if body, err := os.ReadFile(filepath.Join(dir, j.ID+".end")); err == nil {
		var began, ended float64
		if n, _ := fmt.Sscan(string(body), &j.Node, &j.GPU, &began, &ended); n == 4 {
			j.Began, j.Ended = clock(began), clock(ended)
		}
	}
}

func clock(unixS float64) time.Time { return time.UnixMicro(int64(1e6 * unixS)) }
