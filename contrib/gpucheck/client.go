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
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// answer is what a client prints: at its start, and after each command that it reads.
//
//	run DUTY   compute until the next line (a stop) or a failure, for that part of the time; with a second number, the
//	           milliseconds of a period, pause for the rest of one after each step, however long that took
//	fault      write where nothing is
//	alloc MIB  take so much memory, 64 MiB at a time
type answer struct {
	Failed *cudaError `json:"failed,omitempty"` // what went wrong, last
	Why    string     `json:"why,omitempty"`    // the same of what isn't CUDA's
	PID    int        `json:"pid,omitempty"`
	// At the start.
	UUID     string  `json:"uuid,omitempty"`
	SMs      int     `json:"sms,omitempty"`
	Mode     int     `json:"compute_mode,omitempty"`
	CUDA     int     `json:"cuda,omitempty"` // 12020 = 12.2
	FreeMiB  float64 `json:"free_mib,omitempty"`
	TotalMiB float64 `json:"total_mib,omitempty"`
	// At the start of a kernel: units of work in a step, and what that moves over PCIe, MB.
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

// fails puts an error into an answer.
func (a *answer) fails(err error) {
	if err != nil && !errors.As(err, &a.Failed) {
		a.Why = err.Error()
	}
}

// failure is what went wrong, "" = nothing.
func (a *answer) failure() string {
	if a.Failed != nil {
		return a.Failed.Error()
	}
	return a.Why
}

// newClient is the command that is a client: of the protocol's situations, or a kernel.
func newClient(in io.Reader, out io.Writer) *cobra.Command {
	privateShm, name, mem, work := false, "", 0.0, 0.0
	c := &cobra.Command{
		Use: "client", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if privateShm {
				return withOwnShm()
			}
			runtime.LockOSThread()
			if name == "" {
				return serveClient(new(gpuClient), in, out)
			}
			known, err := catalogue(nil, []string{name})
			if err != nil {
				return err
			}
			k := known[0]
			k.MemMiB, k.work = mem, work
			return serveClient(&kernelClient{Kernel: k}, in, out)
		},
	}
	f := c.Flags()
	f.BoolVar(&privateShm, "private-shm", false, "with a /dev/shm of its own, in its own mount namespace")
	f.StringVar(&name, "kernel", "", "one of the catalogue")
	f.Float64Var(&mem, "mem-mib", 0, "device memory")
	f.Float64Var(&work, "work", 0, "units of work in a step; 0 = to be found")
	return c
}

// withOwnShm mounts a /dev/shm of its own and becomes a client.
func withOwnShm() error {
	self, err := os.Executable()
	if err == nil {
		err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("none", "/dev/shm", "tmpfs", 0, ""))
	}
	if err != nil {
		return fmt.Errorf("mount a /dev/shm: %w", err)
	}
	return unix.Exec(self, []string{os.Args[0], "client"}, os.Environ())
}

// works is what a client does on the GPU: a test has another.
type works interface {
	Open(a *answer) error
	// Step computes for some milliseconds, of which the kernel took busy, and reports whether the result is right. first:
	// of a run.
	Step(first bool) (right bool, busy time.Duration, err error)
	Fault() error
	Alloc(mib float64) (held float64, err error)
}

