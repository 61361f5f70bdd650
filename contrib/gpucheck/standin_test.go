package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// misbehave makes stand-ins fail: "NAME=how,…".
const misbehave = "GPUCHECK_TEST_MISBEHAVE"

// standIn stands in for a client on the simulated GPU: one of the situations', or a kernel, whose step is as much work
// as a period of it does alone. Without a daemon it computes for itself, as CUDA is thought to.
type standIn struct {
	*Kernel // nil = a client of the situations
	mps     *mps.Client
	slot    *gpusim.Slot
	limits  gpusim.Limits
	period  float64 // s
	done    float64 // solo work up to the last step, s
}

// stand serves a stand-in for the client that these arguments ask for.
func stand(args []string, in io.Reader, out io.Writer) error {
	s, name := &standIn{}, ""
	f := flag.NewFlagSet("client", flag.ContinueOnError)
	shm, work, mem := f.Bool("private-shm", false, ""), f.Float64("work", 0, ""), f.Float64("mem-mib", 0, "")
	f.StringVar(&name, "kernel", "", "")
	switch err := f.Parse(args); {
	case err != nil:
		return err
	case *shm:
		return withOwnShm()
	case name != "":
		known, err := catalogue(nil, []string{name})
		if err != nil || *work != 0 && *work != 7 {
			return fmt.Errorf("work %v: %w", *work, err)
		}
		s.Kernel = known[0]
		s.MemMiB = *mem
	}
	return serveClient(s, in, out)
}

// fails reports whether the kernel is to misbehave so.
func (s *standIn) fails(how string) bool {
	return s.Kernel != nil && slices.Contains(strings.Split(os.Getenv(misbehave), ","), s.Name+"="+how)
}

func (s *standIn) Open(a *answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	st, err := gpusim.Open("")
	if err != nil {
		return err
	}
	var served []string
	server := 0
	switch s.mps, err = mps.Connect(ctx, os.Getenv); {
	case errors.Is(err, mps.ErrNoDaemon):
	case err != nil:
		return &cudaError{Call: "cuInit", Code: 805, Name: "CUDA_ERROR_MPS_CONNECTION_FAILED"}
	default:
		served, server = s.mps.Devices, s.mps.Server
	}
	visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if len(st.Visible(visible, set, served)) == 0 {
		return &cudaError{Call: "cuInit", Code: 100, Name: "CUDA_ERROR_NO_DEVICE"}
	}
	dev := st.Device(0)
	if server != 0 && !dev.SameUser() {
		if s.limits, err = gpusim.ParseLimits(os.Getenv(mps.MemLimitEnv), os.Getenv(mps.ThreadsEnv), 0); err != nil {
			return err
		}
	}
	a.UUID, a.TotalMiB, a.FreeMiB = dev.UUID(), dev.MemMiB(), dev.MemMiB()
	p := &rlcore.Profile{
		App: "client", DurationS: 1e6, PeriodS: 1e6, Series: []rlcore.Use{{GPU: 0.4, Core: 0.2, MemMiB: 400}},
	}
	if k := s.Kernel; k != nil {
		s.period = k.Period.Seconds()
		p.App, p.StepS = k.Name, s.period
		p.Series[0] = rlcore.Use{GPU: k.Duty, Core: k.Duty * k.SMs, MemMiB: k.MemMiB}
		if k.Copies {
			p.Series[0] = rlcore.Use{PCIeMBps: 20000}
		}
		a.Work, a.HeldMiB, a.StepMB = 7, k.MemMiB, p.Series[0].PCIeMBps*s.period
	}
	s.slot, err = dev.Claim(gpusim.Claimant{UID: os.Getuid(), Server: server, Limits: s.limits}, p)
	if s.fails("alone") {
		_ = s.mps.Close()
	}
	return err
}

// Step takes what the GPU has done meanwhile for steps: how late this process is woken changes nothing.
func (s *standIn) Step(first bool) (bool, time.Duration, error) {
	if s.fails("crash") {
		return true, 0, &cudaError{Call: "cuLaunchKernel", Code: 2, Name: "cudaErrorMemoryAllocation"}
	}
	for {
		p, err := s.slot.Progress()
		switch {
		case err != nil:
			return true, 0, err
		case p.Status == gpusim.Faulted:
			return true, 0, &cudaError{Call: "cuCtxSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"}
		case s.Kernel == nil:
			time.Sleep(2 * time.Millisecond)
			return true, 2 * time.Millisecond, nil
		case first:
			s.done, first = p.DoneS, false
		}
		left := s.done + s.period - p.DoneS
		if left <= 0 {
			s.done += s.period
			return true, s.busy(), nil
		}
		time.Sleep(time.Duration(left * p.Slowdown * float64(time.Second)))
	}
}

func (s *standIn) Fault() error {
	err := s.slot.Fault()
	if s.mps != nil {
		s.mps.Fault()
	}
	return errors.Join(&cudaError{Call: "cuCtxSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"}, err)
}

func (s *standIn) Alloc(mib float64) (float64, error) {
	if most := s.limits.MemMiB; most > 0 && mib > most {
		return most, &cudaError{Call: "cuMemAlloc", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
	}
	return mib, nil
}
