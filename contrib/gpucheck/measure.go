package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// bench runs kernels under MPS and measures them.
type bench struct {
	service  *service
	recorder *recorder
	program  func(*Kernel) []string // what to run for a kernel, before its arguments
	target   time.Duration          // how long a kernel's iterations take alone
}

// solo is a kernel that was measured alone.
type solo struct {
	Kernel
	work       float64 // units an iteration, as found out
	iterations int64
	track      track
	record     *gpuprof.Record
	alone      float64 // iterations a second
}

// group is two kernels that were measured together: their indexes, and how much each was slowed.
type group struct {
	members [2]int
	slow    [2]float64
}

// measured is all that was measured.
type measured struct {
	solos    []solo
	groups   []group
	failures []string
}

var errEarly = errors.New("ended without having iterated")

// measure runs everything, with a line for each part. What fails is noted and doesn't stop the rest.
func (b *bench) measure(ctx context.Context, kernels []Kernel, errOut io.Writer) (*measured, error) {
	m := new(measured)
	step, steps := 0, len(kernels)*(len(kernels)+3)/2
	try := func(what string, f func() error) error {
		step++
		fmt.Fprintf(errOut, "gpucheck: %d/%d %s\n", step, steps, what)
		err := f()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		m.failures = append(m.failures, what+": "+err.Error())
		return b.service.renew(ctx)
	}
	for _, k := range kernels {
		s := solo{Kernel: k}
		err := try(k.Name, func() error {
			if err := b.calibrate(ctx, &s); err != nil {
				return err
			}
			r, tracks, records, err := b.together(ctx, &s)
			if err == nil {
				s.alone, s.track, s.record = r[0], tracks[0], records[0]
				m.solos = append(m.solos, s)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for i := range m.solos {
		for j := i; j < len(m.solos); j++ {
			x, y := &m.solos[i], &m.solos[j]
			err := try(x.Name+" + "+y.Name, func() error {
				r, _, _, err := b.together(ctx, x, y)
				if err == nil {
					m.groups = append(m.groups, group{[2]int{i, j}, [2]float64{x.alone / r[0], y.alone / r[1]}})
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

func (b *bench) launch(ctx context.Context, k *Kernel, more ...string) (*process, error) {
	p, err := startProcess(ctx, append(append(b.program(k), k.args()...), more...), environ(b.service.environ()...), stopWithin)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", k.Name, err)
	}
	return p, nil
}

// calibrate determines a kernel's work and how many iterations last for the target.
func (b *bench) calibrate(ctx context.Context, s *solo) error {
	look := min(max(b.target/10, 50*time.Millisecond), 3*time.Second)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+4*look)
	defer cancel()
	p, err := b.launch(ctx, &s.Kernel, "--seconds", strconv.FormatFloat(look.Seconds(), 'g', -1, 64))
	if err != nil {
		return err
	}
	l, err := p.next()
	if err = errors.Join(err, p.stop()); err == nil && (l.Work < 1 || l.Rate <= 0) {
		err = fmt.Errorf("%w: work %v, rate %v", errLine, l.Work, l.Rate)
	}
	s.work, s.iterations = l.Work, max(3, int64(l.Rate*b.target.Seconds()))
	return err
}

// together runs kernels at the same time, recorded by the agent, and returns how many iterations a second each made while
// all of them iterated. They start together; after one has done its iterations, the others are stopped.
func (b *bench) together(ctx context.Context, members ...*solo) (r []float64, tracks []track, records []*gpuprof.Record, err error) {
	patience := 2*time.Minute + time.Duration(4*len(members))*b.target
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var procs []*process
	defer func() {
		for _, p := range procs {
			p.hangUp()
		}
		if err != nil {
			err = errors.Join(err, ctx.Err())
		}
		for i, p := range procs {
			if serr := p.stop(); serr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", members[i].Name, serr))
			}
		}
	}()
	for _, m := range members {
		p, err := b.launch(ctx, &m.Kernel, "--work", strconv.FormatFloat(m.work, 'f', 0, 64), "--iterations", strconv.FormatInt(m.iterations, 10))
		if err != nil {
			return nil, nil, nil, err
		}
		procs = append(procs, p)
	}
	for i, p := range procs {
		if l, err := p.next(); err != nil || !l.Ready {
			return nil, nil, nil, fmt.Errorf("%s isn't ready: %w", members[i].Name, errors.Join(err, errLine))
		}
	}
	if n, err := b.service.clients(ctx); err != nil || n < len(members) {
		return nil, nil, nil, errors.Join(err, fmt.Errorf("the MPS daemon has %d clients, not %d: these would take turns", n, len(members)))
	}
	ids, err := b.recorder.begin(len(members))
	if err != nil {
		return nil, nil, nil, err
	}
	tracks, err = race(procs)
	records, rerr := b.recorder.finish(ctx, ids)
	if err = errors.Join(err, rerr); err == nil {
		r, _, _, err = rates(tracks...)
	}
	return r, tracks, records, err
}

// race lets programs that are ready iterate until the first is done, and stops the others.
func race(procs []*process) ([]track, error) {
	out, errs := make([]track, len(procs)), make([]error, len(procs))
	var all sync.WaitGroup
	over := func() {
		for _, p := range procs {
			p.hangUp()
		}
	}
	for i, p := range procs {
		all.Go(func() {
			defer over()
			for l := (line{}); errs[i] == nil && !l.Done; {
				if l, errs[i] = p.next(); errs[i] == nil {
					errs[i] = out[i].add(l)
				}
			}
		})
	}
	for _, p := range procs {
		p.start()
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// recorder is the node agent, which learns of runs as it learns of jobs from hooks.
type recorder struct {
	dir     prolog.Dir
	gpu     int // in order of the device files, as gres.conf has it
	uuid    string
	close   context.CancelFunc
	last    int64 // number of the last run
	records chan *gpuprof.Record
}

// startRecorder starts the agent on a folder of its own.
func startRecorder(devices []nvml.Device, dir prolog.Dir, gpu int, uuid string, period time.Duration, log *slog.Logger) (*recorder, error) {
	ctx, end := context.WithCancel(context.Background())
	r := &recorder{dir: dir, gpu: gpu, uuid: uuid, records: make(chan *gpuprof.Record, 16)}
	keep := func(rec *gpuprof.Record) error {
		select {
		case r.records <- rec:
		case <-ctx.Done():
		}
		return nil
	}
	a := &agent.Agent{Dir: dir, Devices: devices, Node: "gpucheck", Period: period, Keep: keep, Now: time.Now, Log: log}
	if err := a.Start(); err != nil {
		end()
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = a.Run(ctx) // ctx's error
	}()
	r.close = func() { end(); <-over }
	return r, nil
}

// begin announces to the agent that n sharers start now, and returns their numbers.
func (r *recorder) begin(n int) ([]int64, error) {
	var ids []int64
	for range n {
		r.last++
		ids = append(ids, r.last)
		j := &prolog.Job{
			JobID: r.last, UID: uint32(os.Getuid()), User: "gpucheck", //nolint:gosec // a uid
			GPUs: []int{r.gpu}, UUIDs: []string{r.uuid}, Start: time.Now(),
		}
		if n > 1 {
			j.Percent = 100 / n
		}
		if err := r.dir.Begin(j); err != nil {
			return ids, err
		}
	}
	return ids, nil
}

// finish announces to the agent that they have ended and returns their records.
func (r *recorder) finish(ctx context.Context, ids []int64) ([]*gpuprof.Record, error) {
	for _, id := range ids {
		if _, err := r.dir.End(id, time.Now(), "0:0"); err != nil {
			return nil, err
		}
	}
	out := make([]*gpuprof.Record, len(ids))
	for got := 0; got < len(ids); {
		select {
		case rec := <-r.records:
			if i := rec.JobID - ids[0]; i >= 0 && i < int64(len(ids)) && out[i] == nil {
				out[i] = rec
				got++
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the agent's record: %w", ctx.Err())
		}
	}
	return out, nil
}
