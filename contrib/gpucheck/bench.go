package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec" //nolint:depguard // the kernels' programs are run here, and the MPS control program
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Kernel is an application with a known demand.
type Kernel struct {
	Name   string
	Source string // of its work: a load
	// Duty is the part of an iteration, alone, in which the GPU is at work; the
	// host sleeps for the rest.
	Duty   float64
	Period time.Duration // of an iteration when alone, about
	SMs    float64       // part of the SMs that its kernels use, 0..1
	MemMiB float64       // device memory that it allocates; 0 = next to nothing
	// Copies: its work is copies over PCIe, for which no kernel runs.
	Copies bool

	work  float64         // units of work in an iteration; 0 = not known yet
	alone *rlcore.Profile // what it is when alone, with its seconds an iteration; nil = not known
}

// catalogue returns the kernels for a card, nil = one of 16 GiB: the named ones, or all.
func catalogue(c *card, names []string) ([]*Kernel, error) {
	mem := 16384.0
	if c != nil {
		mem = c.MemMiB
	}
	ms := time.Millisecond
	all := []*Kernel{
		{Name: "compute", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 1},
		{Name: "narrow", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 0.25},
		{Name: "memory", Source: "memory", Duty: 1, Period: 5 * ms, SMs: 1, MemMiB: 512},
		{Name: "pcie", Source: "pcie", Duty: 1, Period: 20 * ms, SMs: 1, Copies: true},
		{Name: "bursty", Source: "compute", Duty: 0.3, Period: 200 * ms, SMs: 1},
		{Name: "hungry", Source: "memory", Duty: 0.5, Period: 20 * ms, SMs: 1, MemMiB: math.Floor(0.3*mem/256) * 256},
	}
	some := slices.DeleteFunc(slices.Clone(all),
		func(k *Kernel) bool { return len(names) > 0 && !slices.Contains(names, k.Name) })
	if len(names) > 0 && len(some) != len(names) {
		known := ""
		for _, k := range all {
			known += " " + k.Name
		}
		return nil, fmt.Errorf("--kernels %.100q: there are%s, each once", names, known)
	}
	return some, nil
}

// bench runs kernels under MPS and measures them.
type bench struct {
	card               *card
	service            *service
	program            []string      // a client's
	duration, sampling time.Duration // for which kernels iterate, and between the agent's samples
	log                *slog.Logger
	// proc is a /proc in which the agent finds each kernel in its job's control group.
	proc string
}

// trial is kernels that iterated at the same time, with what each said at its start and end and the agent's record of
// it.
type trial struct {
	kernels []*Kernel
	clients []*client
	begins  []answer
	ends    []answer
	records []*gpuprof.Record
}

// rate is the i-th kernel's iterations a second.
func (t *trial) rate(i int) float64 { return float64(t.ends[i].N) / t.ends[i].Seconds }

// leastTrial is the shortest trial that says anything: NVML's utilisation is that of up to a second before.
const leastTrial = 3 * time.Second

// overhead is what a trial takes beyond its iterations, about, before one has shown it.
const overhead = 3 * time.Second

