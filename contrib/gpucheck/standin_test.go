package main

import (
	"context"
	"errors"
	"fmt"
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

// standIn stands in for a client on the simulated GPU: the checker, or a kernel, whose step is as much work as a period
// of it does alone. Without a daemon it computes for itself, as CUDA is thought to.
type standIn struct {
	Kernel
	mps    *mps.Client
	slot   *gpusim.Slot
	limits gpusim.Limits
	done   float64 // solo work up to the last step, s
}

// fails reports whether the kernel is to misbehave so.
func (s *standIn) fails(how string) bool {
	return slices.Contains(strings.Split(os.Getenv(misbehave), ","), s.Name+"="+how)
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
	if len(st.Visible(served)) == 0 {
		return &cudaError{Call: "cuInit", Code: 100, Name: "CUDA_ERROR_NO_DEVICE"}
	}
	dev := st.Device(0)
	if server != 0 && !dev.SameUser() {
		if s.limits, err = gpusim.ParseLimits(os.Getenv(mps.MemLimitEnv), os.Getenv(mps.ThreadsEnv)); err != nil {
			return err
		}
	}
	a.UUID, a.TotalMiB, a.FreeMiB = dev.UUID(), dev.MemMiB(), dev.MemMiB()
	use, period := rlcore.Use{GPU: s.Duty, Core: s.Duty * s.SMs, MemMiB: s.MemMiB}, s.Period.Seconds()
	switch s.Source {
	case "check":
		use = rlcore.Use{GPU: 0.4, Core: 0.2, MemMiB: 400}
	case "pcie":
		use = rlcore.Use{PCIeMBps: 20000}
	}
	p := &rlcore.Profile{App: s.Name, DurationS: 1e6, PeriodS: 1e6, StepS: period, Series: []rlcore.Use{use}}
	if s.Work != 0 && s.Work != 7 {
		return fmt.Errorf("work %v", s.Work)
	}
	a.Work, a.HeldMiB, a.StepMB = 7, s.MemMiB, use.PCIeMBps*period
	s.slot, err = dev.Claim(gpusim.Claimant{UID: os.Getuid(), Server: server, Limits: s.limits}, p)
	if s.fails("alone") {
		_ = s.mps.Close()
	}
	return err
}

// Step takes what the GPU has done meanwhile for steps: how late this process is woken changes nothing.
func (s *standIn) Step(first bool) (time.Duration, error) {
	if s.fails("crash") {
		return 0, &cudaError{Call: "cuLaunchKernel", Code: 2, Name: "cudaErrorMemoryAllocation"}
	}
	for {
		p, err := s.slot.Progress()
		switch {
		case err != nil:
			return 0, err
		case p.Status == gpusim.Faulted:
			return 0, &cudaError{Call: "cuCtxSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"}
		case s.Source == "check":
			time.Sleep(2 * time.Millisecond)
			return 2 * time.Millisecond, nil
		case first:
			s.done, first = p.DoneS, false
		}
		period := s.Period.Seconds()
		left := s.done + period - p.DoneS
		if left <= 0 {
			s.done += period
			return s.busy(), nil
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