// serveClient does what it reads until its input ends.
func serveClient(w works, in io.Reader, out io.Writer) error {
	lines, say := make(chan string), json.NewEncoder(out)
	go func() {
		for text := bufio.NewScanner(in); text.Scan(); {
			lines <- text.Text()
		}
		close(lines)
	}()
	first, from := &answer{PID: os.Getpid()}, time.Now()
	failed := w.Open(first) // to get a context
	first.fails(failed)
	first.Seconds = time.Since(from).Seconds()
	if err := say.Encode(first); err != nil {
		return err
	}
	for text := range lines {
		word, number, _ := strings.Cut(text, " ")
		var v, periodMS float64
		_, _ = fmt.Sscan(number, &v, &periodMS)
		a, from, err := &answer{}, time.Now(), failed
		switch {
		case word == "stop":
			continue // the run has ended by itself
		case failed != nil:
		case word == "run":
			err = a.repeat(w, v, time.Duration(periodMS*float64(time.Millisecond)), lines)
		case word == "fault":
			err = w.Fault()
		case word == "alloc":
			a.HeldMiB, err = w.Alloc(v)
		}
		a.fails(err)
		a.Seconds = time.Since(from).Seconds()
		if err := say.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// repeat computes for a part of the time until a line comes.
func (a *answer) repeat(w works, duty float64, period time.Duration, lines <-chan string) error {
	for {
		from := time.Now()
		right, busy, err := w.Step(a.N == 0)
		if err != nil {
			return err
		}
		a.N++
		a.BusyS += busy.Seconds()
		if !right {
			a.Wrong++
		}
		pause := time.Duration((1 - duty) * float64(period))
		if period == 0 {
			pause = time.Duration(float64(time.Since(from)) * (1/max(0.01, min(1, duty)) - 1))
		}
		select {
		case <-lines:
			return nil
		case <-time.After(pause):
		}
	}
}

// gpuClient computes on a GPU what the host can check.
type gpuClient struct {
	lib    *cuda
	d      *device
	f      uintptr
	out    uint64
	rounds uint64
	seed   uint32
	got    []uint32
}

// stepTakes is about how long a step of a client that is alone takes.
const stepTakes = 5 * time.Millisecond

// context makes one on the first GPU.
func (g *gpuClient) context(a *answer) (err error) {
	if g.lib, err = openCUDA(); err != nil {
		return err
	}
	var version int32
	_ = g.lib.DriverVersion(&version)
	a.CUDA = int(version)
	if g.d, err = g.lib.open(); err != nil {
		return err
	}
	var free, total uint64
	if err := g.lib.check("cuMemGetInfo", g.d.MemInfo(&free, &total)); err != nil {
		return err
	}
	a.UUID, a.SMs, a.Mode = g.d.uuid(), g.d.sms, g.d.attribute(computeMode)
	a.FreeMiB, a.TotalMiB = float64(free)/(1<<20), float64(total)/(1<<20)
	return nil
}

// Open implements works.
func (g *gpuClient) Open(a *answer) (err error) {
	if err := g.context(a); err != nil {
		return err
	}
	if g.f, err = g.d.function("congruential"); err != nil {
		return err
	}
	g.got = make([]uint32, g.d.sms*8*checkThreads)
	if g.out, err = g.d.alloc(uint64(4 * len(g.got))); err != nil {
		return err
	}
	for g.rounds = 1 << 10; g.rounds < 1<<30; g.rounds *= 2 {
		from := time.Now()
		if _, _, err := g.Step(false); err != nil {
			return err
		}
		if time.Since(from) > stepTakes/2 {
			break
		}
	}
	return nil
}

// checkThreads is how many threads a block of the kernel has that the host checks.
const checkThreads = 256

// Step implements works.
func (g *gpuClient) Step(bool) (right bool, busy time.Duration, err error) {
	g.seed++
	from := time.Now()
	if err := g.d.launch(g.f, g.d.sms*8, checkThreads, 0, g.out, uint64(g.seed), g.rounds); err != nil {
		return false, 0, err
	}
	if err := g.d.wait(); err != nil {
		return false, 0, err
	}
	busy = time.Since(from)
	code := g.d.ToHost(unsafe.Pointer(&g.got[0]), g.out, uint64(4*len(g.got))) //nolint:gosec // CUDA writes there
	if err := g.lib.check("cuMemcpyDtoH", code); err != nil {
		return false, 0, err
	}
	return congruential(g.got, g.seed, g.rounds), busy, nil
}

// congruential reports whether got is what the kernel of this name computes: a round maps x to a x + b, and so do many,
// with another a and b.
func congruential(got []uint32, seed uint32, rounds uint64) bool {
	times, plus := uint32(1), uint32(0)
	// By squaring: the function of 2^k rounds, for each bit of rounds.
	for t, p := uint32(1664525), uint32(1013904223); rounds > 0; rounds >>= 1 {
		if rounds&1 != 0 {
			times, plus = times*t, plus*t+p
		}
		t, p = t*t, p*t+p
	}
	for i, v := range got {
		if v != times*(seed+uint32(i))+plus { //nolint:gosec // modulo 2^32
			return false
		}
	}
	return true
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
	for piece := uint64(64); held < mib; held += float64(piece) {
		if _, err := g.d.alloc(piece << 20); err != nil {
			return held, err
		}
	}
	return held, nil
}