// law starts what is needed, measures, and ends all of it. The report is written after each trial.
func (o *options) law(ctx context.Context, c *card, kernels []*Kernel, res *results, report *Report) error {
	folder, err := os.MkdirTemp("", "gpucheck-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(folder)
	b := &bench{
		card: c, sampling: o.sampling, service: newService(folder, o.control, c), proc: filepath.Join(folder, "proc"),
		program: append(o.program(), "client"),
		log:     slog.New(slog.NewTextHandler(res.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	defer func() {
		err := b.service.release()
		for _, name := range []string{"control.log", "server.log"} {
			res.keep("mps-"+name, "the law", filepath.Join(folder, "mps", fmt.Sprintf("gpu%d", c.order), "log", name), 0)
		}
		if err != nil { // it costs no figures
			fmt.Fprintln(res.log, "gpucheck: end MPS:", err)
		}
	}()
	if err := b.service.ensure(ctx); err != nil {
		return err
	}
	return b.measure(ctx, o, kernels, res, report)
}

// trials are each kernel alone, which finds its work, and then all pairs.
func trials(kernels []*Kernel) (out [][]*Kernel) {
	for _, k := range kernels {
		out = append(out, []*Kernel{k})
	}
	for i, k := range kernels {
		for _, other := range kernels[i:] {
			out = append(out, []*Kernel{k, other})
		}
	}
	return out
}

// measure plays the trials, each for an equal part of the time that is left, and writes each down as it ends. One that
// fails doesn't stop the rest.
func (b *bench) measure(ctx context.Context, o *options, kernels []*Kernel, res *results, report *Report) error {
	all, end, beyond := trials(kernels), time.Now().Add(o.lawFor), overhead
	for n, of := range all {
		name := of[0].Name
		if len(of) > 1 {
			if of[0].alone == nil || of[1].alone == nil {
				continue // it failed alone
			}
			name += " + " + of[1].Name
		}
		begin := time.Now()
		b.duration = min(o.duration, time.Until(end)/time.Duration(len(all)-n)-beyond)
		if b.duration < min(o.duration, leastTrial) {
			res.add(name, begin, nil, errors.New("no time was left for it"))
			continue
		}
		t, err := b.try(ctx, of)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		beyond = max(0, time.Since(begin)-b.duration)
		facts := map[string]any{}
		if err == nil {
			report.add(t)
			facts["ends"], facts["records"] = t.ends, summaries(t.records)
		} else {
			report.Failures = append(report.Failures, name+": "+err.Error())
		}
		res.add(name, begin, facts, err)
		if err := report.save(res.folder); err != nil {
			return err
		}
		if err != nil {
			// A daemon that a client has failed on may fail the next ones.
			if err := errors.Join(b.service.release(), b.service.ensure(ctx)); err != nil {
				return err
			}
		}
	}
	return nil
}

// summaries are records without their series.
func summaries(records []*gpuprof.Record) (out []gpuprof.Record) {
	for _, r := range records {
		short := *r
		short.DropSeries()
		out = append(out, short)
	}
	return out
}

// try has kernels iterate at the same time, and the agent record them.
func (b *bench) try(ctx context.Context, kernels []*Kernel) (*trial, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+4*b.duration)
	defer cancel()
	t := &trial{kernels: kernels}
	defer func() { dismiss(t.clients, 5*time.Second) }()
	for i, k := range kernels {
		if err := b.ready(ctx, t, k, int64(i)+1); err != nil {
			return nil, fmt.Errorf("%s: %w", k.Name, err)
		}
	}
	n := len(kernels)
	if clients, err := b.clients(ctx); b.service.Control != "" && (err != nil || clients < n) {
		return nil, errors.Join(err, fmt.Errorf("the MPS daemon has %d clients, not %d: these would take turns", clients, n))
	}
	var err error
	t.records, err = b.record(ctx, n, func() (err error) {
		// The first tenth of the time, in which clocks rise, doesn't count.
		if _, err = t.iterate(ctx, b.duration/10); err == nil {
			t.ends, err = t.iterate(ctx, b.duration*9/10)
		}
		return err
	})
	return t, err
}

// ready starts a kernel's client, which finds its work, or has it from the trial of the kernel alone. There is no Slurm
// here that would put it into a job's group.
func (b *bench) ready(ctx context.Context, t *trial, k *Kernel, job int64) error {
	args := fmt.Sprintf("--kernel %s --busy-ms %g --sms %g --mem-mib %g --work %.0f",
		k.Name, k.Duty*float64(k.Period)/float64(time.Millisecond), k.SMs, k.MemMiB, k.work)
	c := launch(k.Name, append(slices.Clone(b.program), strings.Fields(args)...), b.service.environ(),
		&syscall.SysProcAttr{})
	t.clients = append(t.clients, c)
	err := b.own(c.pid(), "cgroup", fmt.Sprintf("0::/system.slice/slurmstepd.scope/job_%d/step_0/user/task_0\n", job))
	a := c.next(ctx, time.Minute)
	if why := a.failure(); why != "" {
		return errors.Join(err, errors.New(why))
	}
	if a.Work < 1 {
		return errors.Join(err, errors.New("it isn't ready"))
	}
	t.begins, k.work = append(t.begins, a), a.Work
	return err
}

// iterate has all kernels iterate for so long, and returns what each says then.
func (t *trial) iterate(ctx context.Context, lasts time.Duration) (ends []answer, err error) {
	for i, k := range t.kernels {
		err = errors.Join(err,
			t.clients[i].tell(fmt.Sprintf("run %g %g", k.Duty, float64(k.Period)/float64(time.Millisecond))))
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(lasts):
	}
	for i, k := range t.kernels {
		c := t.clients[i]
		err = errors.Join(err, c.tell("stop"))
		end := c.next(ctx, time.Minute)
		if why := end.failure(); why != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", k.Name, why))
		} else if end.N == 0 {
			err = errors.Join(err, fmt.Errorf("%s: it has not iterated", k.Name))
		}
		ends = append(ends, end)
	}
	return ends, err
}

// own puts a process into the /proc that the agent reads: there is no Slurm here that would put it into a job's group.
func (b *bench) own(pid int, file, text string) error {
	if b.proc == "" {
		return nil
	}
	dir := filepath.Join(b.proc, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)
}

// clients counts the processes that the GPU's MPS servers serve, which it makes known to the agent.
func (b *bench) clients(ctx context.Context) (n int, err error) {
	if b.service.Control == "" {
		return 0, nil
	}
	servers, err := b.service.query(ctx, "get_server_list")
	for _, pid := range servers {
		clients, cerr := b.service.query(ctx, "get_client_list "+pid)
		number, aerr := strconv.Atoi(pid)
		n, err = n+len(clients), errors.Join(err, cerr, aerr, b.own(number, "comm", "nvidia-cuda-mps\n"))
	}
	return n, err
}

// output runs a program to its end and returns what it printed.
func output(ctx context.Context, stdin string, env []string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.WaitDelay = env, strings.NewReader(stdin), time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %.2000s", err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// record runs do while a node agent records n sharers of the card, whose job files it writes as the hooks do.
func (b *bench) record(ctx context.Context, n int, do func() error) (out []*gpuprof.Record, err error) {
	ctx, end := context.WithCancel(ctx)
	records := make(chan *gpuprof.Record, n)
	a := &agent.Agent{
		Dir: b.service.Dir, Devices: b.card.lib.Devices(), Node: "gpucheck", Period: b.sampling, Now: time.Now,
		Log: b.log, Proc: b.proc,
		Keep: func(r *gpuprof.Record) error { records <- r; return nil },
	}
	if err := a.Start(); err != nil {
		end()
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	var running errgroup.Group
	running.Go(func() error { return a.Run(ctx) })
	defer func() { end(); _ = running.Wait() }()
	for id := range n {
		j := &prolog.Job{
			JobID: int64(id) + 1, UID: uint32(os.Getuid()), User: "gpucheck", //nolint:gosec // a uid
			GPUs: []int{b.card.order}, UUIDs: []string{b.card.UUID}, Start: time.Now(), Percent: 100 / n % 100,
		}
		if err := a.Dir.Begin(j); err != nil {
			return nil, err
		}
	}
	err = do()
	for id := range n {
		if _, err := a.Dir.End(int64(id)+1, time.Now(), "0:0"); err != nil {
			return nil, err
		}
	}
	out = make([]*gpuprof.Record, n)
	for range n { // also after an error: the next trial's records have the same numbers
		select {
		case r := <-records:
			out[r.JobID-1] = r
		case <-ctx.Done():
			return nil, errors.Join(err, fmt.Errorf("wait for the agent's record: %w", ctx.Err()))
		}
	}
	return out, err
}
