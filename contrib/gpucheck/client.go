package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// answer is what a client prints: at its start, and after each command that it reads.
//
//	run PAUSE  compute until the next line (a stop) or a failure, and sleep for so many seconds after each step
//	fault      write where nothing is
//	alloc MIB  take so much memory, 64 MiB at a time
type answer struct {
	Failed *cudaError `json:"failed,omitempty"` // what went wrong, last
	Why    string     `json:"why,omitempty"`    // the same of what isn't CUDA's
	PID    int        `json:"pid,omitempty"`
	// At the start.
	UUID     string  `json:"uuid,omitempty"`
	SMs      int32   `json:"sms,omitempty"`
	Mode     int     `json:"compute_mode,omitempty"`
	CUDA     int32   `json:"cuda,omitempty"` // 12020 = 12.2
	FreeMiB  float64 `json:"free_mib,omitempty"`
	TotalMiB float64 `json:"total_mib,omitempty"`
	// At the start: units of work in a step, and what that moves over PCIe, MB.
	Work   float64 `json:"work,omitempty"`
	StepMB float64 `json:"step_mb,omitempty"`
	// After run: steps, how many of them computed something else than they should, and for how long their kernels took.
	N     int64   `json:"n,omitempty"`
	Wrong int64   `json:"wrong,omitempty"`
	BusyS float64 `json:"busy_s,omitempty"`
	// Seconds are how long the command took.
	Seconds float64 `json:"seconds"`
	// After alloc, and at the start of a kernel.
	HeldMiB float64 `json:"held_mib,omitempty"`
}

// say prints the answer to a command that was begun at from.
func (a *answer) say(to *json.Encoder, from time.Time, err error) error {
	if err != nil && !errors.As(err, &a.Failed) {
		a.Why = err.Error()
	}
	a.Seconds = clock().Sub(from).Seconds()
	return to.Encode(a)
}

// failure is what went wrong, "" = nothing.
func (a *answer) failure() string {
	if a.Failed != nil {
		return a.Failed.Error()
	}
	return a.Why
}

// rate is how many steps were made a second.
func (a *answer) rate() float64 { return float64(a.N) / a.Seconds }

// newClient is the command that is a client of the kernel in its argument, in JSON.
func newClient(in io.Reader, out io.Writer) *cobra.Command {
	ownShm := false
	c := &cobra.Command{
		Use: "client KERNEL", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var k Kernel
			if err := json.Unmarshal([]byte(args[0]), &k); err != nil {
				return err
			}
			if ownShm {
				return withOwnShm(args[0])
			}
			runtime.LockOSThread()
			return serveClient(worker(k), in, out)
		},
	}
	c.Flags().BoolVar(&ownShm, "private-shm", false, "with a /dev/shm of its own, in its own mount namespace")
	return c
}

// withOwnShm mounts a /dev/shm of its own and becomes a client.
func withOwnShm(kernel string) error {
	self, err := os.Executable()
	if err == nil {
		err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("none", "/dev/shm", "tmpfs", 0, ""))
	}
	if err != nil {
		return fmt.Errorf("mount a /dev/shm: %w", err)
	}
	return unix.Exec(self, []string{os.Args[0], "client", kernel}, os.Environ())
}

// works is what a client does on the GPU.
type works interface {
	Open(a *answer) error
	// Step computes for some milliseconds, of which the kernel took busy; errWrong is about the result alone.
	Step() (busy time.Duration, err error)
	Fault() error
	Alloc(mib float64) (held float64, err error)
}

// worker makes what does a kernel's work. Tests without a GPU have another.
var worker = func(k Kernel) works { return &gpuClient{Kernel: k} }

// clock is by which a client's commands are timed. Tests without a GPU have the simulated card's.
var clock = time.Now

// serveClient does what it reads until its input ends.
func serveClient(w works, in io.Reader, out io.Writer) error {
	lines, to := make(chan string), json.NewEncoder(out)
	go func() {
		for text := bufio.NewScanner(in); text.Scan(); {
			lines <- text.Text()
		}
		close(lines)
	}()
	a, from := &answer{PID: os.Getpid()}, clock()
	failed := w.Open(a) // to get a context
	if err := a.say(to, from, failed); err != nil {
		return err
	}
	for text := range lines {
		word, number, _ := strings.Cut(text, " ")
		var v float64
		_, _ = fmt.Sscan(number, &v)
		a, from, err := &answer{}, clock(), failed
		switch {
		case word == "stop":
			continue // the run has ended by itself
		case failed != nil:
		case word == "run":
			err = a.repeat(w, time.Duration(v*float64(time.Second)), lines)
		case word == "fault":
			err = w.Fault()
		case word == "alloc":
			a.HeldMiB, err = w.Alloc(v)
		}
		if err := a.say(to, from, err); err != nil {
			return err
		}
	}
	return nil
}

// repeat computes, with pauses, until a line comes.
func (a *answer) repeat(w works, pause time.Duration, lines <-chan string) error {
	for {
		busy, err := w.Step()
		switch {
		case errors.Is(err, errWrong):
			a.Wrong++
		case err != nil:
			return err
		}
		a.N++
		a.BusyS += busy.Seconds()
		select {
		case <-lines:
			return nil
		case <-time.After(pause):
		}
	}
}

// gpuClient computes on a GPU. Its step is a kernel's busy part: units of work of the kernel's own kind, run to their
// end. The work is fixed beforehand, so that a step next to other kernels takes as much longer as they slow it.
type gpuClient struct {
	Kernel
	d    *device
	load load
}

// Open implements works. It finds the work where that is 0.
func (g *gpuClient) Open(a *answer) (err error) {
	if g.d, err = openGPU(a); err != nil {
		return err
	}
	if g.load, err = loads[g.Source](g.d, &g.Kernel); err != nil {
		return err
	}
	if g.Work == 0 {
		g.Work, err = g.load.find(g.Warm, g.busy())
	} else {
		err = g.load.work(1) // compiles, where that is still to be done
	}
	a.Work, a.HeldMiB, a.StepMB = g.Work, g.load.heldMiB, g.Work*g.load.movedMB
	return err
}

// Step implements works.
func (g *gpuClient) Step() (busy time.Duration, err error) {
	from := time.Now()
	err = g.load.work(int64(g.Work))
	return time.Since(from), err
}

// Fault implements works.
func (g *gpuClient) Fault() error {
	f, err := g.d.function("store")
	if err != nil {
		return err
	}
	if err := g.d.launch(f, 1, 1, 0, 1<<44+4); err != nil {
		return err
	}
	return g.d.wait()
}

// Alloc implements works.
func (g *gpuClient) Alloc(mib float64) (held float64, err error) {
	for ; held < mib; held += 64 {
		if _, err := g.d.alloc(64 << 20); err != nil {
			return held, err
		}
	}
	return held, nil
}
