package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
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
	// At are the submission times, GPU seconds after the beginning, ascending; earlier jobs run meanwhile. A job that is
	// late on a busy machine is submitted at once. nil = all at the beginning.
	At []float64
	// Hold: no job starts before the last one is there. Not with At.
	Hold bool
	// Orders are the jobs instead, each yielded when its time has come; no reports are read.
	Orders iter.Seq[Order]
	// Refused is called when Slurm refuses a job, which is then submitted again; nil = that ends the run.
	Refused func(error)
	// Left counts unended and running jobs. Default: the owner's in squeue.
	Left func(context.Context) (left, running int, err error)
	// Every is how often Left and Progress are called. Default 500 ms.
	Every time.Duration
	// Progress may be nil; gpu is nil where the GPU could not be looked at.
	Progress func(ended, running int, gpu *gpusim.Snapshot)
	// Limit ends a run that takes longer with an error. Default 10 minutes.
	Limit time.Duration
}

// Order is a job to submit.
type Order struct {
	User, Script string
	Args         []string        // sbatch's
	Submitted    func(id string) // called at once
}

// Job is what became of one job.
type Job struct {
	ID, App string
	// SubmitS is when it really was submitted, GPU seconds after the beginning; 0 without Work.At.
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
	Bridge        *Bridged // nil without a bridge
}

// GPU is the first node's first GPU as it is now, with the sums since it was made; nil of a bare stack.
func (s *Stack) GPU() (*gpusim.Snapshot, error) {
	if s.Setup.Bare {
		return nil, nil
	}
	st, err := gpusim.Open(s.State())
	if err != nil {
		return nil, err
	}
	defer st.Close()
	gpu, err := st.Device(0).Snapshot()
	return &gpu, err
}

// Run runs work on a stack of its own, and adds what the bridge reports of it.
func Run(ctx context.Context, setup Setup, w Work) (r *Ran, err error) {
	s, err := Start(ctx, setup)
	if err != nil {
		return nil, err
	}
	defer func() { err = s.CloseAfter(ctx, err) }()
	if r, err = s.Do(ctx, w); err == nil && setup.Policy != "" {
		r.Bridge, err = s.Ask(ctx)
	}
	return r, err
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
	both, ctx := errgroup.WithContext(ctx)
	if w.Orders == nil {
		w.Orders = s.orders(ctx, &w, r, reports)
	}
	if w.Left == nil {
		w.Left = s.left
	}
	begin := func() error {
		r.Before, err = s.GPU()
		r.Began = time.Now()
		return err
	}
	var came arrivals
	submit := func() error { return s.submitAll(ctx, &w, &came) }
	if w.Hold {
		err = s.hold(submit, begin)
	} else if err = begin(); err == nil {
		both.Go(submit)
	}
	if err != nil {
		return nil, err
	}
	both.Go(func() error { return s.watch(ctx, &w, &came) })
	if err := both.Wait(); err != nil {
		return nil, err
	}
	if r.After, err = s.GPU(); err != nil {
		return nil, err
	}
	for i := range r.Jobs {
		r.Jobs[i].read(reports)
	}
	return r, nil
}

// arrivals are the jobs that were submitted, and whether no more come.
type arrivals struct {
	n   atomic.Int64
	all atomic.Bool
}

// orders are the work's applications, in their order and at their times; each submitted one is added to r.
func (s *Stack) orders(ctx context.Context, w *Work, r *Ran, reports string) iter.Seq[Order] {
	return func(yield func(Order) bool) {
		for i, name := range w.Apps {
			j := Job{App: name}
			if w.At != nil {
				due := r.Began.Add(time.Duration(w.At[i] / s.Setup.Scale * float64(time.Second)))
				if !Sleep(ctx, time.Until(due).Seconds()) {
					return
				}
				j.SubmitS = time.Since(r.Began).Seconds() * s.Setup.Scale
			}
			run := fmt.Sprintf("%s run %s --report %s/$SLURM_JOB_ID.json", s.Bin("gpusim"), name, reports)
			if w.Command != nil {
				run = w.Command(name)
			}
			script := fmt.Sprintf("#!/bin/sh\nexport GPUSIM_STATE=%s\nat=$(date +%%s.%%N)\n%s\nrc=$?\necho $SLURMD_NODENAME "+
				"${CUDA_VISIBLE_DEVICES:--} $at $(date +%%s.%%N) >%s/$SLURM_JOB_ID.end\nexit $rc\n",
				s.State(), run, reports)
			args := append(slices.Clone(w.Args), "--gres="+w.Gres, "--comment=app="+name, "--job-name="+name)
			submitted := func(id string) {
				j.ID = id
				r.Jobs = append(r.Jobs, j)
			}
			if !yield(Order{Owner, script, args, submitted}) {
				return
			}
		}
	}
}

// submitAll submits the jobs as they come.
func (s *Stack) submitAll(ctx context.Context, w *Work, came *arrivals) error {
	for o := range w.Orders {
		for {
			id, err := s.Submit(ctx, o.User, o.Script, o.Args...)
			if err == nil {
				o.Submitted(id)
				came.n.Add(1)
				break
			}
			if w.Refused == nil || ctx.Err() != nil {
				return err
			}
			w.Refused(err)
			time.Sleep(time.Second)
		}
	}
	came.all.Store(true)
	return ctx.Err()
}

// reports makes the folder that jobs report to.
func (s *Stack) reports() (string, error) {
	id, err := slurmtest.IDs(Owner)
	if err != nil {
		return "", err
	}
	dir := s.Path("reports")
	return dir, errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, int(id.Uid), -1))
}

// hold does something while no job starts, and the bridge doesn't decide on some jobs before all are there.
func (s *Stack) hold(do ...func() error) error {
	bridge, err := s.Break("bridge stopped", 0)
	partition, perr := s.Break("partition down", 0)
	err = errors.Join(err, perr)
	for _, f := range do {
		if err == nil {
			err = f()
		}
	}
	return errors.Join(err, partition(), bridge())
}

// left counts the owner's unended and running jobs.
func (s *Stack) left(ctx context.Context) (left, running int, err error) {
	out, err := s.Run(ctx, "squeue", "-h", "-u", Owner, "-o", "%T")
	return len(strings.Fields(out)), strings.Count(out, "RUNNING"), err
}

// watch reports the progress until every job has ended.
func (s *Stack) watch(ctx context.Context, w *Work, came *arrivals) error {
	every, limit := cmp.Or(w.Every, 500*time.Millisecond), cmp.Or(w.Limit, 10*time.Minute)
	for end := time.Now().Add(limit); ; {
		all, there := came.all.Load(), int(came.n.Load()) // before the look, so that none of them is missing in it
		left, running, err := w.Left(ctx)
		if err != nil {
			return err
		}
		if w.Progress != nil {
			gpu, err := s.GPU()
			if err != nil {
				gpu = nil // it only decorates
			}
			w.Progress(max(0, there-left), running, gpu) // more may have come since
		}
		if left == 0 && all {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d jobs have not ended after %.0f minutes", left, limit.Minutes())
		}
		if !Sleep(ctx, every.Seconds()) {
			return ctx.Err()
		}
	}
}

// Sleep waits for so many seconds; false: the context has ended before.
func Sleep(ctx context.Context, s float64) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(s * float64(time.Second))):
		return true
	}
}

// read fills in what the job left. One that left nothing, or half of it, stays without: it has failed.
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
