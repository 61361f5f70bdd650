package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// simClient stands in for a client on the simulated GPU. Without a daemon it computes for itself, as CUDA is thought
// to.
type simClient struct {
	mps    *mps.Client
	slot   *gpusim.Slot
	limits gpusim.Limits
	// profile is what it computes; nil = a client's of the situations.
	profile *rlcore.Profile
}

func (c *simClient) Open(a *answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	st, err := gpusim.Open("")
	if err != nil {
		return err
	}
	var served []string
	server := 0
	switch c.mps, err = mps.Connect(ctx, os.Getenv); {
	case errors.Is(err, mps.ErrNoDaemon):
	case err != nil:
		return &cudaError{Call: "cuInit", Code: 805, Name: "CUDA_ERROR_MPS_CONNECTION_FAILED"}
	default:
		served, server = c.mps.Devices, c.mps.Server
	}
	visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if len(st.Visible(visible, set, served)) == 0 {
		return &cudaError{Call: "cuInit", Code: 100, Name: "CUDA_ERROR_NO_DEVICE"}
	}
	dev := st.Device(0)
	if server != 0 && !dev.SameUser() {
		if c.limits, err = gpusim.ParseLimits(os.Getenv(mps.MemLimitEnv), os.Getenv(mps.ThreadsEnv), 0); err != nil {
			return err
		}
	}
	a.UUID, a.TotalMiB, a.FreeMiB = dev.UUID(), dev.MemMiB(), dev.MemMiB()
	p := c.profile
	if p == nil {
		p = &rlcore.Profile{
			App: "client", DurationS: 1e6, PeriodS: 1e6,
			Series: []rlcore.Use{{GPU: 0.4, Core: 0.2, MemMiB: 400}},
		}
	}
	c.slot, err = dev.Claim(gpusim.Claimant{UID: os.Getuid(), Server: server, Limits: c.limits}, p)
	return err
}

func (c *simClient) Step() (bool, time.Duration, error) {
	time.Sleep(2 * time.Millisecond)
	p, err := c.slot.Progress()
	if err == nil && p.Status == gpusim.Faulted {
		err = &cudaError{Call: "cuCtxSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"}
	}
	return true, 2 * time.Millisecond, err
}

func (c *simClient) Fault() error {
	err := c.slot.Fault()
	if c.mps != nil {
		c.mps.Fault()
	}
	return errors.Join(&cudaError{Call: "cuCtxSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"}, err)
}

func (c *simClient) Alloc(mib float64) (float64, error) {
	if most := c.limits.MemMiB; most > 0 && mib > most {
		return most, &cudaError{Call: "cuMemAlloc", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
	}
	return mib, nil
}

func (c *simClient) Close() error {
	if c.slot == nil {
		return nil
	}
	return c.slot.Release()
}
