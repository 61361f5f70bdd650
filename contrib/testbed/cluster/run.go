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
	Apps []string // of the catalogue, a job each, in the order of submission
	Gres string   // what each asks for, e.g. "gpu:shared"
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
	SubmitS float64
	// Ended is when its script was over; zero = it did not come that far.
	Ended time.Time
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
	// Before and After are the GPU as the work began and after its end.
	Before, After *gpusim.Snapshot
}

// GPU is the GPU as it is now, with the sums since it was made.
func (s *Stack) GPU() (*gpusim.Snapshot, error) {
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
	reports, err := s.Reports()
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
		err = s.Hold(ctx)
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
			if err := s.Free(ctx, begin); err != nil {
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
		script := fmt.Sprintf("#!/bin/sh\nexport GPUSIM_STATE=%s\n%s run %s --report %s/$SLURM_JOB_ID.json\nrc=$?\ndate +%%s.%%N > %s/$SLURM_JOB_ID.end\nexit $rc\n",
			s.State(), s.Bin("gpusim"), name, reports, reports)
		var err error
		if j.ID, err = s.Submit(ctx, Owner, script, "--gres="+w.Gres, "--comment=app="+name, "--job-name="+name); err != nil {
			return nil, err
		}
		out = append(out, j)
		came.Add(1)
	}
	return out, nil
}

// Reports makes the folder that jobs report to.
func (s *Stack) Reports() (string, error) {
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

// Hold keeps jobs from starting, and the bridge from deciding on some of them before all are there.
func (s *Stack) Hold(ctx context.Context) error {
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	_, err := s.Run(ctx, "scontrol", "update", "PartitionName="+slurmtest.Partition, "State=DOWN")
	return err
}

// Free ends a hold; begin is called right before.
func (s *Stack) Free(ctx context.Context, begin func() error) error {
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

// Left waits until no job is left.
func (s *Stack) Left(ctx context.Context) error {
	for {
		out, err := s.Run(ctx, "squeue", "-h", "-u", Owner, "-o", "%T")
		if err != nil || strings.TrimSpace(out) == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d jobs have not ended: %w", len(strings.Fields(out)), ctx.Err())
		case <-time.After(200 * time.Millisecond):
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
	if end, err := readTime(filepath.Join(dir, j.ID+".end")); err == nil {
		j.Ended = end
	}
}

func readTime(path string) (time.Time, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	sec, frac, _ := strings.Cut(strings.TrimSpace(string(body)), ".")
	s, err := strconv.ParseInt(sec, 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	ns, err := strconv.ParseInt(frac, 10, 64)
	return time.Unix(s, ns), err
}
