package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// bench runs kernels under MPS and measures them.
type bench struct {
	service  *service
	recorder *recorder
	// program is what to run for a kernel, before its arguments.
	program func(*Kernel) []string
	// target is how long a kernel's fixed count of iterations takes alone.
	target time.Duration
}

// sized is a kernel with its work and its count of iterations.
type sized struct {
	*Kernel
	work, rate float64 // units an iteration; iterations a second, as found out
	iterations int64
}

// sharer is what one member of a run did.
type sharer struct {
	track            track
	movedMB, heldMiB float64
	record           *gpuprof.Record // nil = not recorded
}

var errEarly = errors.New("ended without having iterated")

// calibrate determines a kernel's work and its rate.
func (b *bench) calibrate(ctx context.Context, k *Kernel) (s sized, err error) {
	look := min(max(b.target/10, 50*time.Millisecond), 3*time.Second)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+4*look)
	defer cancel()
	p, err := b.launch(k, "--seconds", strconv.FormatFloat(look.Seconds(), 'g', -1, 64))
	if err != nil {
		return s, err
	}
	defer func() {
		if serr := p.stop(); err == nil {
			err = serr
		}
	}()
	l, err := p.next(ctx)
	if err != nil {
		return s, err
	}
	if l.Work < 1 || l.Rate <= 0 {
		return s, fmt.Errorf("%w: work %v, rate %v", errLine, l.Work, l.Rate)
	}
	return sized{Kernel: k, work: l.Work, rate: l.Rate, iterations: max(3, int64(l.Rate*b.target.Seconds()))}, nil
}

func (b *bench) launch(k *Kernel, more ...string) (*process, error) {
	argv := append(append(b.program(k), k.args()...), more...)
	p, err := startProcess(argv, environ(b.service.environ()...))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", k.Name, err)
	}
	return p, nil
}

// next is the program's next line.
func (p *process) next(ctx context.Context) (line, error) {
	select {
	case l, ok := <-p.lines:
		if ok {
			return l, nil
		}
		<-p.exited
		if err := errors.Join(p.badErr, p.err); err != nil {
			return line{}, err
		}
		return line{}, errEarly
	case <-ctx.Done():
		return line{}, ctx.Err()
	}
}

// together runs kernels at the same time, and the agent samples them if they are to be recorded.
// They start together; after one has done its iterations, the rest are stopped.
func (b *bench) together(ctx context.Context, members []sized, record bool) (out []sharer, err error) {
	patience := 2*time.Minute + time.Duration(4*len(members))*b.target
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done after %v", patience))
	defer cancel()
	var procs []*process
	defer func() {
		for _, p := range procs {
			p.hangUp()
		}
		for i, p := range procs {
			// An earlier failure has been reported.
			if serr := p.stop(); serr != nil && err == nil {
				err = fmt.Errorf("%s: %w", members[i].Name, serr)
			}
		}
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
	}()
	for _, m := range members {
		p, err := b.launch(m.Kernel, "--work", strconv.FormatFloat(m.work, 'f', 0, 64), "--iterations", strconv.FormatInt(m.iterations, 10))
		if err != nil {
			return nil, err
		}
		procs = append(procs, p)
	}
	for i, p := range procs {
		l, err := p.next(ctx)
		if err == nil && !l.Ready {
			err = fmt.Errorf("%w: it isn't ready", errLine)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", members[i].Name, err)
		}
	}
	if n, err := b.service.clients(ctx); err != nil || n < len(members) {
		return nil, errors.Join(err, fmt.Errorf("the MPS daemon has %d clients, not %d: these would take turns", n, len(members)))
	}
	var ids []int64
	if record {
		if ids, err = b.recorder.begin(len(members)); err != nil {
			return nil, err
		}
	}
	out, err = race(ctx, procs)
	if record {
		records, rerr := b.recorder.finish(ctx, ids)
		for i := range records {
			out[i].record = records[i]
		}
		err = errors.Join(err, rerr)
	}
	return out, err
}

// race lets programs that are ready iterate until the first is done, and stops the rest. Each that
// ended well has iterated.
func race(ctx context.Context, procs []*process) ([]sharer, error) {
	out, errs := make([]sharer, len(procs)), make([]error, len(procs))
	over := make(chan struct{}, len(procs))
	var all sync.WaitGroup
	for i, p := range procs {
		all.Go(func() {
			errs[i] = out[i].follow(ctx, p)
			over <- struct{}{}
		})
	}
	for _, p := range procs {
		_ = p.start() // one that has ended: its follower knows why
	}
	<-over
	for _, p := range procs {
		p.hangUp()
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// follow reads a program's progress to its last line.
func (s *sharer) follow(ctx context.Context, p *process) error {
	for {
		l, err := p.next(ctx)
		if err != nil {
			return err
		}
		if err := s.track.add(l); err != nil {
			return err
		}
		if l.Done {
			s.movedMB, s.heldMiB = l.MovedMB, l.HeldMiB
			return nil
		}
	}
}

// window is the time in which all of them iterated, without its first tenth, in
// which clocks rise.
func window(sharers []sharer) (from, to float64) {
	from, to = sharers[0].track.from(), sharers[0].track.to()
	for i := range sharers {
		from, to = max(from, sharers[i].track.from()), min(to, sharers[i].track.to())
	}
	return from + (to-from)/10, to
}

// rates are their iterations a second while all of them iterated.
func rates(sharers []sharer) ([]float64, error) {
	from, to := window(sharers)
	var out []float64
	for i := range sharers {
		r := sharers[i].track.rate(from, to)
		if math.IsNaN(r) {
			return nil, errEarly
		}
		out = append(out, r)
	}
	return out, nil
}
