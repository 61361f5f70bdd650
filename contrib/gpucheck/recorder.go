package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// recorder is the node agent, which learns of runs as it learns of jobs from hooks.
type recorder struct {
	dir  prolog.Dir
	gpu  int // in order of the device files, as gres.conf has it
	uuid string
	end  context.CancelFunc
	over chan error

	mu   sync.Mutex
	last int64 // number of the last run
	wait map[int64]chan *gpuprof.Record
}

// startRecorder starts the agent on a folder of its own.
func startRecorder(lib nvml.Library, dir prolog.Dir, gpu int, uuid string, period time.Duration, log *slog.Logger) (*recorder, error) {
	ctx, end := context.WithCancel(context.Background())
	r := &recorder{dir: dir, gpu: gpu, uuid: uuid, end: end, over: make(chan error, 1), wait: map[int64]chan *gpuprof.Record{}}
	a := &agent.Agent{Dir: dir, Lib: lib, Node: "gpucheck", Period: period, Keep: r.keep, Now: time.Now, Log: log}
	if err := a.Start(); err != nil {
		end()
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	go func() { r.over <- a.Run(ctx) }()
	return r, nil
}

// close ends the agent and returns what it ended with: context.Canceled, unless it
// had ended before.
func (r *recorder) close() error {
	r.end()
	return <-r.over
}

// begin announces to the agent that n sharers start now, and returns their numbers.
func (r *recorder) begin(n int) ([]int64, error) {
	var ids []int64
	r.mu.Lock()
	defer r.mu.Unlock()
	for range n {
		r.last++
		ids = append(ids, r.last)
		r.wait[r.last] = make(chan *gpuprof.Record, 1)
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
	var out []*gpuprof.Record
	for _, id := range ids {
		if _, err := r.dir.End(id, time.Now(), "0:0"); err != nil {
			return nil, err
		}
	}
	for _, id := range ids {
		r.mu.Lock()
		ch := r.wait[id]
		r.mu.Unlock()
		select {
		case rec := <-ch:
			out = append(out, rec)
		case err := <-r.over:
			r.over <- err // for close
			return nil, fmt.Errorf("the agent has ended: %w", err)
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the agent's record: %w", ctx.Err())
		}
		r.mu.Lock()
		delete(r.wait, id)
		r.mu.Unlock()
	}
	return out, nil
}

// keep is the agent's.
func (r *recorder) keep(rec *gpuprof.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ch := r.wait[rec.JobID]; ch != nil {
		select {
		case ch <- rec:
		default: // once is enough
		}
	}
	return nil
}
