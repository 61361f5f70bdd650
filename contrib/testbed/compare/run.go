package compare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// job is what became of one job.
type job struct {
	id, app string
	// submitS is when it really was submitted, GPU seconds after the beginning; 0 where all jobs are there before it.
	submitS float64
	ended   time.Time // its command; zero = it did not come that far
	// Report is the application's own.
	app.Report
}

// finished reports whether the job did all its work.
func (j *job) finished() bool {
	return !j.ended.IsZero() && j.Status == gpusim.Finished.String()
}

// ran is what became of all jobs.
type ran struct {
	jobs  []job     // in the workload's order
	began time.Time // when the first could start
	// before and after are the GPU as the work began and after its end.
	before, after *gpusim.Snapshot
	bridge        *cluster.Bridged // nil without a bridge
}

// play is a cell's jobs on their cluster.
type play struct {
	*cluster.Stack
	cell    *cell
	reports string // the folder that jobs report to
	came    atomic.Int64
	ran     ran
}

// run runs the cell's jobs on a cluster of its own, and adds what the bridge reports of them. It calls progress every
// so often with the number of jobs that have ended, and ends with an error where that takes longer than limit.
func (c *cell) run(ctx context.Context, every, limit time.Duration, progress func(ended int)) (r *ran, err error) {
	s, err := cluster.Start(ctx, c.setup)
	if err != nil {
		return nil, err
	}
	defer func() { err = s.CloseAfter(ctx, err) }()
	p := &play{Stack: s, cell: c, reports: s.Path("reports")}
	id, err := slurmtest.IDs(cluster.Owner)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(p.reports, 0o700), os.Chown(p.reports, int(id.Uid), -1)); err != nil {
		return nil, err
	}
	both, bothCtx := errgroup.WithContext(ctx)
	submit := func() error { return p.submit(bothCtx) }
	if c.hold {
		err = p.hold(submit, p.begin)
	} else if err = p.begin(); err == nil {
		both.Go(submit)
	}
	if err != nil {
		return nil, err
	}
	both.Go(func() error { return p.watch(bothCtx, every, limit, progress) })
	if err := both.Wait(); err != nil {
		return nil, err
	}
	r = &p.ran
	if r.after, err = p.gpu(); err != nil {
		return nil, err
	}
	for i := range r.jobs {
		r.jobs[i].read(p.reports)
	}
	if c.setup.Policy != "" {
		r.bridge, err = s.Ask(ctx)
	}
	return r, err
}

// gpu is the first node's first GPU as it is now, with the sums since it was made.
func (p *play) gpu() (*gpusim.Snapshot, error) {
	st, err := gpusim.Open(p.State())
	if err != nil {
		return nil, err
	}
	defer st.Close()
	gpu, err := st.Device(0).Snapshot()
	return &gpu, err
}

// begin notes the moment from which times count.
func (p *play) begin() (err error) {
	p.ran.before, err = p.gpu()
	p.ran.began = time.Now()
	return err
}

// submit submits the cell's applications, in their order and at their times. A job that is late on a busy machine is
// submitted at once.
func (p *play) submit(ctx context.Context) error {
	c := p.cell
	for i, name := range c.apps {
		j := job{app: name}
		if c.at != nil {
			due := p.ran.began.Add(time.Duration(c.at[i] / p.Setup.Scale * float64(time.Second)))
			if !cluster.Sleep(ctx, time.Until(due).Seconds()) {
				return ctx.Err()
			}
			j.submitS = time.Since(p.ran.began).Seconds() * p.Setup.Scale
		}
		script := fmt.Sprintf("export GPUSIM_STATE=%s\n%s run %s --report %s/$SLURM_JOB_ID.json\nrc=$?\n"+
			"date +%%s.%%N >%s/$SLURM_JOB_ID.end\nexit $rc\n", p.State(), p.Bin("gpusim"), name, p.reports, p.reports)
		var err error
		j.id, err = p.Submit(ctx, cluster.Owner, script, "--gres="+c.variant.gres, "--comment=app="+name, "--job-name="+name)
		if err != nil {
			return err
		}
		p.ran.jobs = append(p.ran.jobs, j)
		p.came.Add(1)
	}
	return nil
}

// hold does something while no job starts, and the bridge doesn't decide on some jobs before all are there.
func (p *play) hold(do ...func() error) error {
	bridge, err := p.Break("bridge stopped", 0)
	partition, perr := p.Break("partition down", 0)
	err = errors.Join(err, perr)
	for _, f := range do {
		if err == nil {
			err = f()
		}
	}
	return errors.Join(err, partition(), bridge())
}

// watch reports the progress until every job has ended.
func (p *play) watch(ctx context.Context, every, limit time.Duration, progress func(ended int)) error {
	for end := time.Now().Add(limit); ; {
		came := int(p.came.Load()) // before the look, so that none of them is missing in it
		out, err := p.Run(ctx, "squeue", "-h", "-u", cluster.Owner, "-o", "%i")
		if err != nil {
			return err
		}
		left := len(strings.Fields(out))
		progress(max(0, came-left)) // more may have come since
		if left == 0 && came == len(p.cell.apps) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d jobs have not ended after %.0f minutes", left, limit.Minutes())
		}
		if !cluster.Sleep(ctx, every.Seconds()) {
			return ctx.Err()
		}
	}
}

// read fills in what the job left. One that left nothing, or half of it, stays without: it has failed.
func (j *job) read(dir string) {
	if body, err := os.ReadFile(filepath.Join(dir, j.id+".json")); err == nil {
		if json.Unmarshal(body, &j.Report) != nil {
			j.Report = app.Report{}
		}
	}
	if body, err := os.ReadFile(filepath.Join(dir, j.id+".end")); err == nil {
		var unixS float64
		if n, _ := fmt.Sscan(string(body), &unixS); n == 1 {
			j.ended = time.UnixMicro(int64(1e6 * unixS))
		}
	}
}
